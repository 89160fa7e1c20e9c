"""Brokers of a topic that gets fewer partitions, and more again: old logs, and metadata that arrives late."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from tests.unit.broker.replica_world import TOPIC, TOPIC_ID, World, produce, produced
from tidemill.broker.partitions.replicas import Replicas
from tidemill.config import (
    PARTITIONS_ACTIVE,
    PARTITIONS_DIVISORS,
    PARTITIONS_EPOCHS,
    PARTITIONS_FORMER,
    PARTITIONS_TOTAL,
)
from tidemill.controller.difference import difference
from tidemill.controller.image import MetadataImage
from tidemill.errors import ErrorCode
from tidemill.protocol.api.metadata import ConfigRecord, PartitionChangeRecord, PartitionRecord

MakeWorld = Callable[..., World]
FIRST_EPOCH = 6


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    """Two partitions on three brokers, led by broker 1. The second one has a record."""
    world = make_world()
    world.start()
    world.create_topic(partitions=2)
    world.settle()
    answer = produce(world, 1, b"old", index=1)
    world.until(lambda: answer.is_there, "the ack")
    world.until(lambda: ends(world, 1) == [1, 1, 1], "copies on all brokers")
    return world


def ends(world: World, index: int) -> list[int]:
    return [end(world, broker_id, index) for broker_id in (1, 2, 3) if world[broker_id].is_up]


def end(world: World, broker_id: int, index: int) -> int:
    log = world[broker_id].partition(index).log
    assert log is not None
    return log.log_end_offset


def setting(name: str, value: str | None) -> ConfigRecord:
    return ConfigRecord(resource_type=2, resource_name=TOPIC, name=name, value=value)


def shrink(world: World, to: Iterable[int] | None = None) -> None:
    world.publish(
        setting(PARTITIONS_ACTIVE, "1"),
        setting(PARTITIONS_DIVISORS, "1"),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=1),
        to=to,
    )


def replace_second_partition(world: World, leader: int, to: Iterable[int] = ()) -> None:
    """Remove the second partition, and add one under its number."""
    world.publish(
        setting(PARTITIONS_TOTAL, "1"),
        setting(PARTITIONS_EPOCHS, f"1:{FIRST_EPOCH - 1}"),
        setting(PARTITIONS_FORMER, "2"),
        setting(PARTITIONS_TOTAL, None),
        to=to,
    )
    world.publish(
        PartitionRecord(
            partition_id=1,
            topic_id=TOPIC_ID,
            replicas=[1, 2, 3],
            isr=[1, 2, 3],
            leader=leader,
            leader_epoch=FIRST_EPOCH,
        ),
        to=to,
    )


def follow_snapshot(world: World, before: MetadataImage) -> None:
    """Let all brokers that are up go from an image to the present one without the records between them."""
    for broker_id in world.hosts:
        world.deliver(broker_id, difference(before, world.image))


def check_is_new_everywhere(world: World) -> None:
    world.until(lambda: ends(world, 1) == [0, 0, 0], "empty logs")
    answer = produce(world, 3, b"new", index=1)
    world.until(lambda: answer.is_there, "the ack")
    assert produced(answer).base_offset == 0
    world.until(lambda: ends(world, 1) == [1, 1, 1], "copies on all brokers")


def test_broker_that_skipped_a_removal_by_a_snapshot_leads_an_empty_partition(
    world: World,
) -> None:
    before = world.image
    replace_second_partition(world, leader=3)
    follow_snapshot(world, before)
    check_is_new_everywhere(world)


@pytest.mark.parametrize("is_clean", [True, False])
def test_broker_that_was_down_during_a_removal_leads_an_empty_partition(
    world: World, caplog: pytest.LogCaptureFixture, *, is_clean: bool
) -> None:
    (world.stop if is_clean else world.kill)(3)
    before = world.image
    replace_second_partition(world, leader=3)
    follow_snapshot(world, before)
    world.start(3)
    check_is_new_everywhere(world)
    assert "is of a partition that was removed; it is set aside" in caplog.text


def test_partition_that_was_added_again_keeps_its_records_across_a_restart(world: World) -> None:
    before = world.image
    replace_second_partition(world, leader=3)
    follow_snapshot(world, before)
    check_is_new_everywhere(world)
    world.kill(2)
    world.settle()
    world.start(2)
    world.settle()
    assert ends(world, 1) == [1, 1, 1]


def test_leader_that_does_not_know_of_the_shrink_stores_nothing_for_another_partition(world: World) -> None:
    """Without the partition that the producer named, its retry would not be found."""
    world.change(leader=2)
    world.settle()
    before = world.image
    shrink(world, to=(1, 3))
    world.settle()
    answer = produce(world, 1, b"new", index=1)
    world.until(lambda: answer.is_there, "the answer")
    assert produced(answer).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert ends(world, 0) == [0, 0, 0]
    world.deliver(2, difference(before, world.image))
    world.settle()
    answer = produce(world, 1, b"new", index=1)
    world.until(lambda: answer.is_there, "the answer")
    assert (produced(answer).error_code, produced(answer).base_offset) == (ErrorCode.NONE, -1)
    assert ends(world, 0) == [1, 1, 1]
    assert ends(world, 1) == [1, 1, 1]


def test_what_is_stored_for_another_partition_is_final_before_it_is_told(world: World) -> None:
    shrink(world)
    world.settle()

    def stored(leader_epoch: int) -> object:
        replicas: Replicas = world[1].replicas
        return replicas.stored_finally(world[1].partition(0), 1, leader_epoch)

    # It still stores more.
    assert stored(1) is None
    world.publish(
        setting(PARTITIONS_ACTIVE, None),
        PartitionChangeRecord(partition_id=1, topic_id=TOPIC_ID, leader=1),
    )
    world.settle()
    assert stored(2) == []
    # It does not know of the leader that asks.
    assert stored(3) is None
