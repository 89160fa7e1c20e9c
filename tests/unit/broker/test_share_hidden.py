"""Share groups of views and of topics with delayed records get what is shown, and nothing else leaves the broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.broker.replica_world import TOPIC_ID, World, produced
from tests.unit.broker.share_world import ACCEPT, WAIT_MS, Member, StoredStates, configure, share_with
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import PartitionProduceData, ProduceRequest, TopicProduceData
from tidemill.protocol.api.metadata import ConfigRecord, TopicRecord
from tidemill.protocol.records import Header, Record, build_batch, header_at, iterate_records, restamp

MakeWorld = Callable[..., World]
VIEW_ID = bytes(range(50, 66))


@pytest.fixture
def states() -> StoredStates:
    return StoredStates()


def start(make_world: MakeWorld, states: StoredStates, **configs: str) -> World:
    world = make_world(1)
    world.start()
    world.create_topic((1,), **configs)  # type: ignore[arg-type]
    world.settle()
    share_with(world, states)
    configure(world, share_auto_offset_reset="earliest")
    world.settle()
    return world


def write(world: World, *records: Record) -> None:
    write_batch(world, bytes(build_batch(records)))


def write_batch(world: World, batch: bytes) -> None:
    data = PartitionProduceData(index=0, records=batch)
    topic = TopicProduceData(topic_id=TOPIC_ID, name="t", partition_data=[data])
    answer = world.ask(1, ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]))
    world.until(lambda: answer.is_there, "an ack")
    assert produced(answer).error_code == 0


def record(offset: int, value: bytes, **headers: str) -> Record:
    return Record(
        offset,
        0,
        None,
        value,
        tuple(Header(name.replace("_", "-"), text.encode()) for name, text in headers.items()),
    )


def test_delayed_record_is_delivered_when_it_is_due(make_world: MakeWorld, states: StoredStates) -> None:
    world = start(make_world, states, tidemill_delays_enable="true")
    write(world, record(0, b"a"), record(1, b"later", tidemill_delay="10s"), record(2, b"b"))
    member = Member(world)
    fetched = member.fetch(max_wait_ms=WAIT_MS)
    assert fetched.values() == [b"a", b"b"]
    assert fetched.offsets() == [0, 2]
    assert b"later" not in bytes(fetched.partitions[0].records)
    assert member.acknowledge((0, 0, [ACCEPT]), (2, 2, [ACCEPT])) is ErrorCode.NONE
    waiting = member.start_fetch(max_wait_ms=60_000)
    world.settle(8)
    assert not waiting.is_there
    world.until(lambda: waiting.is_there, "the delayed record", limit_s=10)
    assert member.answered(waiting).values() == [b"later"]


def add_view(world: World) -> None:
    world.publish(
        TopicRecord(name="v", topic_id=VIEW_ID),
        ConfigRecord(resource_type=2, resource_name="v", name="tidemill.view.source", value="t"),
        ConfigRecord(resource_type=2, resource_name="v", name="tidemill.view.filter", value="region = 'eu'"),
    )
    world.settle()


def test_header_that_is_not_text_stops_no_share_partition(
    make_world: MakeWorld, states: StoredStates
) -> None:
    """Kafka's broker does not look at headers, and its clients replace what is not UTF-8."""
    world = start(make_world, states)
    add_view(world)
    batch = build_batch([record(0, b"us", region="us"), record(1, b"eu", region="eu", odd="1")])
    batch[batch.index(b"odd")] = 0xD0
    restamp(memoryview(batch), header_at(batch))
    write_batch(world, bytes(batch))
    member = Member(world, "m1")
    assert member.fetch(0, topic_id=VIEW_ID, max_wait_ms=WAIT_MS).acquired() == [(1, 1, 1)]
    *_, found = iterate_records(memoryview(batch), header_at(batch))
    assert [header.key for header in found.headers] == ["region", "\ufffddd"]


def test_view_gives_matching_records_only(make_world: MakeWorld, states: StoredStates) -> None:
    world = start(make_world, states)
    add_view(world)
    write(world, *(record(number, b"us%d" % number, region="us") for number in range(50)))
    write(
        world, record(0, b"us", region="us"), record(1, b"eu1", region="eu"), record(2, b"eu2", region="eu")
    )
    first, second = Member(world, "m1"), Member(world, "m2")
    taken = first.fetch(0, topic_id=VIEW_ID, max_records=1, max_wait_ms=WAIT_MS)
    assert taken.acquired() == [(51, 51, 1)]
    assert b"us" not in bytes(taken.partitions[0].records)
    assert second.fetch(0, topic_id=VIEW_ID, max_wait_ms=WAIT_MS).acquired() == [(52, 52, 1)]
    assert first.acknowledge((51, 51, [ACCEPT]), topic_id=VIEW_ID) is ErrorCode.NONE
    assert states.of(topic_id=VIEW_ID).start_offset == 52
