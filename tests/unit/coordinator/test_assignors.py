"""The assignors against oracles that are too dumb to be wrong."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.coordinator.groups.assignors import (
    ASSIGNORS,
    AssignmentSpec,
    Partitions,
    assign_range,
    assign_uniform,
)
from tidemill.types import TopicId

T = [TopicId(bytes([index]) * 16) for index in range(1, 6)]
Assignment = dict[str, Partitions]


def flat(assignment: Assignment) -> dict[tuple[TopicId, int], str]:
    """Returns the owner of each partition. Fails when a partition has two."""
    owners: dict[tuple[TopicId, int], str] = {}
    for member_id, topics in assignment.items():
        for topic_id, partitions in topics.items():
            for partition in partitions:
                assert (topic_id, partition) not in owners, "assigned twice"
                owners[topic_id, partition] = member_id
    return owners


def loads(assignment: Assignment) -> dict[str, int]:
    return {member_id: sum(map(len, topics.values())) for member_id, topics in assignment.items()}


def same_for_all(members: list[str], counts: dict[TopicId, int], current: Assignment) -> AssignmentSpec:
    return AssignmentSpec({member_id: tuple(sorted(counts)) for member_id in members}, counts, current)


def least_moves(members: list[str], total: int, kept: Counter[str]) -> int:
    """Returns the smallest number of moves that gives each member its share, over every choice of the members that get
    one more.
    """
    share, extras = divmod(total, len(members))
    best = total
    for lucky in itertools.combinations(members, extras):
        stays = sum(min(kept[each], share + (each in lucky)) for each in members)
        best = min(best, total - stays)
    return best


members_lists = st.lists(st.sampled_from([f"m{index}" for index in range(6)]), unique=True, min_size=1)
counts_dicts = st.dictionaries(st.sampled_from(T), st.integers(1, 7), min_size=1)


@st.composite
def specs(draw: st.DrawFn) -> AssignmentSpec:
    """Members with subscriptions of their own, and a current assignment that may be out of date in any way."""
    counts = draw(counts_dicts)
    members = draw(members_lists)
    topics = st.lists(st.sampled_from(sorted(counts)), unique=True).map(lambda each: tuple(sorted(each)))
    subscriptions = {member_id: draw(topics) for member_id in members}
    used = {topic_id for each in subscriptions.values() for topic_id in each}
    owners: dict[str, dict[TopicId, set[int]]] = {}
    for topic_id in T:
        for partition in range(8):
            owner = draw(st.sampled_from([None, None, *members, "gone"]))
            if owner is not None:
                owners.setdefault(owner, {}).setdefault(topic_id, set()).add(partition)
    current = {
        member_id: {topic_id: frozenset(partitions) for topic_id, partitions in held.items()}
        for member_id, held in owners.items()
    }
    return AssignmentSpec(subscriptions, {topic_id: counts[topic_id] for topic_id in used}, current)


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=examples(150), deadline=None)
@given(spec=specs())
def test_every_subscribed_partition_goes_to_one_subscriber(name: str, spec: AssignmentSpec) -> None:
    assigned = ASSIGNORS[name](spec)
    assert assigned.keys() == spec.subscriptions.keys()
    owners = flat(assigned)
    expected = {(t, p) for t, count in spec.partition_counts.items() for p in range(count)}
    assert owners.keys() == expected
    for (topic_id, _partition), member_id in owners.items():
        assert topic_id in spec.subscriptions[member_id]
    assert all(partitions for topics in assigned.values() for partitions in topics.values())


@pytest.mark.parametrize("name", ASSIGNORS)
@settings(max_examples=examples(100), deadline=None)
@given(spec=specs())
def test_a_second_run_changes_nothing(name: str, spec: AssignmentSpec) -> None:
    assigned = ASSIGNORS[name](spec)
    again = ASSIGNORS[name](AssignmentSpec(spec.subscriptions, spec.partition_counts, assigned))
    assert again == assigned


@settings(max_examples=examples(150), deadline=None)
@given(spec=specs())
def test_uniform_leaves_no_move_that_would_make_two_loads_more_even(spec: AssignmentSpec) -> None:
    assigned = assign_uniform(spec)
    load = loads(assigned)
    for (topic_id, _partition), owner in flat(assigned).items():
        for other, topics in spec.subscriptions.items():
            if topic_id in topics:
                assert load[owner] - load[other] < 2


@settings(max_examples=examples(150), deadline=None)
@given(members_lists, counts_dicts, members_lists)
def test_uniform_of_equals_is_even_and_moves_no_more_than_it_must(
    before: list[str], counts: dict[TopicId, int], after: list[str]
) -> None:
    """Members come and go, all at once; the oracle tries every fair outcome."""
    old = assign_uniform(same_for_all(before, counts, {}))
    new = assign_uniform(same_for_all(after, counts, old))
    load = loads(new)
    assert max(load.values()) - min(load.values()) <= 1
    owned_before, owned_after = flat(old), flat(new)
    moved = sum(owned_before[partition] != owned_after[partition] for partition in owned_after)
    kept = Counter(owner for owner in owned_before.values() if owner in after)
    assert moved == least_moves(after, sum(counts.values()), kept)


@settings(max_examples=examples(100), deadline=None)
@given(members_lists, st.integers(1, 12), members_lists)
def test_range_gives_the_same_partitions_of_equal_topics_to_the_same_member(
    before: list[str], count: int, after: list[str]
) -> None:
    counts = {T[0]: count, T[1]: count, T[2]: count}
    old = assign_range(same_for_all(before, counts, {}))
    new = assign_range(same_for_all(after, counts, old))
    for topics in new.values():
        assert len(set(topics.values())) <= 1
        assert topics.keys() in (set(), set(counts))
    load = loads(new)
    assert max(load.values()) - min(load.values()) <= len(counts)
    owned_before, owned_after = flat(old), flat(new)
    moved = sum(owned_before[T[0], p] != owned_after[T[0], p] for p in range(count))
    kept = Counter(owned_before[T[0], p] for p in range(count) if owned_before[T[0], p] in after)
    assert moved == least_moves(after, count, kept)


def test_range_from_scratch_is_in_ranges() -> None:
    assigned = assign_range(same_for_all(["a", "b", "c"], {T[0]: 7, T[1]: 3}, {}))
    assert assigned == {
        "a": {T[0]: frozenset({0, 1, 2}), T[1]: frozenset({0})},
        "b": {T[0]: frozenset({3, 4}), T[1]: frozenset({1})},
        "c": {T[0]: frozenset({5, 6}), T[1]: frozenset({2})},
    }


def test_range_shares_out_each_topic_among_its_own_subscribers() -> None:
    spec = AssignmentSpec({"a": (T[0],), "b": (T[0], T[1])}, {T[0]: 2, T[1]: 2}, {})
    assert assign_range(spec) == {
        "a": {T[0]: frozenset({0})},
        "b": {T[0]: frozenset({1}), T[1]: frozenset({0, 1})},
    }


def test_uniform_gives_a_topic_with_one_subscriber_to_it_and_the_rest_to_the_other() -> None:
    spec = AssignmentSpec({"a": (T[0],), "b": (T[0], T[1])}, {T[0]: 4, T[1]: 4}, {})
    assert loads(assign_uniform(spec)) == {"a": 4, "b": 4}


def test_uniform_takes_from_the_member_with_too_many_partitions() -> None:
    everything: Assignment = {"a": {T[0]: frozenset(range(4))}}
    assigned = assign_uniform(same_for_all(["a", "b"], {T[0]: 4}, everything))
    assert assigned == {"a": {T[0]: frozenset({0, 1})}, "b": {T[0]: frozenset({2, 3})}}


def test_more_members_than_partitions() -> None:
    assigned = assign_uniform(same_for_all(["a", "b", "c"], {T[0]: 1}, {}))
    assert assigned == {"a": {T[0]: frozenset({0})}, "b": {}, "c": {}}


@pytest.mark.parametrize("name", ASSIGNORS)
def test_assignors_without_members_or_partitions_assign_nothing(name: str) -> None:
    assert ASSIGNORS[name](AssignmentSpec({}, {}, {})) == {}
    assert ASSIGNORS[name](AssignmentSpec({"a": ()}, {}, {"a": {T[0]: frozenset({0})}})) == {"a": {}}
