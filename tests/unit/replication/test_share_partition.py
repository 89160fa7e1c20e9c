"""The machine of a share partition, driven directly. `tests/property/test_share_partition.py` compares it with a model."""

from __future__ import annotations

import pytest

from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.share_state import ShareState, StateBatch
from tidemill.replication.share_messages import (
    AcknowledgedBatch,
    AcknowledgeType,
    Acquired,
    ShareLimits,
    Span,
)
from tidemill.replication.share_partition import SharePartition

ACCEPT, RELEASE, REJECT, RENEW = (
    AcknowledgeType.ACCEPT,
    AcknowledgeType.RELEASE,
    AcknowledgeType.REJECT,
    AcknowledgeType.RENEW,
)


def begun(
    log_end_offset: int = 1000, state: ShareState | None = None, **limits: int | bool
) -> SharePartition:
    return SharePartition(state or ShareState(0, 0), ShareLimits(**limits), log_end_offset, 0)  # type: ignore[arg-type]


def take(
    machine: SharePartition, records: int, end_offset: int, member: str = "m", steady_ms: int = 0
) -> list[Acquired]:
    first = machine.next_fetch_offset(steady_ms)
    assert first is not None
    return machine.acquire(member, [Span(first, end_offset)], records, 500, steady_ms)


def say(machine: SharePartition, first: int, last: int, kind: AcknowledgeType, steady_ms: int = 0) -> None:
    machine.acknowledge("m", [AcknowledgedBatch(first, last, [kind])], steady_ms)
    if machine.needs_write:
        machine.written(machine.next_write(), is_durable=True)
    machine.check_invariants()


def test_record_that_came_back_often_is_delivered_with_fewer_and_then_alone() -> None:
    machine = begun()
    sizes = []
    for _ in range(5):
        (taken,) = take(machine, 100, 100)
        assert taken.first_offset == 0
        sizes.append(taken.end_offset)
        say(machine, 0, taken.end_offset - 1, RELEASE)
    assert sizes == [100, 100, 100, 50, 1]
    assert machine.start_offset == 1


def test_pieces_are_cut_at_batches_when_they_are_large_enough() -> None:
    machine = begun()
    spans = [Span(number * 4, number * 4 + 4) for number in range(5)]
    assert machine.acquire("m", spans, 100, 6, 0) == [
        Acquired(0, 8, 1),
        Acquired(8, 16, 1),
        Acquired(16, 20, 1),
    ]


def test_record_that_is_renewed_for_ever_does_not_stop_the_others() -> None:
    machine = begun(record_locks_max=10)
    take(machine, 1, 1)
    for number in range(1, 500):
        say(machine, 0, 0, RENEW, steady_ms=number * 1000)
        assert take(machine, 1, number + 1, steady_ms=number * 1000) == [Acquired(number, number + 1, 1)]
        say(machine, number, number, ACCEPT, steady_ms=number * 1000)
    assert machine.start_offset == 0
    assert len(list(machine.ranges())) == 2


def test_memory_behind_a_record_that_stays_locked_is_bounded() -> None:
    machine = begun(record_locks_max=10)
    take(machine, 1, 1)
    number = 1
    while machine.next_fetch_offset(0) is not None:
        take(machine, 1, number + 1)
        say(machine, number, number, ACCEPT if number % 2 else REJECT)
        number += 1
        assert number < 100
    assert len(list(machine.ranges())) == 40
    say(machine, 0, 0, ACCEPT)
    assert machine.start_offset == number == machine.next_fetch_offset(0)


def test_one_turn_looks_at_few_spans_without_records() -> None:
    """Such as the markers and the aborted batches of many small transactions."""
    machine = begun(100_001)
    turns = 0
    acquired: list[Acquired] = []
    while not acquired:
        offset = machine.next_fetch_offset(0)
        assert offset is not None
        spans = (Span(each, each + 1, has_records=each == 100_000) for each in range(offset, 100_001))
        acquired = machine.acquire("m", spans, 10, 10, 0)
        turns += 1
        machine.check_invariants()
    assert acquired == [Acquired(100_000, 100_001, 1)]
    assert turns >= 100


def test_state_behind_the_end_of_the_log_is_dropped() -> None:
    state = ShareState(0, 5, (StateBatch(6, 9, 2, 1), StateBatch(10, 20, 2, 1)))
    machine = begun(8, state)
    assert (machine.start_offset, machine.end_offset) == (5, 8)
    assert begun(3, state).next_fetch_offset(0) == 3


def test_next_leader_delivers_a_released_record_after_its_whole_backoff() -> None:
    state = ShareState(0, 0, (StateBatch(0, 0, 0, 2),))
    machine = SharePartition(state, ShareLimits(backoff_ms=100), 10, 5_000)
    assert machine.next_deadline_ms(5_000) == 5_200
    assert take(machine, 10, 3, steady_ms=5_199) == [Acquired(1, 3, 1)]
    assert take(machine, 10, 3, steady_ms=5_200) == [Acquired(0, 1, 3)]


def test_renewal_is_refused_where_the_group_forbids_it() -> None:
    machine = begun(is_renew_enabled=False)
    take(machine, 1, 1)
    with pytest.raises(ApiError) as refused:
        machine.acknowledge("m", [AcknowledgedBatch(0, 0, [RENEW])], 0)
    assert refused.value.code is ErrorCode.INVALID_RECORD_STATE
    say(machine, 0, 0, ACCEPT)


def test_rejected_record_is_not_done_before_its_dead_letter_is_written() -> None:
    machine = begun(has_dead_letters=True)
    take(machine, 3, 3)
    say(machine, 0, 1, REJECT)
    say(machine, 2, 2, ACCEPT)
    assert machine.start_offset == 0
    owed = machine.owed(10)
    assert [(each.first_offset, each.end_offset, each.delivery_count) for each in owed] == [(0, 2, 1)]
    machine.buried(owed)
    machine.written(machine.next_write(), is_durable=False)
    assert machine.owed(10) == owed
    machine.buried(owed)
    machine.written(machine.next_write(), is_durable=True)
    assert machine.start_offset == 3


def test_records_that_come_back_during_a_write_are_in_the_next_one() -> None:
    machine = begun()
    take(machine, 1, 2, "a")
    take(machine, 1, 2, "b")
    machine.release_member("b")
    write = machine.next_write()
    assert write.batches == (StateBatch(1, 1, 0, 1),)
    machine.release_member("a")
    machine.written(write, is_durable=True)
    machine.check_invariants()
    assert machine.needs_write
    assert machine.next_write().batches == (StateBatch(0, 0, 0, 1),)


def test_counts_of_a_failed_write_are_written_with_the_next_one() -> None:
    machine = begun()
    take(machine, 2, 2, "a")
    machine.release_member("a")
    machine.written(machine.next_write(), is_durable=False)
    assert machine.needs_write
    write = machine.next_write()
    assert write.batches == (StateBatch(0, 1, 0, 1),)
    machine.written(write, is_durable=True)
    assert not machine.needs_write
