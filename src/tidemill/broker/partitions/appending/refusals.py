"""Remembers batches that were refused with a retriable error, so that later batches are not taken for a gap.

A client has several batches in flight. One is refused for the moment: the disk is full, too few replicas are in sync, the
leadership has not arrived yet. When the next one comes, that reason may be gone, and by its sequence the batch is out of
order. On OUT_OF_ORDER_SEQUENCE_NUMBER a client bumps its epoch, under which its other batches in flight may be written twice
(failure 9). So the later batch gets the same error as the earlier one, and the client sends both again, in order.

A refusal is remembered for ten seconds: after that, a client that gave its batch up gets the error for the gap.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.broker.partitions.delayed_operations import WireKey
from tidemill.errors import ErrorCode
from tidemill.protocol.records import HEADER_SIZE, BatchHeader, header_at

_REMEMBERED_MS = 10_000
_PRODUCERS_MAX = 1_000
_PARTITIONS_MAX = 1_000


class Refusal(NamedTuple):
    epoch: int
    base_sequence: int
    code: ErrorCode
    at_ms: int


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
            taken[0].update(more)
        return taken[0]


class Refusals(dict[int, Refusal]):
    """The earliest missing batch of each producer of one partition, by producer id."""

    __slots__ = ()

    def note(self, header: BatchHeader, code: ErrorCode, steady_ms: int) -> None:
        if header.producer_id < 0 or self.before(header, steady_ms) is not None:
            return
        self[header.producer_id] = Refusal(header.producer_epoch, header.base_sequence, code, steady_ms)
        if len(self) > _PRODUCERS_MAX:
            del self[next(iter(self))]

    def forget(self, header: BatchHeader) -> None:
        """A batch was stored: it is not missing any more."""
        refusal = self.get(header.producer_id)
        if refusal is not None and refusal.base_sequence <= header.base_sequence:
            del self[header.producer_id]

    def before(self, header: BatchHeader, steady_ms: int) -> ErrorCode | None:
        """The error with which an earlier batch of this producer was refused; None when none was, lately."""
        refusal = self.get(header.producer_id)
        if (
            refusal is None
            or refusal.epoch != header.producer_epoch
            or refusal.base_sequence >= header.base_sequence
            or steady_ms - refusal.at_ms > _REMEMBERED_MS
        ):
            return None
        return refusal.code
