"""The pending records of a partition: when each is due, what names it, and which ones are on their way into the log.

`offsets` is the truth. `queue` only finds what is due; entries that are no longer true are skipped when they are taken.
A taken record was given to the leader, or waits for its own commit. It stays pending until its copy is in the log.

While a snapshot is written, the names and commit markers of records that go are kept for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

from tidemill.delays.cron import Schedule
from tidemill.delays.due_queue import RUN_ENTRIES, DueQueue
from tidemill.delays.offsets import PendingOffsets
from tidemill.protocol.steps import Steps

# How often `take_due` looks for live entries behind stale ones within one call.
_ROUNDS_MAX = 4
# Schedules whose next time is searched for within a step. After a downtime one may take half a millisecond.
_SCHEDULES_A_STEP = 5


class Delivery(NamedTuple):
    """The pending record at `offset` is due: append its visible copy (`copies.py`)."""

    offset: int
    due_ms: int
    next_due_ms: int | None


class Scheduled(NamedTuple):
    """The name of a pending record that has a schedule id, and its schedule if it recurs."""

    identity: bytes
    schedule: Schedule | None


class PendingRecord(NamedTuple):
    """A pending record. `committed_by` is the offset that must be committed first: its own, or its commit marker's."""

    offset: int
    due_ms: int
    scheduled: Scheduled | None
    committed_by: int


class Gone(NamedTuple):
    """The data that a snapshot still needs of records that went while it was written, by offset."""

    scheduled: dict[int, Scheduled]
    markers: dict[int, int]


class PendingRecords:
    """The pending records of one partition, by offset, by name and by due time."""

    __slots__ = (
        "_gone",
        "_held",
        "_marked",
        "by_identity",
        "markers",
        "offsets",
        "queue",
        "scheduled",
        "taken",
    )

    def __init__(self) -> None:
        self.offsets = PendingOffsets()
        self.queue = DueQueue()
        self.scheduled: dict[int, Scheduled] = {}
        self.by_identity: dict[bytes, int] = {}
        # By offset: the commit marker of a record whose transaction's end may not be committed yet.
        self.markers: dict[int, int] = {}
        # The same as (marker, offset) in the order of insertion. Entries of removed records stay until their turn.
        self._marked: deque[tuple[int, int]] = deque()
        # By offset: the due time of records that the queue has given out.
        self.taken: dict[int, int] = {}
        # (offset that must be committed first, offset) of taken records.
        self._held: list[tuple[int, int]] = []
        self._gone: Gone | None = None

    def keep_gone(self) -> Gone:
        """Keep from now on what a snapshot needs of records that go, until `thaw`."""
        self._gone = Gone({}, {})
        return self._gone

    def thaw(self) -> None:
        """No snapshot is written any more."""
        self._gone = None
        self.offsets.thaw()
        self.queue.thaw()

    @property
    def waits_for_commit(self) -> bool:
        return bool(self._held)

    def get(self, offset: int) -> PendingRecord | None:
        due_ms = self.offsets.get(offset)
        if due_ms is None:
            return None
        return PendingRecord(offset, due_ms, self.scheduled.get(offset), self.markers.get(offset, offset))

    def add(self, record: PendingRecord) -> None:
        offset = record.offset
        self.offsets.set(offset, record.due_ms)
        self.queue.add(record.due_ms, offset)
        if record.scheduled is not None:
            self.scheduled[offset] = record.scheduled
            self.by_identity[record.scheduled.identity] = offset
        if record.committed_by != offset:
            self.set_marker(offset, record.committed_by)

    def set_marker(self, offset: int, marker_offset: int) -> None:
        self.markers[offset] = marker_offset
        self._marked.append((marker_offset, offset))

    def remove(self, offset: int) -> PendingRecord | None:
        """Remove a record. Returns it, or None when it was not pending."""
        due_ms = self.offsets.pop(offset)
        if due_ms is None:
            return None
        committed_by = self.markers.pop(offset, offset)
        scheduled = self.scheduled.pop(offset, None)
        if self._gone is not None:
            if committed_by != offset:
                self._gone.markers.setdefault(offset, committed_by)
            if scheduled is not None:
                self._gone.scheduled.setdefault(offset, scheduled)
        if scheduled is not None and self.by_identity.get(scheduled.identity) == offset:
            del self.by_identity[scheduled.identity]
        # The queue has no entry of what it gave out.
        if self.taken.pop(offset, None) is None:
            self._drop_stale()
        return PendingRecord(offset, due_ms, scheduled, committed_by)

    def set_due(self, offset: int, due_ms: int) -> None:
        """The record is pending for another occurrence of its schedule."""
        if offset not in self.offsets:
            return
        self.offsets.set(offset, due_ms)
        self.taken.pop(offset, None)
        self.queue.add(due_ms, offset)
        self._drop_stale()

    def forget_markers(self, committed_offset: int, limit: int) -> bool:
        """Drop up to `limit` markers below the high watermark, which hold nothing back. Returns whether there are more."""
        marked = self._marked
        for _ in range(limit):
            # They rise in the order of insertion. Where an undone effect broke it, one stays longer than it must.
            if not marked or marked[0][0] >= committed_offset:
                return False
            marker_offset, offset = marked.popleft()
            if self.markers.get(offset) == marker_offset:
                del self.markers[offset]
                if self._gone is not None:
                    self._gone.markers.setdefault(offset, marker_offset)
        return True

    def take_due(self, wall_ms: int, committed_offset: int, limit: int) -> Steps[list[Delivery]]:
        """Up to `limit` committed records whose time has come. Each is given once, until it is given back.

        They are taken in the first step. Those after it find out when schedules fire next.
        """
        due = self._committed_meanwhile(wall_ms, committed_offset, limit)
        for _ in range(_ROUNDS_MAX):
            if len(due) == limit:
                break
            for due_ms, offset in self.queue.pop_due(wall_ms, limit - len(due)):
                if not self._is_live(due_ms, offset):
                    continue
                self.taken[offset] = due_ms
                committed_by = self.markers.get(offset, offset)
                if committed_by < committed_offset:
                    due.append((offset, due_ms))
                else:
                    heappush(self._held, (committed_by, offset))
        deliveries: list[Delivery] = []
        schedule_count = 0
        for offset, due_ms in due:
            named = self.scheduled.get(offset)
            if named is None or named.schedule is None:
                deliveries.append(Delivery(offset, due_ms, None))
                continue
            latest_ms = named.schedule.latest_until(due_ms, wall_ms)
            deliveries.append(Delivery(offset, latest_ms, named.schedule.next_after(latest_ms)))
            schedule_count += 1
            if schedule_count % _SCHEDULES_A_STEP == 0:
                yield None
        return deliveries

    def still_taken(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        return [each for each in deliveries if each.offset in self.taken]

    def give_back(self) -> None:
        for offset, due_ms in self.taken.items():
            self.queue.add(due_ms, offset)
        self.taken.clear()
        self._held.clear()

    def _committed_meanwhile(self, wall_ms: int, committed_offset: int, limit: int) -> list[tuple[int, int]]:
        """(offset, due time) of taken records that were not committed when they were taken."""
        committed: list[tuple[int, int]] = []
        while self._held and self._held[0][0] < committed_offset and len(committed) < limit:
            offset = heappop(self._held)[1]
            due_ms = self.taken.get(offset)
            if due_ms is None:
                continue
            if due_ms <= wall_ms:
                committed.append((offset, due_ms))
            else:
                # The clock went back while the record waited for its commit.
                del self.taken[offset]
                self.queue.add(due_ms, offset)
        return committed

    def _is_live(self, due_ms: int, offset: int) -> bool:
        return self.offsets.get(offset) == due_ms and offset not in self.taken

    def _drop_stale(self) -> None:
        """Keep the queue's stale entries below the number of live ones, at a bounded cost for each change."""
        self.queue.drop_stale_heads(self._is_live, 2)
        if len(self.queue) > 2 * (len(self.offsets) + RUN_ENTRIES):
            self.queue.sweep(self._is_live)
