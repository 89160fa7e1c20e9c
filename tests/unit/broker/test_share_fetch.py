"""ShareFetch and ShareAcknowledge against brokers on virtual time."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import Callable

import pytest

from tests.unit.broker.replica_world import TOPIC_ID, World, write
from tests.unit.broker.share_world import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    WAIT_MS,
    Member,
    StoredStates,
    configure,
    outcome,
    share_with,
)
from tests.unit.broker.transaction_world import mark, send, verification_of
from tests.unit.broker.transaction_world import outcome as outcome_of
from tidemill.broker.requests.quotas import ClientQuotas
from tidemill.broker.share import led_partition
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.transactions import AbortedTransaction
from tidemill.security.quotas import CONSUMER_BYTE_RATE, QuotaEntity

MakeWorld = Callable[..., World]
LOCK_S = 30


@pytest.fixture
def states() -> StoredStates:
    return StoredStates()


@pytest.fixture
def world(make_world: MakeWorld, states: StoredStates) -> World:
    world = make_world(1)
    world.start()
    world.create_topic((1,), partitions=2)
    world.settle()
    share_with(world, states)
    configure(world, share_auto_offset_reset="earliest")
    world.settle()
    return world


def test_records_are_acquired_and_accepted(world: World, states: StoredStates) -> None:
    write(world, 1, b"a", b"b", b"c")
    member = Member(world)
    member.fetch()
    fetched = member.fetch(max_wait_ms=WAIT_MS)
    assert fetched.acquired() == [(0, 2, 1)]
    assert fetched.values() == [b"a", b"b", b"c"]
    assert fetched.response.acquisition_lock_timeout_ms == LOCK_S * 1000
    assert member.acknowledge((0, 2, [ACCEPT])) is ErrorCode.NONE
    assert states.of().start_offset == 3
    assert member.fetch().acquired() == []


def test_locked_records_are_not_given_to_another_member(world: World) -> None:
    write(world, 1, b"a", b"b")
    first, second = Member(world, "m1"), Member(world, "m2")
    assert first.fetch(max_wait_ms=WAIT_MS).offsets() == [0, 1]
    assert second.fetch(max_wait_ms=100).offsets() == []


@pytest.mark.parametrize(("version", "mode"), [(1, 0), (2, 0), (2, 1)])
def test_fetch_acquires_at_most_max_records_inside_a_batch(world: World, version: int, mode: int) -> None:
    write(world, 1, *(b"%d" % number for number in range(10)))
    first, second = Member(world, "m1"), Member(world, "m2")
    fields = {"share_acquire_mode": mode} if version > 1 else {}
    taken = first.fetch(max_records=3, version=version, max_wait_ms=WAIT_MS, **fields)
    assert taken.acquired() == [(0, 2, 1)]
    assert second.fetch(max_records=3, version=version, max_wait_ms=WAIT_MS, **fields).acquired() == [
        (3, 5, 1)
    ]


def test_released_records_are_delivered_again_with_a_larger_count(world: World) -> None:
    write(world, 1, b"a", b"b", b"c")
    first, second = Member(world, "m1"), Member(world, "m2")
    first.fetch(max_wait_ms=WAIT_MS)
    assert first.acknowledge((0, 2, [ACCEPT, RELEASE, REJECT])) is ErrorCode.NONE
    assert second.fetch(max_wait_ms=WAIT_MS).acquired() == [(1, 1, 2)]


def test_expired_lock_gives_records_to_a_waiting_member(world: World, states: StoredStates) -> None:
    write(world, 1, b"a", b"b")
    first, second = Member(world, "m1"), Member(world, "m2")
    first.fetch(max_wait_ms=WAIT_MS)
    waiting = second.start_fetch(max_wait_ms=60_000)
    world.until(lambda: waiting.is_there, "the records of an expired lock", limit_s=LOCK_S + 5)
    assert second.answered(waiting).acquired() == [(0, 1, 2)]
    # What was not acknowledged counts durably.
    world.settle(0.1)
    assert states.of().offsets == {0: (1, 0), 1: (1, 0)}


def test_acknowledgement_after_the_lock_ended_is_refused(world: World) -> None:
    write(world, 1, b"a")
    first, second = Member(world, "m1"), Member(world, "m2")
    first.fetch(max_wait_ms=WAIT_MS)
    world.settle(LOCK_S + 1)
    assert first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    second.fetch(max_wait_ms=WAIT_MS)
    assert first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert second.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE


def test_second_acknowledgement_and_that_of_another_member_are_refused(world: World) -> None:
    write(world, 1, b"a", b"b")
    first, second = Member(world, "m1"), Member(world, "m2")
    first.fetch(max_wait_ms=WAIT_MS)
    second.fetch()
    assert second.acknowledge((0, 1, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert first.acknowledge((1, 1, [ACCEPT])) is ErrorCode.NONE
    assert first.acknowledge((1, 1, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    # All or nothing: the first of the two would be right.
    assert first.acknowledge((0, 1, [ACCEPT])) is ErrorCode.INVALID_RECORD_STATE
    assert first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE


@pytest.mark.parametrize(
    "acks",
    [
        [(1, 0, [ACCEPT])],
        [(1, 1, [ACCEPT]), (0, 0, [ACCEPT])],
        [(0, 1, [])],
        [(0, 2, [ACCEPT, ACCEPT])],
        [(0, 0, [5])],
        [(0, 0, [-1])],
        [(0, 9, [ACCEPT])],
    ],
)
def test_malformed_acknowledgements_are_refused_and_change_nothing(
    world: World, acks: list[tuple[int, int, list[int]]]
) -> None:
    write(world, 1, b"a", b"b", b"c")
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    assert member.acknowledge(*acks) is ErrorCode.INVALID_REQUEST
    assert member.acknowledge((0, 2, [ACCEPT, GAP, ACCEPT])) is ErrorCode.NONE


def test_acknowledgements_travel_with_a_fetch(world: World) -> None:
    write(world, 1, b"a", b"b")
    member = Member(world)
    member.fetch(max_records=1, max_wait_ms=WAIT_MS)
    fetched = member.fetch(acks=[(0, 0, [ACCEPT])], max_wait_ms=WAIT_MS)
    assert (fetched.acknowledge_error(), fetched.offsets()) == (ErrorCode.NONE, [1])
    refused = member.fetch(acks=[(0, 1, [ACCEPT])])
    assert refused.error_of() is ErrorCode.NONE
    assert refused.acknowledge_error() is ErrorCode.INVALID_RECORD_STATE, "the first of them is done"
    assert member.fetch(acks=[(1, 1, [ACCEPT])]).acknowledge_error() is ErrorCode.NONE


def test_waiting_fetch_gets_what_is_produced(world: World) -> None:
    member = Member(world)
    waiting = member.start_fetch(max_wait_ms=WAIT_MS)
    world.settle(0.5)
    assert not waiting.is_there
    write(world, 1, b"a")
    world.until(lambda: waiting.is_there, "a fetch that is woken", limit_s=1)
    assert member.answered(waiting).values() == [b"a"]


def test_waiting_fetches_are_served_in_the_order_in_which_they_came(world: World) -> None:
    members = [Member(world, f"m{number}") for number in range(5)]
    waiting = [member.start_fetch(max_records=1, max_wait_ms=WAIT_MS) for member in members]
    world.settle(0.5)
    write(world, 1, *(b"%d" % number for number in range(5)))
    world.until(lambda: all(each.is_there for each in waiting), "all of them are served", limit_s=1)
    assert [member.answered(each).offsets() for member, each in zip(members, waiting, strict=True)] == [
        [0],
        [1],
        [2],
        [3],
        [4],
    ]


def test_thousand_members_take_one_record_each(world: World) -> None:
    members = [Member(world, f"m{number}") for number in range(1000)]
    waiting = [member.start_fetch(max_records=1, max_wait_ms=WAIT_MS) for member in members]
    write(world, 1, *(b"%d" % number for number in range(1000)))
    world.until(lambda: all(each.is_there for each in waiting), "all of them are served", limit_s=5)
    taken = [member.answered(each).offsets() for member, each in zip(members, waiting, strict=True)]
    assert taken == [[number] for number in range(1000)]
    for member, (offset,) in zip(members, taken, strict=True):
        assert member.acknowledge((offset, offset, [ACCEPT])) is ErrorCode.NONE


def test_failure_31_record_that_is_always_released_is_archived_at_the_limit(
    world: World, states: StoredStates
) -> None:
    write(world, 1, b"poison", b"fine")
    member = Member(world)
    counts = []
    for _ in range(10):
        fetched = member.fetch(max_records=1, max_wait_ms=200)
        if fetched.offsets() != [0]:
            break
        counts += [count for _, _, count in fetched.acquired()]
        assert member.acknowledge((0, 0, [RELEASE])) is ErrorCode.NONE
    assert counts == [1, 2, 3, 4, 5]
    assert fetched.values() == [b"fine"]
    assert states.of().start_offset == 1


def test_closed_session_gives_its_records_back_and_counts(world: World) -> None:
    write(world, 1, b"a")
    first, second = Member(world, "m1"), Member(world, "m2")
    first.fetch(max_wait_ms=WAIT_MS)
    waiting = second.start_fetch(max_wait_ms=WAIT_MS)
    first.close()
    world.until(lambda: waiting.is_there, "what the other member held", limit_s=1)
    assert second.answered(waiting).acquired() == [(0, 0, 2)]
    assert first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_renewed_lock_lasts(world: World) -> None:
    write(world, 1, b"a")
    member, other = Member(world), Member(world, "m2")
    member.fetch(max_wait_ms=WAIT_MS)
    for _ in range(5):
        world.settle(LOCK_S - 5)
        assert member.acknowledge((0, 0, [RENEW])) is ErrorCode.NONE
    assert other.fetch().offsets() == []
    assert member.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE


def test_failure_31_sessions_that_close_during_a_write_count(world: World, states: StoredStates) -> None:
    write(world, 1, b"a", b"b")
    first, second = Member(world, "m1"), Member(world, "m2")
    assert first.fetch(max_wait_ms=WAIT_MS, max_records=1).acquired() == [(0, 0, 1)]
    assert second.fetch(max_wait_ms=WAIT_MS, max_records=1).acquired() == [(1, 1, 1)]
    states.is_held = True
    second.close()
    world.settle(0.1)
    first.close()
    states.is_held = False
    world.settle()
    assert states.of().offsets == {0: (1, 0), 1: (1, 0)}
    assert Member(world, "m3").fetch(max_wait_ms=WAIT_MS).acquired() == [(0, 1, 2)]


def test_session_epochs(world: World) -> None:
    member = Member(world)
    assert member.fetch(epoch=1).error is ErrorCode.SHARE_SESSION_NOT_FOUND
    assert member.acknowledge(epoch=-1) is ErrorCode.SHARE_SESSION_NOT_FOUND
    member.fetch()
    assert member.fetch(epoch=5).error is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.acknowledge(epoch=0) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert member.fetch().error is ErrorCode.NONE
    member.close()
    assert member.fetch().error is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_session_ends_with_the_connection_that_opened_it(world: World) -> None:
    write(world, 1, b"a")
    first, second = Member(world, "m1"), Member(world, "m2")
    opened = first.start_fetch(max_wait_ms=WAIT_MS)
    assert first.answered(opened).offsets() == [0]
    peer = opened._peer
    peer.is_closed = True
    world._run_in(world[1], lambda: [callback() for callback in peer.close_callbacks])
    assert second.fetch(max_wait_ms=WAIT_MS).acquired() == [(0, 0, 2)]


def test_failure_32_lock_does_not_expire_while_its_acknowledgement_is_written(
    world: World, states: StoredStates
) -> None:
    write(world, 1, b"a")
    member, other = Member(world), Member(world, "m2")
    member.fetch(max_wait_ms=WAIT_MS)
    states.is_held = True
    answer = member.start_acknowledge((0, 0, [ACCEPT]))
    # The lock would have expired; the outcome of the write decides.
    world.settle(LOCK_S + 10)
    assert not answer.is_there
    assert other.fetch().offsets() == []
    states.is_held = False
    world.until(lambda: answer.is_there, "the acknowledgement")
    assert outcome(answer) is ErrorCode.NONE
    assert other.fetch(max_wait_ms=100).offsets() == []


def test_failed_write_leaves_the_record_locked_for_its_holder(world: World, states: StoredStates) -> None:
    write(world, 1, b"a")
    member, other = Member(world), Member(world, "m2")
    member.fetch(max_wait_ms=WAIT_MS)
    states.failure = ErrorCode.NOT_COORDINATOR
    assert member.acknowledge((0, 0, [ACCEPT])) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert other.fetch(max_wait_ms=100).offsets() == []
    states.failure = None
    assert member.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE


async def test_failed_acknowledgement_that_nothing_awaits_is_no_error() -> None:
    """Found by seed 101096: a broker that stops gives up the requests, and then ends its share partitions."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    led_partition._fail(answer, ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    assert answer.done()
    del answer
    gc.collect()
    assert not complaints


def test_unknown_topics_and_partitions(world: World) -> None:
    member = Member(world)
    fetched = member.fetch(0, 7)
    assert fetched.error_of(7) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert member.acknowledge((0, 0, [ACCEPT]), topic_id=bytes(16)) is ErrorCode.UNKNOWN_TOPIC_ID
    assert member.acknowledge((0, 0, [ACCEPT]), index=9) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_state_with_an_unknown_delivery_state_is_an_error_of_the_partition(
    world: World, states: StoredStates
) -> None:
    write(world, 1, b"a")
    state = states.of()
    state.start_offset, state.offsets[0] = 0, (1, 126)
    member = Member(world)
    fetched = member.fetch(max_wait_ms=WAIT_MS)
    assert fetched.partitions[0].error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert fetched.offsets() == []


def test_acknowledgement_for_a_recreated_topic_is_refused(world: World) -> None:
    write(world, 1, b"a")
    member = Member(world)
    member.fetch(max_wait_ms=WAIT_MS)
    world.delete_topic()
    world.create_topic((1,), topic_id=bytes(range(1, 17)))
    world.settle()
    assert member.acknowledge((0, 0, [ACCEPT])) is ErrorCode.UNKNOWN_TOPIC_ID
    again = bytes(range(1, 17))
    assert member.acknowledge((0, 0, [ACCEPT]), topic_id=again) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    fetched = member.fetch(0, topic_id=again)
    assert {topic.topic_id for topic in fetched.response.responses} <= {TOPIC_ID, again}


def test_failure_31_release_with_backoff_waits_and_counts(world: World) -> None:
    backoff = {
        "tidemill_share_release_backoff_ms": "1000",
        "tidemill_share_release_backoff_factor": "10",
        "tidemill_share_release_backoff_max_ms": "5000",
    }
    configure(world, **backoff)
    write(world, 1, b"a")
    member = Member(world)
    waits = []
    for _ in range(4):
        waiting = member.start_fetch(max_wait_ms=60_000)
        began_s = world.scheduler.now_s
        world.until(lambda answer=waiting: answer.is_there, "the record again")  # type: ignore[misc]
        waits.append(round(world.scheduler.now_s - began_s))
        assert member.answered(waiting).offsets() == [0]
        assert member.acknowledge((0, 0, [RELEASE])) is ErrorCode.NONE
    assert waits == [0, 1, 5, 5]


def test_new_leader_delivers_what_was_locked_and_refuses_the_old_holder(
    make_world: MakeWorld, states: StoredStates
) -> None:
    world = make_world(2)
    world.start()
    world.create_topic((1, 2))
    world.settle()
    share_with(world, states)
    configure(world, share_auto_offset_reset="earliest")
    write(world, 1, b"a", b"b")
    first, second = Member(world, "m1", 1), Member(world, "m2", 2)
    assert first.fetch(max_wait_ms=WAIT_MS).offsets() == [0, 1]
    assert first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE
    world.change(leader=2)
    world.settle()
    assert second.fetch(max_wait_ms=WAIT_MS).acquired() == [(1, 1, 1)]
    assert first.acknowledge((1, 1, [ACCEPT])) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert first.fetch().error_of() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert second.acknowledge((1, 1, [ACCEPT])) is ErrorCode.NONE


def test_session_after_an_alteration_of_offsets_gets_nothing_of_the_old_state(
    world: World, states: StoredStates
) -> None:
    """The session of a member that is gone for the group keeps the share partition alive."""
    write(world, 1, b"a", b"b", b"c")
    gone, new = Member(world, "m1"), Member(world, "m2")
    assert gone.fetch(max_records=1, max_wait_ms=WAIT_MS).offsets() == [0]
    states.of().state_epoch, states.of().start_offset = 1, 2
    refused = new.fetch(max_wait_ms=WAIT_MS)
    assert refused.offsets() == []
    assert refused.error_of() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert new.fetch(max_wait_ms=WAIT_MS).offsets() == [2]
    assert gone.acknowledge((0, 0, [ACCEPT])) is not ErrorCode.NONE


def test_session_of_a_group_that_was_deleted_and_created_anew_gets_nothing_of_the_old_state(
    world: World, states: StoredStates
) -> None:
    """The new group begins with the same state epoch, and a session of the old one is left."""
    write(world, 1, b"a", b"b", b"c")
    gone, new = Member(world, "m1"), Member(world, "m2")
    assert gone.fetch(max_wait_ms=WAIT_MS).offsets() == [0, 1, 2]
    assert gone.acknowledge((0, 2, [ACCEPT])) is ErrorCode.NONE
    states.stored.clear()
    refused = new.fetch(max_wait_ms=WAIT_MS)
    assert refused.offsets() == []
    assert refused.error_of() is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert new.fetch(max_wait_ms=WAIT_MS).acquired() == [(0, 2, 1)]


def test_acknowledgement_of_a_deleted_group_does_not_reach_the_new_one(
    world: World, states: StoredStates
) -> None:
    """Offsets were altered before a member came, so the new state has a start offset already."""
    write(world, 1, b"a", b"b")
    gone, new = Member(world, "m1"), Member(world, "m2")
    assert gone.fetch(max_wait_ms=WAIT_MS).offsets() == [0, 1]
    states.stored.clear()
    states.of().start_offset = 0
    assert gone.acknowledge((0, 1, [ACCEPT])) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert states.of().offsets == {}
    assert new.fetch(max_wait_ms=WAIT_MS).acquired() == [(0, 1, 1)]


@pytest.mark.parametrize("is_failover", [True, False])
def test_failure_31_backoff_of_a_released_record_outlives_its_share_partition(
    is_failover: bool, make_world: MakeWorld, states: StoredStates
) -> None:
    """The leader changes, or the last session of the group ends and with it what the leader knows."""
    world = make_world(2)
    world.start()
    world.create_topic((1, 2))
    world.settle()
    share_with(world, states)
    configure(world, share_auto_offset_reset="earliest", tidemill_share_release_backoff_ms="5000")
    write(world, 1, b"a", b"b")
    first, second = Member(world, "m1", 1), Member(world, "m2", 2 if is_failover else 1)
    assert first.fetch(max_wait_ms=WAIT_MS).offsets() == [0, 1]
    released_s = world.scheduler.now_s
    assert first.acknowledge((0, 0, [RELEASE])) is ErrorCode.NONE
    if is_failover:
        world.change(leader=2)
        world.settle()
    else:
        first.acknowledge((1, 1, [ACCEPT]))
        first.close()
    again = [second.fetch(max_wait_ms=WAIT_MS).acquired() for _ in range(2 if is_failover else 1)]
    assert again[-1] == [(0, 0, 2)]
    assert world.scheduler.now_s >= released_s + 5


def test_failure_32_write_of_a_deposed_leader_is_fenced(make_world: MakeWorld, states: StoredStates) -> None:
    """A leader that has not heard of the next one cannot accept what that one hands out."""
    world = make_world(2)
    world.start()
    world.create_topic((1, 2))
    world.settle()
    share_with(world, states)
    configure(world, share_auto_offset_reset="earliest")
    write(world, 1, b"a")
    first, second = Member(world, "m1", 1), Member(world, "m2", 2)
    assert first.fetch(max_wait_ms=WAIT_MS).offsets() == [0]
    world.change(leader=2, isr=[2], to=(2,))
    world.settle()
    assert second.fetch(max_wait_ms=WAIT_MS).offsets() == [0]
    assert first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert second.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE


def test_control_batches_and_aborted_records_are_not_delivered_to_a_group_of_committed_records(
    world: World,
) -> None:
    verification_of(world, confirms=True)
    configure(world, share_isolation_level="read_committed")
    assert outcome_of(world, send(world, 0, values=(b"aborted",))) is ErrorCode.NONE
    assert mark(world, is_commit=False) is ErrorCode.NONE
    assert outcome_of(world, send(world, 1, values=(b"open",))) is ErrorCode.NONE
    write(world, 1, b"behind")
    member = Member(world)
    assert member.fetch(max_wait_ms=200).offsets() == []
    assert mark(world, is_commit=True) is ErrorCode.NONE
    fetched = member.fetch(max_wait_ms=WAIT_MS)
    assert fetched.values() == [b"open", b"behind"]
    assert fetched.offsets() == [2, 3]


def test_fetch_goes_on_behind_very_many_aborted_transactions(world: World) -> None:
    """They are passed in several turns, and looked up as far as one turn goes."""
    verification_of(world, confirms=True)
    configure(world, share_isolation_level="read_committed")
    for number in range(1_500):
        assert outcome_of(world, send(world, number, values=(b"aborted",))) is ErrorCode.NONE
        assert mark(world, is_commit=False) is ErrorCode.NONE
    write(world, 1, b"behind")
    log = world[1].partition().log
    assert log is not None
    found: list[int] = []
    original = log.aborted_between

    def aborted_between(offset: int, end_offset: int) -> list[AbortedTransaction]:
        aborted = original(offset, end_offset)
        found.append(len(aborted))
        return aborted

    log.aborted_between = aborted_between  # type: ignore[method-assign]
    fetched = Member(world).fetch(max_wait_ms=WAIT_MS)
    assert fetched.values() == [b"behind"]
    assert sum(found) >= 1_500
    assert max(found) <= 500


def test_records_that_retention_removed_are_skipped_and_their_acknowledgement_is_ignored(
    world: World,
) -> None:
    write(world, 1, b"a")
    write(world, 1, b"b")
    first, second = Member(world, "m1"), Member(world, "m2")
    assert first.fetch(max_records=1, max_wait_ms=WAIT_MS).offsets() == [0]
    world._run_in(world[1], lambda: world[1].replicas.move_start(world[1].partition(), 1))
    assert second.fetch(max_wait_ms=WAIT_MS).offsets() == [1]
    assert first.acknowledge((0, 0, [ACCEPT])) is ErrorCode.NONE


def test_fetch_waits_for_min_bytes(world: World) -> None:
    member = Member(world)
    waiting = member.start_fetch(min_bytes=500, max_wait_ms=WAIT_MS)
    write(world, 1, b"a" * 100)
    world.settle(1)
    assert not waiting.is_there
    write(world, 1, b"b" * 600)
    world.until(lambda: waiting.is_there, "enough bytes", limit_s=1)
    assert member.answered(waiting).offsets() == [0, 1]


def test_member_over_its_quota_waits_for_all_that_it_got(world: World) -> None:
    host = world[1]
    quotas = {QuotaEntity.of([("client-id", "test")]): {CONSUMER_BYTE_RATE: 1_000.0}}
    host.broker.quotas = ClientQuotas(host.broker.clock.steady_ms, quotas)
    for _ in range(4):
        write(world, 1, bytes(9_000))
    member = Member(world)
    waits_ms = []
    for offset in range(4):
        fetched = member.fetch(max_wait_ms=WAIT_MS, max_records=1)
        assert fetched.offsets() == [offset]
        waits_ms.append(fetched.response.throttle_time_ms)
    # A window of ten seconds holds the first one. Each of the others is nine seconds' worth.
    assert waits_ms[0] == 0
    assert [round(later - earlier, -3) for earlier, later in itertools.pairwise(waits_ms)] == [
        8_000,
        9_000,
        9_000,
    ]


def test_session_limit(make_world: MakeWorld, states: StoredStates) -> None:
    world = make_world(1, group_share_max_share_sessions="1")
    world.start()
    world.create_topic((1,))
    world.settle()
    share_with(world, states)
    Member(world, "m1").fetch()
    assert Member(world, "m2").fetch().error is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert Member(world, "m1").fetch().error is ErrorCode.NONE
