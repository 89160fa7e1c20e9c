"""The arithmetic of majorities against a deliberately dumb twin: counting."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tests.unit.raft.sim_log import replica, voter_set
from tidemill.raft.tracker import Tracker, majority_value
from tidemill.raft.voters import Voter, VoterSet

offsets = st.integers(-1, 12)


def dumb_majority_value(values: list[int]) -> int:
    best = min(values)
    for candidate in values:
        reached = 0
        for value in values:
            if value >= candidate:
                reached += 1
        if reached > len(values) - reached:
            best = max(best, candidate)
    return best


@given(st.lists(offsets, min_size=1, max_size=9))
@settings(max_examples=examples(200), deadline=None)
def test_majority_value_counts_like_its_dumb_twin(values: list[int]) -> None:
    assert majority_value(values) == dumb_majority_value(values)


@given(
    st.sets(st.integers(1, 6), min_size=1),
    st.lists(st.tuples(st.integers(1, 6), st.integers(0, 12)), max_size=30),
    st.integers(0, 12),
)
@settings(max_examples=examples(150), deadline=None)
def test_a_tracker_is_its_fetches(voters: set[int], fetches: list[tuple[int, int]], synced: int) -> None:
    """Node 1 leads. Each replica counts with its last fetch; those of observers do not count."""
    tracker = Tracker(replica(1), voter_set(*voters), steady_ms=0)
    reached = dict.fromkeys(voters, -1)
    for number, (node_id, offset) in enumerate(fetches):
        if node_id == 1:
            continue
        tracker.fetched(replica(node_id), offset, 12, number)
        if node_id in reached:
            reached[node_id] = offset
    if 1 in reached:
        reached[1] = synced
    assert tracker.majority_offset(synced) == dumb_majority_value(list(reached.values()))
    assert {key.id for key in tracker.observers} == {node for node, _ in fetches} - voters - {1}


@given(st.sets(st.integers(1, 7), min_size=1), st.sets(st.integers(1, 9)), st.sets(st.integers(1, 9)))
@settings(max_examples=examples(150), deadline=None)
def test_two_majorities_meet(voters: set[int], one: set[int], other: set[int]) -> None:
    quorum = voter_set(*voters)
    if quorum.is_majority(one) and quorum.is_majority(other):
        assert one & other & voters


@given(
    st.sets(st.integers(1, 7), min_size=1),
    st.integers(1, 8),
    st.sets(st.integers(1, 8)),
    st.sets(st.integers(1, 8)),
)
@settings(max_examples=examples(150), deadline=None)
def test_majorities_meet_across_one_change(
    voters: set[int], changed: int, one: set[int], other: set[int]
) -> None:
    before = voter_set(*voters)
    after: VoterSet = (
        before.without(changed) if changed in voters else before.with_voter(Voter(replica(changed)))
    )
    if len(after) and before.is_majority(one) and after.is_majority(other):
        assert one & other
