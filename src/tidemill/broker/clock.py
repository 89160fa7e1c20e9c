"""The seam to time: the broker reads the wall clock and the steady clock here, not from the operating system.

How long requests keep the processor busy is measured with `perf_counter`, outside of this seam (`platform.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class WallClock(Protocol):
    """A wall clock, which may jump."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for timestamps and retention."""


class SystemClock:
    """The wall clock of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class Clock:
    """Both clocks of a process. Each has one origin, so times from different parts of the broker can be compared.

    `wall_ms` is for timestamps and retention. `steady_ms` starts at wall time and then advances with the event loop's
    clock, so it cannot jump. Deadlines and ages are steady. A wall clock that jumps an hour forward would end every
    session of a group member at once. One that jumps back would keep dead members for an hour.

    Waits that an event loop ends by itself (`call_at`, `timeout`) use the loop's own seconds.
    """

    def __init__(self, wall: WallClock, loop_seconds: Callable[[], float]) -> None:
        # An attribute, not a method: a produce request reads it, and is spared a call.
        self.wall_ms = wall.wall_ms
        self._loop_seconds = loop_seconds
        self._origin_ms = wall.wall_ms() - int(loop_seconds() * 1000)

    def steady_ms(self) -> int:
        return self._origin_ms + int(self._loop_seconds() * 1000)
