"""Delayed records that wait: their listing, and their delivery when the leader dies in the middle of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.broker.replica_world import TOPIC, TOPIC_ID, World, produced
from tests.wire.batches import Batch, parse_fetched
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tidemill.protocol.isolation import READ_COMMITTED, READ_WAITING
from tidemill.protocol.records import Header, Record, build_batch

MakeWorld = Callable[..., World]
DELAY_S = 10


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Three replicas of a partition with one ordinary record and one that waits."""
    world = make_world(3)
    world.start()
    world.create_topic(tidemill_delays_enable="true")
    world.settle()
    delayed = [Header("tidemill-delay", b"%ds" % DELAY_S)]
    batch = build_batch([Record(0, 0, b"k", b"now"), Record(1, 0, b"k", b"later", delayed)])
    data = PartitionProduceData(index=0, records=bytes(batch))
    topic = TopicProduceData(topic_id=TOPIC_ID, name=TOPIC, partition_data=[data])
    answer = world.ask(1, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]))
    world.until(lambda: answer.is_there, "an ack")
    assert produced(answer).error_code == ErrorCode.NONE
    world.settle()
    return world


def fetch(
    world: World, broker_id: int, isolation_level: int = READ_COMMITTED
) -> tuple[ErrorCode, list[Batch]]:
    wanted = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic_id=TOPIC_ID, partitions=[wanted])
    request = FetchRequest(topics=[topic], isolation_level=isolation_level, max_bytes=1 << 20)
    answer = world.ask(broker_id, request)
    world.until(lambda: answer.is_there, "an answer to a fetch")
    partition = answer.response.responses[0].partitions[0]
    return ErrorCode(partition.error_code), parse_fetched(bytes(partition.records or b""))


def values(batches: list[Batch]) -> list[bytes | None]:
    return [record.value for batch in batches for record in batch.records()]


def test_leader_lists_what_waits_and_nothing_else(world: World) -> None:
    error, batches = fetch(world, 1, READ_COMMITTED | READ_WAITING)
    assert (error, values(batches)) == (ErrorCode.NONE, [b"later"])
    assert values(fetch(world, 1)[1]) == [b"now"]


def test_follower_refuses_to_list_what_waits(world: World) -> None:
    error, batches = fetch(world, 2, READ_COMMITTED | READ_WAITING)
    assert (error, batches) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, [])
    assert values(fetch(world, 2)[1]) == [b"now"], "it serves readers"


@pytest.mark.parametrize(
    "is_copied", [True, False], ids=["followers have the copy", "followers lack the copy"]
)
def test_failure_29_leader_that_dies_between_append_and_ack_of_a_copy_leaves_one_delivery(
    world: World, is_copied: bool
) -> None:
    world.settle(DELAY_S - 5)
    if not is_copied:
        world.cut_off(1)
    world.until(lambda: world[1].log.log_end_offset == 3, "the leader has appended the copy")
    if is_copied:
        world.until(lambda: world[2].log.log_end_offset == 3, "a follower has the copy")
    assert world[2].high_watermark < 3
    world.kill(1)
    world.heal()
    world.change(leader=2, isr=[2, 3])
    world.settle(DELAY_S)
    assert values(fetch(world, 2)[1]) == [b"now", b"later"]
    assert values(fetch(world, 2, READ_COMMITTED | READ_WAITING)[1]) == []
