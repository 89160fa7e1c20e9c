"""The seam to time: the broker reads the wall clock and the steady clock here, not from the operating system."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    """The wall clock."""

    def wall_ms(self) -> int:
        """Wall time, for timestamps and retention. It may jump, so timers and deadlines use the loop's time."""


class SystemClock:
    """The wall clock of the operating system."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SteadyClock:
    """A clock that starts at wall time and then advances with the loop's clock, so it cannot jump.

    It is for deadlines that are kept as points in time, such as the sessions of group members. A wall clock that jumps
    an hour forward would end them all at once; one that jumps back would keep dead members for an hour.
    """

    def __init__(self, clock: Clock, loop_seconds: Callable[[], float]) -> None:
        self._loop_seconds = loop_seconds
        self._origin_ms = clock.wall_ms() - int(loop_seconds() * 1000)

    def steady_ms(self) -> int:
        return self._origin_ms + int(self._loop_seconds() * 1000)
