"""Named timers of one machine. They are soft state: a new machine starts its own.

Setting a timer again moves it. Every heartbeat does so, and moving a timer to a later time costs one dictionary write.
Its heap entry stays where it is and is put back when it comes up too early. Timers that are due together run in the
order in which they were set.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, NamedTuple, TypeVar

ResultT = TypeVar("ResultT")


class _Timer(NamedTuple, Generic[ResultT]):
    at_ms: int
    sequence: int
    run: Callable[[int], ResultT]


class Timers(Generic[ResultT]):
    def __init__(self) -> None:
        self._timers: dict[Hashable, _Timer[ResultT]] = {}
        # Every timer has an entry at or before its time. Entries without a timer are dropped when they surface.
        self._heap: list[tuple[int, int, Hashable]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._timers)

    def set(self, key: Hashable, at_ms: int, run: Callable[[int], ResultT]) -> None:
        """Call `run(steady_ms)` once, at `at_ms` or later, unless the timer is set again or cancelled before."""
        self._sequence += 1
        known = self._timers.get(key)
        self._timers[key] = _Timer(at_ms, self._sequence, run)
        if known is None or at_ms < known.at_ms:
            heapq.heappush(self._heap, (at_ms, self._sequence, key))
            self._drop_stale_entries()

    def cancel(self, key: Hashable) -> None:
        self._timers.pop(key, None)

    def at_ms(self, key: Hashable) -> int | None:
        timer = self._timers.get(key)
        return None if timer is None else timer.at_ms

    def is_set(self, key: Hashable) -> bool:
        return key in self._timers

    @property
    def deadline_ms(self) -> int | None:
        """The time at which to check the timers again: the next timer's time or earlier."""
        while self._heap:
            at_ms, _sequence, key = self._heap[0]
            if key in self._timers:
                return at_ms
            heapq.heappop(self._heap)
        return None

    def pop_due(self, steady_ms: int) -> Callable[[int], ResultT] | None:
        """Remove and return the next timer that is due; None when there is none."""
        while self._heap and self._heap[0][0] <= steady_ms:
            _at_ms, sequence, key = heapq.heappop(self._heap)
            timer = self._timers.get(key)
            if timer is None:
                continue
            if timer.sequence == sequence:
                del self._timers[key]
                return timer.run
            heapq.heappush(self._heap, (timer.at_ms, timer.sequence, key))
        return None

    def _drop_stale_entries(self) -> None:
        """Keep the heap within twice the number of timers, however often they are set and cancelled."""
        if len(self._heap) > 2 * len(self._timers) + 64:
            self._heap = [(timer.at_ms, timer.sequence, key) for key, timer in self._timers.items()]
            heapq.heapify(self._heap)
