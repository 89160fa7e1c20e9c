"""Batches that a producer should never send. Each is refused with the error that Apache Kafka gives, and nothing of it
is stored. The next good batch on the same connection gets the next offset.
"""

from __future__ import annotations

import gzip

import cramjam
import pytest

from tests.brokers import RunningBroker
from tests.wire.batches import CONTROL, NOW_MS, TRANSACTIONAL, Header, Record, encode, encode_records
from tests.wire.connection import Connection, read_all

CORRUPT_MESSAGE = 2
MESSAGE_TOO_LARGE = 10
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_TIMESTAMP = 32
INVALID_RECORD = 87

THREE = [b"a", b"b", b"c"]
GOOD = encode(THREE)
LENGTH = len(GOOD) - 12
TWO_HOURS_MS = 7_200_000
UNCOMPRESSED = encode_records([Record(value) for value in THREE])


def with_time(timestamp_ms: int) -> bytes:
    return encode(THREE, Header(base_timestamp_ms=timestamp_ms, max_timestamp_ms=timestamp_ms))


REFUSED: dict[str, tuple[bytes, int]] = {
    "wrong crc": (encode(THREE, Header(crc=1)), CORRUPT_MESSAGE),
    "one bit flipped in a record": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), CORRUPT_MESSAGE),
    "magic 0": (encode(THREE, Header(magic=0)), INVALID_RECORD),
    "magic 1": (encode(THREE, Header(magic=1)), INVALID_RECORD),
    "magic 3": (encode(THREE, Header(magic=3)), CORRUPT_MESSAGE),
    "magic -1": (encode(THREE, Header(magic=-1)), CORRUPT_MESSAGE),
    "count 0": (encode(THREE, Header(count=0)), INVALID_RECORD),
    "count -1": (encode(THREE, Header(count=-1)), INVALID_RECORD),
    "count too small": (encode(THREE, Header(count=2)), INVALID_RECORD),
    "count too large": (encode(THREE, Header(count=4)), INVALID_RECORD),
    "count of a billion": (encode(THREE, Header(count=1_000_000_000)), INVALID_RECORD),
    "last offset before the first": (encode(THREE, Header(last_offset_delta=-1)), INVALID_RECORD),
    "last offset too small": (encode(THREE, Header(last_offset_delta=1)), INVALID_RECORD),
    "last offset too large": (encode(THREE, Header(last_offset_delta=1_000_000_000)), INVALID_RECORD),
    "no records": (encode([]), INVALID_RECORD),
    "length 0": (encode(THREE, Header(length=0)), CORRUPT_MESSAGE),
    "length negative": (encode(THREE, Header(length=-1)), CORRUPT_MESSAGE),
    "length smallest": (encode(THREE, Header(length=-(2**31))), CORRUPT_MESSAGE),
    "length shorter than a header": (encode(THREE, Header(length=48)), CORRUPT_MESSAGE),
    "length one short": (encode(THREE, Header(length=LENGTH - 1)), CORRUPT_MESSAGE),
    "length one more than there is": (encode(THREE, Header(length=LENGTH + 1)), INVALID_RECORD),
    "length far more than there is": (encode(THREE, Header(length=LENGTH + 1000)), INVALID_RECORD),
    "cut in the header": (GOOD[:40], INVALID_RECORD),
    "cut in the records": (GOOD[:-1], INVALID_RECORD),
    "nothing": (b"", INVALID_RECORD),
    "two batches": (GOOD + GOOD, INVALID_RECORD),
    "garbage after the batch": (GOOD + b"x" * 100, CORRUPT_MESSAGE),
    "two hours in the future": (with_time(NOW_MS + TWO_HOURS_MS), INVALID_TIMESTAMP),
    "the last moment of time": (with_time(2**63 - 1), INVALID_TIMESTAMP),
    "a control batch": (encode(THREE, Header(attributes=CONTROL)), INVALID_RECORD),
    "a producer without a sequence": (
        encode(THREE, Header(producer_id=1, producer_epoch=0, base_sequence=-1)),
        INVALID_RECORD,
    ),
    "larger than allowed": (encode([b"x" * 1_100_000]), MESSAGE_TOO_LARGE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_batch_is_rejected_and_not_stored(connection: Connection, topic: str, name: str) -> None:
    batch, error = REFUSED[name]
    connection.create_topic(topic)
    assert connection.produce(topic, encode([b"before"])).base_offset == 0
    refused = connection.produce(topic, batch)
    assert (refused.error_code, refused.base_offset) == (error, -1)
    assert connection.end_offset(topic) == 1
    assert connection.produce(topic, encode([b"after"])).base_offset == 1
    assert [value for batch in connection.read(topic, 0) for value in batch.values()] == [b"before", b"after"]


# Apache Kafka says UNKNOWN_SERVER_ERROR or, for a transaction without an id, an authorisation error: any error will do.
REFUSED_SOMEHOW: dict[str, bytes] = {
    "compression 5": encode(THREE, Header(attributes=5)),
    "compression 7": encode(THREE, Header(attributes=7)),
    "length 2 GB": encode(THREE, Header(length=2**31 - 1)),
    "transactional without a producer": encode(THREE, Header(attributes=TRANSACTIONAL)),
    "transactional of an unknown producer": encode(
        THREE, Header(attributes=TRANSACTIONAL, producer_id=5, producer_epoch=0, base_sequence=0)
    ),
}


@pytest.mark.parametrize("name", REFUSED_SOMEHOW)
def test_malformed_produce_is_rejected(connection: Connection, topic: str, name: str) -> None:
    connection.create_topic(topic)
    refused = connection.produce(topic, REFUSED_SOMEHOW[name])
    assert refused.error_code != 0
    assert connection.produce(topic, encode([b"after"])).base_offset == 0


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_garbage_that_claims_to_be_compressed_is_refused_by_a_topic_that_recompresses(
    connection: Connection, topic: str, codec: int
) -> None:
    """Elsewhere records are not looked at, as they are not decompressed on their way to the disk."""
    connection.create_topic(topic, configs={"compression.type": "gzip" if codec == 4 else "zstd"})
    assert connection.produce(topic, encode(THREE, Header(attributes=codec))).error_code != 0
    assert connection.end_offset(topic) == 0
    compressed = encode(THREE, Header(attributes=1), payload=gzip.compress(UNCOMPRESSED))
    assert connection.produce(topic, compressed).error_code == 0
    assert connection.end_offset(topic) == 3


def test_a_compression_bomb_is_refused_by_a_topic_that_recompresses(
    connection: Connection, topic: str
) -> None:
    """A few kilobytes that would become two gigabytes; the health check looks at the memory."""
    connection.create_topic(topic, configs={"compression.type": "gzip"})
    bomb = 40 * bytes(cramjam.zstd.compress(bytes(50_000_000)))
    assert connection.produce(topic, encode(THREE, Header(attributes=4), payload=bomb)).error_code != 0
    assert connection.end_offset(topic) == 0


NO_RECORDS = {
    "zeros": bytes(1000),
    "ones": b"\xff" * 1000,
    "a record cut short": UNCOMPRESSED[:-3],
    "bytes after the last record": UNCOMPRESSED + bytes(3),
}


@pytest.mark.parametrize("content", NO_RECORDS)
def test_compressed_bytes_that_are_no_records_are_refused_by_a_topic_that_recompresses(
    connection: Connection, topic: str, content: str
) -> None:
    connection.create_topic(topic, configs={"compression.type": "zstd"})
    batch = encode(THREE, Header(attributes=1), payload=gzip.compress(NO_RECORDS[content]))
    assert connection.produce(topic, batch).error_code != 0
    assert connection.end_offset(topic) == 0


def test_zstd_needs_a_client_that_knows_it(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    refused = connection.produce(topic, encode(THREE, Header(attributes=4)), version=3)
    assert refused.error_code == UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize(
    "timestamp_ms", [0, -1, NOW_MS - TWO_HOURS_MS], ids=["zero", "none", "two hours ago"]
)
def test_an_old_timestamp_is_taken(connection: Connection, topic: str, timestamp_ms: int) -> None:
    connection.create_topic(topic)
    assert connection.produce(topic, with_time(timestamp_ms)).error_code == 0
    (batch,) = connection.read(topic, 0)
    assert batch.max_timestamp_ms == timestamp_ms


def test_a_leader_epoch_from_the_producer_is_overwritten(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    assert connection.produce(topic, encode(THREE, Header(leader_epoch=99))).error_code == 0
    (batch,) = connection.read(topic, 0)
    assert batch.leader_epoch == 0


def test_one_bad_partition_does_not_spoil_the_others(connection: Connection, topic: str) -> None:
    connection.create_topic(topic, partitions=3)
    data = [
        {"index": 0, "records": encode([b"zero"])},
        {"index": 1, "records": encode([b"one"], Header(crc=1))},
        {"index": 2, "records": encode([b"two"])},
    ]
    response = connection.request(
        "produce", 9, acks=-1, timeout=20_000, topic_data=[{"name": topic, "partition_data": data}]
    )
    answers = {one.index: one.error_code for one in response.responses[0].partition_responses}
    assert answers == {0: 0, 1: CORRUPT_MESSAGE, 2: 0}
    assert connection.read(topic, 0, partition=2)[0].values() == [b"two"]


def test_failure_24_a_refused_append_does_not_block_the_next(connection: Connection, topic: str) -> None:
    """Every kind of refusal, in turn, on one partition: the partition stays usable."""
    connection.create_topic(topic)
    for number, (batch, _) in enumerate(REFUSED.values()):
        assert connection.produce(topic, batch).error_code != 0
        assert connection.produce(topic, encode([b"%d" % number])).base_offset == number


def test_failure_15_a_flipped_bit_is_never_stored(
    connection: Connection, topic: str, target: RunningBroker
) -> None:
    """Any single bit of the checked part of a batch: all are found."""
    connection.create_topic(topic)
    for at in range(17, len(GOOD)):
        damaged = GOOD[:at] + bytes([GOOD[at] ^ 1 << at % 8]) + GOOD[at + 1 :]
        assert connection.produce(topic, damaged).error_code == CORRUPT_MESSAGE, at
    connection.produce(topic, GOOD)
    assert [value for batch in read_all(target, topic) for value in batch.values()] == THREE
