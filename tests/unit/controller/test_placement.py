"""Placement: properties that hold for any cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.controller.topics.placement import PlacementError, UsableBroker, place_replicas
from tidemill.types import BrokerId

Placement = list[tuple[BrokerId, ...]]


def brokers_of(racks: list[str | None]) -> list[UsableBroker]:
    return [UsableBroker(BrokerId(index), rack, is_active=True) for index, rack in enumerate(racks)]


def spread(brokers: list[UsableBroker], counts: Counter[BrokerId]) -> int:
    loads = [counts[broker.id] for broker in brokers]
    return max(loads) - min(loads)


sizes = st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


@settings(max_examples=examples(60), deadline=None)
@given(sizes, st.integers(1, 40), st.integers(0, 2**128 - 1))
def test_without_racks_the_load_differs_by_one_at_most(
    size: tuple[int, int], partitions: int, seed: int
) -> None:
    brokers = brokers_of([None] * size[0])
    placed = place_replicas(brokers, partitions, size[1], seed)
    assert len(placed) == partitions
    for replicas in placed:
        assert len(replicas) == size[1]
        assert len(set(replicas)) == size[1]
    assert spread(brokers, Counter(each for replicas in placed for each in replicas)) <= 1
    assert spread(brokers, Counter(replicas[0] for replicas in placed)) <= 1


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.sampled_from(["r1", "r2", "r3", None]), min_size=1, max_size=8),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(0, 2**64),
)
def test_replicas_use_as_many_racks_as_they_can(
    racks: list[str | None], factor: int, partitions: int, seed: int
) -> None:
    brokers = brokers_of(racks)
    factor = min(factor, len(brokers))
    rack_of = {broker.id: broker.rack for broker in brokers}
    for replicas in place_replicas(brokers, partitions, factor, seed):
        assert len(set(replicas)) == factor
        assert len({rack_of[each] for each in replicas}) == min(factor, len(set(racks)))


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 30), st.integers(0, 2**64))
def test_racks_of_equal_size_are_loaded_evenly(
    rack_count: int, rack_size: int, partitions: int, seed: int
) -> None:
    brokers = brokers_of([f"r{index % rack_count}" for index in range(rack_count * rack_size)])
    placed = place_replicas(brokers, partitions, rack_count, seed)
    assert spread(brokers, Counter(each for replicas in placed for each in replicas)) <= 1


def test_the_seed_decides() -> None:
    brokers = brokers_of([None] * 6)
    assert place_replicas(brokers, 12, 3, 7) == place_replicas(brokers, 12, 3, 7)
    assert place_replicas(brokers, 12, 3, 7) != place_replicas(brokers, 12, 3, 8)


def test_single_partition_topics_spread_over_brokers() -> None:
    brokers = brokers_of([None] * 3)
    leaders = Counter(place_replicas(brokers, 1, 1, seed)[0][0] for seed in range(300))
    assert min(leaders.values()) > 60


def test_the_partners_of_a_broker_vary() -> None:
    brokers = brokers_of([None] * 6)
    placed = place_replicas(brokers, 60, 2, 1)
    partners = {replicas[1] for replicas in placed if replicas[0] == 0}
    assert len(partners) >= 3


def test_new_partitions_take_account_of_the_old() -> None:
    brokers = brokers_of([None] * 3)
    existing = [(BrokerId(0),), (BrokerId(0),), (BrokerId(1),)]
    placed = place_replicas(brokers, 3, 1, 5, existing)
    assert Counter(replicas[0] for replicas in [*existing, *placed]) == {0: 2, 1: 2, 2: 2}


def test_inactive_brokers_are_used_last_and_never_lead() -> None:
    brokers = [UsableBroker(BrokerId(index), None, is_active=index != 0) for index in range(3)]
    assert all(0 not in replicas for replicas in place_replicas(brokers, 20, 2, 3))
    needed = place_replicas(brokers, 20, 3, 3)
    assert all(set(replicas) == {0, 1, 2} and replicas[0] != 0 for replicas in needed)


@pytest.mark.parametrize(
    ("brokers", "factor", "message"),
    [
        ([], 1, "0 broker"),
        (brokers_of([None] * 2), 3, "2 broker"),
        ([UsableBroker(BrokerId(0), None, is_active=False)], 1, "fenced"),
    ],
)
def test_not_enough_brokers(brokers: list[UsableBroker], factor: int, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        place_replicas(brokers, 1, factor, 0)
