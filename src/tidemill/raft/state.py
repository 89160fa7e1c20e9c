"""The replica's state and every way from one role to another.

Owns what must be durable (epoch, vote, leader): `_persist` is the only place that changes it, and puts the
effect that makes it durable before every effect that relies on it. A vote belongs to its epoch and is
forgotten only with it; an epoch never gets smaller. A replica that restarts never takes up an election or a
leadership where it left it: it begins again with the next epoch.

Owns also how far the log is synced. A sync that began before a truncation says nothing about what was
written after it, so its number is forgotten.

A replica that has lost a part of its log, and knows it (`is_incomplete`), may have helped to commit what it lost. It only
follows: it stands in no election and votes in none, until it holds everything that an active leader has committed.
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

# Epochs have 32 bits, on the wire and on disk. Below the largest there is room for elections of our own.
EPOCH_END = (1 << 31) - 1
CLAIMED_EPOCH_MAX = EPOCH_END - (1 << 20)
# How far ahead of its own epoch a replica follows a request. One that missed more elections learns the epoch from the
# voters that it asks itself.
_EPOCH_STEP_MAX = 1 << 16

# A number in [0, n): the only randomness.
Jitter = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class QuorumConfig:
    """`controller.quorum.*`; Kafka's defaults."""

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
        """Longer than the followers' timeout: they give up first, and a slow one is not a reason to resign."""
        return self.fetch_timeout_ms * 3 // 2


class QuorumState:
    def __init__(
        self,
        own: ReplicaKey,
        log: QuorumLog,
        election: ElectionState,
        config: QuorumConfig,
        jitter: Jitter,
        cluster_id: str | None,
        now_ms: int,
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
        # What the log has dropped, and what a snapshot holds, was committed; more is not known before a leader says it.
        snapshot = log.latest_snapshot
        self.high_watermark = max(log.log_start_offset, snapshot.end_offset if snapshot else 0)
        self.synced_end_offset = log.log_end_offset
        self.elections_lost = 0
        # Leaders that this step ended: whoever waits for them is told when the step is over.
        self.dismissed: list[Leader] = []
        self.jitter = jitter
        self._last_sync_number = 0
        self._last_synced_number = 0
        self._syncs_valid_from = 1
        self._contacts = 0
        self.role: Role = self._first_role(now_ms)

    def _first_role(self, now_ms: int) -> Role:
        leader_id = self.election.leader_id
        if leader_id is None:
            return Unattached(now_ms + self._election_timeout_ms())
        if leader_id == self.own.id:
            others = [key for key in self.voters.keys if key.id != self.own.id]
            # Nobody here knows any more how far the others were: no preference among them.
            return Resigned(now_ms + self._election_timeout_ms(), others, {key.id for key in others})
        return self._following(leader_id, now_ms)

    def _following(self, leader_id: int, now_ms: int) -> Follower:
        # Spread a little: followers that lost the same leader at the same moment would split the votes.
        timeout_ms = self.config.fetch_timeout_ms + self.jitter(self.config.fetch_timeout_ms // 4 + 1)
        return Follower(leader_id, timeout_ms, now_ms + timeout_ms)

    # -- what everybody asks -----------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return self.election.epoch

    @property
    def leader_id(self) -> int | None:
        """As told to peers: a leader that has resigned leads nobody."""
        return None if isinstance(self.role, Resigned) else self.election.leader_id

    @property
    def voters(self) -> VoterSet:
        return self.log.voters.voters

    @property
    def is_voter(self) -> bool:
        """Whether it may stand for election."""
        return self.voters.has(self.own) and not self.is_incomplete

    @property
    def is_only_voter(self) -> bool:
        return self.is_voter and len(self.voters) == 1

    @property
    def other_voters(self) -> list[ReplicaKey]:
        return [key for key in self.voters.keys if key.id != self.own.id]

    def is_credible(self, epoch: int) -> bool:
        """Whether a request may raise the epoch to this one."""
        return epoch <= min(self.epoch + _EPOCH_STEP_MAX, CLAIMED_EPOCH_MAX)

    def next_contact(self) -> int | None:
        """Some other voter, each in turn: whom to ask when no leader is known."""
        others = self.other_voters
        if not others:
            return None
        return others[self._contacts % len(others)].id

    def try_another_contact(self) -> None:
        self._contacts += 1

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def send(self, sent: Sent, now_ms: int) -> None:
        self.requests.sent(sent, now_ms)
        self.effects.append(sent)

    def _election_timeout_ms(self) -> int:
        """Between one and two election timeouts, so that two replicas seldom start at once."""
        return self.config.election_timeout_ms + self.jitter(self.config.election_timeout_ms)

    def election_backoff_ms(self) -> int:
        """The more elections were lost, the longer the range from which the pause is drawn."""
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
        """Two changes in one step need one write, as long as nothing that leaves this node relies on the first."""
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
        self.requests.forget_all()

    # -- from role to role -------------------------------------------------------------------------------------

    def become_unattached(self, epoch: int, now_ms: int) -> None:
        """A larger epoch without a known leader, or this one's election came to nothing.

        Whoever was waiting goes on waiting: a candidate that nobody wants must not keep others from starting an election.
        """
        match self.role:
            case Unattached(deadline_ms) | Follower(fetch_deadline_ms=deadline_ms) if epoch > self.epoch:
                pass
            case Prospective(deadline_ms) | Candidate(deadline_ms) if epoch > self.epoch:
                pass
            case _:
                deadline_ms = now_ms + self._election_timeout_ms()
        voted = self._vote_in(epoch)
        self._leave_role()
        self._persist(epoch, None, voted)
        self.role = Unattached(deadline_ms)

    def vote_for(self, candidate: ReplicaKey, now_ms: int) -> None:
        assert self.election.voted is None, "one vote per epoch"
        self._leave_role()
        self._persist(self.epoch, None, candidate)
        self.role = Unattached(now_ms + self._election_timeout_ms())

    def become_follower(self, epoch: int, leader_id: int, now_ms: int) -> None:
        assert leader_id != self.own.id
        voted = self._vote_in(epoch)
        self._leave_role()
        self._persist(epoch, leader_id, voted)
        self.elections_lost = 0
        self.role = self._following(leader_id, now_ms)

    def become_prospective(self, now_ms: int) -> None:
        """The epoch stays, and so does its leader, should it answer again after all."""
        self._leave_role()
        if self.election.leader_id == self.own.id:
            self._persist(self.epoch, None, self.election.voted)
        self.role = Prospective(now_ms + self._election_timeout_ms(), {self.own.id})

    def become_candidate(self, now_ms: int) -> None:
        self._leave_role()
        self._persist(self.epoch + 1, None, self.own)
        self.role = Candidate(now_ms + self._election_timeout_ms(), {self.own.id})

    def become_leader(self, leader: Leader) -> None:
        self._leave_role()
        self._persist(self.epoch, self.own.id, self.election.voted)
        self.elections_lost = 0
        self.role = leader

    def become_resigned(self, now_ms: int) -> None:
        assert isinstance(self.role, Leader)
        successors = list(self.role.tracker.successors())
        self._leave_role()
        # Still the leader on disk: after a restart it is Resigned again, and tells the others again.
        self.role = Resigned(now_ms + self._election_timeout_ms(), successors, {key.id for key in successors})
        self.emit(FollowLeader(self.epoch, None))

    # -- the log -----------------------------------------------------------------------------------------------

    @property
    def is_synced(self) -> bool:
        """Whether nothing that was done to the log still waits for the disk; until then the log may not be vouched for."""
        return self._last_synced_number == self._last_sync_number

    def start_sync(self) -> None:
        """After every change of the log, a truncation too."""
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
