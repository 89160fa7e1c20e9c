"""Those who wait for one partition: producers for their acks, fetches for data, followers' sessions for any news.

An ack waits for an offset: until it is committed, until it is on disk, or (DeleteRecords) until every replica has dropped
what is before it. A fetch waits for bytes, and hears how many became visible, or stable where it reads committed
transactions only; what was appended and is not visible yet is counted until then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Protocol

from tidemill.errors import ErrorCode

# More appends than this between two moves of the high watermark are accounted for together.
_UNSHOWN_MAX = 1024
# Enough for any fetch: it is to look again, whatever it finds.
MANY_BYTES = 1 << 62

Settled = Callable[[ErrorCode], None]
# A partition as a request names it: topic name or id, and index.
WireKey = tuple[str | bytes, int]


class ReplicaListener(Protocol):
    """A follower's fetch session: hears which of its partitions have news."""

    def grew(self, key: WireKey, added_bytes: int) -> None: ...
    def changed(self, key: WireKey) -> None: ...


class Waiter:
    """Somebody who waits for an offset; `cancel` when the answer is not wanted any more."""

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
    """Waiters for one thing to reach their offsets."""

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


class DelayedFetches:
    """Everybody who waits for data or news of a partition."""

    __slots__ = ("_listeners", "_unshown", "fetches", "stable_fetches")

    def __init__(self) -> None:
        # Called with the bytes that became visible.
        self.fetches: dict[Callable[[int], None], None] = {}
        # Called with the bytes that became stable.
        self.stable_fetches: dict[Callable[[int], None], None] = {}
        self._listeners: dict[ReplicaListener, WireKey] = {}
        # (log end, bytes) of what was appended and is not visible yet.
        self._unshown: deque[tuple[int, int]] = deque()

    def attach(self, listener: ReplicaListener, key: WireKey) -> None:
        self._listeners[listener] = key

    def detach(self, listener: ReplicaListener) -> None:
        self._listeners.pop(listener, None)

    def appended(self, end_offset: int, size: int) -> None:
        """Not visible yet, but followers may have it."""
        unshown = self._unshown
        added_bytes = size
        if len(unshown) >= _UNSHOWN_MAX:
            added_bytes += unshown.pop()[1]
        unshown.append((end_offset, added_bytes))
        for listener, key in self._listeners.items():
            listener.grew(key, size)

    def shown(self, high_watermark: int) -> int:
        """The bytes that became visible."""
        added_bytes = 0
        unshown = self._unshown
        while unshown and unshown[0][0] <= high_watermark:
            added_bytes += unshown.popleft()[1]
        for fetch in list(self.fetches):
            fetch(added_bytes)
        for listener, key in self._listeners.items():
            listener.changed(key)
        return added_bytes

    def truncated(self) -> None:
        self._unshown.clear()

    def wake(self) -> None:
        """Something other than new data happened: let everybody look again."""
        for fetch in (*self.fetches, *self.stable_fetches):
            fetch(MANY_BYTES)
        for listener, key in list(self._listeners.items()):
            listener.grew(key, MANY_BYTES)
