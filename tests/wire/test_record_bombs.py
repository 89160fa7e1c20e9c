"""A few kilobytes that hold very many records: refused or worked off beside other requests, which do not wait for them."""

from __future__ import annotations

import select

import cramjam
import pytest

from tests.brokers import RunningBroker, eventually
from tests.wire import messages
from tests.wire.batches import NOW_MS, Header, encode
from tests.wire.connection import Connection, produce_fields

INVALID_RECORD = 87
INVALID_TIMESTAMP = 32
ZSTD = 4
# Length 6; attributes, timestamp delta, offset delta, no key, no value, no headers.
TINY_RECORD = b"\x0c\0\0\0\x01\x01\0"
FAR_MS = NOW_MS + 10 * 86_400_000
HALF_AN_HOUR_MS = 1_800_000
DEFAULT: dict[str, str] = {}
CONFIGS = {
    "default": DEFAULT,
    "compacted": {"cleanup.policy": "compact"},
    "recompressing": {"compression.type": "gzip"},
    "with a limit on age": {"message.timestamp.before.max.ms": "60000"},
}


def bomb(count: int, max_timestamp_ms: int = FAR_MS, **fields: int) -> bytes:
    payload = bytes(cramjam.zstd.compress(TINY_RECORD * count))
    header = Header(
        attributes=ZSTD,
        count=count,
        last_offset_delta=count - 1,
        max_timestamp_ms=max_timestamp_ms,
        **fields,
    )
    return encode([], header, payload=payload)


@pytest.mark.parametrize("config", CONFIGS)
def test_eight_million_records_in_five_kilobytes_are_refused(
    connection: Connection, topic: str, config: str
) -> None:
    connection.create_topic(topic, configs=CONFIGS[config])
    batch = bomb(8_000_000)
    assert len(batch) < 10_000
    assert connection.produce(topic, batch).error_code == INVALID_RECORD
    assert connection.end_offset(topic) == 0


def test_an_answer_names_few_of_the_records_that_are_to_blame(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    refused = connection.produce(topic, encode([b"x"] * 5_000, Header(base_timestamp_ms=FAR_MS)))
    assert refused.error_code == INVALID_TIMESTAMP
    assert len(refused.record_errors) == 100
    assert "5000 are older or newer" in refused.error_message


def _answered_meanwhile(innocent: Connection, busy: Connection, topic: str) -> int:
    """How many requests of one connection were answered while another waited for its answer."""
    count = 0
    while not select.select([busy.socket], [], [], 0)[0]:
        assert innocent.produce(topic, encode([b"x"])).error_code == 0
        count += 1
    return count


@pytest.mark.parametrize("config", CONFIGS)
def test_others_are_served_while_a_dense_batch_is_looked_into(
    target: RunningBroker, connection: Connection, topic: str, config: str
) -> None:
    connection.create_topic(topic, configs=CONFIGS[config])
    connection.create_topic(f"{topic}-other")
    with Connection(target) as busy:
        number = busy.start("produce", 9, **produce_fields(topic, bomb(100_000), 0, -1))
        assert _answered_meanwhile(connection, busy, f"{topic}-other") > 5
        busy.finish("produce", 9, number)


def test_a_client_does_not_wait_for_all_batches_of_another_that_are_looked_into(
    target: RunningBroker, connection: Connection, topic: str
) -> None:
    """Not even when that other one waits for no response."""
    count, records = 15, 100_000
    for name in (topic, f"{topic}-other"):
        connection.create_topic(name, configs={"compression.type": "gzip"})
    with Connection(target) as busy:
        busy.send(
            messages.request("produce", 9, **produce_fields(topic, bomb(records, NOW_MS), 0, 0)) * count
        )
        eventually(lambda: connection.end_offset(topic) > 0, "the first batch")
        assert connection.produce(f"{topic}-other", encode([b"x" * 30_000])).error_code == 0
        assert connection.end_offset(topic) < count * records
        eventually(lambda: connection.end_offset(topic) == count * records, "all batches", limit_s=120)


def test_others_are_served_while_a_time_is_searched_in_a_dense_batch(
    target: RunningBroker, connection: Connection, topic: str
) -> None:
    """Its header says that there is a record of that time, so all of them are looked at."""
    connection.create_topic(topic)
    connection.create_topic(f"{topic}-other")
    batch = bomb(100_000, NOW_MS + HALF_AN_HOUR_MS)
    assert connection.produce(topic, batch).error_code == 0
    with Connection(target) as busy:
        partitions = [{"partition_index": 0, "timestamp": NOW_MS + 1}]
        topics = [{"name": topic, "partitions": partitions}]
        number = busy.start("list_offsets", 7, replica_id=-1, isolation_level=0, topics=topics)
        assert _answered_meanwhile(connection, busy, f"{topic}-other") > 5
        answer = busy.finish("list_offsets", 7, number).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (0, -1)


def test_batches_of_a_producer_keep_their_order_behind_one_that_is_looked_into(
    connection: Connection, topic: str
) -> None:
    connection.create_topic(topic, configs={"compression.type": "gzip"})
    producer = {"producer_id": 77, "producer_epoch": 0}
    dense = bomb(20_000, NOW_MS, base_sequence=0, **producer)
    small = [encode([b"x"], Header(base_sequence=20_000 + number, **producer)) for number in range(3)]
    numbers = [
        connection.start("produce", 9, **produce_fields(topic, batch, 0, -1)) for batch in [dense, *small]
    ]
    answers = [connection.finish("produce", 9, number) for number in numbers]
    parts = [answer.responses[0].partition_responses[0] for answer in answers]
    assert [(part.error_code, part.base_offset) for part in parts] == [
        (0, 0),
        (0, 20_000),
        (0, 20_001),
        (0, 20_002),
    ]
