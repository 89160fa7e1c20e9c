"""Voter sets and their history."""

from __future__ import annotations

import pytest

from tests.unit.raft.sim_log import replica, voter_set
from tidemill.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterHistory, VoterSet


def test_voter_with_new_directory_id_is_another_replica() -> None:
    voters = voter_set(1, 2, 3)
    assert voters.has(replica(1))
    assert not voters.has(ReplicaKey(1, b"x" * 16))
    assert voters.has(ReplicaKey(1)), "a peer of an old version does not say its directory"


def test_a_configured_set_matches_by_id_and_cannot_change() -> None:
    voters = VoterSet(Voter(ReplicaKey(each)) for each in (1, 2))
    assert voters.has(replica(2))
    assert not voters.is_dynamic
    assert voter_set(1, 2).is_dynamic


def test_majority_value_of_small_sets() -> None:
    assert [voter_set(*range(1, size + 1)).majority for size in range(1, 8)] == [1, 2, 2, 3, 3, 4, 4]
    assert not voter_set(1, 2, 3).is_majority([1, 7, 8])


def test_voters_record_round_trip_keeps_all_fields() -> None:
    voters = VoterSet([Voter(replica(2), (VoterEndpoint("CONTROLLER", "host", 9093),)), Voter(replica(1))])
    assert VoterSet.from_record(voters.to_record()) == voters
    assert voters.ids == [1, 2]


def test_truncation_reverts_voter_set() -> None:
    history = VoterHistory(voter_set(1))
    history.append(5, voter_set(1, 2))
    history.append(9, voter_set(1, 2, 3))
    history.truncate(9)
    assert history.latest == (5, voter_set(1, 2))
    assert history.at(5).voters == voter_set(1)
    assert history.at(6).voters == voter_set(1, 2)
    with pytest.raises(ValueError):
        history.append(5, voter_set(1))


def test_a_snapshot_replaces_the_history() -> None:
    history = VoterHistory(voter_set(1))
    history.append(5, voter_set(1, 2))
    history.install(20, voter_set(2, 3))
    assert history.latest == (19, voter_set(2, 3))
    assert history.at(20).voters == voter_set(2, 3)
