"""Remembers batches that were refused with a retriable error, so that later batches are not taken for a gap.

A client has several batches in flight. One is refused for the moment: the disk is full, too few replicas are in sync, the
leadership has not arrived yet. When the next one comes, that reason may be gone, and by its sequence the batch is out of
order. On OUT_OF_ORDER_SEQUENCE_NUMBER a client bumps its epoch, under which its other batches in flight may be written twice
(failure 9). So the later batch gets the same error as the earlier one, and the client sends both again, in order.

A refusal is remembered for ten seconds: after that, a client that gave its batch up gets the error for the gap. Each refused
batch is remembered for itself. An earlier one may have been stored through another broker: when it is forgotten here, the
later ones are still missing.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.broker.partitions.delayed_operations import WireKey
from tidemill.errors import ErrorCode
from tidemill.protocol.records import HEADER_SIZE, BatchHeader, header_at

_REMEMBERED_MS = 10_000
_PRODUCERS_MAX = 1_000
# More than clients have in flight.
_BATCHES_MAX = 16
_PARTITIONS_MAX = 1_000


class Refused(NamedTuple):
    """The missing batches of one producer: when each was last refused, by its base sequence."""

    epoch: int
    code: ErrorCode
    times_ms: dict[int, int]


class EarlyRefusals:
    """Refusals for partitions that are not hosted here yet. The partition takes them over when it is opened."""

    def __init__(self) -> None:
        self._by_key: dict[WireKey, Refusals] = {}

    def note(self, key: WireKey, batch: memoryview, code: ErrorCode, steady_ms: int) -> None:
        if len(batch) < HEADER_SIZE:
            return
        if key not in self._by_key and len(self._by_key) >= _PARTITIONS_MAX:
            del self._by_key[next(iter(self._by_key))]
        self._by_key.setdefault(key, Refusals()).note(header_at(batch), code, steady_ms)

    def take(self, *keys: WireKey) -> Refusals | None:
        """Remove and return what was noted for a partition under any of its names."""
        taken = [refusals for key in keys if (refusals := self._by_key.pop(key, None)) is not None]
        if not taken:
            return None
        for more in taken[1:]:
            taken[0].join(more)
        return taken[0]


class Refusals(dict[int, Refused]):
    """The missing batches of each producer of one partition, by producer id."""

    __slots__ = ()

    def note(self, header: BatchHeader, code: ErrorCode, steady_ms: int) -> None:
        if header.producer_id < 0:
            return
        refused = self.get(header.producer_id)
        if refused is None or refused.epoch != header.producer_epoch:
            refused = self[header.producer_id] = Refused(header.producer_epoch, code, {})
            if len(self) > _PRODUCERS_MAX:
                del self[next(iter(self))]
        times_ms = refused.times_ms
        # Old ones may have been stored through another broker, and must not take the place of those that are missing.
        for sequence in [each for each, at_ms in times_ms.items() if steady_ms - at_ms > _REMEMBERED_MS]:
            del times_ms[sequence]
        times_ms[header.base_sequence] = steady_ms
        if len(times_ms) > _BATCHES_MAX:
            del times_ms[max(times_ms)]

    def join(self, others: Refusals) -> None:
        """Remember what was refused elsewhere, too."""
        for producer_id, refused in others.items():
            known = self.get(producer_id)
            if known is None or known.epoch < refused.epoch:
                self[producer_id] = refused
            elif known.epoch == refused.epoch:
                known.times_ms.update(refused.times_ms)

    def forget(self, header: BatchHeader) -> None:
        """A batch was stored: it is not missing any more, nor is one before it."""
        refused = self.get(header.producer_id)
        if refused is None:
            return
        for sequence in [each for each in refused.times_ms if each <= header.base_sequence]:
            del refused.times_ms[sequence]
        if not refused.times_ms:
            del self[header.producer_id]

    def before(self, header: BatchHeader, steady_ms: int) -> ErrorCode | None:
        """The error with which an earlier batch of this producer was refused; None when none was, lately."""
        refused = self.get(header.producer_id)
        if refused is None or refused.epoch != header.producer_epoch:
            return None
        is_missing = any(
            sequence < header.base_sequence and steady_ms - at_ms <= _REMEMBERED_MS
            for sequence, at_ms in refused.times_ms.items()
        )
        return refused.code if is_missing else None
