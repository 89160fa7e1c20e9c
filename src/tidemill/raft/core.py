"""The quorum's protocol machine: one replica of the metadata log. It turns events into effects, without I/O or clock.

`step` passes the event to the module with its rule. Then `_poll` runs the timers and requests that are due, until the role
stays the same. The order of effects is part of their meaning, see `effects.py`.

    machine = RaftMachine(own, log, quorum_state_from_disk, config, jitter, cluster_id, steady_ms)
    for effect in machine.step(event, steady_ms): carry_out(effect)
    step TimerExpired() at machine.deadline_ms

Invariants, which tests/property/test_raft_safety.py checks after every step of a simulated quorum:

- an epoch has one leader;
- a leader has every committed record;
- logs with the same epoch at an offset are equal up to it;
- a committed record is never lost or replaced;
- the high watermark only grows;
- a vote is on disk before its response is sent.
"""

from __future__ import annotations

from tidemill.raft import elections, follower, leader, reconfiguration
from tidemill.raft.effects import (
    Answer,
    Effect,
    ElectionState,
    SendBeginQuorumEpoch,
    SendEndQuorumEpoch,
    SendFetch,
    SendFetchSnapshot,
    SendVote,
)
from tidemill.raft.events import (
    AddVoterRequested,
    AppendRequested,
    BeginQuorumEpochAnswered,
    BeginQuorumEpochReceived,
    DescribeQuorumRequested,
    EndQuorumEpochAnswered,
    EndQuorumEpochReceived,
    Event,
    FetchAnswered,
    FetchRequested,
    FetchSnapshotAnswered,
    FetchSnapshotRequested,
    LogSynced,
    PeerAnswer,
    PeerRequest,
    RemoveVoterRequested,
    RequestAbandoned,
    RequestFailed,
    ResignRequested,
    SnapshotFoundDamaged,
    TimerExpired,
    UpdateVoterRequested,
    VoteAnswered,
    VoteRequested,
)
from tidemill.raft.log import QuorumLog
from tidemill.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from tidemill.raft.state import Jitter, QuorumConfig, QuorumState
from tidemill.raft.voters import ReplicaKey

# One event can lead through Unattached, Prospective, Candidate and Leader; one more round sees that the role stays.
_ROLES_PER_STEP_MAX = 6


class RaftMachine:
    """One replica of the metadata log."""

    def __init__(
        self,
        own: ReplicaKey,
        log: QuorumLog,
        election: ElectionState,
        config: QuorumConfig,
        jitter: Jitter,
        cluster_id: str | None,
        steady_ms: int,
        *,
        is_incomplete: bool = False,
    ) -> None:
        self._q = QuorumState(
            own, log, election, config, jitter, cluster_id, steady_ms, is_incomplete=is_incomplete
        )

    # -- what others may know ----------------------------------------------------------------------------------

    @property
    def own(self) -> ReplicaKey:
        return self._q.own

    @property
    def role(self) -> Role:
        return self._q.role

    @property
    def epoch(self) -> int:
        return self._q.epoch

    @property
    def leader_id(self) -> int | None:
        return self._q.leader_id

    @property
    def election(self) -> ElectionState:
        return self._q.election

    @property
    def high_watermark(self) -> int:
        return self._q.high_watermark

    @property
    def synced_end_offset(self) -> int:
        return self._q.synced_end_offset

    @property
    def is_voter(self) -> bool:
        return self._q.is_voter

    @property
    def cluster_id(self) -> str | None:
        return self._q.cluster_id

    def set_cluster_id(self, cluster_id: str) -> None:
        """Set the cluster id. Requests with another id are rejected from now on."""
        self._q.cluster_id = cluster_id

    @property
    def is_leader(self) -> bool:
        return isinstance(self._q.role, Leader)

    @property
    def is_active_leader(self) -> bool:
        """Whether this replica leads and has committed a record of its own epoch."""
        return isinstance(self._q.role, Leader) and self._q.role.is_active

    def majority_confirmed_ms(self, steady_ms: int) -> int:
        """The last time at which a majority is known to have followed this leader; -1 when it is none."""
        role = self._q.role
        return role.tracker.majority_confirmed_ms(steady_ms) if isinstance(role, Leader) else -1

    # -- stepping ----------------------------------------------------------------------------------------------

    def step(self, event: Event, steady_ms: int) -> list[Effect]:
        q = self._q
        q.effects = []
        if isinstance(q.role, Leader):
            # A VotersRecord in the last step may have changed the voters.
            leader.follow_voters(q, q.role, steady_ms)
        self._handle(event, steady_ms)
        self._poll(steady_ms)
        leader.dismiss(q)
        return q.effects

    def _handle(self, event: Event, steady_ms: int) -> None:
        q = self._q
        match event:
            case TimerExpired():
                pass
            case LogSynced(number, end_offset):
                q.synced(number, end_offset)
            case AppendRequested():
                leader.append(q, event, steady_ms)
            case ResignRequested():
                if isinstance(q.role, Leader):
                    q.become_resigned(steady_ms)
            case RequestAbandoned(token):
                if isinstance(q.role, Leader):
                    leader.abandon(q.role, token)
            case (
                VoteAnswered()
                | BeginQuorumEpochAnswered()
                | EndQuorumEpochAnswered()
                | FetchAnswered()
                | FetchSnapshotAnswered()
                | SnapshotFoundDamaged()
                | RequestFailed()
            ):
                self._handle_answer(event, steady_ms)
            case _:
                self._handle_request(event, steady_ms)

    def _handle_request(self, event: PeerRequest, steady_ms: int) -> None:
        q = self._q
        match event:
            case VoteRequested(token, vote):
                vote_response = elections.answer_vote(q, vote, steady_ms)
                q.emit(Answer(token, vote_response))
            case BeginQuorumEpochReceived(token, begin):
                begin_response = follower.answer_begin_epoch(q, begin, steady_ms)
                q.emit(Answer(token, begin_response))
            case EndQuorumEpochReceived(token, end):
                end_response = elections.answer_end_epoch(q, end, steady_ms)
                q.emit(Answer(token, end_response))
            case FetchRequested():
                leader.answer_fetch(q, event, steady_ms)
            case FetchSnapshotRequested():
                leader.answer_fetch_snapshot(q, event, steady_ms)
            case AddVoterRequested():
                reconfiguration.add_voter(q, event, steady_ms)
            case RemoveVoterRequested():
                reconfiguration.remove_voter(q, event, steady_ms)
            case UpdateVoterRequested():
                reconfiguration.update_voter(q, event, steady_ms)
            case DescribeQuorumRequested():
                reconfiguration.describe(q, event, steady_ms)

    def _handle_answer(self, event: PeerAnswer, steady_ms: int) -> None:
        q = self._q
        sent = q.requests.answered(event.number)
        if sent is None:
            return
        match sent, event:
            case SendVote(), VoteAnswered(response=vote):
                elections.vote_answered(q, sent, vote, steady_ms)
            case SendBeginQuorumEpoch(), BeginQuorumEpochAnswered(response=begin):
                follower.begin_epoch_answered(q, sent, begin, steady_ms)
            case SendEndQuorumEpoch(), EndQuorumEpochAnswered(response=end):
                elections.end_epoch_answered(q, sent, end, steady_ms)
            case SendFetch(), FetchAnswered(response=fetched):
                follower.fetch_answered(q, sent, fetched, steady_ms)
            case SendFetchSnapshot(), FetchSnapshotAnswered(response=snapshot):
                follower.snapshot_answered(q, sent, snapshot, steady_ms)
            case SendFetchSnapshot(), SnapshotFoundDamaged():
                follower.snapshot_damaged(q, sent, steady_ms)
            case SendFetch() | SendFetchSnapshot(), RequestFailed():
                follower.connection_failed(q, sent.to, steady_ms)
            case _:
                q.requests.failed(sent.to, steady_ms)
                q.try_another_contact()

    def _poll(self, steady_ms: int) -> None:
        for _ in range(_ROLES_PER_STEP_MAX):
            role = self._q.role
            self._poll_role(role, steady_ms)
            if self._q.role is role:
                return
        raise AssertionError(f"{self._q.role} does not settle")

    def _poll_role(self, role: Role, steady_ms: int) -> None:
        q = self._q
        match role:
            case Unattached():
                elections.poll_unattached(q, role, steady_ms)
                if q.role is role:
                    follower.fetch(q, q.next_contact(), None, steady_ms)
            case Prospective() | Candidate():
                elections.poll_election(q, role, steady_ms)
            case Leader():
                leader.poll_leader(q, role, steady_ms)
                reconfiguration.poll_change(q, role, steady_ms)
            case Follower():
                follower.poll_follower(q, role, steady_ms)
            case Resigned():
                elections.poll_resigned(q, role, steady_ms)

    # -- when to wake up ---------------------------------------------------------------------------------------

    @property
    def deadline_ms(self) -> int | None:
        """The time at which the machine must be stepped next; None when only an event can change anything."""
        q = self._q
        times: list[int | None] = []
        match q.role:
            case Unattached(election_deadline_ms):
                times = [self._contact_ready_ms()]
                if q.is_voter:
                    times.append(0 if q.is_only_voter else election_deadline_ms)
            case Prospective(election_deadline_ms, granted, rejected):
                times = [election_deadline_ms, *self._ready_ms(set(q.voters.ids) - granted - rejected)]
            case Candidate(election_deadline_ms, granted, rejected):
                times = [election_deadline_ms, *self._ready_ms(set(q.voters.ids) - granted - rejected)]
            case Resigned(election_deadline_ms, _, unacknowledged):
                times = [election_deadline_ms, *self._ready_ms(unacknowledged)]
                if q.is_only_voter:
                    times = [0]
            case Follower():
                times = self._follower_times(q.role)
            case Leader():
                times = self._leader_times(q.role)
        known = [time for time in times if time is not None]
        return min(known) if known else None

    def _ready_ms(self, destinations: set[int]) -> list[int | None]:
        return [self._q.requests.ready_at_ms(destination) for destination in destinations]

    def _contact_ready_ms(self) -> int | None:
        contact = self._q.next_contact()
        # A sync in flight steps the machine with its own event.
        return self._q.requests.ready_at_ms(contact) if contact is not None and self._q.is_synced else None

    def _follower_times(self, role: Follower) -> list[int | None]:
        times: list[int | None] = []
        if role.contact is not None and self._q.is_synced:
            times.append(self._q.requests.ready_at_ms(role.contact))
        if role.contact in (None, role.leader_id):
            times.append(role.fetch_deadline_ms)
        return times

    def _leader_times(self, role: Leader) -> list[int | None]:
        q = self._q
        times: list[int | None] = [delayed.deadline_ms for delayed in role.delayed_fetches.values()]
        if q.other_voters:
            times.append(role.begin_epoch_deadline_ms)
            # The leader's own entry is always "now", so the query uses a time in the far future.
            if not q.is_only_voter:
                times.append(role.tracker.majority_contact_ms(2**62) + q.config.check_quorum_timeout_ms)
        if role.change is not None and role.change.token is not None:
            times.append(role.change.deadline_ms)
        return times
