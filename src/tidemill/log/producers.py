"""What a partition remembers of its idempotent producers, so that a retry is never written twice.

For each producer id: its epoch and its last five batches (a client has at most five in flight). A batch whose
sequence range is among those five is a duplicate and is answered with the offset it got the first time; any other
batch must continue the sequence exactly. KIP-360: a bumped epoch starts again at zero.

The state is a function of the log. Snapshots (`<offset>.snapshot`, in Kafka's format) only spare the replay of old
segments: one is taken at each roll and at a clean shutdown. Kafka's entry holds a producer's last batch only; the
other four follow in a section that Kafka's reader does not look at, so that a restart forgets no retry.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from crc32c import crc32c

from tidemill.errors import ErrorCode, StorageError
from tidemill.protocol.records import BatchHeader, InvalidBatch

BATCHES_REMEMBERED = 5
_LARGEST_SEQUENCE = 0x7FFFFFFF

_SNAPSHOT_VERSION = 1
_PREFIX = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
_BATCH = struct.Struct(">qiiqq")


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
    txn_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_timestamp(self) -> int:
        return self.batches[-1].timestamp if self.batches else -1


class Producers:
    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}

    def __len__(self) -> int:
        return len(self._states)

    def states(self) -> Iterable[ProducerState]:
        return self._states.values()

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    def duplicate_of(self, header: BatchHeader) -> AppendedBatch | None:
        """The batch of which this one is a retry. Raises `InvalidBatch` when it may not be appended at all."""
        state = self._states.get(header.producer_id)
        if state is None:
            # Unknown here: a new producer, or one whose state expired. Either way it may go on from where it is.
            return None
        if header.producer_epoch < state.epoch:
            raise InvalidBatch(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {header.producer_id} wrote with epoch {header.producer_epoch}, "
                f"the partition has seen {state.epoch}",
            )
        if header.producer_epoch > state.epoch:
            if header.base_sequence != 0:
                raise InvalidBatch(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"producer {header.producer_id} began epoch {header.producer_epoch} "
                    f"with sequence {header.base_sequence} instead of 0",
                )
            return None
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
        return None

    def record(self, header: BatchHeader) -> None:
        """A batch with a producer id now stands in the log."""
        state = self._states.get(header.producer_id)
        if state is None or header.producer_epoch > state.epoch:
            state = self._states[header.producer_id] = ProducerState(
                header.producer_id, header.producer_epoch
            )
        state.batches.append(
            AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
            )
        )
        if len(state.batches) > BATCHES_REMEMBERED:
            del state.batches[0]

    def expire(self, oldest_timestamp: int) -> None:
        """Forget producers that wrote nothing since."""
        expired = [pid for pid, state in self._states.items() if state.last_timestamp < oldest_timestamp]
        for producer_id in expired:
            del self._states[producer_id]

    def clear(self) -> None:
        self._states.clear()

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        body = bytearray(_COUNT.pack(len(self._states)))
        tail = bytearray()
        for state in self._states.values():
            last = state.batches[-1]
            body += _ENTRY.pack(
                state.producer_id,
                state.epoch,
                last.last_sequence,
                last.last_offset,
                last.last_offset - last.base_offset,
                last.timestamp,
                state.coordinator_epoch,
                state.txn_first_offset,
            )
            for batch in state.batches[:-1]:
                tail += _BATCH.pack(state.producer_id, batch[0], batch[1], batch[2], batch[4])
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
            earlier = list(_BATCH.iter_unpack(content[entries_end:]))
        except struct.error as error:
            raise StorageError("a producer snapshot is cut off") from error
        self._states = {}
        for producer_id, epoch, sequence, offset, delta, timestamp, coordinator_epoch, txn in entries:
            base_sequence = (sequence - delta) & _LARGEST_SEQUENCE if sequence >= 0 else sequence
            last = AppendedBatch(base_sequence, sequence, offset - delta, offset, timestamp)
            self._states[producer_id] = ProducerState(producer_id, epoch, [last], coordinator_epoch, txn)
        for producer_id, base_sequence, last_sequence, base_offset, timestamp in reversed(earlier):
            span = (last_sequence - base_sequence) & _LARGEST_SEQUENCE
            batch = AppendedBatch(base_sequence, last_sequence, base_offset, base_offset + span, timestamp)
            self._states[producer_id].batches.insert(0, batch)
