"""What is counted of share partitions, and what an administrator may read of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.broker.replica_world import TOPIC, TOPIC_ID, World, write
from tests.unit.broker.share_world import (
    ACCEPT,
    GAP,
    GROUP,
    REJECT,
    RELEASE,
    RENEW,
    WAIT_MS,
    Member,
    StoredStates,
    configure,
    share_with,
)
from tidemill.broker.share import partitions as share_partitions
from tidemill.broker.status.rows import share_partition_rows
from tidemill.errors import ErrorCode
from tidemill.protocol.api.share import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from tidemill.replication.share_counts import ShareCounts

MakeWorld = Callable[..., World]


@pytest.fixture
def states() -> StoredStates:
    return StoredStates()


@pytest.fixture
def world(make_world: MakeWorld, states: StoredStates) -> World:
    world = make_world(2)
    world.start()
    world.create_topic((1, 2), partitions=1)
    world.settle()
    share_with(world, states)
    configure(world, share_auto_offset_reset="earliest")
    world.settle()
    write(world, 1, *(b"%d" % number for number in range(10)))
    return world


def counts(world: World) -> ShareCounts:
    ((_, found),) = world[1].broker.share.counted()
    assert isinstance(found, ShareCounts)
    return found


def in_flight(world: World, broker_id: int = 1, group_id: str = GROUP, partition: int = 0) -> Any:
    topic = DescribeShareGroupOffsetsRequestTopic(topic_name=TOPIC, partitions=[partition])
    group = DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=[topic])
    answer = world.ask(broker_id, DescribeShareGroupOffsetsRequest(groups=[group], wants_in_flight=True), 1)
    world.until(lambda: answer.is_there, "what is in flight")
    return answer.response.groups[0].topics[0].partitions[0]


def test_every_delivery_and_every_acknowledgement_is_counted(world: World) -> None:
    member = Member(world)
    assert member.fetch(max_wait_ms=WAIT_MS).offsets() == list(range(10))
    assert member.acknowledge((0, 3, [ACCEPT]), (4, 5, [RELEASE]), (6, 6, [REJECT]), (7, 7, [GAP])) is (
        ErrorCode.NONE
    )
    assert member.acknowledge((8, 9, [RENEW])) is ErrorCode.NONE
    found = counts(world)
    assert (found.deliveries, found.acknowledged) == (10, [1, 4, 2, 1, 2])
    # A gap is no record that was given up.
    assert (found.archived, found.lock_timeouts, found.dead_letters) == (1, 0, 0)
    assert member.fetch(max_wait_ms=WAIT_MS).offsets() == [4, 5]
    assert found.deliveries == 12


def test_acknowledgement_counts_when_it_is_durable(world: World, states: StoredStates) -> None:
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    states.failure = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert member.acknowledge((0, 9, [ACCEPT])) is not ErrorCode.NONE
    assert counts(world).acknowledged[ACCEPT] == 0
    states.failure = None
    assert member.acknowledge((0, 9, [ACCEPT])) is ErrorCode.NONE
    assert counts(world).acknowledged[ACCEPT] == 10


def test_lock_that_ends_by_its_time_is_counted_and_at_the_limit_the_record_as_archived(world: World) -> None:
    configure(world, share_delivery_count_limit="2")
    member = Member(world)
    assert member.fetch(max_records=1, max_wait_ms=WAIT_MS).offsets() == [0]
    world.settle(31)
    assert (counts(world).lock_timeouts, counts(world).archived) == (1, 0)
    assert member.fetch(max_records=1, max_wait_ms=WAIT_MS).acquired() == [(0, 0, 2)]
    world.settle(31)
    assert (counts(world).lock_timeouts, counts(world).archived) == (2, 1)


def test_leader_says_what_is_in_flight_and_how_often_it_was_delivered(world: World) -> None:
    member = Member(world)
    member.fetch(max_records=6, max_wait_ms=WAIT_MS)
    member.acknowledge((0, 0, [ACCEPT]), (1, 2, [RELEASE]))
    member.fetch(max_records=1, max_wait_ms=WAIT_MS)
    shown = in_flight(world)
    found = shown.in_flight
    # 1 is in its second delivery, 2 waits for its second, 3 to 5 are in their first.
    assert (shown.start_offset, found.acquired, found.waiting, found.owed) == (1, 4, 1, 0)
    assert found.by_deliveries == [4, 1]


def test_only_the_leader_says_what_is_in_flight(world: World) -> None:
    assert in_flight(world, broker_id=2).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert in_flight(world, broker_id=2).in_flight is None
    assert in_flight(world, partition=7).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # Of a group without members nothing is locked; the rest is not known before its state is read.
    nothing = in_flight(world, group_id="nobody")
    assert (nothing.error_code, nothing.in_flight.acquired, nothing.in_flight.waiting) == (0, 0, -1)


def test_metrics_have_a_row_for_each_share_partition(world: World) -> None:
    group = 'a "group"'
    configure(world, group, share_auto_offset_reset="earliest")
    member = Member(world, group_id=group)
    member.fetch(max_records=4, max_wait_ms=WAIT_MS)
    member.acknowledge((0, 1, [ACCEPT]), (2, 2, [RELEASE]))
    page = world.run(world[1], share_partition_rows(world[1].broker))
    world.until(page.done, "the metrics")
    text = b"".join(page.result()).decode()
    labels = f'group="a \\"group\\"",topic="{TOPIC}",partition="0"'
    assert f"tidemill_share_acquired{{{labels}}} 1\n" in text
    # One that came back and six that were never delivered.
    assert f"tidemill_share_available{{{labels}}} 7\n" in text
    assert f"tidemill_share_delivery_count_max{{{labels}}} 1\n" in text
    assert f"tidemill_share_deliveries_total{{{labels}}} 4\n" in text
    assert f'tidemill_share_acknowledgements_total{{{labels},type="accept"}} 2\n' in text
    assert f'tidemill_share_acknowledgements_total{{{labels},type="reject"}} 0\n' in text


def test_counts_outlive_the_share_partition_and_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_partitions, "_COUNTS_MAX", 2)
    for number in range(3):
        configure(world, f"g{number}", share_auto_offset_reset="earliest")
        member = Member(world, group_id=f"g{number}")
        member.fetch(max_wait_ms=WAIT_MS)
        member.close()
        world.settle()
    share = world[1].broker.share
    assert share.led() == []
    assert [(key.group_id, each.deliveries) for key, each in share.counted()] == [("g1", 10), ("g2", 10)]
    assert TOPIC_ID in {key.topic_id for key, _ in share.counted()}
