"""The machine of one partition of a share group at the partition's leader (Kafka: SharePartition; KIP-932, 1206, 1222).

Members acquire records, each under a lock with a deadline, and acknowledge them. A change is announced as a
`Transition`, written by the shell (`next_write`, one write at a time), and takes effect when it is durable
(`written`). Until then the record stays locked, also past its deadline: the outcome of the write decides. A failed
write leaves everything as it was.

Every acquisition counts as a delivery. A record that comes back with `delivery_count_max` deliveries is archived,
however it comes back. What comes back without an acknowledgement (an expired lock, a closed session) is available
at once, and its count goes along with the next write.

Offsets without a record to deliver (gaps of compaction, control batches, aborted or hidden records) are archived when
they are met. That is not written: a new leader meets them again.

Has no I/O and no clock: times are the caller's steady milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.share_state import ShareState, StateBatch
from tidemill.replication.share_counts import InFlightCounts, ShareCounts, in_flight_counts
from tidemill.replication.share_messages import (
    AcknowledgedBatch,
    AcknowledgeType,
    Acquired,
    Change,
    Dead,
    ShareLimits,
    Span,
    Transition,
    Write,
)
from tidemill.replication.share_ranges import CountState, DeliveryState, InFlight, Range

# The fewest deliveries after which a record is kept apart from others.
_ISOLATED_SINCE_MIN = 2
_NEVER_MS = 1 << 62
# How many ranges there may be for each record that may be locked. Done records behind one that stays locked take memory
# too, here and at the share coordinator.
_RANGES_PER_LOCK = 4
# Spans in a row of which nothing is acquired. Other work has its turn before the rest is looked at.
_IDLE_SPANS_MAX = 1_000
_GIVEN_UP = (DeliveryState.ARCHIVING, DeliveryState.ARCHIVED)


class SharePartition:
    __slots__ = (
        "_announced",
        "_earliest_end_ms",
        "_has_unwritten",
        "_in_flight",
        "_is_writing",
        "_log_start_offset",
        "counts",
        "limits",
    )

    def __init__(
        self,
        state: ShareState,
        limits: ShareLimits,
        log_end_offset: int,
        steady_ms: int,
        counts: ShareCounts | None = None,
    ) -> None:
        """`state.start_offset` is decided. What lies behind the log's end was lost in an unclean election."""
        self.limits = limits
        self.counts = counts or ShareCounts()
        start_offset = min(state.start_offset, log_end_offset)
        self._in_flight = InFlight(start_offset)
        for batch in state.batches:
            end_offset = min(batch.last_offset + 1, log_end_offset)
            first_offset = max(batch.first_offset, start_offset)
            if first_offset < end_offset:
                self._restore(first_offset, end_offset, batch, steady_ms)
        self._in_flight.settle(self.start_offset, self.end_offset)
        # Records before it are gone from the log; nothing is known of their locks.
        self._log_start_offset = 0
        self._announced: list[Transition] = []
        self._is_writing = False
        self._has_unwritten = False
        # No lock ends before it.
        self._earliest_end_ms = _NEVER_MS

    def _restore(self, first_offset: int, end_offset: int, batch: StateBatch, steady_ms: int) -> None:
        in_flight = self._in_flight
        if first_offset > in_flight.end_offset:
            # Acquired by the last leader's members and never acknowledged: delivered anew.
            in_flight.append(Range(in_flight.end_offset, first_offset, DeliveryState.AVAILABLE))
        state = DeliveryState(batch.delivery_state)
        delivery_count = 0 if state.is_final else batch.delivery_count
        # When a backoff began is not known: it begins anew, so that it is never shortened.
        backoff_ms = self.limits.backoff_after(delivery_count) if state == DeliveryState.AVAILABLE else 0
        available_ms = steady_ms + backoff_ms if backoff_ms else 0
        restored = Range(first_offset, end_offset, state, delivery_count, None, available_ms)
        # The durable state has no reason. At its last delivery it may have been rejected, too.
        is_below_limit = delivery_count < self.limits.delivery_count_max
        restored.is_rejected = state == DeliveryState.ARCHIVING and is_below_limit
        in_flight.append(restored)

    # -- what there is ---------------------------------------------------------------------------------------

    @property
    def start_offset(self) -> int:
        """Everything before it is acknowledged or archived."""
        return self._in_flight.start_offset

    @property
    def end_offset(self) -> int:
        """The first offset that was never delivered."""
        return self._in_flight.end_offset

    @property
    def open_count(self) -> int:
        """Returns the number of records that are locked or wait for another delivery."""
        return self._in_flight.open_count

    def ranges(self) -> Iterator[tuple[int, int, DeliveryState, int, str | None]]:
        """(first offset, end offset, state, delivery count, holder), for those that look at it."""
        for each in self._in_flight.ranges:
            yield each.first_offset, each.end_offset, each.state, each.delivery_count, each.holder

    def in_flight_counts(self) -> InFlightCounts:
        return in_flight_counts(self._in_flight.ranges)

    def next_fetch_offset(self, steady_ms: int) -> int | None:
        """Returns the offset at which to read for the next member; None at the limit of locked records."""
        free = self._in_flight.first_free(steady_ms)
        if free is not None:
            return free.first_offset
        return self.end_offset if self._room() > 0 else None

    def _room(self) -> int:
        """Returns how many more records may be locked."""
        if len(self._in_flight.ranges) >= _RANGES_PER_LOCK * self.limits.record_locks_max:
            return 0
        return self.limits.record_locks_max - self.open_count

    def configure(self, limits: ShareLimits) -> None:
        self.limits = limits

    def next_deadline_ms(self, steady_ms: int) -> int | None:
        """Returns the time at which the next lock ends, or a released record becomes available."""
        return min(
            (
                each.deadline_ms
                for each in self._in_flight.ranges
                if each.transition is None
                and (each.state == DeliveryState.ACQUIRED or each.deadline_ms > steady_ms)
            ),
            default=None,
        )

    def check_invariants(self) -> None:
        self._in_flight.check_invariants()

    # -- acquiring -------------------------------------------------------------------------------------------

    def acquire(
        self, member_id: str, spans: Iterable[Span], max_records: int, batch_size: int, steady_ms: int
    ) -> list[Acquired]:
        """Lock at most `max_records` records of consecutive spans of the log, which begin at `next_fetch_offset`.

        Takes no more spans than it needs, and a bounded number of those that have nothing to acquire. When it acquires
        nothing there may be records behind them: `next_fetch_offset` has moved. The result is in pieces of about
        `batch_size` records, cut where spans are.
        """
        acquired: list[Acquired] = []
        if max_records <= 0:
            return acquired
        left = max_records
        first_offset: int | None = None
        end_offset = idle = 0
        for span in spans:
            if first_offset is None:
                first_offset = span.first_offset
            end_offset, before = span.end_offset, left
            left, is_done = self._acquire_span(span, member_id, left, batch_size, steady_ms, acquired)
            idle = idle + 1 if left == before else 0
            if is_done or idle >= _IDLE_SPANS_MAX:
                break
        if acquired:
            self.counts.deliveries += max_records - left
            self._earliest_end_ms = min(self._earliest_end_ms, steady_ms + self.limits.lock_duration_ms)
        if first_offset is not None:
            self._in_flight.settle(max(first_offset, self.start_offset), min(end_offset, self.end_offset))
        return acquired

    def _acquire_span(
        self,
        span: Span,
        member_id: str,
        left: int,
        batch_size: int,
        steady_ms: int,
        acquired: list[Acquired],
    ) -> tuple[int, bool]:
        """Returns how many more records may be acquired, and whether this was the last span to look at."""
        in_flight = self._in_flight
        deadline_ms = steady_ms + self.limits.lock_duration_ms
        at = max(span.first_offset, self.start_offset)
        while at < min(span.end_offset, self.end_offset):
            found = in_flight.ranges[in_flight.index_of(at)]
            end_offset = min(found.end_offset, span.end_offset)
            if not found.is_free(steady_ms):
                at = end_offset
                continue
            if not span.has_records:
                for each in in_flight.cut(at, end_offset):
                    in_flight.change(each, DeliveryState.ARCHIVED, 0)
                at = end_offset
                continue
            isolated = self._isolated_count(found)
            if left <= 0 or (isolated is not None and acquired):
                return left, True
            count = min(end_offset - at, left, isolated or left)
            delivery_count = found.delivery_count + 1
            for each in in_flight.cut(at, at + count):
                in_flight.change(each, DeliveryState.ACQUIRED, delivery_count, member_id, deadline_ms)
            _add(acquired, Acquired(at, at + count, delivery_count), batch_size)
            left -= count
            at += count
            if isolated is not None or not left:
                return left, True
        return self._acquire_new(span, member_id, left, batch_size, deadline_ms, acquired)

    def _acquire_new(
        self,
        span: Span,
        member_id: str,
        left: int,
        batch_size: int,
        deadline_ms: int,
        acquired: list[Acquired],
    ) -> tuple[int, bool]:
        in_flight, at = self._in_flight, self.end_offset
        if span.end_offset <= at:
            return left, False
        if not span.has_records:
            in_flight.append(Range(at, span.end_offset, DeliveryState.ARCHIVED))
            return left, False
        count = min(span.end_offset - at, left, self._room())
        if count <= 0:
            return left, True
        in_flight.append(Range(at, at + count, DeliveryState.ACQUIRED, 1, member_id, deadline_ms))
        _add(acquired, Acquired(at, at + count, 1), batch_size)
        return left - count, left == count or at + count < span.end_offset

    def _isolated_count(self, found: Range) -> int | None:
        """Returns how many records of a range to deliver together. After many deliveries one of them may be poison.

        As Kafka: half of them, then a quarter, and alone at the last attempt, so that one record does not take
        others with it to the limit.
        """
        delivery_count_max, delivery_count = self.limits.delivery_count_max, found.delivery_count
        since = max(_ISOLATED_SINCE_MIN, (delivery_count_max + 1) // 2)
        if delivery_count < since:
            return None
        if delivery_count_max > 2 and delivery_count >= delivery_count_max - 1:
            return 1
        return max(1, found.size >> (delivery_count - since + 1))

    # -- acknowledging ---------------------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, batches: Sequence[AcknowledgedBatch], steady_ms: int
    ) -> Transition | None:
        """Announce what a member says of its records; None when nothing has to be written.

        `ApiError` leaves everything as it was: a member acknowledges what it holds, or nothing.
        """
        self.expire(steady_ms)
        transition = Transition()
        renewed: list[Range] = []
        try:
            for batch in batches:
                self._acknowledge_batch(member_id, batch, steady_ms, transition, renewed)
        except ApiError:
            self._take_back(transition)
            for each in renewed:
                each.transition = None
            raise
        for each in renewed:
            each.transition = None
            each.deadline_ms = steady_ms + self.limits.lock_duration_ms
            self._earliest_end_ms = min(self._earliest_end_ms, each.deadline_ms)
            self.counts.acknowledged[AcknowledgeType.RENEW] += each.size
        if not transition.changes:
            return None
        self._announced.append(transition)
        return transition

    def _acknowledge_batch(
        self,
        member_id: str,
        batch: AcknowledgedBatch,
        steady_ms: int,
        transition: Transition,
        renewed: list[Range],
    ) -> None:
        in_flight = self._in_flight
        if batch.last_offset < self._log_start_offset:
            return
        if max(batch.first_offset, self._log_start_offset) < self.start_offset:
            # Kafka confirms it: then two members believe that the record is theirs to finish.
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, f"Offset {batch.first_offset} is done already.")
        if not in_flight.ranges:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, f"Offset {batch.first_offset} is not in flight.")
        if batch.last_offset >= self.end_offset:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Offset {batch.last_offset} was never delivered.")
        for first_offset, end_offset, kind in _runs(batch):
            first_offset = max(first_offset, self._log_start_offset)
            if first_offset >= end_offset:
                continue
            for each in in_flight.overlapping(first_offset, end_offset):
                self._check_held(each, member_id)
            if kind == AcknowledgeType.RENEW and not self.limits.is_renew_enabled:
                raise ApiError(
                    ErrorCode.INVALID_RECORD_STATE, "The group does not allow locks to be renewed."
                )
            for each in in_flight.cut(first_offset, end_offset):
                each.transition = transition
                if kind == AcknowledgeType.RENEW:
                    renewed.append(each)
                else:
                    change = self._change_of(each, kind, steady_ms)
                    transition.changes.append(change)
                    transition.counts.acknowledged[kind] += each.size
                    if kind != AcknowledgeType.GAP and change.state in _GIVEN_UP:
                        transition.counts.archived += each.size

    def _check_held(self, found: Range, member_id: str) -> None:
        if found.state != DeliveryState.ACQUIRED:
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, f"Offset {found.first_offset} is not locked.")
        if found.holder != member_id:
            message = f"Another member holds the lock of offset {found.first_offset}."
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, message)
        if found.transition is not None:
            message = f"Offset {found.first_offset} is being acknowledged already."
            raise ApiError(ErrorCode.INVALID_RECORD_STATE, message)

    def _change_of(self, found: Range, kind: int, steady_ms: int) -> Change:
        if kind == AcknowledgeType.ACCEPT:
            return Change(found, DeliveryState.ACKNOWLEDGED)
        if kind == AcknowledgeType.RELEASE:
            if found.delivery_count >= self.limits.delivery_count_max:
                return Change(found, self._archived())
            backoff_ms = self.limits.backoff_after(found.delivery_count)
            return Change(found, DeliveryState.AVAILABLE, steady_ms + backoff_ms if backoff_ms else 0)
        if kind == AcknowledgeType.REJECT:
            return Change(found, self._archived(), is_rejected=True)
        return Change(found, DeliveryState.ARCHIVED)

    def _archived(self) -> DeliveryState:
        """Returns the state of a record that is given up: with dead letters, it is archived when its letter is written."""
        return DeliveryState.ARCHIVING if self.limits.has_dead_letters else DeliveryState.ARCHIVED

    # -- coming back without an acknowledgement --------------------------------------------------------------

    def expire(self, steady_ms: int) -> bool:
        """End the locks whose deadline has passed. Returns whether any ended."""
        if steady_ms < self._earliest_end_ms:
            return False
        expired: list[Range] = []
        self._earliest_end_ms = _NEVER_MS
        for each in self._in_flight.ranges:
            if each.state != DeliveryState.ACQUIRED:
                continue
            if each.transition is None and each.deadline_ms <= steady_ms:
                expired.append(each)
            else:
                # Also of one that is being written: it comes back when that fails.
                self._earliest_end_ms = min(self._earliest_end_ms, each.deadline_ms)
        return self._give_back(expired, is_timeout=True)

    def release_member(self, member_id: str) -> bool:
        """End the locks of a member that is gone. Returns whether it had any."""
        held = [
            each for each in self._in_flight.ranges if each.holder == member_id and each.transition is None
        ]
        return self._give_back(held)

    def _give_back(self, ranges: Sequence[Range], *, is_timeout: bool = False) -> bool:
        if not ranges:
            return False
        transition = Transition()
        for each in ranges:
            if each.delivery_count >= self.limits.delivery_count_max:
                each.transition = transition
                transition.changes.append(Change(each, self._archived()))
                counts = transition.counts
                counts.archived += each.size
                self._earliest_end_ms = min(self._earliest_end_ms, each.deadline_ms)
            else:
                self._in_flight.change(each, DeliveryState.AVAILABLE, each.delivery_count)
                each.count_state = CountState.UNWRITTEN
                self._has_unwritten = True
                counts = self.counts
            counts.lock_timeouts += each.size if is_timeout else 0
        if transition.changes:
            self._announced.append(transition)
        self._in_flight.settle(ranges[0].first_offset, ranges[-1].end_offset)
        return True

    # -- dead letters ----------------------------------------------------------------------------------------

    def owed(self, records_max: int) -> list[Dead]:
        """Records whose dead letters are to be written, the first ones first. They stay owed until `buried`."""
        found: list[Dead] = []
        for each in self._in_flight.ranges:
            if each.state == DeliveryState.ARCHIVING and each.transition is None:
                end_offset = min(each.end_offset, each.first_offset + records_max)
                found.append(Dead(each.first_offset, end_offset, each.delivery_count, each.is_rejected))
                records_max -= end_offset - each.first_offset
                if records_max <= 0:
                    break
        return found

    def buried(self, dead: Sequence[Dead]) -> None:
        """Their dead letters are written, or never will be: announce that they are done."""
        transition = Transition()
        for given_up in dead:
            if given_up.end_offset <= self.start_offset:
                continue
            first_offset = max(given_up.first_offset, self.start_offset)
            for each in self._in_flight.cut(first_offset, given_up.end_offset):
                if each.state == DeliveryState.ARCHIVING and each.transition is None:
                    each.transition = transition
                    transition.changes.append(Change(each, DeliveryState.ARCHIVED))
        if transition.changes:
            self._announced.append(transition)

    # -- the log ---------------------------------------------------------------------------------------------

    def log_start_moved(self, log_start_offset: int) -> None:
        """Records before an offset are gone, with their locks."""
        self._log_start_offset = max(self._log_start_offset, log_start_offset)
        self._in_flight.drop_before(log_start_offset)
        self._in_flight.settle(self.start_offset, self.start_offset)

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def needs_write(self) -> bool:
        return not self._is_writing and bool(self._announced or self._has_unwritten)

    def next_write(self) -> Write:
        """Everything that is to be written now. The next one waits for its outcome."""
        assert self.needs_write
        transitions, self._announced = tuple(self._announced), []
        batches: list[StateBatch] = []
        targets: dict[Range, DeliveryState] = {}
        for transition in transitions:
            for change in transition.changes:
                if (each := change.changed).transition is transition:
                    targets[each] = change.state
                    batches.append(_batch(each, change.state, each.delivery_count))
        has_counts = False
        for each in self._in_flight.ranges if self._has_unwritten else ():
            if each.count_state is CountState.UNWRITTEN and each not in targets:
                each.count_state = CountState.IN_WRITE
                has_counts = True
                batches.append(_batch(each, DeliveryState.AVAILABLE, each.ended_deliveries))
        start_offset = self._in_flight.start_after(targets)
        self._is_writing = True
        return Write(
            start_offset,
            tuple(sorted(batches)),
            self._in_flight.final_count(targets, start_offset),
            transitions,
            has_counts,
        )

    def written(self, write: Write, *, is_durable: bool) -> None:
        """The outcome of a write."""
        self._is_writing = False
        if write.has_counts:
            self._counts_written(CountState.DURABLE if is_durable else CountState.UNWRITTEN)
        for transition in write.transitions:
            if is_durable:
                self._carry_out(transition)
            else:
                self._take_back(transition)
        if self._has_unwritten:
            self._has_unwritten = any(
                each.count_state is CountState.UNWRITTEN for each in self._in_flight.ranges
            )

    def _counts_written(self, state: CountState) -> None:
        for each in self._in_flight.ranges:
            if each.count_state is CountState.IN_WRITE:
                each.count_state = state
        self._in_flight.settle(self.start_offset, self.end_offset)

    def _carry_out(self, transition: Transition) -> None:
        self.counts.add(transition.counts)
        for each, state, deadline_ms, is_rejected in transition.changes:
            if each.transition is not transition:
                continue  # the log's start has passed it meanwhile
            each.transition = None
            self._in_flight.change(
                each, state, each.delivery_count, deadline_ms=deadline_ms, is_rejected=is_rejected
            )
        first, last = transition.changes[0].changed, transition.changes[-1].changed
        self._in_flight.settle(max(first.first_offset, self.start_offset), last.end_offset)

    def _take_back(self, transition: Transition) -> None:
        for change in transition.changes:
            if change.changed.transition is transition:
                change.changed.transition = None


def _batch(written: Range, state: DeliveryState, delivery_count: int) -> StateBatch:
    return StateBatch(written.first_offset, written.end_offset - 1, int(state), delivery_count)


def _runs(batch: AcknowledgedBatch) -> Iterator[tuple[int, int, int]]:
    """(first offset, end offset, type) of the offsets that are acknowledged alike."""
    if len(batch.types) == 1:
        yield batch.first_offset, batch.last_offset + 1, batch.types[0]
        return
    at = batch.first_offset
    for kind, alike in groupby(batch.types):
        end_offset = at + sum(1 for _ in alike)
        yield at, end_offset, kind
        at = end_offset


def _add(acquired: list[Acquired], added: Acquired, batch_size: int) -> None:
    """Add to the last piece, while that is small."""
    if acquired:
        last = acquired[-1]
        if (
            last.end_offset == added.first_offset
            and last.delivery_count == added.delivery_count
            and last.end_offset - last.first_offset < batch_size
        ):
            acquired[-1] = last._replace(end_offset=added.end_offset)
            return
    acquired.append(added)
