"""Forecasts when a disk fills up, from what was written per hour or day, and how uncertain that is.

The rate is the mean of complete buckets of time, with the 80 % interval of that mean. Neighbouring hours resemble each
other, so they count for less than as many independent ones (their first autocorrelation says by how much). A topic grows
at its rate until its retention holds it: after that it takes `rate x retention`. Disks are judged one by one, because the
first that is full stops its broker.

It refuses to guess. With fewer than `BUCKETS_MIN` complete hours there is no rate. A day further away than
`HORIZON_SPANS` times the observed time is given only as "not before". All intervals are taken at their ends together,
which makes them too wide rather than too narrow.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
HOURS_PER_DAY = 24
# Below that a mean of hours says more about the hours than about the topic.
BUCKETS_MIN = 6
# A week shows its weekend; with less, hours are the better measure.
DAYS_MIN = 7
HORIZON_SPANS = 20
_AUTOCORRELATION_MAX = 0.95
# Student's t, the quantile 0.9, by degrees of freedom; the next smaller one counts, which is the wider interval.
_T_90 = {
    1: 3.078,
    2: 1.886,
    3: 1.638,
    4: 1.533,
    5: 1.476,
    6: 1.440,
    8: 1.397,
    10: 1.372,
    15: 1.341,
    30: 1.310,
}


@dataclass(frozen=True)
class Rate:
    """Something per day: the mean, and between what it lies in four of five cases."""

    mean: float
    low: float
    high: float
    bucket_count: int
    bucket_ms: int
    trend: int
    """1 when it clearly rises within the observed time, -1 when it falls, 0 when that cannot be told."""

    @property
    def span_days(self) -> float:
        return self.bucket_count * self.bucket_ms / DAY_MS

    def scaled(self, factor: float) -> Rate:
        return Rate(
            self.mean * factor,
            self.low * factor,
            self.high * factor,
            self.bucket_count,
            self.bucket_ms,
            self.trend,
        )


def complete_hours(hours: Mapping[int, float], first_ms: int, wall_ms: int) -> list[float]:
    """Returns the value of each whole hour from `first_ms` to now; 0 for an hour without an entry."""
    start = -(-first_ms // HOUR_MS)
    end = wall_ms // HOUR_MS
    return [float(hours.get(hour * HOUR_MS, 0.0)) for hour in range(start, end)]


def fit(hourly: Sequence[float]) -> Rate | None:
    """Returns the rate per day; None when there is too little data."""
    day_count = len(hourly) // HOURS_PER_DAY
    if day_count >= DAYS_MIN:
        # The youngest days, whole ones.
        recent = hourly[len(hourly) - day_count * HOURS_PER_DAY :]
        daily = [
            math.fsum(recent[day * HOURS_PER_DAY : (day + 1) * HOURS_PER_DAY]) for day in range(day_count)
        ]
        return _rate(daily, DAY_MS)
    if len(hourly) >= BUCKETS_MIN:
        return _rate(hourly, HOUR_MS)
    return None


def _rate(values: Sequence[float], bucket_ms: int) -> Rate:
    count = len(values)
    mean = statistics.fmean(values)
    deviation = statistics.stdev(values)
    correlation = _autocorrelation(values, mean)
    independent = max(2.0, count * (1 - correlation) / (1 + correlation))
    spread = _t_90(int(independent) - 1) * deviation / math.sqrt(independent)
    per_day = DAY_MS / bucket_ms
    return Rate(
        mean * per_day,
        max(0.0, mean - spread) * per_day,
        (mean + spread) * per_day,
        count,
        bucket_ms,
        _trend(values, mean, independent),
    )


def _autocorrelation(values: Sequence[float], mean: float) -> float:
    total = math.fsum((value - mean) ** 2 for value in values)
    if total == 0:
        return 0.0
    shifted = math.fsum((a - mean) * (b - mean) for a, b in itertools.pairwise(values))
    return min(max(shifted / total, 0.0), _AUTOCORRELATION_MAX)


def _trend(values: Sequence[float], mean: float, independent: float) -> int:
    """The sign of the slope when it is at least thrice its error, which is widened as the mean's is."""
    count = len(values)
    middle = (count - 1) / 2
    spread_x = math.fsum((index - middle) ** 2 for index in range(count))
    slope = math.fsum((index - middle) * (value - mean) for index, value in enumerate(values)) / spread_x
    residuals = math.fsum(
        (value - mean - slope * (index - middle)) ** 2 for index, value in enumerate(values)
    )
    error = math.sqrt(residuals / (count - 2) / spread_x * count / independent)
    # A slope of rounding errors is none.
    if abs(slope) * count <= 1e-9 * abs(mean) or abs(slope) < 3 * error:
        return 0
    return 1 if slope > 0 else -1


def _t_90(degrees: int) -> float:
    return _T_90[max(known for known in _T_90 if known <= max(degrees, 1))]


@dataclass(frozen=True)
class TopicGrowth:
    """One topic on one disk: what it takes there, and what is added."""

    topic: str
    now_bytes: float
    rate: Rate
    """Bytes per day on this disk."""
    retention_days: float | None = None
    limit_bytes: float | None = None

    def final_bytes(self, per_day: float) -> float:
        """Returns the bytes that it takes in the end: at least those of now, even when the rate has fallen since."""
        limits = []
        if self.retention_days is not None:
            limits.append(per_day * self.retention_days)
        if self.limit_bytes is not None:
            limits.append(self.limit_bytes)
        return max(self.now_bytes, min(limits)) if limits else math.inf

    def bends_after_days(self, per_day: float) -> float:
        """Returns the days until it meets its limit."""
        return (self.final_bytes(per_day) - self.now_bytes) / per_day if per_day > 0 else 0.0

    def after(self, days: float, per_day: float) -> float:
        return min(self.now_bytes + per_day * days, self.final_bytes(per_day))


Pick = Callable[[Rate], float]


@dataclass(frozen=True)
class Disk:
    """`name` says whose it is; other data than topics is already taken off the capacity."""

    name: str
    capacity_bytes: float
    topics: Sequence[TopicGrowth]

    @property
    def used_bytes(self) -> float:
        return math.fsum(topic.now_bytes for topic in self.topics)

    def after(self, days: float, pick: Pick) -> float:
        return math.fsum(topic.after(days, pick(topic.rate)) for topic in self.topics)

    def final_bytes(self, pick: Pick) -> float:
        return math.fsum(
            topic.final_bytes(pick(topic.rate)) if pick(topic.rate) > 0 else topic.now_bytes
            for topic in self.topics
        )

    def filled_after_days(self, pick: Pick) -> float | None:
        """Between the days at which a topic meets its limit, the use of the disk is a straight line."""
        if self.used_bytes >= self.capacity_bytes:
            return 0.0
        bends = [(topic.bends_after_days(pick(topic.rate)), pick(topic.rate)) for topic in self.topics]
        starts = sorted({0.0, *(days for days, _ in bends if math.isfinite(days))})
        for start, end in zip(starts, [*starts[1:], math.inf], strict=True):
            growing = math.fsum(per_day for days, per_day in bends if days > start)
            missing = self.capacity_bytes - self.after(start, pick)
            if growing > 0 and start + missing / growing <= end:
                return start + missing / growing
        return None


@dataclass(frozen=True)
class Forecast:
    """Days until the disk is full: None stands for never. There is no forecast beyond `horizon_days`."""

    disk: Disk
    likely_days: float | None
    early_days: float | None
    late_days: float | None
    final_bytes: float
    horizon_days: float

    @property
    def verdict(self) -> str:
        early, late = _within(self.early_days, self.horizon_days), _within(self.late_days, self.horizon_days)
        likely = _within(self.likely_days, self.horizon_days)
        if self.early_days == 0:
            return "full now"
        if self.early_days is None:
            share = self.final_bytes / self.disk.capacity_bytes
            return f"does not fill up: retention holds it at no more than {_percent(share)} of the disk"
        if early is None:
            return f"not within {rough_time(self.horizon_days)}; further ahead these records do not tell"
        if likely is None or late is None:
            return f"not before {rough_time(early)}, perhaps never: the rate varies too much to say more"
        if rough_time(early) == rough_time(late):
            return f"full in about {rough_time(likely)}"
        return f"full in about {rough_time(likely)} (between {rough_time(early)} and {rough_time(late)})"


def forecast(disk: Disk) -> Forecast:
    """The disk's topics must have rates; without any there is nothing to foresee."""
    span_days = max((topic.rate.span_days for topic in disk.topics), default=0.0)
    return Forecast(
        disk,
        disk.filled_after_days(lambda rate: rate.mean),
        disk.filled_after_days(lambda rate: rate.high),
        disk.filled_after_days(lambda rate: rate.low),
        disk.final_bytes(lambda rate: rate.high),
        span_days * HORIZON_SPANS,
    )


def first_to_fill(forecasts: Sequence[Forecast]) -> Forecast | None:
    """The disk that counts: the one that may be full first, else the one that gets fullest."""
    return min(
        forecasts,
        key=lambda each: (
            math.inf if each.early_days is None else each.early_days,
            -each.final_bytes / max(each.disk.capacity_bytes, 1.0),
        ),
        default=None,
    )


def rough_time(days: float) -> str:
    """With one or two digits: no more is known."""
    hours = days * HOURS_PER_DAY
    for limit, size, unit in (
        (48, 1, "hour"),
        (14 * 24, 24, "day"),
        (9 * 168, 168, "week"),
        (17_520, 730, "month"),
    ):
        if hours < limit:
            count = max(1, round(hours / size))
            return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
    return f"{round(hours / 8_766)} years"


def _within(days: float | None, horizon_days: float) -> float | None:
    return days if days is not None and days <= horizon_days else None


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "1%"
