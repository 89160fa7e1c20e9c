"""A replicated topic with batches that cannot be decoded: requests that need their records fail, the brokers go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.poisoned import poisoned
from tests.unit.broker.replica_world import (
    TOPIC,
    TOPIC_ID,
    World,
    latest,
    produced,
    write,
)
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import PartitionProduceData, ProduceRequest, TopicProduceData

# So that no topic finds their timestamps too new.
POISONED = poisoned(base_ms=1)
SEARCHED_MS = 1_000
NEWEST = -3
# As Kafka: what does not decompress is no record yet.
NOT_DECOMPRESSED = [f"{codec}: no codec's bytes" for codec in ("gzip", "snappy", "lz4", "zstd")]


def _produce(world: World, batch: bytes) -> Any:
    data = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(topic_id=TOPIC_ID, name=TOPIC, partition_data=[data])
    answer = world.ask(1, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]))
    world.until(lambda: answer.is_there, "an answer")
    return produced(answer)


@pytest.mark.parametrize("name", POISONED)
def test_a_time_search_that_meets_it_fails_and_no_broker_stops(
    make_world: Callable[..., World], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = make_world(3)
    world.start()
    world.create_topic()
    assert _produce(world, POISONED[name]).error_code == ErrorCode.NONE
    expected = ErrorCode.UNKNOWN_SERVER_ERROR if name in NOT_DECOMPRESSED else ErrorCode.INVALID_RECORD
    with caplog.at_level(logging.WARNING):
        for timestamp in (SEARCHED_MS, NEWEST, SEARCHED_MS):
            assert ErrorCode(latest(world, 1, timestamp=timestamp).error_code) is expected
    assert [host.fatal for host in world.hosts.values()] == [[], [], []]
    (line,) = caplog.records
    assert "encoded wrongly" in line.message
    assert "offset 0" in line.message
    assert write(world, 1, b"sound") == 3
    assert latest(world, 1).offset == 4


def test_a_time_search_that_meets_damage_still_stops_the_broker(make_world: Callable[..., World]) -> None:
    """One byte of the records is another than was written: the checksum tells it from a client's fault."""
    world = make_world(3)
    world.start()
    world.create_topic()
    assert _produce(world, POISONED["gzip: no codec's bytes"]).error_code == ErrorCode.NONE
    segment = world[1].log.segments[0]
    world[1].disk.flip_bit(segment.path_of("log"), 100, 1)
    assert latest(world, 1, timestamp=SEARCHED_MS).error_code == ErrorCode.KAFKA_STORAGE_ERROR
    (fatal,) = world[1].fatal
    assert "is damaged" in fatal
