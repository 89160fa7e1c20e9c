"""Claims that a replica rejects: epochs beyond the limit, and leaders that are not voters."""

from __future__ import annotations

import pytest

from tests.unit.raft.sim_log import voter_set
from tests.unit.raft.test_raft_machine import Bench, all_of, answer, begin, vote_event, vote_part
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import PartitionData
from tidemill.protocol.api.quorum import BeginQuorumEpochResponse, EndQuorumEpochResponse
from tidemill.raft import effects as do
from tidemill.raft import events as on
from tidemill.raft import messages
from tidemill.raft.effects import Effect, ElectionState
from tidemill.raft.roles import Follower
from tidemill.raft.state import CLAIMED_EPOCH_MAX

_BEFORE = ElectionState(4, 2, None)
_LARGEST = (1 << 31) - 1


def end(leader_id: int, epoch: int) -> on.EndQuorumEpochReceived:
    return on.EndQuorumEpochReceived("end", messages.end_request("cluster", leader_id, epoch, []))


def error_of(effects: list[Effect]) -> int:
    response = all_of(effects, do.Answer)[0].response
    if isinstance(response, BeginQuorumEpochResponse | EndQuorumEpochResponse):
        return response.topics[0].partitions[0].error_code
    return vote_part(effects).error_code


@pytest.mark.parametrize("epoch", [_LARGEST, _LARGEST - 1, CLAIMED_EPOCH_MAX + 1, 100_000])
@pytest.mark.parametrize("claim", [begin, end, vote_event], ids=["begin", "end", "vote"])
def test_implausibly_large_epoch_is_not_adopted(claim: object, epoch: int) -> None:
    bench = Bench(election=_BEFORE)
    effects = bench.step(claim(3, epoch))  # type: ignore[operator]
    assert error_of(effects) == ErrorCode.INVALID_REQUEST
    assert bench.machine.election == _BEFORE
    assert not all_of(effects, do.PersistQuorumState)


def test_an_epoch_that_has_no_successor_is_not_adopted_from_an_answer_either() -> None:
    bench = Bench(election=_BEFORE)
    sent = all_of(bench.wait(0), do.SendFetch)[0]
    bench.step(answer(sent, PartitionData(), _LARGEST, 3))
    assert bench.machine.election == _BEFORE


def test_replica_that_missed_many_elections_learns_epoch_from_responses() -> None:
    bench = Bench(election=_BEFORE)
    sent = all_of(bench.wait(0), do.SendFetch)[0]
    bench.step(answer(sent, PartitionData(), 1_000_000, 3))
    assert (bench.machine.epoch, bench.machine.leader_id) == (1_000_000, 3)


@pytest.mark.parametrize("claim", [begin, end], ids=["begin", "end"])
def test_leader_claim_of_unknown_replica_is_rejected(claim: object) -> None:
    bench = Bench(election=_BEFORE)
    assert error_of(bench.step(claim(9, 5))) == ErrorCode.INCONSISTENT_VOTER_SET  # type: ignore[operator]
    assert bench.machine.election == _BEFORE


def test_leader_claim_of_unknown_voter_with_our_vote_is_accepted() -> None:
    """The third voter is new. Its election may need the vote of a replica that does not know it yet."""
    bench = Bench(voters=voter_set(1, 2))
    assert vote_part(bench.step(vote_event(3, 5))).vote_granted
    assert error_of(bench.step(begin(3, 5))) == ErrorCode.NONE
    assert bench.machine.leader_id == 3
    assert error_of(bench.step(end(3, 5))) == ErrorCode.NONE


@pytest.mark.parametrize("pre_vote", [False, True])
def test_unknown_candidate_changes_nothing_while_leader_is_alive(pre_vote: bool) -> None:
    bench = Bench(election=_BEFORE)
    sent = all_of(bench.wait(0), do.SendFetch)[0]
    bench.step(answer(sent, PartitionData(), 4, 2))
    assert not vote_part(bench.step(vote_event(9, 9, (8, 100), pre_vote=pre_vote))).vote_granted
    assert bench.machine.election == _BEFORE
    assert isinstance(bench.machine.role, Follower)


def test_vote_request_of_unknown_replica_does_not_end_leadership() -> None:
    bench = Bench()
    bench.elect()
    epoch = bench.machine.epoch
    assert bench.machine.is_leader
    bench.step(vote_event(9, epoch + 5, (epoch, 100)))
    assert (bench.machine.is_leader, bench.machine.epoch) == (True, epoch)
    # A request of a voter does.
    bench.step(vote_event(2, epoch + 5, (epoch, 100)))
    assert (bench.machine.is_leader, bench.machine.epoch) == (False, epoch + 5)


def test_elections_continue_below_the_largest_epoch() -> None:
    """Epochs above the limit for claims are left for this replica's own elections."""
    bench = Bench(election=ElectionState(CLAIMED_EPOCH_MAX, None, None))
    bench.elect()
    assert (bench.machine.is_leader, bench.machine.epoch) == (True, CLAIMED_EPOCH_MAX + 1)
