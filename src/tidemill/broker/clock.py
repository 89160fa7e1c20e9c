"""The seam to time: what the broker asks instead of the operating system."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall time, for timestamps and retention. It may jump; waiting is the loop's business."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000
