"""The arithmetic of the measurements: percentiles and the schedule of an open-loop load.

A schedule fixes when every message is due before the first one is sent. Latency counts from that moment, so
a broker (or client) that stalls is charged for the messages it held up, and not only for the one it was
working on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest value that at least `percent` % of the values do not exceed."""
    if not ordered:
        raise ValueError("no values")
    if not 0 < percent <= 100:
        raise ValueError(f"percent must be in (0, 100], not {percent}")
    # Rounding first: 99.9 % of 1000 is 999, though in floats it is a hair more.
    rank = ceil(round(percent * len(ordered) / 100, 9))
    return ordered[rank - 1]


@dataclass(frozen=True)
class Schedule:
    """`count` messages at a steady `rate_per_s` from `start_s` on."""

    start_s: float
    rate_per_s: float
    count: int

    def due_s(self, index: int) -> float:
        return self.start_s + index / self.rate_per_s

    def due_count(self, now_s: float) -> int:
        """How many messages are due at `now_s`; message 0 is due at the start."""
        if now_s < self.start_s:
            return 0
        return min(self.count, floor((now_s - self.start_s) * self.rate_per_s) + 1)
