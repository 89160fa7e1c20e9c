"""Failure 9: a batch behind one that was refused for the moment is not called out of order."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.broker.replica_world import TOPIC, Answer, World, produced
from tests.wire.batches import Header, encode
from tidemill.broker.partitions.refusals import Refusals
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.protocol.records import BatchHeader, header_at

MakeWorld = Callable[..., World]
REMEMBERED_S = 10


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    world = make_world()
    world.start()
    world.create_topic(min_insync_replicas="2")
    world.settle()
    return world


def send(world: World, sequence: int, broker_id: int = 1, epoch: int = 0) -> Answer:
    header = Header(producer_id=7, producer_epoch=epoch, base_sequence=sequence)
    data = PartitionProduceData(index=0, records=encode([b"%d" % sequence], header))
    request = ProduceRequest(
        acks=-1, timeout_ms=5_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    return world.ask(broker_id, request, 9)


def outcome(world: World, answer: Answer) -> ErrorCode:
    world.until(lambda: answer.is_there, "an answer")
    return ErrorCode(produced(answer).error_code)


def too_few_in_sync(world: World) -> None:
    world.alter_partition = lambda _request: ErrorCode.INELIGIBLE_REPLICA
    world.change(isr=[1])
    world.settle()


def enough_in_sync(world: World) -> None:
    world.change(isr=[1, 2, 3])
    world.settle()


def expect_in_order(world: World, *sequences: int) -> None:
    for sequence in sequences:
        assert outcome(world, send(world, sequence)) is ErrorCode.NONE
    assert world[1].values() == [b"%d" % sequence for sequence in range(sequences[-1] + 1)]


@pytest.mark.parametrize("written", [0, 2], ids=["a new producer", "a known producer"])
def test_batch_after_not_enough_replicas_gets_the_same_error(world: World, written: int) -> None:
    for sequence in range(written):
        assert outcome(world, send(world, sequence)) is ErrorCode.NONE
    too_few_in_sync(world)
    assert outcome(world, send(world, written)) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert outcome(world, send(world, written + 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    enough_in_sync(world)
    assert outcome(world, send(world, written + 2)) is ErrorCode.NOT_ENOUGH_REPLICAS
    expect_in_order(world, written, written + 1, written + 2)


def test_batch_after_not_leader_gets_the_same_error(world: World) -> None:
    assert outcome(world, send(world, 0)) is ErrorCode.NONE
    world.settle()
    assert outcome(world, send(world, 1, broker_id=2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    world.change(leader=2)
    world.settle()
    assert outcome(world, send(world, 2, broker_id=2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for sequence in (1, 2):
        assert outcome(world, send(world, sequence, broker_id=2)) is ErrorCode.NONE
    assert world[2].values() == [b"0", b"1", b"2"]


def test_batch_refused_here_and_written_elsewhere_is_not_missing(world: World) -> None:
    assert outcome(world, send(world, 0, broker_id=2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    for sequence in (0, 1):
        assert outcome(world, send(world, sequence)) is ErrorCode.NONE
    world.settle()
    world.change(leader=2)
    world.settle()
    assert outcome(world, send(world, 2, broker_id=2)) is ErrorCode.NONE


def test_duplicate_is_recognised_after_a_refusal(world: World) -> None:
    for sequence in range(3):
        assert outcome(world, send(world, sequence)) is ErrorCode.NONE
    too_few_in_sync(world)
    assert outcome(world, send(world, 3)) is ErrorCode.NOT_ENOUGH_REPLICAS
    enough_in_sync(world)
    repeated = send(world, 2)
    assert outcome(world, repeated) is ErrorCode.NONE
    assert produced(repeated).base_offset == 2


def test_lasting_gap_is_out_of_order(world: World) -> None:
    assert outcome(world, send(world, 0)) is ErrorCode.NONE
    assert outcome(world, send(world, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    too_few_in_sync(world)
    assert outcome(world, send(world, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    enough_in_sync(world)
    world.settle(REMEMBERED_S + 1)
    assert outcome(world, send(world, 2)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_new_producer_epoch_ignores_old_refusals(world: World) -> None:
    assert outcome(world, send(world, 0)) is ErrorCode.NONE
    too_few_in_sync(world)
    assert outcome(world, send(world, 1)) is ErrorCode.NOT_ENOUGH_REPLICAS
    enough_in_sync(world)
    assert outcome(world, send(world, 0, epoch=1)) is ErrorCode.NONE
    assert outcome(world, send(world, 2, epoch=1)) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_batch_after_full_disk_gets_the_same_error(world: World) -> None:
    assert outcome(world, send(world, 0)) is ErrorCode.NONE
    disk = world[1].disk
    room = disk.free_bytes
    disk.free_bytes = 0
    assert outcome(world, send(world, 1)) is ErrorCode.KAFKA_STORAGE_ERROR
    disk.free_bytes = room
    assert outcome(world, send(world, 2)) is ErrorCode.KAFKA_STORAGE_ERROR
    expect_in_order(world, 1, 2)


def test_refusal_before_partition_is_opened_is_taken_over(make_world: MakeWorld) -> None:
    world = make_world()
    world.start()
    assert outcome(world, send(world, 0)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.create_topic()
    world.settle()
    assert outcome(world, send(world, 1)) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    expect_in_order(world, 0, 1)


def test_refusals_that_are_too_old_do_not_displace_a_new_one() -> None:
    """Sixteen batches were stored through another broker since (simulation, seed 80280)."""
    refusals = Refusals()

    def batch(sequence: int) -> BatchHeader:
        return header_at(encode([b"v"], Header(producer_id=7, producer_epoch=0, base_sequence=sequence)))

    for sequence in range(16):
        refusals.note(batch(sequence), ErrorCode.NOT_ENOUGH_REPLICAS, 0)
    later_ms = REMEMBERED_S * 1000 + 1
    refusals.note(batch(199), ErrorCode.NOT_ENOUGH_REPLICAS, later_ms)
    assert refusals.before(batch(201), later_ms) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert refusals.before(batch(199), later_ms) is None
