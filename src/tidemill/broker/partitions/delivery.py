"""Delivers the delayed records of a partition while this broker leads it.

The state of the delays (`delays/state.py`) is a function of the log. It is built from the log when the leadership
begins, and follows the log from then on. A leader never loses the end of its log, so everything in it counts, committed
or not. A copy that an earlier leader appended is in it, or was never delivered. A record is delivered when it is
committed itself.

The log is followed in steps, up to its very end before each append. So a cancel that was appended first is seen first.
What this leader appends itself is taken into the state at once, before a reader is woken.

A producer can be faster than the replay of its records. So its batches wait while the replay is behind by too many
records, and while the last ones before a delivery are replayed. A leader that replays a long log lets one record in for
every two that it replays, and fewer while records are due that it could not deliver yet.

Records that are due at nearly the same time are delivered together: after a delivery the next one waits some
milliseconds. One that is due after a pause is delivered at its time.

Snapshots of the state spare the replay when a leadership begins. One is written each time the log has grown by as much as a
snapshot takes, and when the leadership ends or the broker stops. It shows the state between two rounds, and delivery goes
on while it is written.

Retention may remove nothing that is pending. What stands in its way is carried: appended again, hidden as before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Protocol

from tidemill.broker.disk.long_work import LongWork
from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.appending.appender import Appender
from tidemill.broker.partitions.leadership import Leadership
from tidemill.broker.partitions.originals import Originals, replay_batch, segment_of
from tidemill.broker.partitions.reader import PartitionReader
from tidemill.config import TopicConfig
from tidemill.delays.copies import Original, carried_copies, visible_copies
from tidemill.delays.pending import Delivery
from tidemill.delays.requests import Cancel, Delayed, may_hold_requests, meaning_of
from tidemill.delays.snapshot import FrozenDelays, can_freeze
from tidemill.delays.state import PartitionDelays
from tidemill.errors import ApiError, ErrorCode
from tidemill.log.epochs import EpochStart, epoch_in
from tidemill.log.filtered_read import KnownRun
from tidemill.log.log import Log
from tidemill.protocol.record_walk import records_in_steps
from tidemill.protocol.records import BatchHeader, InvalidBatch, iterate_decompressed
from tidemill.protocol.steps import Steps, run_steps
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

# How many records are delivered or carried at once. To take that many copies into the state is one step.
_AT_ONCE = 200
# The same in bytes. One record may have more.
_BYTES_AT_ONCE = 1 << 20
# How often a round delivers before other partitions have their turn.
_DELIVERIES_A_ROUND = 5
_BATCHES_A_STEP = 32
# Producers wait when the log is ahead of the state by so many records.
_BEHIND_MAX = 2_000
# How much of a long log a round replays before other partitions have their turn.
_REPLAYED_A_ROUND = 10_000
_RECORDS_A_STEP = 200
# After a delivery the next one collects what is due for so long.
_COLLECT_S = 0.005
# The wall clock may jump: it is looked at again after this time at the latest.
_LOOK_S_MAX = 1.0
_RETRY_S = 1.0
# A snapshot is worth its while when the log has grown by so much since the last one, and by its size.
_SNAPSHOT_EVERY_BYTES = 32 << 20
# Below it the replay takes less than a second.
_LAST_SNAPSHOT_BYTES = 1 << 20


class DeliveryHost(Protocol):
    """The part of the broker that delivering uses."""

    @property
    def delivery_work(self) -> LongWork: ...
    @property
    def snapshot_work(self) -> LongWork: ...
    def wall_ms(self) -> int: ...
    def note_lateness(self, late_ms: int) -> None:
        """A delayed record was delivered so long after its due time."""


class DelayedDelivery:
    __slots__ = (
        "_appender",
        "_carry_before",
        "_config",
        "_counted_cancels",
        "_counts",
        "_credit",
        "_has_delivered",
        "_host",
        "_is_appending",
        "_is_late",
        "_is_restored",
        "_is_settling",
        "_is_taking_snapshot",
        "_is_woken",
        "_is_working",
        "_leadership",
        "_left",
        "_log",
        "_name",
        "_originals",
        "_reader",
        "_replayed_bytes",
        "_snapshot_bytes",
        "_state",
        "_timer",
    )

    def __init__(
        self,
        name: TopicPartition,
        config: TopicConfig,
        host: DeliveryHost,
        reader: PartitionReader,
        leadership: Leadership,
        appender: Appender,
        counts: TopicCounts,
    ) -> None:
        self._name = name
        self._config = config
        self._host = host
        self._reader = reader
        self._leadership = leadership
        self._appender = appender
        self._counts = counts
        # Cancellations of the state that are in the counts already; None until the log was replayed once.
        self._counted_cancels: int | None = None
        # Both are there while records are delivered.
        self._state: PartitionDelays | None = None
        self._log: Log | None = None
        self._carry_before = 0
        # Whether the snapshots were looked at.
        self._is_restored = False
        # Whether the last batches before an append are replayed, so that no others may come.
        self._is_settling = False
        # How many records were replayed or delivered, each of which lets half a one in.
        self._credit = 0
        # How many bytes of the log were replayed since the last snapshot, and the size of that.
        self._replayed_bytes = self._snapshot_bytes = 0
        self._is_taking_snapshot = False
        # The state of a leadership that has ended, of which a snapshot is due.
        self._left: tuple[PartitionDelays, Log, list[EpochStart]] | None = None
        self._originals = Originals()
        self._is_working = False
        # Whether this object appends: what becomes visible by that needs no round.
        self._is_appending = False
        # Whether the last round delivered something, and whether it left something that was due.
        self._has_delivered = self._is_late = False
        # Whether something became visible during a round, which may have looked before.
        self._is_woken = False
        self._timer: asyncio.TimerHandle | None = None

    # -- its life --------------------------------------------------------------------------------------------

    def configure(self, config: TopicConfig) -> None:
        self._config = config
        self.update()

    def update(self) -> None:
        """Begin or end, after the leadership or the configuration may have changed."""
        log = self._leadership.writable_log if self._config.tidemill_delays_enable else None
        if log is self._log:
            return
        self._stop()
        if log is not None:
            self._log = log
            # What a crash has taken may be written anew, in the same epoch by a sole replica.
            log.delay_snapshots.drop_after(log.log_end_offset)
            self._state = PartitionDelays(log.log_start_offset, self._reader.high_watermark)
            self._is_restored = False
            self._replayed_bytes = self._snapshot_bytes = 0
            self._reader.wait(self._grew)
            self._wake()

    def stop(self) -> None:
        """Stop for good, before the log is closed. A snapshot may be under way afterwards, in `snapshot_work`."""
        if self._log is not None:
            self._stop()

    def known_run(self, log: Log, offset: int) -> KnownRun:
        """The run of records from an offset on of which all, or none, are hidden from readers."""
        state = self._state
        if state is None or log is not self._log or not self._is_restored or offset >= state.end_offset:
            return KnownRun(offset, is_left_out=False)
        hidden_end = state.hidden.run_end(offset)
        if hidden_end > offset:
            return KnownRun(hidden_end, is_left_out=True)
        first = state.hidden.first_from(offset)
        return KnownRun(state.end_offset if first is None else first, is_left_out=False)

    def state_of(self, log: Log) -> PartitionDelays | None:
        """The state of the log that this broker leads, once it was replayed; None before, and on followers."""
        is_known = self._state is not None and log is self._log and self._is_restored
        return self._state if is_known and self._counted_cancels is not None else None

    def stays(self, batch: memoryview, header: BatchHeader) -> Steps[bool]:
        """Whether a batch for a decommissioned partition is stored here: it only cancels records that wait here.

        Any other batch that changes them is refused: where it would be stored, it would change nothing. So is one of a
        producer whose earlier batches may be stored there: its sequence goes on there. `InvalidBatch`, also as long as
        the log was not replayed to its end.
        """
        if not self._config.tidemill_delays_enable:
            return False
        body = yield from records_in_steps(batch, header)
        if not may_hold_requests(body):
            return False
        changing: list[int] = []
        may_cancel = header.producer_id < 0 or (header.base_sequence == 0 and not header.is_transactional)
        for number, record in enumerate(iterate_decompressed(memoryview(body), header)):
            if number % _RECORDS_A_STEP == _RECORDS_A_STEP - 1:
                yield None
            meaning = meaning_of(record)
            if not isinstance(meaning, Delayed | Cancel) or not self._changes_waiting(meaning):
                continue
            changing.append(number)
            may_cancel = may_cancel and isinstance(meaning, Cancel)
        if changing and not (may_cancel and len(changing) == header.record_count):
            reason = (
                f"a message that waits in {self._name}, which is decommissioned, can be cancelled, but not replaced or "
                "changed together with other records: use `tidemill delays cancel`, and send it anew"
            )
            raise InvalidBatch(ErrorCode.INVALID_RECORD, reason, [(number, reason) for number in changing])
        return bool(changing)

    def _changes_waiting(self, request: Delayed | Cancel) -> bool:
        """Whether a request is about a record that waits in this partition. `InvalidBatch` when that is not known yet."""
        offset = request.offset if isinstance(request, Cancel) else None
        if request.identity is None and offset is None:
            return False
        state, log = self._state, self._log
        if state is None or log is None or not self._is_restored or state.end_offset < log.log_end_offset:
            raise InvalidBatch(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"what waits in {self._name} is not known yet"
            )
        if request.identity is not None:
            return state.holds(request.identity)
        # An empty log stays empty: it may be removed.
        return log.log_start_offset < log.log_end_offset

    def _stop(self) -> None:
        state, log = self._state, self._log
        self._left = None
        if (
            state is not None
            and log is not None
            and self._is_restored
            and self._replayed_bytes >= _LAST_SNAPSHOT_BYTES
        ):
            # The epochs as they are now. By the time of the snapshot the log may be another one, up to the same offset.
            self._left = state, log, log.epochs.entries
        self._state = self._log = None
        self._counted_cancels = None
        self._carry_before = self._credit = 0
        self._is_late = False
        self._appender.release()
        self._originals.forget()
        self._reader.stop_waiting(self._grew)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._leave()

    # -- snapshots -------------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Write the last snapshot of a leadership that has ended, once nothing works with its state any more."""
        if self._is_working or self._is_taking_snapshot or self._left is None:
            return
        (state, log, epochs), self._left = self._left, None
        frozen = FrozenDelays(state, is_at_rest=True)
        epoch = epoch_in(epochs, frozen.end_offset - 1)
        self._host.snapshot_work.submit(partial(self._write_snapshot, frozen, log, epoch), self._left_behind)

    def _left_behind(self, _size: int | None, error: Exception | None) -> None:
        if error is not None:
            self._report_snapshot(error)

    def _snapshot_is_due(self, state: PartitionDelays) -> bool:
        return (
            not self._is_taking_snapshot
            and self._replayed_bytes >= max(_SNAPSHOT_EVERY_BYTES, self._snapshot_bytes)
            and can_freeze(state)
        )

    def _take_snapshot(self, state: PartitionDelays, log: Log) -> None:
        """Write a snapshot of the state as it is now."""
        self._is_taking_snapshot = True
        # Whatever becomes of it: the next one is due when the log has grown again.
        self._replayed_bytes = 0
        frozen = FrozenDelays(state)
        epoch = log.epochs.epoch_of(frozen.end_offset - 1)
        self._host.snapshot_work.submit(
            partial(self._write_snapshot, frozen, log, epoch), partial(self._took_snapshot, frozen)
        )

    def _took_snapshot(self, frozen: FrozenDelays, size: int | None, error: Exception | None) -> None:
        self._is_taking_snapshot = False
        frozen.thaw()
        if error is not None:
            self._report_snapshot(error)
        elif size is not None:
            self._snapshot_bytes = size
        self._leave()

    def _report_snapshot(self, error: Exception) -> None:
        logger.warning("%s: no snapshot of the delayed records was written: %s", self._name, error)

    def _write_snapshot(self, frozen: FrozenDelays, log: Log, epoch: int) -> Steps[int]:
        """`epoch` is that of the last batch in the state, which tells whether the log still has it."""
        end_offset = frozen.end_offset

        def is_still_true() -> bool:
            return end_offset <= log.log_end_offset and log.epochs.epoch_of(end_offset - 1) == epoch

        return (yield from log.delay_snapshots.write(frozen, epoch, is_still_true))

    def _restore(self, log: Log) -> Steps[PartitionDelays | None]:
        return (
            yield from log.delay_snapshots.restore(
                log.log_start_offset,
                log.log_end_offset,
                self._reader.high_watermark,
                lambda offset: log.epochs.epoch_of(offset - 1),
            )
        )

    # -- what metrics show -----------------------------------------------------------------------------------

    @property
    def pending_count(self) -> int:
        """The number of records that wait, as far as the log was replayed; 0 where this broker does not lead."""
        return 0 if self._state is None else len(self._state.pending.offsets)

    @property
    def next_due_ms(self) -> int | None:
        return None if self._state is None or not self.pending_count else self._state.next_due_ms

    def _count_cancels(self, state: PartitionDelays) -> None:
        """Count what was cancelled since the last round. What an older log says does not count again."""
        if self._counted_cancels is not None:
            self._counts.delays_cancelled += state.cancelled_count - self._counted_cancels
        self._counted_cancels = state.cancelled_count

    # -- retention -------------------------------------------------------------------------------------------

    def retained_offset(self, log: Log) -> int:
        """Retention must keep the log from here on."""
        state = self._state
        if state is None or state.end_offset < self._reader.high_watermark:
            # A follower moves its log start with the leader's, which knows what is pending.
            return log.log_start_offset
        return state.retained_offset

    def carry(self, before_offset: int) -> None:
        """Append anew what is pending before an offset, so that retention can remove its segments."""
        if self._state is not None and before_offset > self._carry_before:
            self._carry_before = before_offset
            self._wake()

    # -- rounds ----------------------------------------------------------------------------------------------

    def _grew(self, _added_bytes: int) -> None:
        # Registered for good, not for one round.
        if self._is_appending:
            return
        state, log = self._state, self._log
        if state is not None and log is not None and self._is_restored and _behind(state, log) > _BEHIND_MAX:
            self._appender.hold()
        self._wake()

    def _wake(self) -> None:
        if self._is_working or self._state is None:
            self._is_woken = True
            return
        self._is_working, self._is_woken = True, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._host.delivery_work.submit(self._round, self._worked)

    def _worked(self, is_done: bool | None, error: Exception | None) -> None:
        self._is_working = False
        if error is not None:
            self._left = None
        self._leave()
        state, log = self._state, self._log
        if state is None or log is None:
            return
        if error is not None:
            self._appender.release()
            state.give_back()
            if not isinstance(error, ApiError | OSError):
                logger.error("%s: delivering delayed records failed", self._name, exc_info=error)
            self._look_after(_RETRY_S)
            return
        if self._snapshot_is_due(state):
            self._take_snapshot(state, log)
        if not is_done or self._is_woken:
            self._wake()
        elif state.next_due_ms is None:
            self._originals.forget()
        else:
            left_s = (state.next_due_ms - self._host.wall_ms()) / 1000
            if left_s > _LOOK_S_MAX:
                self._originals.forget()
            self._look_after(min(max(left_s, _COLLECT_S if self._has_delivered else 0.0), _LOOK_S_MAX))

    def _look_after(self, delay_s: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._wake)

    def _round(self) -> Steps[bool]:
        """Follow the log, then deliver and carry some records. Returns whether there is nothing left to do now."""
        state, log = self._state, self._log
        if state is None or log is None:
            return True
        if not self._is_restored:
            restored = yield from self._restore(log)
            if self._state is not state:
                return True
            self._is_restored = True
            if restored is not None:
                self._state = state = restored
        if _behind(state, log) > _REPLAYED_A_ROUND:
            yield from self._follow(state, log, state.end_offset + _REPLAYED_A_ROUND)
            return False
        if state.next_due_ms is not None and state.next_due_ms <= self._host.wall_ms():
            yield from self._settle(state, log)
        else:
            yield from self._follow(state, log, log.log_end_offset)
        if self._state is not state:
            return True
        self._count_cancels(state)
        yield from state.advance_log_start(log.log_start_offset)
        yield from state.advance_committed(self._reader.high_watermark)
        if self._state is not state:
            return True
        self._has_delivered = self._is_late = False
        for _ in range(_DELIVERIES_A_ROUND):
            delivered_count = yield from self._deliver(state, log)
            self._has_delivered = self._has_delivered or delivered_count > 0
            self._is_late = delivered_count == _AT_ONCE
            if not self._is_late:
                break
            yield None
            if self._state is not state:
                return True
        carried = yield from self._carry(state, log)
        self._pace(state, log)
        is_at_end = state.end_offset == log.log_end_offset and not self._appender.holds_batches
        return not self._is_late and not carried and is_at_end

    def _deliver(self, state: PartitionDelays, log: Log) -> Steps[int]:
        """Deliver some of the records that are due. Returns how many `due` gave."""
        due = yield from state.due(self._host.wall_ms(), _AT_ONCE)
        if not due or self._state is not state:
            return 0
        yield None
        begin, count = 0, len(due)
        while begin < len(due):
            some = due[begin : begin + count]
            originals, is_cut = yield from self._originals.at(
                log, [each.offset for each in some], _BYTES_AT_ONCE
            )
            if is_cut and len(some) > 1:
                # Large ones. The order of due times is kept, so the first of them are read, not those that were found.
                count = min(len(originals), len(some) - 1)
                continue
            yield None
            yield from self._deliver_some(state, log, some, originals)
            if self._state is not state:
                return 0
            begin, count = begin + len(some), 2 * len(some)
        return len(due)

    def _deliver_some(
        self, state: PartitionDelays, log: Log, due: Sequence[Delivery], originals: Mapping[int, Original]
    ) -> Steps[None]:
        """Append the copies of some due records in one step."""
        given = [each for each in due if each.offset in originals]
        batches = yield from visible_copies(given, originals)
        yield from self._settle(state, log)
        if self._state is not state:
            return
        live = state.confirm(given)
        if len(live) < len(given):
            batches = run_steps(visible_copies(live, originals))
        for batch, deliveries in batches:
            first_offset = log.log_end_offset
            self._append(batch)
            state.replay_copies(first_offset, deliveries)
            self._replayed_bytes += len(batch)
        self._counts.delays_delivered += len(live)
        self._credit += len(live) // 2
        wall_ms = self._host.wall_ms()
        for each in live:
            self._host.note_lateness(wall_ms - each.due_ms)

    def _carry(self, state: PartitionDelays, log: Log) -> Steps[bool]:
        if not self._carry_before:
            return False
        wanted = state.to_carry(self._carry_before, _AT_ONCE)
        if not wanted:
            self._carry_before = 0
            return False
        originals, _ = yield from self._originals.at(log, [each.offset for each in wanted], _BYTES_AT_ONCE)
        yield from self._settle(state, log)
        if self._state is not state:
            return False
        live = [each for each in state.confirm_carries(wanted) if each.offset in originals]
        if not live:
            # What cannot be read, or may not be carried now, waits for the next round of retention.
            self._carry_before = 0
        for batch, _ in run_steps(carried_copies(live, originals, self._host.wall_ms())):
            self._append(batch)
        return bool(live)

    def _append(self, batch: bytearray) -> None:
        """`ApiError` when this broker may not write now."""
        self._is_appending = True
        try:
            self._appender.append_copies(batch, self._host.wall_ms())
        finally:
            self._is_appending = False

    # -- reading the log -------------------------------------------------------------------------------------

    def _settle(self, state: PartitionDelays, log: Log) -> Steps[None]:
        """Replay the log up to its very end. Batches of producers wait until `_pace` lets them in."""
        self._appender.hold()
        self._is_settling = True
        try:
            while self._state is state and state.end_offset < log.log_end_offset:
                yield from self._follow(state, log, log.log_end_offset)
        finally:
            self._is_settling = False

    def _follow(self, state: PartitionDelays, log: Log, end_offset: int) -> Steps[None]:
        """Replay the log up to an offset, or further. What is committed by now is final, and needs no undoing later."""
        while self._state is state and state.end_offset < end_offset:
            yield from state.advance_committed(self._reader.high_watermark)
            before = state.end_offset
            segment = segment_of(log, before)
            for number, (_, header, batch) in enumerate(segment.batches(segment.locate(before)), 1):
                if header.next_offset <= state.end_offset:
                    continue
                yield from replay_batch(state, header, batch)
                self._replayed_bytes += header.size
                if self._state is not state:
                    return
                self._credit += header.record_count
                self._pace(state, log)
                if number % _BATCHES_A_STEP == 0:
                    yield from state.advance_committed(self._reader.high_watermark)
                    yield None
                if self._state is not state or state.end_offset >= end_offset:
                    return
            if state.end_offset == before:
                # Retention or an earlier compaction left a gap here.
                following = (each.base_offset for each in log.segments if each.base_offset > before)
                state.skip_to(next(following, log.log_end_offset))

    def _pace(self, state: PartitionDelays, log: Log) -> None:
        """Hold batches of producers back, or let some in."""
        if self._is_settling:
            return
        appender, room = self._appender, _BEHIND_MAX - _behind(state, log)
        if room >= 0 and not self._is_late:
            self._credit = 0
            appender.let_in(room, takes_any_first=room == _BEHIND_MAX)
            if not appender.holds_batches:
                appender.release()
            return
        appender.hold()
        self._credit -= 2 * appender.let_in(self._credit // 2)
        if not appender.holds_batches:
            # What was replayed before a batch came lets none in.
            self._credit = 0


def _behind(state: PartitionDelays, log: Log) -> int:
    return log.log_end_offset - state.end_offset
