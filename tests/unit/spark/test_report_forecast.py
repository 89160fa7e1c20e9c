"""The forecast against simple models: step by step in time, and with rates drawn from a known one."""

from __future__ import annotations

import random

import pytest

from tidemill.spark.pipelines.topic_report.forecast import (
    DAY_MS,
    HOUR_MS,
    Disk,
    Rate,
    TopicGrowth,
    complete_hours,
    first_to_fill,
    fit,
    forecast,
    rough_time,
)

_STEP_DAYS = 0.01


def _rate(mean: float, low: float | None = None, high: float | None = None, days: int = 30) -> Rate:
    return Rate(mean, mean if low is None else low, mean if high is None else high, days, DAY_MS, 0)


def _stepped(disk: Disk, limit_days: float) -> float | None:
    """Adds up a hundredth of a day after the other."""
    sizes = [topic.now_bytes for topic in disk.topics]
    days = 0.0
    while days < limit_days:
        if sum(sizes) >= disk.capacity_bytes:
            return days
        for index, topic in enumerate(disk.topics):
            grown = sizes[index] + topic.rate.mean * _STEP_DAYS
            ends = (
                [topic.now_bytes] if topic.retention_days is not None or topic.limit_bytes is not None else []
            )
            kept = [topic.rate.mean * topic.retention_days] if topic.retention_days is not None else []
            kept += [topic.limit_bytes] if topic.limit_bytes is not None else []
            sizes[index] = min(grown, max([*ends, min(kept)])) if kept else grown
        days += _STEP_DAYS
    return None


@pytest.mark.parametrize("seed", range(60))
def test_a_disk_fills_when_small_steps_say_so(seed: int) -> None:
    luck = random.Random(seed)
    topics = [
        TopicGrowth(
            f"t{index}",
            luck.uniform(0, 100),
            _rate(luck.choice([0.0, luck.uniform(0, 20)])),
            luck.choice([None, luck.uniform(0, 20)]),
            luck.choice([None, None, luck.uniform(0, 300)]),
        )
        for index in range(luck.randint(1, 4))
    ]
    disk = Disk("disk", luck.uniform(1, 500), topics)
    expected = _stepped(disk, 60)
    found = disk.filled_after_days(lambda rate: rate.mean)
    if expected is None:
        assert found is None or found > 60 - 2 * _STEP_DAYS
    else:
        assert found is not None
        assert abs(found - expected) <= 2 * _STEP_DAYS


def test_retention_holds_a_topic_below_the_capacity() -> None:
    # 10 a day for 7 days end at 70 of 100.
    held = forecast(Disk("d", 100.0, [TopicGrowth("t", 30.0, _rate(10), retention_days=7)]))
    assert held.early_days is None
    assert "does not fill up" in held.verdict
    assert "70%" in held.verdict
    assert forecast(Disk("d", 100.0, [TopicGrowth("t", 30.0, _rate(10))])).likely_days == pytest.approx(7)


def test_verdict_has_the_spread_and_not_more_than_is_known() -> None:
    topic = TopicGrowth("t", 0.0, _rate(10, low=5, high=20))
    assert (
        forecast(Disk("d", 300.0, [topic])).verdict == "full in about 4 weeks (between 2 weeks and 9 weeks)"
    )
    assert forecast(Disk("d", 1e9, [topic])).verdict.startswith("not within")
    wild = TopicGrowth("t", 0.0, _rate(10, low=0, high=20))
    assert "perhaps never" in forecast(Disk("d", 300.0, [wild])).verdict
    assert forecast(Disk("d", 5.0, [TopicGrowth("t", 5.0, _rate(1))])).verdict == "full now"


def test_the_first_disk_to_fill_counts() -> None:
    slow = forecast(Disk("slow", 1000.0, [TopicGrowth("t", 0.0, _rate(10))]))
    fast = forecast(Disk("fast", 100.0, [TopicGrowth("t", 0.0, _rate(10))]))
    held = forecast(Disk("held", 10.0, [TopicGrowth("t", 9.0, _rate(1), retention_days=1)]))
    chosen = first_to_fill([held, slow, fast])
    assert chosen is not None
    assert chosen.disk.name == "fast"
    assert first_to_fill([]) is None


def test_too_few_hours_give_no_rate() -> None:
    assert fit([5.0] * 5) is None
    steady = fit([5.0] * 6)
    assert steady is not None
    assert (steady.low, steady.mean, steady.high) == (120.0, 120.0, 120.0)
    assert (steady.trend, steady.bucket_count, steady.bucket_ms) == (0, 6, HOUR_MS)


def test_a_week_is_measured_in_days() -> None:
    # Busy by day, quiet by night: hours vary a lot, days do not.
    rate = fit([10.0 if 8 <= hour < 20 else 0.0 for _ in range(8) for hour in range(24)])
    assert rate is not None
    assert (rate.mean, rate.low, rate.high, rate.bucket_ms) == (120.0, 120.0, 120.0, DAY_MS)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    luck = random.Random(1)
    hits = 0
    for _ in range(400):
        rate = fit([max(0.0, luck.gauss(100, 30)) for _ in range(48)])
        assert rate is not None
        hits += rate.low <= 2400 <= rate.high
    assert 0.75 <= hits / 400 <= 0.92


def test_hours_that_resemble_their_neighbours_count_less() -> None:
    luck = random.Random(2)
    level, waves = 0.0, []
    for _ in range(100):
        level = 0.95 * level + luck.gauss(0, 10)
        waves.append(200 + level)
    shuffled = luck.sample(waves, len(waves))
    wave, shuffle = fit(waves), fit(shuffled)
    assert wave is not None
    assert shuffle is not None
    assert wave.high - wave.low > 2 * (shuffle.high - shuffle.low)


@pytest.mark.parametrize(("slope", "trend"), [(3.0, 1), (-3.0, -1), (0.0, 0)])
def test_clear_trend_is_reported(slope: float, trend: int) -> None:
    luck = random.Random(3)
    rate = fit([200 + slope * hour + luck.gauss(0, 5) for hour in range(40)])
    assert rate is not None
    assert rate.trend == trend


def test_only_whole_hours_count() -> None:
    hours = {0: 1.0, HOUR_MS: 2.0, 3 * HOUR_MS: 4.0, 4 * HOUR_MS: 5.0}
    # It begins within the first hour and ends within the fifth.
    assert complete_hours(hours, 10, 4 * HOUR_MS + 10) == [2.0, 0.0, 4.0]


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0.01, "1 hour"),
        (1.0, "24 hours"),
        (3.4, "3 days"),
        (20.0, "3 weeks"),
        (95.0, "3 months"),
        (1100.0, "3 years"),
    ],
)
def test_times_are_rough(days: float, text: str) -> None:
    assert rough_time(days) == text
