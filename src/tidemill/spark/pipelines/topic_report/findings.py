"""The numbers of a report, and the judgements on them that need no Spark: shares, hot partitions, names fit to be shown.

`judgement` fills a `Findings` from the cluster and from the records; `page` and the summary only show it. Counts come
from records that were read; where only a part was, they are scaled up and `sample_percent` says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tidemill.spark.pipelines.topic_report.forecast import Forecast, Rate

# A partition with so many times its fair share is hot: below, the luck of a few keys explains it.
HOT_RATIO = 1.5
_HOT_RECORDS_MIN = 100
_KEY_CHARS_MAX = 64


@dataclass(frozen=True)
class PartitionUse:
    topic: str
    partition: int
    records: int
    record_bytes: int
    disk_bytes: int | None
    """On all replicas together; None when the brokers do not tell."""
    share: float
    """The share of the topic's record bytes."""
    fair_share: float

    @property
    def is_hot(self) -> bool:
        return self.records >= _HOT_RECORDS_MIN and self.share > HOT_RATIO * self.fair_share


@dataclass(frozen=True)
class KeyUse:
    topic: str
    key: str
    records: int
    record_bytes: int
    share: float
    """The share of the topic's records."""


@dataclass(frozen=True)
class TopicUse:
    topic: str
    partition_count: int
    replica_count: int
    records: int
    record_bytes: int
    disk_bytes: int | None
    keyless_records: int
    cleanup_policy: str
    retention: str
    rate: Rate | None
    """Record bytes a day."""


@dataclass(frozen=True)
class Lag:
    group: str
    topic: str
    partition: int
    committed_offset: int | None
    end_offset: int | None
    lag: int | None
    state: str


@dataclass(frozen=True)
class Written:
    """The records written in one hour or day, of all topics together."""

    start_ms: int
    records: int
    record_bytes: int


@dataclass
class Findings:
    cluster_id: str
    made_at_ms: int
    scope: str
    """Which records were looked at, in words."""
    sample_percent: float
    topics: list[TopicUse] = field(default_factory=list)
    partitions: list[PartitionUse] = field(default_factory=list)
    keys_by_records: list[KeyUse] = field(default_factory=list)
    keys_by_bytes: list[KeyUse] = field(default_factory=list)
    lags: list[Lag] = field(default_factory=list)
    written: list[Written] = field(default_factory=list)
    bucket_ms: int = 0
    forecasts: list[Forecast] = field(default_factory=list)
    forecast_refusal: str | None = None
    """The reason for which there is no forecast."""
    remarks: list[str] = field(default_factory=list)

    @property
    def is_sampled(self) -> bool:
        return self.sample_percent < 100

    @property
    def hot_partitions(self) -> list[PartitionUse]:
        hot = [each for each in self.partitions if each.is_hot]
        return sorted(hot, key=lambda each: each.share / each.fair_share, reverse=True)


def partition_uses(
    topic: str,
    counts: Mapping[int, tuple[int, int]],
    partition_count: int,
    disk_bytes: Mapping[int, int] | None,
) -> list[PartitionUse]:
    """Every partition of the topic, also the empty ones: they are what a fair share is measured by."""
    total = sum(size for _, size in counts.values())
    return [
        PartitionUse(
            topic,
            index,
            *counts.get(index, (0, 0)),
            None if disk_bytes is None else disk_bytes.get(index, 0),
            counts.get(index, (0, 0))[1] / total if total else 0.0,
            1 / partition_count,
        )
        for index in range(partition_count)
    ]


def slices(start: int, end: int, percent: float, slice_count: int) -> list[tuple[int, int]]:
    """Evenly spread pieces of [start, end) that make up about `percent` of it; at least one offset, if there is any."""
    length = end - start
    if length <= 0:
        return []
    if percent >= 100 or length <= slice_count:
        return [(start, end)]
    wanted = max(slice_count, math.ceil(length * percent / 100))
    pieces = []
    for index in range(slice_count):
        low = start + length * index // slice_count
        size = wanted * (index + 1) // slice_count - wanted * index // slice_count
        pieces.append((low, min(low + size, end)))
    return pieces


def key_text(key: bytes) -> str:
    """UTF-8 where it is text that can be printed, hexadecimal otherwise; long ones are cut."""
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or not text:
        text = f"0x{key.hex()}" if key else "(empty)"
    return text if len(text) <= _KEY_CHARS_MAX else f"{text[: _KEY_CHARS_MAX - 1]}…"


def retention_text(retention_ms: int | None, retention_bytes: int | None) -> str:
    """Both limits hold; -1 stands for none."""
    parts = []
    if retention_ms is not None and retention_ms >= 0:
        parts.append(_duration_text(retention_ms))
    if retention_bytes is not None and retention_bytes >= 0:
        parts.append(f"{size_text(retention_bytes)} a partition")
    return " or ".join(parts) or "for ever"


def _duration_text(duration_ms: int) -> str:
    for size_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if duration_ms >= size_ms and duration_ms % size_ms == 0:
            return f"{duration_ms // size_ms} {unit}"
    return f"{duration_ms} ms"


def size_text(size_bytes: float) -> str:
    """For people, in binary units."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def parse_size(text: str) -> int:
    """`500GB`, `1.5TiB`, `1000000`: decimal and binary units; ValueError for anything else."""
    units = {"": 1, "B": 1}
    for power, letter in enumerate("KMGTP", 1):
        units |= {f"{letter}B": 1000**power, f"{letter}IB": 1024**power, letter: 1024**power}
    digits = text.strip().rstrip("BbIiKkMmGgTtPp ")
    unit = text.strip()[len(digits) :].strip().upper()
    size = float(digits) * units.get(unit, math.nan)
    if not math.isfinite(size) or size <= 0:
        raise ValueError(text)
    return int(size)


def parse_duration_ms(text: str) -> int:
    """`24h`, `7d`, `30m`, `90s`; ValueError for anything else."""
    units = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
    number = text.strip()
    duration_ms = int(float(number[:-1]) * units[number[-1]]) if number and number[-1] in units else 0
    if duration_ms <= 0:
        raise ValueError(text)
    return duration_ms


def top(keys: Sequence[KeyUse], count: int, by_bytes: bool) -> list[KeyUse]:
    """The largest of all topics; names decide between equals, so that two runs agree."""
    return sorted(
        keys,
        key=lambda each: (-(each.record_bytes if by_bytes else each.records), each.topic, each.key),
    )[:count]
