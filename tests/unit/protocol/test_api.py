"""The registry of APIs, and the framing of records in the logs of the controller and the coordinators."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tidemill.errors import ProtocolError
from tidemill.protocol.api import API_NAMES, APIS, REQUESTS, RESPONSES
from tidemill.protocol.api.coordinator_records import (
    GROUP_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    ConsumerGroupMemberMetadataValue,
    GroupMetadataKey,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tidemill.protocol.api.metadata import (
    RECORDS,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    TopicRecord,
    decode_record,
    encode_record,
)
from tidemill.protocol.schema import DataMessage, Request, Response


@pytest.mark.parametrize("api_key", APIS)
def test_the_table_agrees_with_the_classes(api_key: int) -> None:
    request, response = REQUESTS[api_key], RESPONSES[api_key]
    assert issubclass(request, Request)
    assert issubclass(response, Response)
    assert request.api_key == response.api_key == api_key
    assert request.versions == response.versions
    assert request.flexible_since == response.flexible_since == APIS[api_key].flexible_since
    assert request.latest_version_unstable == response.latest_version_unstable
    assert request.__name__ == API_NAMES[api_key] + "Request"
    assert response.__name__ == API_NAMES[api_key] + "Response"


def test_registries_are_mappings_of_the_known_keys() -> None:
    assert set(REQUESTS) == set(RESPONSES) == set(APIS)
    assert len(REQUESTS) == len(APIS)
    assert 9999 not in REQUESTS
    with pytest.raises(KeyError):
        REQUESTS[9999]


def test_message_modules_are_loaded_on_demand() -> None:
    script = (
        "import sys, tidemill.protocol.frames\n"
        "from tidemill.protocol.api import REQUESTS\n"
        "loaded = lambda: {n for n in sys.modules if n.startswith('tidemill.protocol.api.')}\n"
        "assert loaded() == set(), loaded()\n"
        "REQUESTS[3]\n"
        "assert loaded() == {'tidemill.protocol.api.cluster'}, loaded()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_metadata_record_vectors() -> None:
    topic = TopicRecord(name="t", topic_id=bytes(range(16)))
    assert encode_record(topic).hex(" ") == f"01 02 00 02 74 {bytes(range(16)).hex(' ')} 00"
    assert decode_record(encode_record(topic)) == topic
    # Frame 1, type 12, version 0: metadata.version set to 20.
    feature = bytes.fromhex("01 0c 00 11") + b"metadata.version" + bytes.fromhex("00 14 00")
    assert decode_record(feature) == FeatureLevelRecord(name="metadata.version", feature_level=20)
    change = PartitionChangeRecord(partition_id=1, topic_id=bytes(16), isr=[], leader=3)
    raw = encode_record(change, version=0)
    assert raw.hex(" ") == f"01 05 00 00 00 00 01 {'00 ' * 16}02 00 01 01 01 04 00 00 00 03"
    decoded = decode_record(memoryview(raw))
    assert decoded == change
    assert isinstance(decoded, PartitionChangeRecord)
    assert decoded.isr == []
    assert decoded.replicas is None


@pytest.mark.parametrize(
    "raw", ["", "01", "02 02 00", "01 63 00", "01 14 01", "01 14 00 00 00", "01 02 00 02"]
)
def test_a_broken_metadata_record_is_refused(raw: str) -> None:
    with pytest.raises(ProtocolError):
        decode_record(bytes.fromhex(raw))


def test_record_types_have_their_own_keys() -> None:
    assert len(RECORDS) == 26
    assert RECORDS[20] is NoOpRecord
    assert all(cls.api_key == key for key, cls in RECORDS.items())
    for table in (GROUP_RECORDS, TRANSACTION_RECORDS, SHARE_RECORDS):
        for key, types in table.items():
            assert types.key.api_key == types.value.api_key == key


def test_offset_commit_record_vector() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=2)
    assert encode_key(key).hex(" ") == "00 01 00 01 67 00 01 74 00 00 00 02"
    value = OffsetCommitValue(offset=5, leader_epoch=1, metadata="", commit_timestamp=9)
    raw = encode_value(value, version=3)
    assert raw.hex(" ") == "00 03 00 00 00 00 00 00 00 05 00 00 00 01 00 00 00 00 00 00 00 00 00 09"
    assert decode_key(GROUP_RECORDS, encode_key(key)) == key
    assert decode_value(GROUP_RECORDS, key, raw) == value
    assert decode_value(GROUP_RECORDS, key, None) is None


@pytest.mark.parametrize(
    ("table", "key", "value"),
    [
        (TRANSACTION_RECORDS, TransactionLogKey(transactional_id="x"), TransactionLogValue(producer_id=1)),
        (GROUP_RECORDS, GROUP_RECORDS[5].key(), ConsumerGroupMemberMetadataValue(client_id="c")),
    ],
)
def test_coordinator_records_in_their_newest_version(
    table: dict[int, object], key: DataMessage, value: DataMessage
) -> None:
    raw = encode_value(value)
    assert int.from_bytes(raw[:2], "big") == value.versions.max
    assert decode_value(table, key, raw) == value  # type: ignore[arg-type]


def test_an_unknown_coordinator_record_is_refused() -> None:
    with pytest.raises(ProtocolError, match="unknown type 99"):
        decode_key(GROUP_RECORDS, b"\x00\x63")
    with pytest.raises(ProtocolError):
        decode_value(GROUP_RECORDS, GroupMetadataKey(), b"\x00\x63")
