"""Computes what changes between two pictures: rates, and groups without members whose lag grows.

A rate is the difference of two results of the same request, divided by the time between them. What cannot be compared (a new
partition, a counter that restarted) counts from the next result on.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.gateway.cluster.facts import ByPartition
from tidemill.gateway.console_api import traffic
from tidemill.gateway.console_api.picture import Picture, Rates, Traffic

# A rate over less than this is noise.
_RATE_S_MIN = 0.5
# A group without members is stuck when its lag has grown for so long.
STUCK_S = 10.0


class Counter(NamedTuple):
    """A count since the gateway started, and its time; None before two answers could be compared."""

    total: int | None = None
    taken_s: float = float("-inf")

    def plus(self, count: int, taken_s: float) -> Counter:
        return Counter((self.total or 0) + count, taken_s)


class Counters(NamedTuple):
    records_in: Counter = Counter()
    bytes_in: Counter = Counter()
    bytes_out: Counter = Counter()


class Trends:
    """Rates from one answer to the next."""

    def __init__(self) -> None:
        self.rates = Rates()
        self.topics: dict[str, float] = {}
        self.counters = Counters()
        self._ends: tuple[float, ByPartition] | None = None
        self._traffic: tuple[float, dict[str, Traffic]] | None = None

    def add_ends(self, taken_s: float, ends: ByPartition) -> None:
        """Time is -inf before the first answer."""
        if taken_s == float("-inf"):
            return
        if self._ends is not None:
            passed_s = taken_s - self._ends[0]
            if passed_s < _RATE_S_MIN:
                return
            self._count_records(taken_s, passed_s, _written(self._ends[1], ends))
        self._ends = (taken_s, ends)

    def add_traffic(self, taken_s: float, moved: dict[str, Traffic]) -> None:
        if taken_s == float("-inf"):
            return
        if self._traffic is not None:
            passed_s = taken_s - self._traffic[0]
            if passed_s < _RATE_S_MIN:
                return
            self._count_bytes(taken_s, passed_s, traffic.moved(self._traffic[1], moved))
        self._traffic = (taken_s, moved)

    def _count_records(self, taken_s: float, passed_s: float, written: dict[str, int]) -> None:
        self.topics = {topic: round(count / passed_s, 1) for topic, count in written.items()}
        total = sum(written.values())
        self.rates = self.rates._replace(records_in=round(total / passed_s, 1))
        self.counters = self.counters._replace(records_in=self.counters.records_in.plus(total, taken_s))

    def _count_bytes(self, taken_s: float, passed_s: float, moved: Traffic | None) -> None:
        if moved is None:
            self.rates = self.rates._replace(bytes_in=None, bytes_out=None)
            return
        self.rates = self.rates._replace(
            bytes_in=round(moved.bytes_in / passed_s, 1), bytes_out=round(moved.bytes_out / passed_s, 1)
        )
        self.counters = self.counters._replace(
            bytes_in=self.counters.bytes_in.plus(moved.bytes_in, taken_s),
            bytes_out=self.counters.bytes_out.plus(moved.bytes_out, taken_s),
        )


def _written(before: ByPartition, now: ByPartition) -> dict[str, int]:
    """Records by topic. A partition that is new, or began again, counts from its next answer on."""
    written = {}
    for topic, partitions in now.items():
        known = before.get(topic)
        if known is not None:
            written[topic] = sum(
                max(0, end - known[index]) for index, end in partitions.items() if index in known
            )
    return written


class StuckGroups:
    """Groups without members whose lag has been growing for a while."""

    def __init__(self) -> None:
        # Since when, and the lag at that time.
        self._empty: dict[str, tuple[float, int]] = {}

    def find(self, picture: Picture, now_s: float) -> list[str]:
        empty: dict[str, tuple[float, int]] = {}
        stuck = []
        for group in picture.groups.values():
            lag = None if group.members else picture.lag_of(group)
            if lag:
                since_s, lag_before = self._empty.get(group.group_id, (now_s, lag))
                # A consumer caught up, or records were deleted.
                if lag < lag_before:
                    since_s, lag_before = now_s, lag
                empty[group.group_id] = (since_s, lag_before)
                if lag > lag_before and now_s - since_s >= STUCK_S:
                    stuck.append(group.group_id)
        self._empty = empty
        return stuck
