"""The seam to time: what the broker asks instead of the operating system."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, for timestamps and retention. It may jump; waiting is the loop's business."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


class SteadyClock:
    """Wall time at the start, from then on as far ahead as the loop's clock has come: it cannot jump.

    For deadlines that are kept as points in time, such as sessions of group members: an hour's leap of the wall clock would
    end them all at once, an hour's leap back would keep the dead alive.
    """

    def __init__(self, clock: Clock, loop_seconds: Callable[[], float]) -> None:
        self._loop_seconds = loop_seconds
        self._origin_ms = clock.now_ms() - int(loop_seconds() * 1000)

    def now_ms(self) -> int:
        return self._origin_ms + int(self._loop_seconds() * 1000)
