"""The delays of one partition, as a function of its log.

`replay` and `end_transaction` are called for every batch, in offset order: when it is appended, fetched or recovered.
Nothing else changes what is pending. `due` gives what the leader has to deliver; the visible copy that it appends is
replayed as any batch is, and that settles the record. So the copy in the log is the mark of the delivery. A copy that is
lost with its leader, or truncated, was never delivered; one that survives was, whatever its leader had time to say.

| in the log | effect |
|---|---|
| delayed record | pending; replaces what is pending under the same key and schedule id |
| cancel | what it names is no longer pending |
| copy | its record is no longer pending, or pending again for the next occurrence that the copy states |
| carried record | takes the place of the record that it names |
| the same in a transaction | staged; takes effect at the commit marker, vanishes at the abort |

Among records with one identity the order of the records decides, not that of the markers. A record that takes effect
voids staged ones of its identity before it.

A transaction may stage very many records, so its end and what it leaves in the journal are worked off in steps.

An effect above the high watermark can still be truncated. A journal holds how to undo it until `advance_committed` has
passed it, so `truncate` gives the state of the shorter log. Below that mark it refuses, and the state is built anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from tidemill.delays.offsets import HiddenOffsets
from tidemill.delays.pending import Delivery, PendingRecord, PendingRecords, Scheduled
from tidemill.delays.requests import Cancel, Carried, Copy, Delayed, meaning_of
from tidemill.protocol.records import BatchHeader, Record
from tidemill.protocol.steps import Steps, run_steps

# Records of a batch that are replayed within a step. A schedule that was not seen before costs ten times as much as others.
_REPLAYED_A_STEP = 50
# Staged records that take effect, and effects that are forgotten, within a step.
_APPLIED_A_STEP = 100
_FORGOTTEN_A_STEP = 1000
# Pending records below a new log start that are dropped within a step.
_REMOVED_A_STEP = 100


class Carry(NamedTuple):
    """The pending record at `offset` must outlive its segment: append it again, hidden (`copies.py`)."""

    offset: int
    due_ms: int


class Staged(NamedTuple):
    """A record of an open transaction."""

    offset: int
    request: Delayed | Cancel


class _Change(NamedTuple):
    """Undoes an effect of the batch at `at`. `needs_offset` is the first record that comes back, or -1."""

    at: int
    undo: Callable[..., object]
    arguments: tuple[Any, ...]
    needs_offset: int = -1


class PartitionDelays:
    """The pending, hidden, staged and due records of one partition."""

    __slots__ = (
        "_applying_from",
        "_committed_offset",
        "_journal",
        "_journal_start",
        "cancelled_count",
        "end_offset",
        "hidden",
        "log_start_offset",
        "pending",
        "staged",
    )

    def __init__(self, log_start_offset: int = 0, high_watermark: int = 0) -> None:
        """`high_watermark`: the best that is known of it. Effects below it cannot be undone."""
        self.log_start_offset = log_start_offset
        self.end_offset = log_start_offset
        self.pending = PendingRecords()
        # The offsets that readers do not get.
        self.hidden = HiddenOffsets()
        # By producer id, then by identity or, for those without, by offset.
        self.staged: dict[int, dict[bytes | int, Staged]] = {}
        self._committed_offset = max(high_watermark, log_start_offset)
        # How many pending records were cancelled by what was replayed, truncated or not.
        self.cancelled_count = 0
        # The first staged record of a transaction whose end is being worked off; -1 when there is none.
        self._applying_from = -1
        self._journal: deque[_Change] = deque()
        # Effects of batches before this offset cannot be undone.
        self._journal_start = self._committed_offset

    @classmethod
    def restored(
        cls,
        end_offset: int,
        high_watermark: int,
        pending: PendingRecords,
        hidden: HiddenOffsets,
        staged: dict[int, dict[bytes | int, Staged]],
    ) -> PartitionDelays:
        """The state that a snapshot describes. A truncation to below its end cannot be undone."""
        delays = cls(0, high_watermark)
        delays.end_offset = delays._journal_start = end_offset
        delays.pending, delays.hidden, delays.staged = pending, hidden, staged
        return delays

    # -- what the log says ---------------------------------------------------------------------------------------

    def replay(self, header: BatchHeader, records: Iterable[Record] = ()) -> None:
        """Take in a batch of the log. `records` may be empty when none has delay headers (`delay_records`).

        A batch that was replayed before has no effect. Transaction markers go to `end_transaction`.
        """
        run_steps(self.replay_in_steps(header, records))

    def replay_in_steps(self, header: BatchHeader, records: Iterable[Record]) -> Steps[None]:
        """As `replay`. Between its steps the state is that of the log up to the record before `end_offset`."""
        if header.next_offset <= self.end_offset:
            return
        for number, record in enumerate(records, 1):
            if self.end_offset <= record.offset < header.next_offset:
                self._replay_record(record, header.producer_id if header.is_transactional else None)
                self.end_offset = record.offset + 1
            if number % _REPLAYED_A_STEP == 0:
                yield None
        self.end_offset = header.next_offset

    def replay_copies(self, first_offset: int, deliveries: Sequence[Delivery]) -> None:
        """As `replay`, of a batch with a visible copy for each of these deliveries, which the leader has appended."""
        assert first_offset == self.end_offset, (first_offset, self.end_offset)
        for at, (offset, _, next_due_ms) in enumerate(deliveries, first_offset):
            self._settle(at, offset, next_due_ms)
        self.end_offset = first_offset + len(deliveries)

    def replay_undecodable(self, header: BatchHeader) -> None:
        """Take in a batch whose records do not decode. Readers get none of them."""
        for offset in range(max(self.end_offset, header.base_offset), header.next_offset):
            self.hidden.append(offset)
        self.end_offset = max(self.end_offset, header.next_offset)

    def skip_to(self, offset: int) -> None:
        """Passes over a gap that retention or compaction has left in the log, up to `offset`."""
        self.end_offset = max(self.end_offset, offset)

    def end_transaction(self, producer_id: int, is_commit: bool, marker_offset: int) -> None:
        """Take in a transaction marker: staged records of the producer take effect, or vanish."""
        run_steps(self.end_transaction_in_steps(producer_id, is_commit, marker_offset))

    def end_transaction_in_steps(self, producer_id: int, is_commit: bool, marker_offset: int) -> Steps[None]:
        """As `end_transaction`. Between its steps only `retained_offset` and `hidden` may be used."""
        if marker_offset < self.end_offset:
            return
        staged = self.staged.pop(producer_id, None)
        if staged:
            self._applying_from = next(iter(staged.values())).offset
            ordered = yield from _ordered(staged)
            self._applying_from = ordered[0].offset
            self._note(marker_offset, self._restore_staged, (producer_id, staged), ordered[0].offset)
            for number, each in enumerate(ordered if is_commit else (), 1):
                self._apply(marker_offset, each.offset, each.request)
                if number % _APPLIED_A_STEP == 0:
                    yield None
            self._applying_from = -1
        self.end_offset = marker_offset + 1

    def advance_committed(self, high_watermark: int) -> Steps[None]:
        """Everything below the high watermark is final: nothing there is undone any more."""
        if high_watermark <= self._committed_offset:
            return
        self._committed_offset = high_watermark
        self._journal_start = max(self._journal_start, high_watermark)
        number = 0
        while self._journal and self._journal[0].at < high_watermark:
            self._journal.popleft()
            number += 1
            if number % _FORGOTTEN_A_STEP == 0:
                yield None
        while self.pending.forget_markers(high_watermark, _FORGOTTEN_A_STEP):
            yield None

    def truncate(self, end_offset: int) -> bool:
        """Cut the log's end off. Returns False when the state must be built anew, by snapshot or replay."""
        if end_offset >= self.end_offset:
            return True
        if end_offset < self._journal_start:
            return False
        self.give_back()
        while self._journal and self._journal[-1].at >= end_offset:
            change = self._journal.pop()
            change.undo(*change.arguments)
        self.hidden.truncate(end_offset)
        self.end_offset = end_offset
        return True

    def advance_log_start(self, log_start_offset: int) -> Steps[None]:
        """Forget what lies below the log start. Retention carries what is pending there first; DeleteRecords drops it.

        Between its steps only `retained_offset` and `hidden` may be used.
        """
        if log_start_offset <= self.log_start_offset:
            return
        while below := self.pending.offsets.first_below(log_start_offset, _REMOVED_A_STEP):
            for offset, _ in below:
                self.pending.remove(offset)
            yield None
        self.log_start_offset = log_start_offset
        for producer_id, staged in list(self.staged.items()):
            self._restore_staged(producer_id, staged)
        self.hidden.trim(log_start_offset)
        self.end_offset = max(self.end_offset, log_start_offset)
        yield from self.advance_committed(log_start_offset)

    # -- what the leader does ------------------------------------------------------------------------------------

    @property
    def next_due_ms(self) -> int | None:
        """The time at which to call `due` next; None while nothing is pending. It may be early, never late."""
        return self.pending.queue.next_due_ms

    @property
    def waits_for_commit(self) -> bool:
        """Whether a due record waits for the high watermark: then `due` should be called when that advances."""
        return self.pending.waits_for_commit

    def due(self, wall_ms: int, limit: int) -> Steps[list[Delivery]]:
        """Up to `limit` committed records whose time has come, in the order of their due times.

        They are given once: until their copies are replayed, they are cancelled, or `give_back` is called. A schedule that
        missed several occurrences is delivered for the latest one, once. With fewer than `limit` results there may be
        more; `next_due_ms` says so.
        """
        return self.pending.take_due(wall_ms, self._committed_offset, limit)

    def confirm(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Returns the deliveries that nothing has settled since `due` gave them.

        Call it last before the append, with no wait between.
        """
        return self.pending.still_taken(deliveries)

    def give_back(self) -> None:
        """The leadership has ended, or an append failed: `due` may give all records again that it gave."""
        self.pending.give_back()

    def to_carry(self, before_offset: int, limit: int) -> list[Carry]:
        """Up to `limit` pending records below an offset, to carry before retention removes their segment.

        A record that an open transaction cancels or replaces stays where it is until the transaction ends. The request
        stands before the carried record, and a replay that begins between the two would miss it.
        """
        below = self.pending.offsets.first_below(before_offset, limit)
        return self.confirm_carries([Carry(offset, due_ms) for offset, due_ms in below])

    def confirm_carries(self, carries: Sequence[Carry]) -> list[Carry]:
        """Returns the carries that are still allowed. Call it last before the append, with no wait between."""
        staged = [each for transaction in self.staged.values() for each in transaction.values()]
        contested = {each.request.identity for each in staged} - {None}
        cancelled = {each.request.offset for each in staged if isinstance(each.request, Cancel)}
        return [each for each in carries if self._may_carry(each, contested, cancelled)]

    @property
    def retained_offset(self) -> int:
        """The log must be kept from here on: pending and staged records, and settled ones whose end is not committed."""
        if self._committed_offset < self._journal_start:
            # A snapshot does not say what was settled above the high watermark, so nothing may go until that is reached.
            return self.log_start_offset
        offsets = [self.end_offset]
        if self.pending.offsets.first is not None:
            offsets.append(self.pending.offsets.first)
        offsets += (each.offset for staged in self.staged.values() for each in staged.values())
        offsets += (change.needs_offset for change in self._journal if change.needs_offset >= 0)
        if self._applying_from >= 0:
            offsets.append(self._applying_from)
        return min(offsets)

    # -- effects of records --------------------------------------------------------------------------------------

    def _replay_record(self, record: Record, producer_id: int | None) -> None:
        meaning = meaning_of(record)
        if meaning is None:
            return
        if isinstance(meaning, Copy):
            self._settle(record.offset, meaning.pending_offset, meaning.next_due_ms)
            return
        self.hidden.append(record.offset)
        if isinstance(meaning, Carried):
            self._carry(record.offset, meaning)
        elif producer_id is None:
            self._apply(record.offset, record.offset, meaning)
        else:
            key = record.offset if meaning.identity is None else meaning.identity
            self._stage(record.offset, producer_id, key, Staged(record.offset, meaning))

    def holds(self, identity: bytes) -> bool:
        """Whether a record with this identity waits, or would if an open transaction committed."""
        return identity in self.pending.by_identity or any(identity in each for each in self.staged.values())

    def _apply(self, at: int, offset: int, request: Delayed | Cancel) -> None:
        """The request at `offset` takes effect with the batch at `at`, which is its own or its commit marker."""
        identity = request.identity
        if identity is not None:
            earlier = self.pending.by_identity.get(identity)
            if earlier is not None:
                self._remove(at, earlier)
                self.cancelled_count += isinstance(request, Cancel)
            for producer_id, staged in list(self.staged.items()):
                if identity in staged and staged[identity].offset < offset:
                    self._stage(at, producer_id, identity, None)
        elif isinstance(request, Cancel) and request.offset is not None and request.offset < offset:
            self._cancel_at(at, request.offset)
        if isinstance(request, Delayed):
            self._add(at, offset, request)

    def _cancel_at(self, at: int, offset: int) -> None:
        self.cancelled_count += self._remove(at, offset)
        for producer_id, staged in list(self.staged.items()):
            for key, each in list(staged.items()):
                if each.offset == offset and isinstance(each.request, Delayed):
                    # One with a name still replaces what bears the name.
                    identity = each.request.identity
                    rest = None if identity is None else Staged(offset, Cancel(identity))
                    self._stage(at, producer_id, key, rest)

    def _settle(self, at: int, offset: int, next_due_ms: int | None) -> None:
        """The copy at `at` delivers the record at `offset`, which is due again when its schedule goes on."""
        scheduled = self.pending.scheduled.get(offset)
        if scheduled is None or scheduled.schedule is None or next_due_ms is None:
            self._remove(at, offset)
            return
        due_ms = self.pending.offsets.get(offset)
        if due_ms is not None:
            self.pending.set_due(offset, next_due_ms)
            self._note(at, self.pending.set_due, (offset, due_ms), offset)

    def _carry(self, at: int, carried: Carried) -> None:
        # What stood below the log start was pending when it was carried: the leader confirms that before it appends.
        if self._remove(at, carried.pending_offset) or carried.pending_offset < self.log_start_offset:
            self._add(at, at, carried.delayed)

    # -- changes that can be undone ------------------------------------------------------------------------------

    def _note(
        self, at: int, undo: Callable[..., object], arguments: tuple[Any, ...], needs_offset: int = -1
    ) -> None:
        if at >= self._committed_offset:
            self._journal.append(_Change(at, undo, arguments, needs_offset))

    def _stage(self, at: int, producer_id: int, key: bytes | int, value: Staged | None) -> None:
        before = self.staged.get(producer_id, {}).get(key)
        self._note(at, self._set_staged, (producer_id, key, before), -1 if before is None else before.offset)
        self._set_staged(producer_id, key, value)

    def _set_staged(self, producer_id: int, key: bytes | int, value: Staged | None) -> None:
        staged = self.staged.setdefault(producer_id, {})
        before = staged.get(key)
        if value is None or before is None or before.offset != value.offset:
            # It goes to the end: they stand in the order of their offsets, as a rule.
            staged.pop(key, None)
        if value is not None and value.offset >= self.log_start_offset:
            staged[key] = value
        if not staged:
            del self.staged[producer_id]

    def _restore_staged(self, producer_id: int, staged: dict[bytes | int, Staged]) -> None:
        kept = {key: each for key, each in staged.items() if each.offset >= self.log_start_offset}
        self.staged.pop(producer_id, None)
        if kept:
            self.staged[producer_id] = kept

    def _add(self, at: int, offset: int, delayed: Delayed) -> None:
        scheduled = None if delayed.identity is None else Scheduled(delayed.identity, delayed.schedule)
        committed_by = offset if at < self._committed_offset else at
        self.pending.add(PendingRecord(offset, delayed.due_ms, scheduled, committed_by))
        self._note(at, self.pending.remove, (offset,))

    def _remove(self, at: int, offset: int) -> bool:
        """Settle a pending record. Returns False when it is not pending."""
        record = self.pending.remove(offset)
        if record is None:
            return False
        self._note(at, self._restore, (record,), offset)
        return True

    def _restore(self, record: PendingRecord) -> None:
        if record.offset >= self.log_start_offset:
            self.pending.add(record)

    def _may_carry(self, carry: Carry, contested: set[bytes | None], cancelled: set[int | None]) -> bool:
        record = self.pending.get(carry.offset)
        if record is None or record.due_ms != carry.due_ms or record.offset in cancelled:
            return False
        return record.scheduled is None or record.scheduled.identity not in contested


def _ordered(staged: dict[bytes | int, Staged]) -> Steps[list[Staged]]:
    """Staged records in the order of their offsets, which they nearly always have."""
    records = list(staged.values())
    for number, (each, following) in enumerate(pairwise(records), 1):
        if each.offset > following.offset:
            return sorted(records, key=lambda each: each.offset)
        if number % _FORGOTTEN_A_STEP == 0:
            yield None
    return records
