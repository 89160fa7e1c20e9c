"""The batches that `make diff-kafka` sends: read back by kio, which shares no code with them."""

from __future__ import annotations

import time
import uuid

import pytest
from bench.diff.batches import CODECS, T0_MS, Record, batch, describe, records
from bench.diff.messages import encode
from bench.diff.normalise import Facts, normalise
from kio.records.readers import read_batch


def test_kio_reads_a_batch() -> None:
    data = batch([Record(b"v", b"k", (("h", None),)), Record(None, None)], producer_id=5, base_sequence=9)
    parsed, size = read_batch(data, 0)
    assert size == len(data)
    assert (parsed.producer_id, parsed.base_sequence) == (5, 9)
    assert [(r.key, r.value) for r in parsed.records] == [(b"k", b"v"), (None, None)]


@pytest.mark.parametrize("codec", CODECS)
def test_describe_reads_what_batch_wrote(codec: str) -> None:
    shown = describe(batch(records(3, size=70_000), codec=codec))
    assert len(shown) == 1
    assert shown[0]["crc_is_right"]
    assert shown[0]["codec"] == codec
    assert shown[0]["max_timestamp"] == T0_MS + 2000
    assert [line.split(":")[0] for line in shown[0]["records"]] == ["0", "1", "2"]


def test_describe_sees_a_wrong_checksum_and_what_was_cut_off() -> None:
    data = batch(records(1), crc=1)
    shown = describe(data + data[:20])
    assert not shown[0]["crc_is_right"]
    assert shown[1] == {"bytes_left_over": 20}


def test_a_field_that_no_version_has_is_a_mistake() -> None:
    with pytest.raises(ValueError, match=r"topics\.nam"):
        encode("metadata", 12, {"topics": [{"nam": "x"}]}, 1, "test")


def test_values_that_must_differ_are_normalised_and_no_others() -> None:
    topic_id, stranger = uuid.uuid4(), uuid.uuid4()
    facts = Facts(node_id=1, prefix="run-", topic_names={topic_id: "run-x"}, producer_ids={4: "<producer>"})
    tree = {
        "throttle_time": 3,
        "leader_id": 1,
        "replica_nodes": [1, 2],
        "name": "run-x",
        "topic_id": topic_id,
        "ids": [stranger],
        "error_message": "no",
        "log_append_time": int(time.time() * 1000),
        "producer_id": 4,
        "offset": 1,
    }
    assert normalise(tree, facts) == {
        "leader_id": "<node>",
        "replica_nodes": ["<node>", 2],
        "name": "~x",
        "topic_id": "<id of ~x>",
        "ids": [str(stranger)],
        "error_message": "<text> no",
        "log_append_time": "<now>",
        "producer_id": "<producer>",
        "offset": 1,
    }
