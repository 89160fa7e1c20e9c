"""Plans: nothing is lost, nothing is doubled, little is moved, racks and leaders are respected."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.cli.cluster.replica_plan import PlanError, balance, evacuate
from tidemill.types import TopicPartition


def topic(*replicas: tuple[int, ...], name: str = "t") -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition(name, index): each for index, each in enumerate(replicas)}


def no_racks(*brokers: int) -> dict[int, str | None]:
    return dict.fromkeys(brokers)


def test_only_the_leaving_replica_changes_and_keeps_its_place() -> None:
    plan = evacuate(topic((1, 2), (3, 1), (2, 4)), no_racks(1, 2, 3, 4), {1}, [2, 3, 4])
    assert plan.keys() == {TopicPartition("t", 0), TopicPartition("t", 1)}
    assert plan[TopicPartition("t", 0)][1] == 2
    assert plan[TopicPartition("t", 1)][0] == 3


def test_the_replicas_of_a_leaving_broker_spread_over_the_others() -> None:
    plan = evacuate(topic(*[(1,)] * 6), no_racks(1, 2, 3, 4), {1}, [2, 3, 4])
    assert Counter(replicas[0] for replicas in plan.values()) == {2: 2, 3: 2, 4: 2}


def test_a_rack_without_a_replica_comes_first_even_when_it_is_busier() -> None:
    racks = {1: "a", 2: "b", 3: "a", 4: "b"}
    busy = topic((4, 1), (4, 1), (4, 1), name="busy")
    plan = evacuate(topic((3, 2)) | busy, racks, {2}, [1, 3, 4])
    assert plan == {TopicPartition("t", 0): (3, 4)}


def test_a_dead_broker_that_is_not_leaving_keeps_its_replicas() -> None:
    plan = evacuate(topic((1, 5)), no_racks(1, 2, 3, 5), {1}, [2, 3])
    assert plan == {TopicPartition("t", 0): (2, 5)}


def test_plan_fails_with_too_few_brokers() -> None:
    with pytest.raises(PlanError, match=r"t-0 has 3 replicas.* broker 3"):
        evacuate(topic((1, 2, 3)), no_racks(1, 2, 3), {3}, [1, 2])


def test_a_new_broker_gets_its_share_and_no_more_is_moved_than_that() -> None:
    before = topic(*[(1, 2), (2, 3), (3, 1)] * 4)
    plan = balance(before, no_racks(1, 2, 3, 4), [1, 2, 3, 4])
    after = before | plan
    assert Counter(each for replicas in after.values() for each in replicas) == {1: 6, 2: 6, 3: 6, 4: 6}
    copied = sum(len(set(after[each]) - set(before[each])) for each in before)
    assert copied == 6


def test_an_even_cluster_is_left_alone() -> None:
    assert balance(topic((1, 2), (2, 3), (3, 1)), no_racks(1, 2, 3), [1, 2, 3]) == {}


def test_leaders_are_spread_by_order_alone() -> None:
    plan = balance(topic(*[(1, 2, 3)] * 3), no_racks(1, 2, 3), [1, 2, 3])
    after = topic(*[(1, 2, 3)] * 3) | plan
    assert sorted(replicas[0] for replicas in after.values()) == [1, 2, 3]
    assert all(sorted(replicas) == [1, 2, 3] for replicas in after.values())


@given(st.data())
def test_random_plans_keep_the_rules(data: st.DataObject) -> None:
    brokers = list(range(1, data.draw(st.integers(2, 6)) + 1))
    racks = {each: data.draw(st.sampled_from(["a", "b", None])) for each in brokers}
    replicas = st.lists(st.sampled_from(brokers), min_size=1, max_size=len(brokers), unique=True)
    before = topic(*map(tuple, data.draw(st.lists(replicas, max_size=12))))
    targets = data.draw(st.lists(st.sampled_from(brokers), min_size=1, unique=True))
    try:
        plan = balance(before, racks, targets)
    except PlanError:
        assert any(len(each) > len(targets) for each in before.values())
        return
    after = before | plan
    for partition, now in after.items():
        assert len(now) == len(set(now)) == len(before[partition])
        assert set(now) <= set(targets)
    assert plan == balance(before, racks, targets)
    if len(set(racks.values())) == 1 and after:
        load = Counter(each for now in after.values() for each in now)
        assert max(load[each] for each in targets) - min(load[each] for each in targets) <= 1
