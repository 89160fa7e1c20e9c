"""Declaring messages, and what decode and encode promise."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from typing import Annotated

import pytest

from tidemill.errors import ProtocolError
from tidemill.protocol.api.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from tidemill.protocol.api.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    LeaderIdAndEpoch,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from tidemill.protocol.api.transactions import InitProducerIdRequest
from tidemill.protocol.schema import (
    Bytes,
    DataMessage,
    Int8,
    Int32,
    NullableSince,
    Since,
    String,
    Struct,
    Tag,
    Until,
    Uuid,
    decode,
    decode_exact,
    decode_from,
    encode,
    encode_into,
    field,
    replace,
)


class Point(Struct):
    x: Int32 = 0
    y: Int32 = 0


class Sample(DataMessage, api_key=7, versions=(0, 3), flexible=2):
    name: Annotated[String | None, NullableSince(1)] = ""
    old: Annotated[Int8, Until(1)] = -1
    new: Annotated[Int8, Since(1)] = -1
    uuid: Annotated[Uuid, Since(3)] = bytes(16)
    points: list[Point] = field(default_factory=list)
    second: Annotated[Int32, Since(2), Tag(1)] = 5
    first: Annotated[Bytes | None, Since(2), Tag(0)] = None
    origin: Annotated[Point | None, Since(3), Tag(200 - 100)] = None


def test_fields_come_and_go_with_versions() -> None:
    message = Sample(name="ab", old=1, new=2, points=[Point(x=3, y=4)])
    point = "00 00 00 03 00 00 00 04"
    assert encode(message, 0).hex(" ") == f"00 02 61 62 01 00 00 00 01 {point}"
    assert encode(message, 1).hex(" ") == f"00 02 61 62 01 02 00 00 00 01 {point}"
    assert encode(message, 2).hex(" ") == f"03 61 62 02 02 {point} 00 00"
    assert decode(Sample, 0, encode(message, 0)) == replace(message, new=-1)
    assert decode(Sample, 2, encode(message, 2)) == replace(message, old=-1)


def test_tagged_fields_are_written_when_not_default_and_in_order() -> None:
    assert encode(Sample(second=5, first=None), 2).hex(" ") == "01 ff 01 00"
    tagged = Sample(second=6, first=b"z")
    assert encode(tagged, 2).hex(" ") == "01 ff 01 02 00 02 02 7a 01 04 00 00 00 06"
    assert decode_exact(Sample, 2, encode(tagged, 2)) == tagged


def test_a_nullable_struct_has_a_marker() -> None:
    message = Sample(origin=Point(x=1))
    raw = encode(message, 3)
    assert raw.hex(" ") == f"01 ff {'00 ' * 16}01 01 64 0a 01 00 00 00 01 00 00 00 00 00"
    assert decode_exact(Sample, 3, raw) == message


def test_unknown_tagged_fields_are_skipped() -> None:
    raw = bytes.fromhex("01 ff 01 03  00 02 02 7a  01 04 00 00 00 06  63 03 61 62 63")
    assert decode_exact(Sample, 2, raw) == Sample(first=b"z", second=6)


@pytest.mark.parametrize("size", ["03", "05", "00"])
def test_a_tagged_field_of_the_wrong_size_is_refused(size: str) -> None:
    with pytest.raises(ProtocolError):
        decode(Sample, 2, bytes.fromhex(f"01 ff 01 01 01 {size} 00 00 00 06 00 00"))


def test_null_only_where_the_version_allows_it() -> None:
    assert encode(Sample(name=None, new=0), 1).hex(" ") == "ff ff ff 00 00 00 00 00"
    with pytest.raises(ValueError, match="name may not be null in version 0"):
        encode(Sample(name=None), 0)
    with pytest.raises(ProtocolError, match="name: null"):
        decode(Sample, 0, bytes.fromhex("ff ff 00 00 00 00 00"))
    assert decode(Sample, 1, bytes.fromhex("ff ff 00 00 00 00 00 00")).name is None


def test_negative_lengths_other_than_null_are_refused() -> None:
    with pytest.raises(ProtocolError, match="length -2"):
        decode(Sample, 1, bytes.fromhex("ff fe 00 00 00 00 00 00"))
    with pytest.raises(ProtocolError, match="points"):
        decode(Sample, 1, bytes.fromhex("00 00 00 00 ff ff ff ff"))


def test_a_huge_array_is_refused_before_anything_is_allocated() -> None:
    raw = bytes.fromhex("00 00 00 7f ff ff ff") + bytes(1000)
    decode(Sample, 0, encode(Sample(), 0))
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="an array of 2147483647 elements"):
            decode(Sample, 0, raw)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_the_limit_of_an_array_counts_the_smallest_element() -> None:
    # 100 announced points of 8 bytes need 800; 799 are there.
    with pytest.raises(ProtocolError, match="points: length 100 with 799"):
        decode(Sample, 0, bytes.fromhex("00 00 00 00 00 00 64") + bytes(799))


def test_invalid_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError):
        decode(Sample, 0, bytes.fromhex("00 01 ff 00 00 00 00 00"))


def test_versions_outside_of_the_range() -> None:
    with pytest.raises(ProtocolError, match="Sample has no version 4, only 0 to 3"):
        decode(Sample, 4, b"")
    with pytest.raises(ValueError, match="no version -1"):
        encode(Sample(), -1)


def test_values_that_do_not_fit_are_value_errors() -> None:
    with pytest.raises(ValueError, match="Sample v1"):
        encode(Sample(new=128), 1)
    with pytest.raises(ValueError, match="16 bytes, not 3"):
        encode(Sample(uuid=b"abc"), 3)
    with pytest.raises(ValueError, match="Sample v0"):
        encode(Sample(name="x" * 32768), 0)


def test_strings_have_the_same_limit_in_flexible_versions() -> None:
    longest = Sample(name="x" * 32767)
    assert decode_exact(Sample, 2, encode(longest, 2)) == longest
    with pytest.raises(ValueError, match="32768"):
        encode(Sample(name="x" * 32768), 2)
    with pytest.raises(ProtocolError, match="32768"):
        decode(Sample, 2, b"\x81\x80\x02" + bytes(40_000))


def test_decode_ignores_what_follows_and_decode_exact_does_not() -> None:
    raw = encode(Sample(), 0)
    assert decode(Sample, 0, raw + b"more") == Sample()
    assert decode_from(Sample, 0, bytearray(b"##" + raw + b"more"), 2) == (Sample(), 2 + len(raw))
    with pytest.raises(ProtocolError, match="4 bytes too many"):
        decode_exact(Sample, 0, raw + b"more")


def test_encode_into_appends() -> None:
    out = bytearray(b"head")
    encode_into(Sample(), 0, out)
    assert bytes(out) == b"head" + encode(Sample(), 0)


def test_records_are_not_copied() -> None:
    message = ProduceRequest(
        acks=-1,
        topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(records=b"batch")])],
    )
    received = bytearray(encode(message, 9))
    records = decode(ProduceRequest, 9, memoryview(received)).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert bytes(records) == b"batch"
    received[received.index(b"batch")] = ord("B")
    assert bytes(records) == b"Batch"


def test_records_may_be_any_bytes() -> None:
    for records in (b"batch", bytearray(b"batch"), memoryview(b"xbatch")[1:]):
        partition = PartitionProduceData(records=records)
        message = ProduceRequest(topic_data=[TopicProduceData(partition_data=[partition])])
        assert encode(message, 3).endswith(b"\x00\x00\x00\x05batch")


def test_instances_behave_like_values() -> None:
    message = FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])
    assert message == FetchTopic(topic="t", partitions=[FetchPartition(partition=1)])
    assert message != FetchTopic(topic="t", partitions=[FetchPartition(partition=2)])
    assert message != "t"
    assert FetchPartition(partition=1) != Point(x=1)
    assert repr(Point(x=1)) == "Point(x=1, y=0)"
    assert copy.deepcopy(message) == message
    assert pickle.loads(pickle.dumps(message)) == message
    assert replace(Point(x=1), y=2) == Point(x=1, y=2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(message)
    with pytest.raises(AttributeError):
        message.topics = []  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="nonsense"):
        FetchTopic(nonsense=1)  # type: ignore[call-arg]


def test_defaults_are_not_shared() -> None:
    FetchTopic().partitions.append(FetchPartition())
    assert FetchTopic().partitions == []
    raw = encode(
        ProduceResponse(responses=[TopicProduceResponse(partition_responses=[PartitionProduceResponse()])]), 3
    )
    first, second = (decode(ProduceResponse, 3, raw).responses[0].partition_responses[0] for _ in range(2))
    first.current_leader.leader_id = 9
    assert second.current_leader == LeaderIdAndEpoch()


def test_a_field_without_a_default_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="no default for x"):

        class Broken(Struct):
            x: Int32


def test_a_struct_with_fields_cannot_be_extended() -> None:
    with pytest.raises(TypeError, match="cannot be extended"):

        class Point3(Point):
            z: Int32 = 0


def test_class_attributes() -> None:
    assert FetchRequest.api_key == 1
    assert FetchRequest.versions == (4, 18)
    assert 18 in FetchRequest.versions
    assert 19 not in FetchRequest.versions
    assert FetchRequest.flexible_since == 12
    assert not FetchRequest.is_flexible(11)
    assert not FetchRequest.latest_version_unstable
    assert InitProducerIdRequest.latest_version_unstable


# --- whole messages, put together by hand from the protocol guide -----------------------------------------


def test_metadata_request_vectors() -> None:
    one = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
    assert encode(one, 0).hex(" ") == "00 00 00 01 00 01 74"
    assert encode(one, 4).hex(" ") == "00 00 00 01 00 01 74 00"
    assert encode(one, 8).hex(" ") == "00 00 00 01 00 01 74 00 00 00"
    assert encode(one, 12).hex(" ") == f"02 {'00 ' * 16}02 74 00 00 00 00"
    everything = MetadataRequest(topics=None)
    assert encode(everything, 1).hex(" ") == "ff ff ff ff"
    assert encode(everything, 12).hex(" ") == "00 01 00 00"


def test_api_versions_response_vectors() -> None:
    response = ApiVersionsResponse(
        api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)], finalized_features_epoch=9
    )
    assert encode(response, 0).hex(" ") == "00 00 00 00 00 01 00 12 00 00 00 04"
    assert encode(response, 1).hex(" ") == "00 00 00 00 00 01 00 12 00 00 00 04 00 00 00 00"
    assert encode(response, 3).hex(" ") == (
        "00 00 02 00 12 00 00 00 04 00 00 00 00 00 01 01 08 00 00 00 00 00 00 00 09"
    )


def test_metadata_response_vector() -> None:
    raw = bytes.fromhex(
        "00 00 00 01"  # one broker
        "00 00 00 05 00 01 68 00 00 23 84"  # node 5 at h:9092
        "00 00 00 01"  # one topic
        "00 03 00 01 74 00 00 00 00"  # unknown topic t, no partitions
    )
    response = decode_exact(MetadataResponse, 0, raw)
    assert [(broker.node_id, broker.host, broker.port) for broker in response.brokers] == [(5, "h", 9092)]
    assert [(topic.error_code, topic.name, topic.partitions) for topic in response.topics] == [(3, "t", [])]
    assert response.controller_id == -1
    assert encode(response, 0) == raw
