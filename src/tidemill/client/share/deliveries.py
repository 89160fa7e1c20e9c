"""Records that a share consumer holds: each under a lock, until it is acknowledged or the lock is lost.

`Held` is a table without a lock of its own; the consumer guards it by that of its `Capacity`. A record can come here a
second time while a program still works on its first delivery, when that one's lock has expired. Then the older delivery
is stale: it is no longer the one in the table.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemill.client.delayed_retries import RETRY_GROUP
from tidemill.client.fetch import decoded, whole_batches
from tidemill.client.share.membership import SharePlace
from tidemill.errors import ProtocolError, TidemillError
from tidemill.protocol.api.share import AcquiredRecords, ShareFetchPartitionData
from tidemill.protocol.records import CONTROL, Record, checksum_matches
from tidemill.types import TopicPartition


class LockLost(TidemillError):
    """The record is no longer locked for this delivery. Another member has it, or will."""


class AlreadySettled(TidemillError):
    """The delivery was acknowledged before."""


@dataclass(eq=False)
class ShareDelivery:
    """One record, locked for this member."""

    partition: TopicPartition
    record: Record
    # How often it has been delivered with this time.
    delivery_count: int
    place: SharePlace
    node_id: int
    session: int
    # Of the steady clock: until then the lock holds, unless it is renewed.
    locked_until_s: float
    # Of its topic: the smallest is taken first.
    rank: int = 0
    is_settled: bool = False
    is_being_renewed: bool = False

    def is_for(self, group: str) -> bool:
        """False for a delayed retry of another group of this topic."""
        found = [value for name, value in self.record.headers if name == RETRY_GROUP and value is not None]
        return not found or bytes(found[-1]).decode("utf-8", "replace") == group


@dataclass
class Parsed:
    """One partition's answer: the records that were acquired, and offsets that hold none."""

    acquired: list[tuple[Record, int]] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    # Offsets of batches that cannot be decoded.
    damaged: list[int] = field(default_factory=list)
    damage: str = ""


def parse_acquired(partition: TopicPartition, data: ShareFetchPartitionData) -> Parsed:
    """An answer may hold more records than were acquired, and offsets of markers are acquired without a record."""
    parsed = Parsed()
    if not data.acquired_records:
        return parsed
    records: dict[int, Record] = {}
    damaged: list[range] = []
    for header, batch in whole_batches(memoryview(data.records)):
        if header.attributes & CONTROL:
            continue
        try:
            if not checksum_matches(batch, header):
                raise ProtocolError(
                    f"{partition}: the CRC-32C of the batch at {header.base_offset} does not match"
                )
            records.update((record.offset, record) for record in decoded(partition, header, batch))
        except ProtocolError as error:
            parsed.damage = str(error)
            damaged.append(range(header.base_offset, header.next_offset))
    for offset, count in _offsets(data.acquired_records):
        record = records.get(offset)
        if record is not None:
            parsed.acquired.append((record, count))
        elif any(offset in each for each in damaged):
            parsed.damaged.append(offset)
        else:
            parsed.gaps.append(offset)
    return parsed


def _offsets(ranges: list[AcquiredRecords]) -> Iterator[tuple[int, int]]:
    for each in ranges:
        yield from zip(range(each.first_offset, each.last_offset + 1), itertools.repeat(each.delivery_count))


class Capacity:
    """The limit of records held, by one consumer or by several together. They share its lock."""

    def __init__(self, limit: int) -> None:
        self.changed = threading.Condition()
        self._limit = limit
        # What is held, and what fetches under way may bring.
        self.used = 0
        # How many sessions fetch: they divide the room.
        self.fetching = 0

    @property
    def room(self) -> int:
        return max(0, self._limit - self.used)

    def set_limit(self, limit: int) -> None:
        """Sets the limit. Records held beyond a smaller limit stay."""
        with self.changed:
            self._limit = limit
            self.changed.notify_all()


class Held:
    """The records that this member holds: ready to be taken, or in hand."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self._deliveries: dict[tuple[SharePlace, int], ShareDelivery] = {}
        # By rank, and then in the order in which they came.
        self._ready: list[tuple[int, int, ShareDelivery]] = []
        self._numbers = itertools.count()
        # Of fetches under way.
        self._reserved = 0
        # How many may wait here to be taken; None for all that fit.
        self.ready_max: int | None = None

    @property
    def room(self) -> int:
        if self.ready_max is None:
            return self._capacity.room
        return max(0, min(self._capacity.room, self.ready_max - len(self._ready) - self._reserved))

    @property
    def is_fetching(self) -> bool:
        return self._reserved > 0

    @property
    def count(self) -> int:
        return len(self._deliveries)

    def reserve(self, count: int) -> None:
        self._reserved += count
        self._capacity.used += count

    def give_back(self, count: int) -> None:
        self._reserved -= count
        self._capacity.used -= count

    def add(self, delivery: ShareDelivery) -> None:
        """A delivery of the same record that was here before is stale from now on."""
        key = delivery.place, delivery.record.offset
        self._capacity.used += key not in self._deliveries
        self._deliveries[key] = delivery
        heapq.heappush(self._ready, (delivery.rank, next(self._numbers), delivery))

    def take(self, steady_s: float) -> ShareDelivery | None:
        """The next one whose lock still holds."""
        while self._ready:
            delivery = heapq.heappop(self._ready)[-1]
            if self.is_current(delivery):
                if steady_s < delivery.locked_until_s:
                    return delivery
                self.drop(delivery)
        return None

    def is_current(self, delivery: ShareDelivery) -> bool:
        return self._deliveries.get((delivery.place, delivery.record.offset)) is delivery

    def drop(self, delivery: ShareDelivery) -> None:
        if self.is_current(delivery):
            del self._deliveries[delivery.place, delivery.record.offset]
            self._capacity.used -= 1

    def drop_expired(self, steady_s: float) -> None:
        """A delivery whose lock has expired takes no room; the broker has released it."""
        for each in [each for each in self._deliveries.values() if each.locked_until_s <= steady_s]:
            if not each.is_settled:
                self.drop(each)

    def drop_session(self, node_id: int, session: int) -> None:
        """The locks of a session that ended."""
        for each in list(self._deliveries.values()):
            if (each.node_id, each.session) == (node_id, session):
                self.drop(each)

    def to_renew(self, node_id: int, session: int, until_s: float) -> list[ShareDelivery]:
        """Returns what a session holds under locks that end before a time, neither settled nor being renewed."""
        return [
            each
            for each in self._deliveries.values()
            if (each.node_id, each.session) == (node_id, session)
            and each.locked_until_s < until_s
            and not (each.is_settled or each.is_being_renewed)
        ]

    def not_started(self) -> list[ShareDelivery]:
        """Takes everything that was not taken."""
        found = [each for _, _, each in sorted(self._ready) if self.is_current(each)]
        self._ready.clear()
        return found
