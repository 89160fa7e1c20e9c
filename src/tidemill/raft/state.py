"""The state of a replica, and every transition between roles.

Owns the durable state (epoch, vote, leader). Only `_persist` changes it, and emits the effect that makes it durable
before any effect that relies on it. A vote is kept for its whole epoch, and epochs never decrease. After a restart a
replica never resumes an election or a leadership; it starts with the next epoch.

Owns also the synced end of the log. A sync that started before a truncation does not cover later writes, so its number
is dropped.

A replica that knows it has lost a part of its log (`is_incomplete`) may have helped to commit that part. It only
follows, without a vote or a candidacy, until it holds everything that an active leader has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidemill.raft.effects import (
    AdvanceHighWatermark,
    CompleteLog,
    Effect,
    ElectionState,
    FollowLeader,
    InstallSnapshot,
    PersistQuorumState,
    ResignLeadership,
    SyncLog,
    TruncateLog,
)
from tidemill.raft.log import QuorumLog, SnapshotKey
from tidemill.raft.requests import Requests, Sent
from tidemill.raft.roles import Candidate, Follower, Leader, Prospective, Resigned, Role, Unattached
from tidemill.raft.voters import ReplicaKey, VoterSet

# Epochs have 32 bits on the wire and on disk. The largest value stays free for this replica's own elections.
EPOCH_END = (1 << 31) - 1
CLAIMED_EPOCH_MAX = EPOCH_END - (1 << 20)
# The largest step by which a request may raise the epoch. After more missed elections a replica learns the epoch from
# responses.
_EPOCH_STEP_MAX = 1 << 16

# Returns a number in [0, n): the only source of randomness.
Jitter = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """The settings `controller.quorum.*`, with Kafka's defaults."""

    election_timeout_ms: int = 1_000
    election_backoff_ms_max: int = 1_000
    fetch_timeout_ms: int = 2_000
    request_timeout_ms: int = 2_000
    retry_backoff_ms: int = 20
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 1_048_576
    fetch_snapshot_max_bytes: int = 1_048_576

    @property
    def check_quorum_timeout_ms(self) -> int:
        """Longer than the fetch timeout, so that followers time out first and one slow follower does not make the
        leader resign.
        """
        return self.fetch_timeout_ms * 3 // 2


class QuorumState:
    """The state that all rules share."""

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
        is_incomplete: bool,
    ) -> None:
        self.own = own
        self.log = log
        self.config = config
        self.cluster_id = cluster_id
        self.election = election
        self.requests = Requests(config.request_timeout_ms, config.retry_backoff_ms)
        self.effects: list[Effect] = []
        self.is_incomplete = is_incomplete
        # Records below the log start, or in a snapshot, are committed. More is known only from a leader.
        snapshot = log.latest_snapshot
        self.high_watermark = max(log.log_start_offset, snapshot.end_offset if snapshot else 0)
        self.synced_end_offset = log.log_end_offset
        self.elections_lost = 0
        # Leaders that resigned in this step. Their waiting requests are completed at the end of the step.
        self.dismissed: list[Leader] = []
        self.jitter = jitter
        self._last_sync_number = 0
        self._last_synced_number = 0
        self._syncs_valid_from = 1
        self._contacts = 0
        self.role: Role = self._first_role(steady_ms)

    def _first_role(self, steady_ms: int) -> Role:
        leader_id = self.election.leader_id
        if leader_id is None:
            return Unattached(steady_ms + self._election_timeout_ms())
        if leader_id == self.own.id:
            others = [key for key in self.voters.keys if key.id != self.own.id]
            # The progress of the other voters is unknown after a restart, so there is no preferred successor.
            return Resigned(steady_ms + self._election_timeout_ms(), others, {key.id for key in others})
        return self._following(leader_id, steady_ms)

    def _following(self, leader_id: int, steady_ms: int) -> Follower:
        # A random part: followers that lost their leader at the same moment would split the votes.
        timeout_ms = self.config.fetch_timeout_ms + self.jitter(self.config.fetch_timeout_ms // 4 + 1)
        return Follower(leader_id, timeout_ms, steady_ms + timeout_ms)

    # -- queries of all roles -----------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def leader_id(self) -> int | None:
        """The leader as reported to peers: None after it has resigned."""
        return None if isinstance(self.role, Resigned) else self.election.leader_id

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.voters

    @property
    def is_voter(self) -> bool:
        """Whether this replica may stand for election."""
        return self.voters.has(self.own) and not self.is_incomplete

    @property
    def is_only_voter(self) -> bool:
        return self.is_voter and len(self.voters) == 1

    @property
    def other_voters(self) -> list[ReplicaKey]:
        return [key for key in self.voters.keys if key.id != self.own.id]

    def is_credible(self, epoch: int) -> bool:
        """Whether a request may raise the epoch to this value."""
        return epoch <= min(self.epoch + _EPOCH_STEP_MAX, CLAIMED_EPOCH_MAX)

    def next_contact(self) -> int | None:
        """The next voter to contact, in turn, when no leader is known."""
        others = self.other_voters
        if not others:
            return None
        return others[self._contacts % len(others)].id

    def try_another_contact(self) -> None:
        self._contacts += 1

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, sent: Sent, steady_ms: int) -> None:
        self.requests.sent(sent, steady_ms)
        self.effects.append(sent)

    def _election_timeout_ms(self) -> int:
        """A random time between one and two election timeouts, so that two replicas seldom start at once."""
        return self.config.election_timeout_ms + self.jitter(self.config.election_timeout_ms)

    def election_backoff_ms(self) -> int:
        """A random pause whose range grows with every lost election."""
        slots = 2 ** min(self.elections_lost, 10)
        return min(100 * (1 + self.jitter(slots)), self.config.election_backoff_ms_max)

    # -- durable -----------------------------------------------------------------------------------------------

    def _persist(self, epoch: int, leader_id: int | None, voted: ReplicaKey | None) -> None:
        assert self.epoch <= epoch < EPOCH_END, f"epoch {epoch} after {self.epoch}"
        before, self.election = self.election, ElectionState(epoch, leader_id, voted)
        if self.election == before:
            return
        self._supersede_persist()
        self.emit(PersistQuorumState(self.election))
        if (before.epoch, before.leader_id) != (epoch, leader_id) and leader_id != self.own.id:
            self.emit(FollowLeader(epoch, leader_id))

    def _supersede_persist(self) -> None:
        """Merge two changes of one step into one write, unless an effect that leaves this node relies on the first."""
        for index in range(len(self.effects) - 1, -1, -1):
            if isinstance(self.effects[index], PersistQuorumState):
                del self.effects[index]
                return
            if not isinstance(self.effects[index], FollowLeader | ResignLeadership):
                return

    def _vote_in(self, epoch: int) -> ReplicaKey | None:
        return self.election.voted if epoch == self.epoch else None

    def _leave_role(self) -> None:
        if isinstance(self.role, Leader):
            self.dismissed.append(self.role)
            self.emit(ResignLeadership(self.epoch))
        self.requests.clear()

    # -- from role to role -------------------------------------------------------------------------------------

    def become_unattached(self, epoch: int, steady_ms: int) -> None:
        """Enter a larger epoch without a known leader, or leave a failed election of this epoch.

        The election deadline is kept: a candidate without votes must not delay the elections of others.
        """
        match self.role:
            case Unattached(deadline_ms) | Follower(fetch_deadline_ms=deadline_ms) if epoch > self.epoch:
                pass
            case Prospective(deadline_ms) | Candidate(deadline_ms) if epoch > self.epoch:
                pass
            case _:
                deadline_ms = steady_ms + self._election_timeout_ms()
        voted = self._vote_in(epoch)
        self._leave_role()
        self._persist(epoch, None, voted)
        self.role = Unattached(deadline_ms)

    def vote_for(self, candidate: ReplicaKey, steady_ms: int) -> None:
        assert self.election.voted is None, "one vote per epoch"
        self._leave_role()
        self._persist(self.epoch, None, candidate)
        self.role = Unattached(steady_ms + self._election_timeout_ms())

    def become_follower(self, epoch: int, leader_id: int, steady_ms: int) -> None:
        assert leader_id != self.own.id
        voted = self._vote_in(epoch)
        self._leave_role()
        self._persist(epoch, leader_id, voted)
        self.elections_lost = 0
        self.role = self._following(leader_id, steady_ms)

    def become_prospective(self, steady_ms: int) -> None:
        """Start a pre-vote. The epoch stays, and so does its leader, in case it responds again."""
        self._leave_role()
        if self.election.leader_id == self.own.id:
            self._persist(self.epoch, None, self.election.voted)
        self.role = Prospective(steady_ms + self._election_timeout_ms(), {self.own.id})

    def become_candidate(self, steady_ms: int) -> None:
        self._leave_role()
        self._persist(self.epoch + 1, None, self.own)
        self.role = Candidate(steady_ms + self._election_timeout_ms(), {self.own.id})

    def become_leader(self, leader: Leader) -> None:
        self._leave_role()
        self._persist(self.epoch, self.own.id, self.election.voted)
        self.elections_lost = 0
        self.role = leader

    def become_resigned(self, steady_ms: int) -> None:
        assert isinstance(self.role, Leader)
        successors = list(self.role.tracker.successors())
        self._leave_role()
        # The file still names this replica as leader: after a restart it is Resigned again and repeats EndQuorumEpoch.
        self.role = Resigned(
            steady_ms + self._election_timeout_ms(), successors, {key.id for key in successors}
        )
        self.emit(FollowLeader(self.epoch, None))

    # -- the log -----------------------------------------------------------------------------------------------

    @property
    def is_synced(self) -> bool:
        """Whether every change of the log is on disk. Until then no fetch may claim the log's end."""
        return self._last_synced_number == self._last_sync_number

    def start_sync(self) -> None:
        """Start a sync, after every change of the log, including truncation."""
        self._last_sync_number += 1
        self.emit(SyncLog(self._last_sync_number))

    def synced(self, number: int, end_offset: int) -> None:
        self._last_synced_number = max(self._last_synced_number, number)
        if number >= self._syncs_valid_from:
            self.synced_end_offset = max(self.synced_end_offset, end_offset)

    def truncate(self, end_offset: int) -> None:
        assert end_offset >= self.high_watermark, f"{end_offset} cuts below committed {self.high_watermark}"
        self.emit(TruncateLog(end_offset))
        self.synced_end_offset = min(self.synced_end_offset, end_offset)
        self._syncs_valid_from = self._last_sync_number + 1
        self.start_sync()

    def install_snapshot(self, snapshot: SnapshotKey) -> None:
        self.emit(InstallSnapshot(snapshot))
        self.synced_end_offset = snapshot.end_offset
        self._syncs_valid_from = self._last_sync_number + 1
        self.start_sync()
        self.advance_high_watermark(snapshot.end_offset)

    def complete(self) -> None:
        self.is_incomplete = False
        self.emit(CompleteLog())

    def advance_high_watermark(self, offset: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            self.emit(AdvanceHighWatermark(offset))
