"""What a partition remembers of its producers: enough that a retry is never written twice, and what is undecided.

For each producer id: its epoch and its last five batches (a client has at most five in flight). A batch whose
sequence range is among those five is a duplicate and is answered with the offset it got the first time; any other
batch must continue the sequence exactly. KIP-360: a bumped epoch starts again at zero.

A transactional batch opens a transaction unless one is open; a marker ends it. KIP-890: the marker may carry a larger
epoch than the batches before it, which fences them and makes the next batch start at zero. A producer with an open
transaction is never forgotten, however old it is: nobody could end the transaction then.

Unstable, hence, is what lies behind the first offset of an open transaction, or of one whose marker may still be
truncated. Of the latter only those count that no later marker covers: an older marker of a transaction that began later says
nothing more. So they are few, rise in both offsets, and the first of them decides.

The state is a function of the log. Snapshots (`<offset>.snapshot`, in Kafka's format) only spare the replay of old
segments: one is taken at each roll and at a clean shutdown. Kafka's entry holds a producer's last batch only; what
else there is to know follows in a section that Kafka's reader does not look at, so that a restart forgets nothing.
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
from tidemill.protocol.records import TRANSACTIONAL, BatchHeader, InvalidBatch

BATCHES_REMEMBERED = 5
_LARGEST_SEQUENCE = 0x7FFFFFFF
_LARGEST_EPOCH = 0x7FFF
# The first version in which a marker has an epoch of its own.
_EPOCH_PER_TRANSACTION = 2

_SNAPSHOT_VERSION = 1
_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_BATCH = struct.Struct(">qiiqq")
# In the section of batches: the first offset and the marker's of a transaction that has ended.
_NO_PRODUCER = -1


class AppendedBatch(NamedTuple):
    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@dataclass(slots=True)
class ProducerState:
    producer_id: int
    epoch: int
    batches: list[AppendedBatch] = field(default_factory=list)
    coordinator_epoch: int = -1
    # Of the open transaction; -1 when there is none.
    txn_first_offset: int = -1
    # Of the last batch or marker.
    last_timestamp: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class Producers:
    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        # By first offset, rising.
        self._open: dict[int, ProducerState] = {}
        # (first offset, marker's offset) of ended transactions, rising in both.
        self._ended: deque[tuple[int, int]] = deque()
        # Nothing is open and no marker may still be truncated: what every fetch asks first.
        self.is_stable = True

    def __len__(self) -> int:
        return len(self._states)

    def states(self) -> Iterable[ProducerState]:
        return self._states.values()

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def open_transactions(self) -> list[ProducerState]:
        """The producers with an open transaction, the oldest first."""
        return list(self._open.values())

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of exactly this epoch is under way: what is sent for it needs no verification."""
        state = self._states.get(producer_id)
        return state is not None and state.txn_first_offset >= 0 and state.epoch == epoch

    # -- what may be appended --------------------------------------------------------------------------------

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """The batch of which this one is a retry. Raises `InvalidBatch` when it may not be appended at all."""
        state = self._states.get(header.producer_id)
        if state is None:
            # Unknown here: a new producer, or one whose state expired. Either way it may go on from where it is.
            return None
        if header.producer_epoch < state.epoch:
            raise _old_epoch(header.producer_id, header.producer_epoch, state.epoch)
        if header.producer_epoch > state.epoch:
            if header.base_sequence != 0:
                raise InvalidBatch(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} began epoch {header.producer_epoch} "
                    f"with sequence {header.base_sequence} instead of 0",
                )
        else:
            last_sequence = header.last_sequence
            for batch in state.batches:
                if batch.base_sequence == header.base_sequence and batch.last_sequence == last_sequence:
                    return batch
            expected = 0 if state.last_sequence == _LARGEST_SEQUENCE else state.last_sequence + 1
            if header.base_sequence != expected:
                raise InvalidBatch(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} sent sequence {header.base_sequence} where {expected} is next",
                )
        if state.txn_first_offset >= 0 and not header.attributes & TRANSACTIONAL:
            raise InvalidBatch(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} wrote outside of its transaction, which is open since offset "
                f"{state.txn_first_offset}",
            )
        return None

    def check_first(self, header: BatchHeader) -> None:
        """KIP-890: with an epoch for each transaction, the first batch that a partition sees has sequence 0.

        `InvalidBatch` otherwise: an earlier batch of the transaction is still on its way.
        """
        state = self._states.get(header.producer_id)
        if header.base_sequence != 0 and (state is None or not state.batches):
            raise InvalidBatch(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} begins here with sequence {header.base_sequence} instead of 0",
            )

    def check_marker(self, end: TransactionEnd) -> None:
        """`InvalidBatch` when a newer producer or coordinator was here before."""
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
            # The marker of an earlier transaction, which was ended long ago: this one is not its to end (failure 7).
            raise _old_epoch(end.producer_id, end.producer_epoch, state.epoch)
        if end.coordinator_epoch < state.coordinator_epoch:
            raise InvalidBatch(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {end.coordinator_epoch}, the partition has seen "
                f"{state.coordinator_epoch}",
            )

    # -- what was appended -----------------------------------------------------------------------------------

    def record(self, header: BatchHeader) -> None:
        """A batch with a producer id now stands in the log."""
        state = self._states.get(header.producer_id)
        if state is None:
            state = self._states[header.producer_id] = ProducerState(
                header.producer_id, header.producer_epoch
            )
        elif header.producer_epoch != state.epoch:
            state.epoch = header.producer_epoch
            state.batches = []
        timestamp = state.last_timestamp = header.max_timestamp
        state.batches.append(
            AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                timestamp,
            )
        )
        if len(state.batches) > BATCHES_REMEMBERED:
            del state.batches[0]
        if header.attributes & TRANSACTIONAL and state.txn_first_offset < 0:
            state.txn_first_offset = header.base_offset
            self._open[header.base_offset] = state
            self.is_stable = False

    def record_end(self, end: TransactionEnd, offset: int, timestamp: int) -> AbortedTransaction | None:
        """A marker now stands in the log; what it aborted. A transaction without records leaves nothing behind."""
        state = self._seen(end.producer_id, end.producer_epoch)
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

    def record_bare_marker(self, header: BatchHeader) -> None:
        """Compaction took the record of a marker and kept its header, for the epoch."""
        state = self._seen(header.producer_id, header.producer_epoch)
        state.last_timestamp = header.max_timestamp

    def _seen(self, producer_id: int, epoch: int) -> ProducerState:
        """The producer, at this epoch: its batches are remembered for as long as that stays the same."""
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState(producer_id, epoch)
        elif epoch != state.epoch:
            state.epoch = epoch
            state.batches = []
        return state

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the oldest transaction begins that is open, or whose marker is not below the high watermark.

        Markers below it are forgotten: they are committed, whatever high watermark this replica hears of later.
        """
        ended = self._ended
        while ended and ended[0][1] < high_watermark:
            ended.popleft()
        first_open = next(iter(self._open), None)
        if not ended:
            self.is_stable = first_open is None
            return first_open
        return ended[0][0] if first_open is None else min(first_open, ended[0][0])

    def expire(self, oldest_timestamp: int) -> None:
        """Forget producers that wrote nothing since, unless they have something open."""
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
        self.is_stable = True

    def check_invariants(self) -> None:
        undecided = {s.txn_first_offset: s for s in self._states.values() if s.txn_first_offset >= 0}
        assert self._open == undecided, "what is open and what its producers say differ"
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
        for first_offset, marker_offset in self._ended:
            tail += _BATCH.pack(_NO_PRODUCER, 0, 0, first_offset, marker_offset)
        body += tail
        return _PREFIX.pack(_SNAPSHOT_VERSION, crc32c(bytes(body))) + bytes(body)

    def restore(self, content: bytes) -> None:
        """Replace the state by a snapshot's; `StorageError` when it is damaged."""
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
                producer_id, epoch, batches, coordinator_epoch, txn, timestamp
            )
        self._restore_others(others)
        open_states = [state for state in self._states.values() if state.txn_first_offset >= 0]
        self._open = {s.txn_first_offset: s for s in sorted(open_states, key=lambda s: s.txn_first_offset)}
        self.is_stable = not self._open and not self._ended

    def _restore_others(self, others: list[tuple[int, int, int, int, int]]) -> None:
        """The batches before a producer's last, each run of them rising; and the ended transactions."""
        for producer_id, base_sequence, last_sequence, base_offset, timestamp in others:
            if producer_id == _NO_PRODUCER:
                self._ended.append((base_offset, timestamp))
                continue
            span = (last_sequence - base_sequence) & _LARGEST_SEQUENCE
            batch = AppendedBatch(base_sequence, last_sequence, base_offset, base_offset + span, timestamp)
            batches = self._states[producer_id].batches
            if batches[-1].base_offset == base_offset:
                batches[-1] = (
                    batch  # the last one, with the timestamp that a marker's stands for in its entry
                )
            else:
                batches.insert(len(batches) - 1, batch)


_NO_BATCH = AppendedBatch(-1, -1, -1, -1, -1)


def _old_epoch(producer_id: int, epoch: int, seen_epoch: int) -> InvalidBatch:
    return InvalidBatch(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer_id} wrote with epoch {epoch}, the partition has seen {seen_epoch}",
    )
