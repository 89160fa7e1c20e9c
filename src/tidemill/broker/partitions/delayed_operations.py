"""The operations that wait on one partition: acks, deletions, fetches (Kafka: DelayedOperations).

An ack waits for an offset: until it is committed or, for DeleteRecords, until every live replica has dropped what is before
it. A fetch waits for bytes. It is called with the bytes that became visible, or stable if it reads committed transactions
only. Bytes that were appended and are not visible yet are counted until they are. A follower's fetch session is
notified of every append and every change, because followers also read what is not committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from tidemill.errors import ErrorCode

# More appends than this between two moves of the high watermark are accounted for together.
_UNCOMMITTED_MAX = 1024
# Enough for any fetch: it reads again, whatever it finds.
MANY_BYTES = 1 << 62

Settled = Callable[[ErrorCode], None]
Grew = Callable[[int], None]
# A partition as a request names it: topic name or id, and index.
WireKey = tuple[str | bytes, int]


class ReplicaListener(Protocol):
    """A follower's fetch session, which collects the partitions that have something new."""

    @property
    def replica_id(self) -> int: ...
    @property
    def confirmed_ms(self) -> int:
        """The last time at which the follower is known to have followed the session's partitions."""

    def grew(self, key: WireKey, added_bytes: int) -> None: ...
    def changed(self, key: WireKey) -> None: ...


class Waiter:
    """An operation that waits for an offset. `cancel` when its result is no longer needed."""

    __slots__ = ("_settled", "offset")

    def __init__(self, offset: int, settled: Settled) -> None:
        self.offset = offset
        self._settled: Settled | None = settled

    def __lt__(self, other: Waiter) -> bool:
        return self.offset < other.offset

    def settle(self, code: ErrorCode) -> None:
        if self._settled is not None:
            settled, self._settled = self._settled, None
            settled(code)

    def cancel(self) -> None:
        self._settled = None


class OffsetWaiters:
    """Operations that wait until one thing has reached their offsets."""

    __slots__ = ("_heap",)

    def __init__(self) -> None:
        self._heap: list[Waiter] = []

    def __bool__(self) -> bool:
        return bool(self._heap)

    def add(self, offset: int, settled: Settled) -> Waiter:
        waiter = Waiter(offset, settled)
        heappush(self._heap, waiter)
        return waiter

    def reached(self, offset: int, code: ErrorCode = ErrorCode.NONE) -> None:
        while self._heap and self._heap[0].offset <= offset:
            heappop(self._heap).settle(code)

    def fail(self, code: ErrorCode) -> None:
        waiting, self._heap = self._heap, []
        for waiter in waiting:
            waiter.settle(code)


class DelayedOperations:
    __slots__ = ("_replica_listeners", "_uncommitted", "acks", "deletions", "fetches", "stable_fetches")

    def __init__(self) -> None:
        # Writes that wait until the high watermark has passed them.
        self.acks = OffsetWaiters()
        # DeleteRecords that waits until the log start of every live replica has reached it.
        self.deletions = OffsetWaiters()
        # Called with the bytes that became visible.
        self.fetches: dict[Grew, None] = {}
        # Called with the bytes that became stable.
        self.stable_fetches: dict[Grew, None] = {}
        self._replica_listeners: dict[ReplicaListener, WireKey] = {}
        # (log end, bytes) of what was appended and is not visible yet.
        self._uncommitted: deque[tuple[int, int]] = deque()

    def attach(self, listener: ReplicaListener, key: WireKey) -> None:
        self._replica_listeners[listener] = key

    def detach(self, listener: ReplicaListener) -> None:
        self._replica_listeners.pop(listener, None)

    def is_followed_by(self, replica_id: int, since_ms: int) -> bool:
        """Whether that replica is known to have followed this partition at that time or later."""
        return any(
            listener.replica_id == replica_id and listener.confirmed_ms >= since_ms
            for listener in self._replica_listeners
        )

    def appended(self, end_offset: int, size: int) -> None:
        """The log grew. Followers may read the new bytes; consumers may not yet."""
        uncommitted = self._uncommitted
        added_bytes = size
        if len(uncommitted) >= _UNCOMMITTED_MAX:
            added_bytes += uncommitted.pop()[1]
        uncommitted.append((end_offset, added_bytes))
        for listener, key in self._replica_listeners.items():
            listener.grew(key, size)

    def complete_fetches(self, high_watermark: int) -> int:
        """Report the bytes below a new high watermark to fetches and followers; returns how many became visible."""
        added_bytes = 0
        uncommitted = self._uncommitted
        while uncommitted and uncommitted[0][0] <= high_watermark:
            added_bytes += uncommitted.popleft()[1]
        for fetch in list(self.fetches):
            fetch(added_bytes)
        for listener, key in self._replica_listeners.items():
            listener.changed(key)
        return added_bytes

    def truncated(self) -> None:
        self._uncommitted.clear()

    def wake_fetches(self) -> None:
        """Let every fetch read again: something other than new data happened, such as a new epoch."""
        for fetch in (*self.fetches, *self.stable_fetches):
            fetch(MANY_BYTES)
        for listener, key in list(self._replica_listeners.items()):
            listener.grew(key, MANY_BYTES)
