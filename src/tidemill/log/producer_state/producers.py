"""The producer state of a partition (Kafka's ProducerStateManager): detects retries and tracks open transactions.

It keeps the epoch and the last five batches of each producer id, since a client has at most five requests in flight. A
batch with the sequence numbers of one of those five is a duplicate; the response has the offset of the first write.
Any other batch must continue the sequence. KIP-360: a bumped epoch resets the sequence.

A transactional batch opens a transaction, and a marker ends it. KIP-890: a marker may carry a larger epoch than the
batches before it. That fences them, and the next batch starts at sequence 0. A producer with an open transaction never
expires: without its state no marker could end the transaction.

Offsets are unstable from the first offset of an open transaction on, or of one whose marker is above the high
watermark. Among those ended transactions only the ones that no later marker covers are kept. They are few and rise in
both offsets, so the first one decides.

A partition may store batches that producers sent to a decommissioned partition (decision 18). Their sequence is that of
the partition which the producer named, so each named partition has its own last five batches. Epoch and transaction are
those of the producer id.

The state is a function of the log. Snapshots (`<offset>.snapshot`, in Kafka's format) only shorten the replay; one is
written at each roll and at a clean shutdown. Kafka's entry holds a producer's last batch. The other batches follow in
a section that Kafka does not read, so a restart forgets none.

The state is incomplete when the log began after batches that this replica has not seen: it copied a log whose first records
were deleted. A producer that is not known then may have written before.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from crc32c import crc32c

from tidemill.errors import ErrorCode, StorageError
from tidemill.log.transactions import AbortedTransaction, TransactionEnd
from tidemill.protocol.records import NAMED_PARTITION, TRANSACTIONAL, BatchHeader, InvalidBatch

BATCHES_REMEMBERED = 5
_LARGEST_SEQUENCE = 0x7FFFFFFF
_LARGEST_EPOCH = 0x7FFF
# The first transaction version in which a marker carries its own epoch (KIP-890).
_EPOCH_PER_TRANSACTION = 2

_SNAPSHOT_VERSION = 1
_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_BATCH = struct.Struct(">qiiqq")
# Marks an ended transaction in the section of batches: its first offset and its marker's offset.
_NO_PRODUCER = -1
# Marks a batch in that section whose producer named another partition; the batch itself is the next entry.
_NAMED = -2
# Marks in that section that the state is incomplete.
_INCOMPLETE = -3


class AppendedBatch(NamedTuple):
    """A batch that was appended: its sequence numbers and offsets."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class ProducerState:
    """The state of one producer id."""

    producer_id: int
    epoch: int
    batches: list[AppendedBatch] = field(default_factory=list)
    # The batches for which the producer named another partition, by that partition.
    named: dict[int, list[AppendedBatch]] = field(default_factory=dict)
    coordinator_epoch: int = -1
    # The first offset of the open transaction; -1 when there is none.
    txn_first_offset: int = -1
    # The timestamp of the last batch or marker.
    last_timestamp: int = -1
    # The ordinal of the last marker that this replica wrote as the leader. It is in memory only.
    end_ordinal: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches = []
        self.named = {}


class Producers:
    """The producer state of one partition."""

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        # Ordered by first offset.
        self._open: dict[int, ProducerState] = {}
        # (first offset, marker offset) of ended transactions, rising in both.
        self._ended: deque[tuple[int, int]] = deque()
        # True when no transaction is open and every marker is below the high watermark. Every fetch reads it.
        self.is_stable = True
        self.is_complete = True

    def __len__(self) -> int:
        return len(self._states)

    def states(self) -> Iterable[ProducerState]:
        return self._states.values()

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def open_transactions(self) -> list[ProducerState]:
        """Returns the producers with an open transaction, the oldest first."""
        return list(self._open.values())

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this epoch is open: its batches need no verification."""
        state = self._states.get(producer_id)
        return state is not None and state.txn_first_offset >= 0 and state.epoch == epoch

    def is_open_for(self, producer_id: int) -> bool:
        """Whether a transaction of this producer is open."""
        state = self._states.get(producer_id)
        return state is not None and state.txn_first_offset >= 0

    # -- what may be appended --------------------------------------------------------------------------------

    def duplicate_of(self, header: BatchHeader, first_sequence: int | None = None) -> AppendedBatch | None:
        """Returns the batch that this one repeats. Raises `InvalidBatch` when it must not be appended.

        `first_sequence` is the one that follows the producer's last one in another log, if that is later than here.
        """
        state = self._states.get(header.producer_id)
        if state is None:
            # A new producer, or one whose state has expired. Both may start at any sequence number.
            if first_sequence is not None and header.base_sequence != first_sequence:
                raise _out_of_order(header, first_sequence)
            return None
        if header.producer_epoch < state.epoch:
            raise _old_epoch(header.producer_id, header.producer_epoch, state.epoch)
        if header.producer_epoch > state.epoch:
            if header.base_sequence != (first_sequence or 0):
                raise InvalidBatch(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} began epoch {header.producer_epoch} "
                    f"with sequence {header.base_sequence} instead of {first_sequence or 0}",
                )
        else:
            last_sequence = header.last_sequence
            is_named = header.attributes & NAMED_PARTITION
            batches = state.named.get(header.named_partition, []) if is_named else state.batches
            for batch in batches:
                if batch.base_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                    return batch
            expected = None if is_named and not batches else next_sequence(batches)
            if first_sequence is not None:
                expected = later_sequence(first_sequence, expected)
            if header.base_sequence != expected and expected is not None:
                raise _out_of_order(header, expected)
        if state.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL:
            raise InvalidBatch(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} wrote outside of its transaction, which is open since offset "
                f"{state.txn_first_offset}",
            )
        return None

    def check_epoch(self, header: BatchHeader) -> None:
        """Raise `InvalidBatch` when a newer epoch of the producer is known."""
        state = self._states.get(header.producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            raise _old_epoch(header.producer_id, header.producer_epoch, state.epoch)

    def check_marker(self, end: TransactionEnd) -> None:
        """Raise `InvalidBatch` when a newer producer epoch or coordinator epoch is known."""
        state = self._states.get(end.producer_id)
        if state is None:
            return
        if end.producer_epoch < state.epoch:
            raise _old_epoch(end.producer_id, end.producer_epoch, state.epoch)
        if (
            end.transaction_version >= _EPOCH_PER_TRANSACTION
            and end.producer_epoch == state.epoch
            and state.txn_first_offset >= 0
            and state.epoch != _LARGEST_EPOCH
        ):
            # The marker belongs to an earlier transaction that has ended, and must not end this one (failure 7).
            raise _old_epoch(end.producer_id, end.producer_epoch, state.epoch)
        if end.coordinator_epoch < state.coordinator_epoch:
            raise InvalidBatch(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {end.coordinator_epoch}, the partition has seen "
                f"{state.coordinator_epoch}",
            )

    def has_ended(self, end: TransactionEnd) -> bool:
        """Whether this replica has written the marker before, or a later one of the same producer and coordinator.

        A repetition may arrive late, when the producer's next transaction has begun. Before transactions had epochs of
        their own, nothing else distinguishes the two.
        """
        state = self._states.get(end.producer_id)
        return (
            state is not None
            and 0 <= end.ordinal <= state.end_ordinal
            and end.producer_epoch == state.epoch
            and end.coordinator_epoch == state.coordinator_epoch
        )

    # -- what was appended -----------------------------------------------------------------------------------

    def record(self, header: BatchHeader) -> None:
        """Update the state with a batch that was appended."""
        state = self._states.get(header.producer_id)
        if state is None:
            state = self._states[header.producer_id] = ProducerState(
                header.producer_id, header.producer_epoch
            )
        elif header.producer_epoch != state.epoch:
            state.begin_epoch(header.producer_epoch)
        timestamp = state.last_timestamp = header.max_timestamp
        batches = state.batches
        if header.attributes & NAMED_PARTITION:
            batches = state.named.setdefault(header.named_partition, [])
        batches.append(
            AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                timestamp,
            )
        )
        if len(batches) > BATCHES_REMEMBERED:
            del batches[0]
        if header.attributes & TRANSACTIONAL and state.txn_first_offset < 0:
            state.txn_first_offset = header.base_offset
            self._open[header.base_offset] = state
            self.is_stable = False

    def record_end(self, end: TransactionEnd, offset: int, timestamp: int) -> AbortedTransaction | None:
        """Update the state with a marker that was appended. Returns the transaction that it aborted, if any."""
        state = self._seen(end.producer_id, end.producer_epoch)
        if end.coordinator_epoch != state.coordinator_epoch:
            # Each coordinator has its own numbers.
            state.end_ordinal = -1
        state.coordinator_epoch = end.coordinator_epoch
        state.last_timestamp = timestamp
        first_offset = state.txn_first_offset
        if first_offset < 0:
            return None
        state.txn_first_offset = -1
        del self._open[first_offset]
        ended = self._ended
        while ended and ended[-1][0] >= first_offset:
            ended.pop()
        ended.append((first_offset, offset))
        if end.is_commit:
            return None
        last_stable_offset = next(iter(self._open), offset + 1)
        return AbortedTransaction(end.producer_id, first_offset, offset, last_stable_offset)

    def remember_ordinal(self, end: TransactionEnd) -> None:
        """Remember the number of a marker that was appended."""
        state = self._states[end.producer_id]
        state.end_ordinal = max(state.end_ordinal, end.ordinal)

    def record_bare_marker(self, header: BatchHeader) -> None:
        """Record the epoch of a marker whose record compaction has removed."""
        state = self._seen(header.producer_id, header.producer_epoch)
        state.last_timestamp = header.max_timestamp

    def _seen(self, producer_id: int, epoch: int) -> ProducerState:
        """Returns the state of a producer at this epoch. A new epoch clears its batches."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id, epoch)
        elif epoch != state.epoch:
            state.begin_epoch(epoch)
        return state

    def drop_committed_markers(self, high_watermark: int) -> None:
        """Drop the markers below the high watermark: they stay committed even if this replica later sees a lower one."""
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        self.is_stable = not ended and not self._open

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open, or whose marker has not been dropped as committed."""
        ended = self._ended
        first_open = next(iter(self._open), None)
        if not ended:
            return first_open
        return ended[0][0] if first_open is None else min(first_open, ended[0][0])

    def expire(self, oldest_timestamp: int) -> None:
        """Drop producers that have written nothing since `oldest_timestamp`, unless they have an open transaction."""
        expired = [
            producer_id
            for producer_id, state in self._states.items()
            if state.last_timestamp < oldest_timestamp and state.txn_first_offset < 0
        ]
        for producer_id in expired:
            del self._states[producer_id]

    def clear(self) -> None:
        self._states.clear()
        self._open.clear()
        self._ended.clear()
        self.is_stable = self.is_complete = True

    def check_invariants(self) -> None:
        undecided = {s.txn_first_offset: s for s in self._states.values() if s.txn_first_offset >= 0}
        assert self._open == undecided, "the open transactions and the producers' states differ"
        assert list(self._open) == sorted(self._open), "the oldest transaction is not the first"
        assert all(a < c and b < d for (a, b), (c, d) in pairwise(self._ended))
        assert not self.is_stable or not (self._open or self._ended)

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        body = bytearray(_COUNT.pack(len(self._states)))
        tail = bytearray()
        for state in self._states.values():
            last = state.batches[-1] if state.batches else _NO_BATCH
            body += _ENTRY.pack(
                state.producer_id,
                state.epoch,
                last.last_sequence,
                last.last_offset,
                last.last_offset - last.base_offset,
                state.last_timestamp,
                state.coordinator_epoch,
                state.txn_first_offset,
            )
            for batch in state.batches:
                if batch is not last or batch.timestamp != state.last_timestamp:
                    tail += _BATCH.pack(state.producer_id, batch[0], batch[1], batch[2], batch[4])
            for partition, batches in state.named.items():
                for batch in batches:
                    tail += _BATCH.pack(_NAMED, partition, 0, 0, 0)
                    tail += _BATCH.pack(state.producer_id, batch[0], batch[1], batch[2], batch[4])
        for first_offset, marker_offset in self._ended:
            tail += _BATCH.pack(_NO_PRODUCER, 0, 0, first_offset, marker_offset)
        if not self.is_complete:
            tail += _BATCH.pack(_INCOMPLETE, 0, 0, 0, 0)
        body += tail
        return _PREFIX.pack(_SNAPSHOT_VERSION, crc32c(bytes(body))) + bytes(body)

    def restore(self, content: bytes) -> None:
        """Replace the state by a snapshot. Raises `StorageError` when the snapshot is damaged."""
        try:
            version, crc = _PREFIX.unpack_from(content, 0)
            if version != _SNAPSHOT_VERSION or crc32c(content[_PREFIX.size :]) != crc:
                raise StorageError("a producer snapshot is damaged")
            (count,) = _COUNT.unpack_from(content, _PREFIX.size)
            entries_start = _PREFIX.size + _COUNT.size
            entries_end = entries_start + count * _ENTRY.size
            entries = list(_ENTRY.iter_unpack(content[entries_start:entries_end]))
            others = list(_BATCH.iter_unpack(content[entries_end:]))
        except struct.error as error:
            raise StorageError("a producer snapshot is cut off") from error
        self.clear()
        for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn in entries:
            batches = []
            if offset >= 0:
                base_sequence = (sequence - delta) & _LARGEST_SEQUENCE if sequence >= 0 else sequence
                batches.append(AppendedBatch(base_sequence, sequence, offset - delta, offset, timestamp))
            self._states[producer_id] = ProducerState(
                producer_id, epoch, batches, {}, coordinator_epoch, txn, timestamp
            )
        self._restore_others(others)
        open_states = [state for state in self._states.values() if state.txn_first_offset >= 0]
        self._open = {s.txn_first_offset: s for s in sorted(open_states, key=lambda s: s.txn_first_offset)}
        self.is_stable = not self._open and not self._ended

    def _restore_others(self, others: list[tuple[int, int, int, int, int]]) -> None:
        """Restore the batches before each producer's last one, the ended transactions, and whether that is all."""
        named_partition = 0
        for producer_id, base_sequence, last_sequence, base_offset, timestamp in others:
            if producer_id == _NO_PRODUCER:
                self._ended.append((base_offset, timestamp))
                continue
            if producer_id == _NAMED:
                named_partition = base_sequence
                continue
            if producer_id == _INCOMPLETE:
                self.is_complete = False
                continue
            span = (last_sequence - base_sequence) & _LARGEST_SEQUENCE
            batch = AppendedBatch(base_sequence, last_sequence, base_offset, base_offset + span, timestamp)
            if named_partition:
                self._states[producer_id].named.setdefault(named_partition, []).append(batch)
                named_partition = 0
                continue
            batches = self._states[producer_id].batches
            if batches[-1].base_offset == base_offset:
                batches[-1] = batch  # the last batch, whose entry has the timestamp of a later marker
            else:
                batches.insert(len(batches) - 1, batch)


_NO_BATCH = AppendedBatch(-1, -1, -1, -1, -1)


def next_sequence(batches: list[AppendedBatch]) -> int:
    """Returns the sequence number that follows these batches. Numbers wrap to zero after the largest one."""
    last_sequence = batches[-1].last_sequence if batches else -1
    return 0 if last_sequence == _LARGEST_SEQUENCE else last_sequence + 1


def later_sequence(one: int, other: int | None) -> int:
    """Returns the later one of two sequence numbers of a producer, of which fewer than half of all lie between."""
    if other is None or (one - other) & _LARGEST_SEQUENCE <= _LARGEST_SEQUENCE >> 1:
        return one
    return other


def _out_of_order(header: BatchHeader, expected: int) -> InvalidBatch:
    return InvalidBatch(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} is next",
    )


def _old_epoch(producer_id: int, epoch: int, seen_epoch: int) -> InvalidBatch:
    return InvalidBatch(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} wrote with epoch {epoch}, the partition has seen {seen_epoch}",
    )
