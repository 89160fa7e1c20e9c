"""The machine of a share partition against a model that has one entry for each offset."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tidemill.errors import ApiError
from tidemill.protocol.share_state import ShareState, StateBatch
from tidemill.replication.share_messages import (
    AcknowledgedBatch,
    AcknowledgeType,
    ShareLimits,
    Span,
    Write,
)
from tidemill.replication.share_partition import SharePartition
from tidemill.replication.share_ranges import DeliveryState

LOCK_MS = 100
LIMITS = ShareLimits(lock_duration_ms=LOCK_MS, delivery_count_max=4, record_locks_max=25, backoff_ms=30)
ISOLATED_SINCE = 2
LOG_END = 60
MEMBERS = ("a", "b", "c")
# Offsets of the log without a record: a gap, control batches.
EMPTY = frozenset({7, 8, 20, 33, 34, 35})


@dataclass
class Entry:
    state: DeliveryState = DeliveryState.AVAILABLE
    delivery_count: int = 0
    holder: str | None = None
    deadline_ms: int = 0
    # Whether a change of it is announced.
    is_locked: bool = False


@dataclass
class Announced:
    """One request's changes: the state that each offset gets, and when it may be acquired again."""

    changes: dict[int, tuple[DeliveryState, int]]
    accepted: frozenset[int] = frozenset()


class Naive:
    """A dumb model of the rules, one offset at a time."""

    def __init__(self) -> None:
        self.entries = {offset: Entry() for offset in range(LOG_END)}
        self.end = 0
        self.log_start = 0
        self.waiting: list[Announced] = []
        self.writing: list[Announced] = []
        self.accepted: set[int] = set()

    def is_free(self, offset: int, now_ms: int) -> bool:
        entry = self.entries[offset]
        return entry.state == DeliveryState.AVAILABLE and not entry.is_locked and entry.deadline_ms <= now_ms

    def open_count(self) -> int:
        return sum(
            1
            for offset in range(self.log_start, self.end)
            if offset not in EMPTY and not self.entries[offset].state.is_final
        )

    def give_back(self, offsets: list[int]) -> None:
        dead = {}
        for offset in offsets:
            entry = self.entries[offset]
            if entry.delivery_count >= LIMITS.delivery_count_max:
                dead[offset] = (DeliveryState.ARCHIVED, 0)
                entry.is_locked = True
            else:
                entry.state, entry.holder, entry.deadline_ms = DeliveryState.AVAILABLE, None, 0
        if dead:
            self.waiting.append(Announced(dead))

    def held(self, now_ms: int) -> list[int]:
        return [
            offset
            for offset in range(self.log_start, self.end)
            if self.entries[offset].state == DeliveryState.ACQUIRED
            and not self.entries[offset].is_locked
            and self.entries[offset].deadline_ms <= now_ms
        ]

    def settle(self, is_durable: bool) -> None:
        for announced in self.writing:
            for offset, (state, deadline_ms) in announced.changes.items():
                entry = self.entries[offset]
                entry.is_locked = False
                if is_durable:
                    entry.state, entry.holder, entry.deadline_ms = state, None, deadline_ms
            if is_durable:
                self.accepted |= announced.accepted
        self.writing = []


class Comparison(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = SharePartition(ShareState(0, 0), LIMITS, LOG_END, 0)
        self.model = Naive()
        self.now_ms = 1_000
        self.write: Write | None = None
        # What the share coordinator has: by offset, delivery count and state.
        self.durable: dict[int, tuple[int, int]] = {}
        self.durable_start = 0

    @rule(
        member=st.sampled_from(MEMBERS),
        max_records=st.integers(0, 12),
        batch=st.integers(1, 7),
        reach=st.integers(1, 40),
    )
    def acquire(self, member: str, max_records: int, batch: int, reach: int) -> None:
        model, now_ms = self.model, self.now_ms
        first = self.machine.next_fetch_offset(now_ms)
        free_before = [
            offset
            for offset in range(self.machine.start_offset, model.end)
            if offset not in EMPTY and model.is_free(offset, now_ms)
        ]
        if first is None:
            assert not free_before
            assert model.open_count() >= LIMITS.record_locks_max
            return
        assert first == (free_before[0] if free_before else model.end)
        spans = _spans(first, min(LOG_END, first + reach), batch)
        acquired = self.machine.acquire(member, iter(spans), max_records, 500, now_ms)
        taken = [offset for each in acquired for offset in range(each.first_offset, each.end_offset)]
        room = LIMITS.record_locks_max - model.open_count()
        expected: list[int] = []
        for offset in range(first, spans[-1].end_offset if spans else first):
            if offset in EMPTY:
                continue
            if offset < model.end:
                if model.is_free(offset, now_ms):
                    expected.append(offset)
            elif room > 0:
                expected.append(offset)
                room -= 1
        expected = expected[:max_records]
        isolates = any(self.model.entries[offset].delivery_count >= ISOLATED_SINCE for offset in expected)
        if isolates:
            assert taken == expected[: len(taken)]
            assert taken or not expected
        else:
            assert taken == expected
        for each in acquired:
            for offset in range(each.first_offset, each.end_offset):
                entry = model.entries[offset]
                entry.state, entry.holder = DeliveryState.ACQUIRED, member
                entry.delivery_count += 1
                assert entry.delivery_count == each.delivery_count
                entry.deadline_ms = now_ms + LOCK_MS
        model.end = max(model.end, self.machine.end_offset)

    @rule(
        member=st.sampled_from(MEMBERS),
        first=st.integers(0, LOG_END - 1),
        types=st.lists(st.sampled_from([0, 1, 1, 2, 2, 3, 4]), min_size=1, max_size=6),
        is_uniform=st.booleans(),
        clings=st.booleans(),
    )
    def acknowledge(self, member: str, first: int, types: list[int], is_uniform: bool, clings: bool) -> None:
        model, now_ms = self.model, self.now_ms
        if clings:
            held = [o for o in range(model.log_start, model.end) if model.entries[o].holder == member]
            first = min(held, key=lambda offset: abs(offset - first), default=first)
        last = first + len(types) - 1
        batch = AcknowledgedBatch(first, last, types[:1] if is_uniform else types)
        start = self.machine.start_offset
        model.give_back(model.held(now_ms))
        offsets = [offset for offset in range(first, last + 1) if offset >= model.log_start]
        is_right = all(
            start <= offset < model.end
            and model.entries[offset].state == DeliveryState.ACQUIRED
            and model.entries[offset].holder == member
            and not model.entries[offset].is_locked
            for offset in offsets
        )
        if not is_right:
            with pytest.raises(ApiError):
                self.machine.acknowledge(member, [batch], now_ms)
            return
        self.machine.acknowledge(member, [batch], now_ms)
        changes, accepted = {}, set()
        for offset in offsets:
            kind = types[0] if is_uniform else types[offset - first]
            entry = model.entries[offset]
            if kind == AcknowledgeType.RENEW:
                entry.deadline_ms = now_ms + LOCK_MS
                continue
            entry.is_locked = True
            state, deadline_ms = DeliveryState.ARCHIVED, 0
            if kind == AcknowledgeType.ACCEPT:
                state = DeliveryState.ACKNOWLEDGED
                accepted.add(offset)
            elif kind == AcknowledgeType.RELEASE and entry.delivery_count < LIMITS.delivery_count_max:
                state, deadline_ms = (
                    DeliveryState.AVAILABLE,
                    now_ms + LIMITS.backoff_after(entry.delivery_count),
                )
            changes[offset] = (state, deadline_ms)
        if changes:
            model.waiting.append(Announced(changes, frozenset(accepted)))

    @rule(passed_ms=st.integers(1, 80))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms

    @rule()
    def expire(self) -> None:
        self.machine.expire(self.now_ms)
        self.model.give_back(self.model.held(self.now_ms))

    @rule(member=st.sampled_from(MEMBERS))
    def leave(self, member: str) -> None:
        self.machine.release_member(member)
        model = self.model
        model.give_back(
            [
                offset
                for offset in range(model.log_start, model.end)
                if model.entries[offset].holder == member and not model.entries[offset].is_locked
            ]
        )

    @precondition(lambda self: self.write is None and self.machine.needs_write)
    @rule()
    def begin_write(self) -> None:
        self.write = self.machine.next_write()
        self.model.writing, self.model.waiting = self.model.waiting, []

    @precondition(lambda self: self.write is not None)
    @rule(is_stored=st.booleans(), is_answered=st.booleans())
    def end_write(self, is_stored: bool, is_answered: bool) -> None:
        """A write that is stored may still fail for the leader."""
        assert self.write is not None
        last = -1
        if is_stored:
            for batch in self.write.batches:
                assert batch.first_offset > last, "batches of one write do not overlap"
                last = batch.last_offset
                for offset in range(batch.first_offset, batch.last_offset + 1):
                    self.durable[offset] = max(
                        self.durable.get(offset, (0, 0)), (batch.delivery_count, batch.delivery_state)
                    )
            self.durable_start = max(self.durable_start, self.write.start_offset)
        is_durable = is_stored and is_answered
        self.machine.written(self.write, is_durable=is_durable)
        self.model.settle(is_durable)
        self.write = None

    @rule(by=st.integers(1, 10))
    def log_start_moves(self, by: int) -> None:
        start = min(self.machine.start_offset + by, LOG_END)
        self.machine.log_start_moved(start)
        self.model.log_start = max(self.model.log_start, start)
        self.model.end = max(self.model.end, start)

    @rule()
    def restart(self) -> None:
        """Another leader reads what is durable: locks are gone, and nothing that was accepted comes back."""
        batches = [
            StateBatch(offset, offset, state, count)
            for offset, (count, state) in sorted(self.durable.items())
            if offset >= self.durable_start
        ]
        state = ShareState(0, self.durable_start, tuple(batches))
        machine = SharePartition(state, LIMITS, LOG_END, self.now_ms)
        machine.check_invariants()
        back = {
            offset
            for first, end, kind, _, _ in machine.ranges()
            if not kind.is_final
            for offset in range(first, end)
        }
        assert not back & self.model.accepted
        assert all(offset < machine.end_offset for offset in self.model.accepted)
        self._check_backoffs(machine)

    def _check_backoffs(self, machine: SharePartition) -> None:
        """Nothing that was released is delivered by the next leader before its backoff is over."""
        first = machine.next_fetch_offset(self.now_ms)
        if first is None:
            return
        acquired = machine.acquire(MEMBERS[0], [Span(first, LOG_END)], LOG_END, 500, self.now_ms)
        taken = {offset for each in acquired for offset in range(each.first_offset, each.end_offset)}
        waiting = {
            offset
            for offset in range(self.model.log_start, self.model.end)
            if self.model.entries[offset].state == DeliveryState.AVAILABLE
            and self.model.entries[offset].deadline_ms > self.now_ms
        }
        assert not taken & waiting

    @invariant()
    def counts_are_durable(self) -> None:
        """When nothing is left to write, the next leader knows every delivery whose lock has ended."""
        if self.write is not None or self.machine.needs_write:
            return
        for offset in range(self.machine.start_offset, self.model.end):
            entry = self.model.entries[offset]
            if offset not in EMPTY and not entry.state.is_final:
                count, _ = self.durable.get(offset, (0, 0))
                assert count >= entry.delivery_count - (entry.state == DeliveryState.ACQUIRED), offset

    @invariant()
    def agrees(self) -> None:
        self.machine.check_invariants()
        model = self.model
        assert self.machine.end_offset == model.end
        seen = self.machine.start_offset
        for first, end, state, count, holder in self.machine.ranges():
            assert first == seen
            seen = end
            for offset in range(first, end):
                entry = model.entries[offset]
                if offset in EMPTY:
                    continue
                assert (state, holder) == (entry.state, entry.holder), offset
                assert state.is_final or count == entry.delivery_count
        for offset in range(model.log_start, self.machine.start_offset):
            assert offset in EMPTY or model.entries[offset].state.is_final


def _spans(first: int, end: int, batch: int) -> list[Span]:
    spans: list[Span] = []
    at = first
    while at < end:
        has_records = at not in EMPTY
        until = at
        while until < min(end, at + batch) and (until not in EMPTY) == has_records:
            until += 1
        spans.append(Span(at, until, has_records))
        at = until
    return spans


TestComparison = Comparison.TestCase
TestComparison.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
