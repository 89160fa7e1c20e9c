"""Counters, histograms, and estimates from them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.broker.metrics.registry import LATENCY_BOUNDS_S, Histogram, Metrics, Recent, quantile

SECONDS = st.lists(st.floats(0, 40), min_size=1, max_size=60)


def histogram(observed: list[float]) -> Histogram:
    made = Histogram()
    for seconds in observed:
        made.observe(seconds)
    return made


@given(SECONDS, st.sampled_from([0.5, 0.75, 0.95, 0.99, 0.999]))
def test_a_quantile_is_within_the_bucket_of_the_true_one(observed: list[float], share: float) -> None:
    # The smallest value that at least this share of the observations does not exceed.
    ordered = sorted(observed)
    true = next(each for rank, each in enumerate(ordered, 1) if rank >= share * len(ordered))
    estimate = quantile(histogram(observed), share)
    lower = max((bound for bound in LATENCY_BOUNDS_S if bound < true), default=0.0)
    upper = min((bound for bound in LATENCY_BOUNDS_S if bound >= true), default=LATENCY_BOUNDS_S[-1])
    assert lower <= estimate <= upper


@given(SECONDS, st.integers(0, 60))
def test_each_observation_is_in_its_bucket(observed: list[float], settled: int) -> None:
    made = Histogram()
    for number, seconds in enumerate([*observed, *LATENCY_BOUNDS_S]):
        made.observe(seconds)
        if number == settled:
            made.settle()
    bounds = [0.0, *LATENCY_BOUNDS_S, math.inf]
    assert made.counts == [
        sum(lower < seconds <= upper or seconds == lower == 0.0 for seconds in [*observed, *LATENCY_BOUNDS_S])
        for lower, upper in itertools.pairwise(bounds)
    ]
    assert made.sum_s == pytest.approx(sum(observed) + sum(LATENCY_BOUNDS_S))


def test_quantile_without_observations_is_zero() -> None:
    assert quantile(Histogram(), 0.99) == 0.0


@given(SECONDS, SECONDS)
def test_difference_holds_later_observations(before: list[float], after: list[float]) -> None:
    whole = histogram(before)
    earlier = whole.copy()
    for seconds in after:
        whole.observe(seconds)
    assert whole.since(earlier).counts == histogram(after).counts
    assert whole.count == len(before) + len(after)


def test_recent_forgets_what_is_older_than_two_windows() -> None:
    metrics = Metrics()
    metrics.request(1).observe(0.2)
    recent = Recent(metrics, 0.0, loop_cpu_s=0.0)
    metrics.request(1).observe(0.2)
    metrics.request(3).observe(0.2)
    assert {key: each.count for key, each in recent.requests().items()} == {1: 1, 3: 1}
    assert not recent.is_due(Recent.WINDOW_S - 1)
    assert recent.is_due(Recent.WINDOW_S)
    recent.turn(60.0, loop_cpu_s=30.0)
    assert {key: each.count for key, each in recent.requests().items()} == {1: 1, 3: 1}
    recent.turn(120.0, loop_cpu_s=30.0)
    assert {key: each.count for key, each in recent.requests().items()} == {1: 0, 3: 0}


def test_the_idle_share_is_of_the_last_two_windows() -> None:
    recent = Recent(Metrics(), 0.0, loop_cpu_s=5.0)
    assert recent.idle_share(0.0, 5.0) == 1.0
    assert recent.idle_share(60.0, 35.0) == pytest.approx(0.5)
    recent.turn(60.0, 35.0)
    recent.turn(120.0, 35.0)
    assert recent.idle_share(120.0, 35.0) == 1.0
    # A clock of the kernel that is a little ahead is no work below nothing.
    assert recent.idle_share(121.0, 97.0) == 0.0
