"""The inputs and outputs of a share partition (`share_partition.py`).

The shell passes the limits of the group, spans of the log and acknowledgements. It gets acquired records, writes for the
share coordinator, and the records whose dead letters are owed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from tidemill.protocol.share_state import StateBatch
from tidemill.replication.share_counts import ShareCounts
from tidemill.replication.share_ranges import DeliveryState, Range


class AcknowledgeType(IntEnum):
    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


@dataclass(frozen=True, slots=True)
class ShareLimits:
    """The settings of the group. Without a backoff a released record is available at once."""

    lock_duration_ms: int = 30_000
    delivery_count_max: int = 5
    record_locks_max: int = 2_000
    is_renew_enabled: bool = True
    has_dead_letters: bool = False
    backoff_ms: int = 0
    backoff_factor: float = 2.0
    backoff_ms_max: int = 600_000

    def backoff_after(self, delivery_count: int) -> int:
        if not (self.backoff_ms and delivery_count):
            return 0
        # Beyond this exponent every factor has reached the maximum, and a float would overflow.
        exponent = min(delivery_count - 1, 64)
        return int(min(self.backoff_ms * self.backoff_factor**exponent, self.backoff_ms_max))


class Span(NamedTuple):
    """Consecutive offsets of the log, with or without records to deliver."""

    first_offset: int
    end_offset: int
    has_records: bool = True


class Acquired(NamedTuple):
    first_offset: int
    end_offset: int
    delivery_count: int


class AcknowledgedBatch(NamedTuple):
    """As on the wire: one type for all offsets, or one for each."""

    first_offset: int
    last_offset: int
    types: Sequence[int]


class Change(NamedTuple):
    """The state that a range gets when the write is durable."""

    changed: Range
    state: DeliveryState
    # When it may be acquired again.
    deadline_ms: int = 0
    is_rejected: bool = False


class Transition:
    """Changes that take effect together, or not at all."""

    __slots__ = ("changes", "counts")

    def __init__(self) -> None:
        self.changes: list[Change] = []
        # What is counted when it is durable.
        self.counts = ShareCounts()


class Write(NamedTuple):
    """A write for the share coordinator. `written` gets it with the outcome."""

    start_offset: int
    batches: tuple[StateBatch, ...]
    delivery_complete_count: int
    transitions: tuple[Transition, ...]
    # Whether it has counts of ranges that came back without an acknowledgement.
    has_counts: bool


class Dead(NamedTuple):
    """Records that were rejected or reached the limit, durably, and whose dead letters are owed."""

    first_offset: int
    end_offset: int
    delivery_count: int
    is_rejected: bool
