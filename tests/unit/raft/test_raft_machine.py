"""One machine, driven by hand: its responses and the order of its effects."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from tests.unit.raft.sim_log import Entry, SimLog, control_value, replica, voter_set
from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchPartition, FetchRequest, FetchResponse, PartitionData
from tidemill.protocol.api.quorum import (
    AddRaftVoterRequest,
    AddRaftVoterResponse,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    EndQuorumEpochResponse,
    FetchSnapshotResponse,
    VoteRequestPartitionData,
    VoteResponse,
    VoteResponsePartitionData,
)
from tidemill.raft import effects as do
from tidemill.raft import events as on
from tidemill.raft import messages
from tidemill.raft.core import RaftMachine
from tidemill.raft.effects import Effect, ElectionState
from tidemill.raft.events import Event
from tidemill.raft.log import SnapshotKey
from tidemill.raft.roles import Follower, Leader, Prospective, Resigned, Unattached
from tidemill.raft.state import QuorumConfig
from tidemill.raft.voters import ReplicaKey, Voter, VoterSet

T = TypeVar("T")


@dataclass
class Bench:
    """Node 1 of three; carries out what concerns the log and remembers the rest."""

    voters: VoterSet = field(default_factory=lambda: voter_set(1, 2, 3))
    entries: list[Entry] = field(default_factory=list)
    election: ElectionState = field(default_factory=ElectionState)
    steady_ms: int = 0
    is_incomplete: bool = False

    def __post_init__(self) -> None:
        self.log = SimLog(self.voters, self.entries, 0, None)
        self.machine = RaftMachine(
            replica(1),
            self.log,
            self.election,
            QuorumConfig(),
            lambda _: 0,
            "cluster",
            self.steady_ms,
            is_incomplete=self.is_incomplete,
        )

    def step(self, event: Event) -> list[Effect]:
        effects = self.machine.step(event, self.steady_ms)
        for effect in effects:
            match effect:
                case do.AppendToLog(_, epoch, base_offset, records, _):
                    assert isinstance(records, list)
                    self.log.append(base_offset, [(epoch, value) for value in records])
                case do.AppendControl(epoch, base_offset, record):
                    self.log.append(base_offset, [(epoch, control_value(record))])
                case do.TruncateLog(end_offset):
                    self.log.truncate(end_offset)
        return effects

    def wait(self, duration_ms: int) -> list[Effect]:
        self.steady_ms += duration_ms
        return self.step(on.TimerExpired())

    def sync(self, effects: list[Effect]) -> list[Effect]:
        return self.step(on.LogSynced(all_of(effects, do.SyncLog)[-1].number, self.log.log_end_offset))

    def elect(self) -> list[Effect]:
        asked = self.wait(1_000)
        sent = all_of(asked, do.SendVote)[0]
        asked = self.step(on.VoteAnswered(sent.number, granted(self.machine.epoch)))
        sent = all_of(asked, do.SendVote)[0]
        return self.step(on.VoteAnswered(sent.number, granted(self.machine.epoch)))

    def fetch(
        self, node_id: int, offset: int, last_epoch: int, *, is_proven: bool = True, **changes: int
    ) -> list[Effect]:
        values = {"current_leader_epoch": self.machine.epoch, "high_watermark": 1 << 60} | changes
        request = fetch_of(node_id, offset, last_epoch, **values)
        return self.step(on.FetchRequested(node_id, request, is_proven))


def all_of(effects: list[Effect], kind: type[T]) -> list[T]:
    return [effect for effect in effects if isinstance(effect, kind)]


def granted(epoch: int, *, is_granted: bool = True, leader_id: int | None = None) -> VoteResponse:
    return messages.vote_response(ErrorCode.NONE, leader_id, epoch, vote_granted=is_granted)


def fetch_of(node_id: int, offset: int, last_epoch: int, **fields: int) -> FetchRequest:
    part = FetchPartition(
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        replica_directory_id=replica(node_id).directory_id,
        current_leader_epoch=fields["current_leader_epoch"],
        high_watermark=fields["high_watermark"],
    )
    return messages.fetch_request("cluster", node_id, part, max_wait_ms=500, max_bytes=1000)


def vote_event(node_id: int, epoch: int, end: tuple[int, int] = (0, 0), **fields: object) -> on.VoteRequested:
    part = VoteRequestPartitionData(
        replica_epoch=epoch,
        replica_id=node_id,
        replica_directory_id=bytes([max(node_id, 0)]) * 16,
        last_offset_epoch=end[0],
        last_offset=end[1],
        pre_vote=bool(fields.get("pre_vote")),
    )
    voter = fields.get("voter", replica(1))
    assert isinstance(voter, ReplicaKey)
    return on.VoteRequested("vote", messages.vote_request(str(fields.get("cluster", "cluster")), voter, part))


def vote_part(effects: list[Effect]) -> VoteResponsePartitionData:
    response = all_of(effects, do.Answer)[0].response
    assert isinstance(response, VoteResponse)
    part = messages.vote_response_part(response)
    assert part is not None
    return part


def fetch_part(effects: list[Effect]) -> PartitionData:
    response = all_of(effects, do.Answer)[0].response
    assert isinstance(response, FetchResponse)
    part = messages.fetch_response_part(response)
    assert part is not None
    return part


# -- votes -----------------------------------------------------------------------------------------------------


def test_vote_is_persisted_once_and_before_its_response() -> None:
    effects = Bench().step(vote_event(2, 5))
    kinds = [type(effect) for effect in effects if isinstance(effect, do.PersistQuorumState | do.Answer)]
    assert kinds == [do.PersistQuorumState, do.Answer]
    assert all_of(effects, do.PersistQuorumState)[0].state == ElectionState(5, None, replica(2))
    assert vote_part(effects).vote_granted


def test_second_candidate_of_epoch_is_rejected_and_first_may_retry() -> None:
    bench = Bench()
    bench.step(vote_event(2, 5))
    assert not vote_part(bench.step(vote_event(3, 5))).vote_granted
    assert vote_part(bench.step(vote_event(2, 5))).vote_granted


def test_a_vote_outlives_a_restart() -> None:
    bench = Bench(election=ElectionState(5, None, replica(2)))
    assert not vote_part(bench.step(vote_event(3, 5))).vote_granted
    assert vote_part(bench.step(vote_event(2, 5))).vote_granted


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (vote_event(2, 2), ErrorCode.FENCED_LEADER_EPOCH),
        (vote_event(2, 5, voter=replica(3)), ErrorCode.INVALID_VOTER_KEY),
        (vote_event(2, 5, voter=ReplicaKey(1, b"y" * 16)), ErrorCode.INVALID_VOTER_KEY),
        (vote_event(-1, 5), ErrorCode.INVALID_REQUEST),
        (vote_event(2, 5, end=(5, 1)), ErrorCode.INVALID_REQUEST),
        (vote_event(2, 5, end=(4, -1)), ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_vote_requests_return_their_error(event: Event, error: ErrorCode) -> None:
    bench = Bench(election=ElectionState(3, None, None))
    part = vote_part(bench.step(event))
    assert (part.error_code, part.leader_epoch, part.vote_granted) == (error, 3, False)
    assert bench.machine.election == ElectionState(3, None, None)


def test_a_vote_for_another_cluster_changes_nothing() -> None:
    bench = Bench()
    response = all_of(bench.step(vote_event(2, 5, cluster="other")), do.Answer)[0].response
    assert isinstance(response, VoteResponse)
    assert response.error_code == ErrorCode.INCONSISTENT_CLUSTER_ID
    assert bench.machine.epoch == 0


def test_fixed_voter_set_rejects_unknown_candidates_and_dynamic_accepts() -> None:
    assert vote_part(
        Bench(VoterSet(Voter(ReplicaKey(each)) for each in (1, 2, 3))).step(vote_event(9, 5))
    ).error_code == (ErrorCode.INCONSISTENT_VOTER_SET)
    assert vote_part(Bench().step(vote_event(9, 5))).vote_granted


@pytest.mark.parametrize(
    ("end", "is_granted"), [((1, 9), False), ((2, 1), False), ((2, 2), True), ((3, 1), True)]
)
@pytest.mark.parametrize("pre_vote", [False, True])
def test_candidate_with_older_log_gets_no_vote(
    end: tuple[int, int], is_granted: bool, pre_vote: bool
) -> None:
    bench = Bench(entries=[(1, "a"), (2, "b")], election=ElectionState(2, None, None))
    assert vote_part(bench.step(vote_event(2, 5, end, pre_vote=pre_vote))).vote_granted is is_granted


def test_pre_vote_does_not_change_epoch_or_vote() -> None:
    bench = Bench(election=ElectionState(5, None, None))
    assert vote_part(bench.step(vote_event(2, 5, pre_vote=True))).vote_granted
    assert vote_part(bench.step(vote_event(3, 5, pre_vote=True))).vote_granted
    assert bench.machine.election == ElectionState(5, None, None)


def test_a_late_pre_vote_is_not_counted_as_a_vote() -> None:
    bench = Bench()
    first, second = all_of(bench.wait(1_000), do.SendVote)
    bench.step(on.VoteAnswered(first.number, granted(0)))
    assert bench.machine.epoch == 1
    bench.step(on.VoteAnswered(second.number, granted(0)))
    assert not bench.machine.is_leader


def test_an_election_takes_a_majority_and_begins_with_a_leader_change() -> None:
    bench = Bench()
    effects = bench.elect()
    assert bench.machine.is_leader
    kinds = [type(effect) for effect in effects]
    assert kinds.index(do.PersistQuorumState) < kinds.index(do.BecomeLeader) < kinds.index(do.AppendControl)
    assert bench.log.entries == [(1, "leader 1")]
    assert not bench.machine.is_active_leader


# -- leading ---------------------------------------------------------------------------------------------------


def test_failure_11_a_leader_serves_only_after_a_record_of_its_own_epoch_is_committed() -> None:
    bench = Bench(entries=[(1, "old")], election=ElectionState(1, None, None))
    bench.sync(bench.elect())
    assert bench.log.entries == [(1, "old"), (2, "leader 1")]
    effects = bench.fetch(2, 1, 1)
    assert bench.machine.high_watermark == 0, "the old record is on a majority, and not committed by that"
    assert not all_of(effects, do.ActivateLeader)
    effects = bench.fetch(2, 2, 2)
    assert all_of(effects, do.AdvanceHighWatermark) == [do.AdvanceHighWatermark(2)]
    assert all_of(effects, do.ActivateLeader) == [do.ActivateLeader(2)]


def test_leader_counts_only_its_synced_end() -> None:
    bench = Bench()
    effects = bench.elect()
    bench.fetch(2, 1, 1)
    assert bench.machine.high_watermark == 0
    bench.sync(effects)
    assert bench.machine.high_watermark == 1


@pytest.mark.parametrize(
    ("epoch", "error"),
    [(0, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
def test_fetches_of_another_epoch_are_fenced(epoch: int, error: ErrorCode) -> None:
    bench = Bench()
    bench.sync(bench.elect())
    part = fetch_part(bench.fetch(2, 1, 1, current_leader_epoch=epoch))
    assert part.error_code == error
    assert (part.current_leader.leader_id, part.current_leader.leader_epoch) == (1, 1)
    assert bench.machine.high_watermark == 0


def test_a_follower_answers_with_its_leader() -> None:
    bench = Bench(election=ElectionState(4, 3, None))
    part = fetch_part(bench.fetch(2, 0, 0))
    assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert part.current_leader.leader_id == 3


def test_delayed_fetch_completes_when_leader_resigns() -> None:
    bench = Bench()
    bench.sync(bench.elect())
    assert not all_of(bench.fetch(2, 1, 1), do.AnswerFetch)
    effects = bench.step(on.AppendRequested("a", 1, ["x"], 1))
    kinds = [type(effect) for effect in effects]
    assert kinds.index(do.AppendToLog) < kinds.index(do.AnswerFetch)
    assert not all_of(bench.fetch(2, 2, 1), do.AnswerFetch)
    answers = all_of(bench.step(vote_event(3, 7, (1, 2))), do.Answer)
    refused = [answer.response for answer in answers if isinstance(answer.response, FetchResponse)]
    assert len(refused) == 1
    data = messages.fetch_response_part(refused[0])
    assert data is not None
    assert (data.error_code, data.current_leader.leader_epoch) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, 7)


def test_delayed_fetch_completes_at_max_wait() -> None:
    bench = Bench()
    bench.sync(bench.elect())
    bench.fetch(2, 1, 1)
    assert not all_of(bench.wait(499), do.AnswerFetch)
    assert all_of(bench.wait(1), do.AnswerFetch)


def test_an_append_for_another_epoch_is_rejected() -> None:
    bench = Bench()
    bench.elect()
    effects = bench.step(on.AppendRequested("a", 0, ["x"], 1))
    assert all_of(effects, do.RejectAppend) == [do.RejectAppend("a", ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert not all_of(effects, do.AppendToLog)


def test_fetch_of_a_stranger_as_a_voter_commits_nothing_and_keeps_no_leader() -> None:
    bench = Bench()
    bench.sync(bench.elect())
    for _ in range(20):
        for node_id in (2, 3):
            bench.fetch(node_id, bench.log.log_end_offset, bench.machine.epoch, is_proven=False)
            bench.fetch(node_id, 99, bench.machine.epoch, is_proven=False)
            request = messages.snapshot_request("cluster", replica(node_id), 1, SnapshotKey(0, 0), 0, 100)
            bench.step(on.FetchSnapshotRequested("snapshot", request, is_proven=False))
        assert bench.machine.high_watermark == 0
        bench.wait(200)
    assert not isinstance(bench.machine.role, Leader), "a majority has not fetched"


def test_fetch_of_a_stranger_leaves_that_of_the_replica_alone() -> None:
    bench = Bench()
    bench.sync(bench.elect())
    bench.fetch(2, 1, 1)
    assert isinstance(bench.machine.role, Leader)
    answered = bench.step(
        on.FetchRequested(
            "stranger", fetch_of(2, 1, 1, current_leader_epoch=1, high_watermark=1 << 60), is_proven=False
        )
    )
    assert not [effect for effect in answered if isinstance(effect, do.Answer)]
    assert len(bench.machine.role.delayed_fetches) == 2
    assert not bench.machine.role.tracker.observers


def test_fetch_from_diverged_log_returns_point_of_divergence() -> None:
    bench = Bench(entries=[(1, "a"), (1, "b"), (3, "c")], election=ElectionState(3, None, None))
    bench.elect()
    diverging = fetch_part(bench.fetch(2, 5, 2)).diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (1, 2)
    diverging = fetch_part(bench.fetch(2, 9, 1)).diverging_epoch
    assert (diverging.epoch, diverging.end_offset) == (1, 2)


def test_leader_resigns_without_fetches_from_majority() -> None:
    bench = Bench()
    bench.elect()
    bench.wait(2_000)
    bench.fetch(2, 0, 0)
    bench.wait(2_999)
    assert bench.machine.is_leader
    effects = bench.wait(1)
    assert isinstance(bench.machine.role, Resigned)
    assert all_of(effects, do.ResignLeadership) == [do.ResignLeadership(1)]
    assert {sent.to for sent in all_of(effects, do.SendEndQuorumEpoch)} == {2, 3}


def test_a_restarted_leader_does_not_lead_its_epoch_again() -> None:
    bench = Bench(entries=[(4, "leader 1")], election=ElectionState(4, 1, replica(1)))
    assert isinstance(bench.machine.role, Resigned)
    assert bench.machine.leader_id is None
    bench.elect()
    assert (bench.machine.is_leader, bench.machine.epoch) == (True, 5)


# -- following -------------------------------------------------------------------------------------------------


def begin(leader_id: int, epoch: int, voter: ReplicaKey | None = None) -> on.BeginQuorumEpochReceived:
    request = messages.begin_request("cluster", voter or replica(1), leader_id, epoch)
    return on.BeginQuorumEpochReceived("begin", request)


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (begin(2, 3), ErrorCode.FENCED_LEADER_EPOCH),
        (begin(1, 9), ErrorCode.INVALID_REQUEST),
        (begin(3, 4), ErrorCode.INVALID_REQUEST),
        (begin(3, 9, replica(2)), ErrorCode.INVALID_VOTER_KEY),
        (begin(3, 9), ErrorCode.NONE),
    ],
)
def test_begin_quorum_epoch_makes_receiver_follow_the_leader(event: Event, error: ErrorCode) -> None:
    bench = Bench(election=ElectionState(4, 2, None))
    response = all_of(bench.step(event), do.Answer)[0].response
    assert isinstance(response, BeginQuorumEpochResponse)
    part = messages.begin_response_part(response)
    assert part is not None
    assert part.error_code == error
    assert bench.machine.leader_id == (2 if error else 3)


def answer(sent: do.SendFetch, part: PartitionData, epoch: int, leader_id: int) -> on.FetchAnswered:
    part.current_leader.leader_id, part.current_leader.leader_epoch = leader_id, epoch
    return on.FetchAnswered(sent.number, messages.fetch_response(part))


def test_a_follower_truncates_by_epoch_and_fetches_when_it_is_synced() -> None:
    bench = Bench(entries=[(1, "a"), (1, "b"), (2, "c")], election=ElectionState(4, 2, None))
    (sent,) = all_of(bench.wait(0), do.SendFetch)
    part = PartitionData()
    part.diverging_epoch.epoch, part.diverging_epoch.end_offset = 1, 1
    effects = bench.step(answer(sent, part, 4, 2))
    assert all_of(effects, do.TruncateLog) == [do.TruncateLog(1)]
    assert not all_of(effects, do.SendFetch)
    (sent,) = all_of(bench.sync(effects), do.SendFetch)
    request = messages.fetch_request_part(sent.request)
    assert request is not None
    assert (request.fetch_offset, request.last_fetched_epoch, request.current_leader_epoch) == (1, 1, 4)


def test_nothing_is_fetched_before_the_log_is_synced() -> None:
    bench = Bench(election=ElectionState(4, 2, None))
    (sent,) = all_of(bench.wait(0), do.SendFetch)
    effects = bench.step(answer(sent, PartitionData(records=b"3 records"), 4, 2))
    bench.log.append(0, [(4, "a"), (4, "b"), (4, "c")])
    assert not all_of(effects + bench.step(begin(3, 5)) + bench.wait(10), do.SendFetch)
    assert [sent.to for sent in all_of(bench.sync(effects), do.SendFetch)] == [3]


def test_sync_before_truncation_does_not_cover_later_writes() -> None:
    bench = Bench(entries=[(1, "a")], election=ElectionState(1, None, None))
    led = bench.elect()
    bench.step(begin(2, 5))
    assert not all_of(bench.wait(10), do.SendFetch)
    (sent,) = all_of(bench.sync(led), do.SendFetch)
    part = PartitionData()
    part.diverging_epoch.epoch, part.diverging_epoch.end_offset = 1, 1
    truncated = bench.step(answer(sent, part, 5, 2))
    assert bench.machine.synced_end_offset == 1
    old_number = all_of(led, do.SyncLog)[-1].number
    bench.step(on.LogSynced(old_number, 2))
    assert bench.machine.synced_end_offset == 1
    assert all_of(bench.sync(truncated), do.SendFetch)


def test_the_high_watermark_ends_where_the_synced_log_does() -> None:
    bench = Bench(entries=[(1, "a")], election=ElectionState(4, 2, None))
    (sent,) = all_of(bench.wait(0), do.SendFetch)
    effects = bench.step(answer(sent, PartitionData(high_watermark=50), 4, 2))
    assert all_of(effects, do.AdvanceHighWatermark) == [do.AdvanceHighWatermark(1)]


def test_incomplete_log_is_complete_only_with_all_that_the_leader_had_at_the_first_contact() -> None:
    """A fetch from before the damage may be under way, and commit a record behind the high watermark."""
    bench = Bench(election=ElectionState(4, 2, None), is_incomplete=True)

    def take(sent: do.SendFetch, value: str) -> list[Effect]:
        part = PartitionData(records=b"a record", high_watermark=1)
        messages.tell_leader_end(part, 2)
        effects = bench.step(answer(sent, part, 4, 2))
        bench.log.append(bench.log.log_end_offset, [(4, value)])
        return bench.sync(effects)

    (sent,) = all_of(bench.wait(0), do.SendFetch)
    first = take(sent, "leader 2")
    assert bench.machine.high_watermark == 1
    assert not all_of(first, do.CompleteLog)
    (sent,) = all_of(first, do.SendFetch)
    assert all_of(take(sent, "vouched for"), do.CompleteLog)


def test_leader_tells_where_its_log_ends() -> None:
    bench = Bench(entries=[(1, "a"), (1, "b")], election=ElectionState(1, None, None))
    bench.elect()
    (effect,) = all_of(bench.fetch(2, 2, 1), do.AnswerFetch)
    part = messages.fetch_response_part(effect.response)
    assert part is not None
    assert messages.leader_end(part) == bench.log.log_end_offset == 3


def test_response_to_request_of_older_role_is_ignored() -> None:
    bench = Bench(election=ElectionState(4, 2, None))
    (sent,) = all_of(bench.wait(0), do.SendFetch)
    bench.step(begin(3, 5))
    assert not all_of(bench.step(answer(sent, PartitionData(records=b"stale"), 4, 2)), do.AppendFetched)


def test_fetch_timeout_starts_pre_vote_before_new_epoch() -> None:
    bench = Bench(election=ElectionState(4, 2, None))
    bench.wait(1_999)
    assert isinstance(bench.machine.role, Follower)
    bench.wait(1)
    assert isinstance(bench.machine.role, Prospective)
    assert bench.machine.epoch == 4


def test_an_observer_never_stands_for_election() -> None:
    bench = Bench(voters=voter_set(2, 3))
    for _ in range(20):
        bench.wait(1_000)
        assert isinstance(bench.machine.role, Unattached)
    assert bench.machine.deadline_ms is not None


def end_epoch(successors: list[int]) -> on.EndQuorumEpochReceived:
    keys = [replica(node_id) for node_id in successors]
    return on.EndQuorumEpochReceived("end", messages.end_request("cluster", 2, 4, keys))


@pytest.mark.parametrize(("successors", "pause_ms"), [([1, 3], 0), ([3, 1], 100), ([3, 4, 1], 200)])
def test_successors_start_one_after_the_other(successors: list[int], pause_ms: int) -> None:
    bench = Bench(election=ElectionState(4, 2, None))
    response = all_of(bench.step(end_epoch(successors)), do.Answer)[0].response
    assert isinstance(response, EndQuorumEpochResponse)
    if pause_ms:
        bench.wait(pause_ms - 1)
        assert isinstance(bench.machine.role, Follower)
        bench.wait(1)
    assert isinstance(bench.machine.role, Prospective)


# -- snapshots, voters, description ----------------------------------------------------------------------------


def test_fetch_snapshot_of_missing_snapshot_or_bad_position_returns_error() -> None:
    bench = Bench()
    bench.elect()
    request = messages.snapshot_request("cluster", replica(2), 1, SnapshotKey(5, 1), 0, 100)
    response = all_of(bench.step(on.FetchSnapshotRequested("s", request)), do.Answer)[0].response
    assert isinstance(response, FetchSnapshotResponse)
    part = messages.snapshot_response_part(response)
    assert part is not None
    assert part.error_code == ErrorCode.SNAPSHOT_NOT_FOUND
    bench.log.take_snapshot(1)
    request = messages.snapshot_request("cluster", replica(2), 1, SnapshotKey(1, 1), 1_000_000, 100)
    response = all_of(bench.step(on.FetchSnapshotRequested("s", request)), do.Answer)[0].response
    assert isinstance(response, FetchSnapshotResponse)
    part = messages.snapshot_response_part(response)
    assert part is not None
    assert part.error_code == ErrorCode.POSITION_OUT_OF_RANGE


def add_voter(bench: Bench, node_id: int) -> ErrorCode | None:
    """None while it waits for the commit."""
    key = replica(node_id)
    request = AddRaftVoterRequest(voter_id=key.id, voter_directory_id=key.directory_id, timeout_ms=1_000)
    answers = all_of(bench.step(on.AddVoterRequested("add", request)), do.Answer)
    if not answers:
        return None
    assert isinstance(answers[0].response, AddRaftVoterResponse)
    return ErrorCode(answers[0].response.error_code)


def test_a_voter_is_added_only_when_it_follows_and_nothing_else_is_pending() -> None:
    bench = Bench()
    assert add_voter(bench, 4) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.sync(bench.elect())
    bench.fetch(4, 1, 1)
    assert add_voter(bench, 4) == ErrorCode.REQUEST_TIMED_OUT, "nothing of this epoch is committed yet"
    bench.fetch(2, 1, 1)
    assert add_voter(bench, 2) == ErrorCode.DUPLICATE_VOTER
    assert add_voter(bench, 5) == ErrorCode.REQUEST_TIMED_OUT, "it does not follow"
    assert add_voter(bench, 4) is None
    assert bench.log.voters.voters.ids == [1, 2, 3, 4]
    assert add_voter(bench, 5) == ErrorCode.REQUEST_TIMED_OUT, "one change at a time"


def test_the_quorum_describes_itself() -> None:
    bench = Bench()
    bench.sync(bench.elect())
    bench.fetch(2, 1, 1)
    bench.fetch(9, 0, 0)
    (described,) = all_of(bench.step(on.DescribeQuorumRequested("d", DescribeQuorumRequest())), do.Answer)
    assert isinstance(described.response, DescribeQuorumResponse)
    part = described.response.topics[0].partitions[0]
    assert (part.leader_id, part.leader_epoch, part.high_watermark) == (1, 1, 1)
    assert [(voter.replica_id, voter.log_end_offset) for voter in part.current_voters] == [
        (1, 1),
        (2, 1),
        (3, -1),
    ]
    assert [observer.replica_id for observer in part.observers] == [9]
