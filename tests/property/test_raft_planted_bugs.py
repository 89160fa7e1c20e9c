"""The simulated quorum bites: each of these bugs, put into the production code from outside, is found.

A bug counts as found when an invariant breaks, or when the machine or its log stops on an assertion of its own. It also
counts when the quorum does not recover after the faults. `seeds` is how many, from 0 on, may be needed; most need one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.property.test_raft_safety import Chaos
from tidemill.raft import elections, follower, leader, reconfiguration
from tidemill.raft.core import RaftMachine
from tidemill.raft.effects import Effect, PersistQuorumState, SyncLog, TruncateLog
from tidemill.raft.events import Event
from tidemill.raft.log import EpochEnd
from tidemill.raft.roles import Candidate, Follower, Leader, Unattached
from tidemill.raft.state import QuorumState
from tidemill.raft.tracker import Tracker
from tidemill.raft.voters import ReplicaKey, VoterSet


def forget_the_vote(patch: pytest.MonkeyPatch) -> None:
    def vote_for(q: QuorumState, candidate: ReplicaKey, steady_ms: int) -> None:
        q.role = Unattached(steady_ms + q.config.election_timeout_ms)

    patch.setattr(QuorumState, "vote_for", vote_for)


def vote_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "may_vote_for", lambda q, _: q.election.leader_id is None)


def answer_before_persisting(patch: pytest.MonkeyPatch) -> None:
    step = RaftMachine.step

    def reordered(machine: RaftMachine, event: Event, steady_ms: int) -> list[Effect]:
        return sorted(
            step(machine, event, steady_ms), key=lambda effect: isinstance(effect, PersistQuorumState)
        )

    patch.setattr(RaftMachine, "step", reordered)


def elect_whoever_asks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "is_up_to_date", lambda *_: True)


def compare_lengths_without_epochs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "is_up_to_date", lambda q, _, end_offset: end_offset >= q.log.log_end_offset)


def accept_votes_of_a_stale_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "is_stale", lambda *_: False)


def stand_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    def become_candidate(q: QuorumState, steady_ms: int) -> None:
        q._leave_role()
        q._persist(q.epoch, None, q.own)
        q.role = Candidate(steady_ms + q.config.election_timeout_ms, {q.own.id})

    patch.setattr(QuorumState, "become_candidate", become_candidate)


def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(VoterSet, "majority", property(lambda voters: max(len(voters) // 2, 1)))


def count_own_unsynced_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader, "own_end_offset", lambda q: q.role.log_end_offset)


def fetch_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(QuorumState, "is_synced", property(lambda _: True))


def trust_a_sync_from_before_the_truncation(patch: pytest.MonkeyPatch) -> None:
    def truncate(q: QuorumState, end_offset: int) -> None:
        q.emit(TruncateLog(end_offset))
        q.start_sync()

    patch.setattr(QuorumState, "truncate", truncate)


def commit_what_one_has(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tracker, "majority_offset", lambda _, own_end_offset: own_end_offset)


def commit_an_older_epoch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader, "may_commit", lambda *_: True)


def serve_diverged_followers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leader, "_mismatch", lambda *_: None)


def never_truncate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(follower, "diverge", lambda *_: None)


def truncate_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    def diverge(q: QuorumState, leaders: EpochEnd) -> None:
        q.truncate(q.high_watermark)

    patch.setattr(follower, "diverge", diverge)


def believe_the_leaders_high_watermark(patch: pytest.MonkeyPatch) -> None:
    def take(q: QuorumState, role: Follower) -> None:
        q.advance_high_watermark(role.leader_high_watermark)

    patch.setattr(follower, "_take_high_watermark", take)


def two_voter_changes_at_once(patch: pytest.MonkeyPatch) -> None:
    def may_change(q: QuorumState, role: Leader) -> bool:
        role.change = None
        return True

    patch.setattr(reconfiguration, "may_change", may_change)


def never_announce_the_epoch(patch: pytest.MonkeyPatch) -> None:
    """And never ask for the leader either."""
    patch.setattr(leader, "_announce", lambda *_: None)
    patch.setattr(QuorumState, "next_contact", lambda _: None)


def lose_a_sync(patch: pytest.MonkeyPatch) -> None:
    step = RaftMachine.step

    def without_syncs(machine: RaftMachine, event: Event, steady_ms: int) -> list[Effect]:
        return [effect for effect in step(machine, event, steady_ms) if not isinstance(effect, SyncLog)]

    patch.setattr(RaftMachine, "step", without_syncs)


def vote_without_a_log(patch: pytest.MonkeyPatch) -> None:
    """A replica that lost its log goes on as if it had never had one."""
    init = QuorumState.__init__

    def forgetful(q: QuorumState, *arguments: Any, is_incomplete: bool) -> None:
        init(q, *arguments, is_incomplete=False)

    patch.setattr(QuorumState, "__init__", forgetful)


class Planted(NamedTuple):
    bug: Callable[[pytest.MonkeyPatch], None]
    seeds: int


PLANTED = [
    Planted(forget_the_vote, 1),
    Planted(vote_twice, 20),
    Planted(answer_before_persisting, 1),
    Planted(elect_whoever_asks, 5),
    Planted(compare_lengths_without_epochs, 80),
    Planted(accept_votes_of_a_stale_epoch, 40),
    Planted(stand_in_the_same_epoch, 1),
    Planted(half_is_a_majority, 5),
    Planted(count_own_unsynced_log, 20),
    Planted(fetch_before_the_sync, 5),
    Planted(trust_a_sync_from_before_the_truncation, 20),
    Planted(commit_what_one_has, 1),
    Planted(commit_an_older_epoch, 5),
    Planted(serve_diverged_followers, 5),
    Planted(never_truncate, 5),
    Planted(truncate_to_the_high_watermark, 60),
    Planted(believe_the_leaders_high_watermark, 2),
    Planted(two_voter_changes_at_once, 60),
    Planted(never_announce_the_epoch, 2),
    Planted(lose_a_sync, 1),
    Planted(vote_without_a_log, 10),
]


def find(seed: int) -> str | None:
    """Returns the failure of this seed; None when there is none."""
    try:
        chaos = Chaos(seed)
        chaos.run()
        return None if chaos.recover() else "does not recover"
    except AssertionError as error:
        return str(error) or "an assertion"


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.bug.__name__)
def test_planted_bug_is_found(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.bug(monkeypatch)
    assert any(find(seed) for seed in range(planted.seeds)), "not found"
