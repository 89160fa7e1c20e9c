"""The simple assignor of share groups: even, complete, and moving as little as it must."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tidemill.coordinator.groups.assignors import Partitions
from tidemill.coordinator.share_groups.assignor import ShareAssignmentSpec, assign_simple
from tidemill.types import TopicId

A, B = TopicId(b"a" * 16), TopicId(b"b" * 16)


def spec_of(
    members: Mapping[str, tuple[TopicId, ...]],
    partitions: Mapping[TopicId, int],
    current: Mapping[str, Partitions] | None = None,
) -> ShareAssignmentSpec:
    assignable = {topic: frozenset(range(count)) for topic, count in partitions.items()}
    return ShareAssignmentSpec(members, assignable, current or {})


def load_of(partitions: Partitions) -> int:
    return sum(map(len, partitions.values()))


def holders(assigned: dict[str, Partitions]) -> dict[tuple[TopicId, int], int]:
    counts: dict[tuple[TopicId, int], int] = {}
    for partitions in assigned.values():
        for topic, indexes in partitions.items():
            for index in indexes:
                counts[topic, index] = counts.get((topic, index), 0) + 1
    return counts


@given(members=st.integers(1, 40), first=st.integers(0, 12), second=st.integers(0, 12))
def test_members_with_the_same_topics_are_even_and_every_partition_is_held(
    members: int, first: int, second: int
) -> None:
    spec = spec_of({f"m{index}": (A, B) for index in range(members)}, {A: first, B: second})
    assigned = assign_simple(spec)
    assert assigned.keys() == spec.subscriptions.keys()
    loads = [load_of(each) for each in assigned.values()]
    assert max(loads) - min(loads) <= 1
    counts = holders(assigned)
    assert len(counts) == first + second
    if counts:
        assert min(loads) >= 1
        # As many members for each partition, and no more than are needed for all of them to have one.
        assert set(counts.values()) == {-(-members // (first + second))}


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=5), partitions=st.integers(1, 10), data=st.data()
)
def test_members_that_come_and_go_leave_every_partition_held_and_all_members_with_work(
    sizes: list[int], partitions: int, data: st.DataObject
) -> None:
    current: dict[str, Partitions] = {}
    for size in sizes:
        names = data.draw(st.permutations([f"m{index}" for index in range(30)]))[:size]
        spec = spec_of(dict.fromkeys(sorted(names), (A,)), {A: partitions}, current)
        current = assign_simple(spec)
        counts = holders(current)
        assert counts.keys() == {(A, index) for index in range(partitions)}
        assert min(load_of(each) for each in current.values()) >= 1
        assert max(counts.values()) <= -(-size // partitions)


def test_nothing_moves_when_nothing_changes() -> None:
    members = {f"m{index}": (A,) for index in range(7)}
    first = assign_simple(spec_of(members, {A: 3}))
    assert assign_simple(spec_of(members, {A: 3}, first)) == first


def test_a_member_that_leaves_costs_the_others_nothing_that_they_hold() -> None:
    members = {f"m{index}": (A,) for index in range(4)}
    before = assign_simple(spec_of(members, {A: 8}))
    del members["m0"]
    after = assign_simple(spec_of(members, {A: 8}, before))
    for member in members:
        assert before[member][A] <= after[member][A]


def test_members_with_other_topics_share_each_topic_by_itself() -> None:
    assigned = assign_simple(spec_of({"a": (A,), "ab": (A, B), "b": (B,)}, {A: 2, B: 2}))
    assert [load_of(assigned[member]) for member in ("a", "ab", "b")] == [1, 2, 1]
    assert set(holders(assigned).values()) == {1}
    assert assigned["a"].keys() == {A}
    assert assigned["b"].keys() == {B}


def test_partitions_that_may_not_be_assigned_are_revoked() -> None:
    spec = ShareAssignmentSpec(
        {"m": (A,)}, {A: frozenset({1})}, {"m": {A: frozenset({0, 1}), B: frozenset({0})}}
    )
    assert assign_simple(spec) == {"m": {A: frozenset({1})}}


def test_without_members_or_topics_nothing_is_assigned() -> None:
    assert assign_simple(spec_of({}, {A: 3})) == {}
    assert assign_simple(spec_of({"m": ()}, {A: 3})) == {"m": {}}
