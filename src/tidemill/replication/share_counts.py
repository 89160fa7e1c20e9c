"""Counts the records of a share partition: what happened to them, and in which state they are now.

`ShareCounts` only grows, by an addition for each range of records. `in_flight_counts` looks at the ranges, at a scrape
or for an administrator.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.replication.share_ranges import DeliveryState, Range


class ShareCounts:
    """Records of one share partition since its first fetch here."""

    __slots__ = ("acknowledged", "archived", "dead_letters", "deliveries", "lock_timeouts")

    def __init__(self) -> None:
        # Each delivery of the same record counts.
        self.deliveries = 0
        # By `AcknowledgeType`, when it is durable.
        self.acknowledged = [0] * 5
        # Locks that ended by their time.
        self.lock_timeouts = 0
        # Given up: rejected, or delivered as often as allowed.
        self.archived = 0
        # Copies of these in the dead-letter topic.
        self.dead_letters = 0

    def add(self, other: ShareCounts) -> None:
        self.deliveries += other.deliveries
        for kind, records in enumerate(other.acknowledged):
            self.acknowledged[kind] += records
        self.lock_timeouts += other.lock_timeouts
        self.archived += other.archived
        self.dead_letters += other.dead_letters


class InFlightCounts(NamedTuple):
    """The number of records of a share partition in each state."""

    # Locked by members.
    acquired: int
    # Delivered before, and waiting for another delivery.
    waiting: int
    # Given up, with a dead letter that is not written yet.
    owed: int
    # Of those that are locked or wait: how many were delivered once, twice, and so on.
    by_deliveries: tuple[int, ...]


def in_flight_counts(ranges: Iterable[Range]) -> InFlightCounts:
    states = dict.fromkeys(DeliveryState, 0)
    by_deliveries: list[int] = []
    for each in ranges:
        states[each.state] += each.size
        if each.state in (DeliveryState.ACQUIRED, DeliveryState.AVAILABLE) and each.delivery_count:
            by_deliveries += [0] * (each.delivery_count - len(by_deliveries))
            by_deliveries[each.delivery_count - 1] += each.size
    return InFlightCounts(
        states[DeliveryState.ACQUIRED],
        states[DeliveryState.AVAILABLE],
        states[DeliveryState.ARCHIVING],
        tuple(by_deliveries),
    )
