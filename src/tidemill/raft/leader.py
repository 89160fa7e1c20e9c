"""The leader's rules: announcing its epoch, counting replicas, and resigning.

It starts its epoch with a leader change record. The high watermark advances only over records of its own epoch, and all
earlier ones with it. A leader that never saw an earlier record could still overwrite it on a majority (Raft §5.4.2).
Until that first record is committed the leader does not serve (`ActivateLeader`).

Followers pull. When the follower's log is a prefix of the leader's, the fetch offset is what it has on disk. Otherwise
the response holds the point of divergence, or a snapshot when the log no longer reaches back that far. A fetch without
new records is delayed. A peer that has not proved to be the replica for which it fetches gets the same answers, and counts
for nothing. The leader resigns when a majority of the voters has not fetched for a while, since another
leader may have been elected (check quorum).
"""

from __future__ import annotations

from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import (
    FetchEpochEndOffset,
    FetchPartition,
    FetchResponse,
    LeaderIdAndEpoch,
    PartitionData,
    SnapshotId,
)
from tidemill.protocol.api.quorum import (
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderChangeMessage,
    LeaderChangeMessageVoter,
)
from tidemill.raft import messages
from tidemill.raft.effects import (
    ActivateLeader,
    Answer,
    AnswerFetch,
    AnswerFetchSnapshot,
    AppendControl,
    AppendToLog,
    BecomeLeader,
    RejectAppend,
    SendBeginQuorumEpoch,
)
from tidemill.raft.events import AppendRequested, FetchRequested, FetchSnapshotRequested, Token
from tidemill.raft.log import SnapshotKey
from tidemill.raft.roles import DelayedFetch, Leader
from tidemill.raft.state import QuorumState
from tidemill.raft.tracker import Tracker
from tidemill.raft.voters import ReplicaKey

_STRANGERS_WAIT_MS = 1_000

# -- beginning and ending ------------------------------------------------------------------------------------


def lead(q: QuorumState, granted: set[int], steady_ms: int) -> None:
    start_offset = q.log.log_end_offset
    # Version 0 has no directory ids. It is the only version that Kafka's log readers accept.
    record = LeaderChangeMessage(
        leader_id=q.own.id,
        voters=[_voter(key) for key in q.voters.keys],
        granting_voters=[_voter(key) for key in q.voters.keys if key.id in granted],
    )
    tracker = Tracker(q.own, q.voters, steady_ms)
    # The first BeginQuorumEpoch is due now.
    q.become_leader(Leader(start_offset, start_offset + 1, tracker, steady_ms, q.log.voters.offset))
    q.emit(BecomeLeader(q.epoch, start_offset))
    q.emit(AppendControl(q.epoch, start_offset, record))
    q.start_sync()


def _voter(key: ReplicaKey) -> LeaderChangeMessageVoter:
    return LeaderChangeMessageVoter(voter_id=key.id, voter_directory_id=key.directory_id)


def dismiss(q: QuorumState) -> None:
    """Complete everything that waited for a leader that resigned in this step."""
    for leader in q.dismissed:
        for delayed in leader.delayed_fetches.values():
            q.emit(Answer(delayed.token, _refusal(q, ErrorCode.NOT_LEADER_OR_FOLLOWER)))
        if leader.change is not None and leader.change.token is not None:
            q.emit(Answer(leader.change.token, leader.change.timed_out))
    q.dismissed.clear()


def poll_leader(q: QuorumState, leader: Leader, steady_ms: int) -> None:
    advance_high_watermark(q, leader)
    is_removed = not q.is_voter and leader.voters_offset < q.high_watermark
    if is_removed or steady_ms >= check_quorum_deadline_ms(q, leader, steady_ms):
        q.become_resigned(steady_ms)
        return
    _announce(q, leader, steady_ms)
    _complete_delayed(q, leader, steady_ms)
    leader.tracker.forget_silent_observers(steady_ms)


def follow_voters(q: QuorumState, leader: Leader, steady_ms: int) -> None:
    if q.log.voters.offset != leader.voters_offset:
        leader.voters_offset = q.log.voters.offset
        leader.tracker.change_voters(q.voters, steady_ms)
        # Send BeginQuorumEpoch to a new voter at once.
        leader.begin_epoch_deadline_ms = steady_ms


def check_quorum_deadline_ms(q: QuorumState, leader: Leader, steady_ms: int) -> int:
    return leader.tracker.majority_contact_ms(steady_ms) + q.config.check_quorum_timeout_ms


def _announce(q: QuorumState, leader: Leader, steady_ms: int) -> None:
    """Send BeginQuorumEpoch to each voter that has not fetched lately: it may not know the leader."""
    if steady_ms < leader.begin_epoch_deadline_ms:
        return
    interval_ms = q.config.fetch_timeout_ms // 2
    for voter in q.other_voters:
        progress = leader.tracker.voters.get(voter.id)
        has_fetched = progress is not None and progress.end_offset >= 0
        if has_fetched and progress is not None and progress.last_fetch_ms + interval_ms > steady_ms:
            continue
        if q.requests.is_ready(voter.id, steady_ms):
            request = messages.begin_request(q.cluster_id, voter, q.own.id, q.epoch)
            q.send(SendBeginQuorumEpoch(q.requests.next_number(), voter.id, request), steady_ms)
    leader.begin_epoch_deadline_ms = steady_ms + interval_ms


# -- appending and committing --------------------------------------------------------------------------------


def append(q: QuorumState, event: AppendRequested, steady_ms: int) -> None:
    leader = q.role
    if not isinstance(leader, Leader) or event.epoch != q.epoch:
        q.emit(RejectAppend(event.token, ErrorCode.NOT_LEADER_OR_FOLLOWER))
        return
    q.emit(AppendToLog(event.token, q.epoch, leader.log_end_offset, event.records, event.record_count))
    grow(q, leader, event.record_count, steady_ms)


def grow(q: QuorumState, leader: Leader, record_count: int, steady_ms: int) -> None:
    """Records are appended in this step: sync them, and complete the fetches that wait for them."""
    leader.log_end_offset += record_count
    q.start_sync()
    _complete_delayed(q, leader, steady_ms)


def own_end_offset(q: QuorumState) -> int:
    return q.synced_end_offset


def may_commit(leader: Leader, end_offset: int) -> bool:
    """Whether the last record before `end_offset` belongs to the leader's own epoch."""
    return end_offset > leader.epoch_start_offset


def advance_high_watermark(q: QuorumState, leader: Leader) -> None:
    end_offset = leader.tracker.majority_offset(own_end_offset(q))
    if end_offset <= q.high_watermark or not may_commit(leader, end_offset):
        return
    q.advance_high_watermark(end_offset)
    if not leader.is_active:
        leader.is_active = True
        q.emit(ActivateLeader(q.epoch))
    if leader.change is not None and leader.change.offset < end_offset:
        if leader.change.token is not None:
            q.emit(Answer(leader.change.token, leader.change.response))
        leader.change = None


# -- being fetched from --------------------------------------------------------------------------------------


def leader_only_error(q: QuorumState, epoch: int) -> ErrorCode:
    """Returns the error of a leader's request in `epoch` to this replica; NONE when it can serve it."""
    if epoch < q.epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if epoch > q.epoch:
        return ErrorCode.UNKNOWN_LEADER_EPOCH
    return ErrorCode.NONE if isinstance(q.role, Leader) else ErrorCode.NOT_LEADER_OR_FOLLOWER


def _response(q: QuorumState, part: PartitionData) -> FetchResponse:
    part.current_leader = LeaderIdAndEpoch(leader_id=messages.wire_leader(q.leader_id), leader_epoch=q.epoch)
    part.high_watermark = q.high_watermark
    part.log_start_offset = q.log.log_start_offset
    if isinstance(q.role, Leader):
        messages.tell_leader_end(part, q.role.log_end_offset)
    return messages.fetch_response(part)


def _refusal(q: QuorumState, error: ErrorCode) -> FetchResponse:
    return _response(q, PartitionData(error_code=error))


def answer_fetch(q: QuorumState, event: FetchRequested, steady_ms: int) -> None:
    request = event.request
    part = messages.fetch_request_part(request)
    if request.cluster_id is not None and q.cluster_id is not None and request.cluster_id != q.cluster_id:
        q.emit(Answer(event.token, FetchResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)))
        return
    if part is None:
        q.emit(Answer(event.token, FetchResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        return
    error = leader_only_error(q, part.current_leader_epoch)
    if part.fetch_offset < 0 or part.last_fetched_epoch < 0:
        error = ErrorCode.INVALID_REQUEST
    if error is not ErrorCode.NONE:
        q.emit(Answer(event.token, _refusal(q, error)))
        return
    assert isinstance(q.role, Leader)
    replica = _known_replica(event, part)
    if replica is not None:
        _drop_delayed(q, q.role, replica)
    mismatch = _mismatch(q, part)
    if mismatch is not None:
        if replica is not None:
            q.role.tracker.record_contact(replica, steady_ms)
        q.emit(Answer(event.token, _response(q, mismatch)))
        return
    if replica is not None:
        q.role.tracker.fetched(replica, part.fetch_offset, q.role.log_end_offset, steady_ms)
        advance_high_watermark(q, q.role)
    # A stranger may leave any number of fetches behind, so they do not wait for long.
    wait_ms = request.max_wait_ms if replica is not None else min(request.max_wait_ms, _STRANGERS_WAIT_MS)
    delayed = DelayedFetch(event.token, part, request.max_bytes, steady_ms + max(wait_ms, 0))
    if _is_due(q, q.role, delayed, steady_ms):
        _answer_with_records(q, delayed)
    else:
        q.role.delayed_fetches[event.token if replica is None else replica] = delayed


def _known_replica(event: FetchRequested, part: FetchPartition) -> ReplicaKey | None:
    """The replica whose progress a fetch shows; None for a stranger or a consumer, which is an observer without a trace."""
    replica = messages.fetching_replica(event.request, part)
    return replica if event.is_proven and replica.id >= 0 else None


def _mismatch(q: QuorumState, part: FetchPartition) -> PartitionData | None:
    """The point of divergence; None when the follower's log is a prefix of this one."""
    offset, epoch, log = part.fetch_offset, part.last_fetched_epoch, q.log
    start_offset, start_epoch = log.log_start_offset, log.log_start_epoch
    is_before = start_offset > 0 and (
        offset < start_offset or epoch < start_epoch or (offset == start_offset and epoch != start_epoch)
    )
    if is_before:
        snapshot = log.latest_snapshot
        assert snapshot is not None, "a log starts above 0 only after a snapshot"
        return PartitionData(snapshot_id=SnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch))
    if offset == start_offset and epoch == start_epoch:
        return None
    known = log.end_offset_of(epoch)
    if known.epoch != epoch or known.end_offset < offset:
        return PartitionData(
            diverging_epoch=FetchEpochEndOffset(epoch=known.epoch, end_offset=known.end_offset)
        )
    return None


def _is_due(q: QuorumState, leader: Leader, delayed: DelayedFetch, steady_ms: int) -> bool:
    """Whether a delayed fetch completes: new records, a newer high watermark (KIP-1166), or the end of the wait."""
    return (
        delayed.part.fetch_offset < leader.log_end_offset
        or delayed.part.high_watermark < q.high_watermark
        or steady_ms >= delayed.deadline_ms
    )


def _answer_with_records(q: QuorumState, delayed: DelayedFetch) -> None:
    max_bytes = min(delayed.max_bytes, q.config.fetch_max_bytes)
    response = _response(q, PartitionData())
    q.emit(AnswerFetch(delayed.token, response, delayed.part.fetch_offset, max_bytes))


def _complete_delayed(q: QuorumState, leader: Leader, steady_ms: int) -> None:
    for replica, delayed in list(leader.delayed_fetches.items()):
        if _is_due(q, leader, delayed, steady_ms):
            del leader.delayed_fetches[replica]
            _answer_with_records(q, delayed)


def _drop_delayed(q: QuorumState, leader: Leader, replica: ReplicaKey) -> None:
    """Drop the delayed fetch of a replica that has sent another one."""
    delayed = leader.delayed_fetches.pop(replica, None)
    if delayed is not None:
        q.emit(Answer(delayed.token, _response(q, PartitionData())))


def abandon(leader: Leader, token: Token) -> None:
    leader.delayed_fetches = {
        key: delayed for key, delayed in leader.delayed_fetches.items() if delayed.token != token
    }
    if leader.change is not None and leader.change.token == token:
        leader.change.token = None


def answer_fetch_snapshot(q: QuorumState, event: FetchSnapshotRequested, steady_ms: int) -> None:
    request: FetchSnapshotRequest = event.request
    part = messages.snapshot_request_part(request)
    if request.cluster_id is not None and q.cluster_id is not None and request.cluster_id != q.cluster_id:
        q.emit(Answer(event.token, FetchSnapshotResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)))
        return
    if part is None:
        q.emit(Answer(event.token, FetchSnapshotResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)))
        return
    snapshot = SnapshotKey(part.snapshot_id.end_offset, part.snapshot_id.epoch)
    error = leader_only_error(q, part.current_leader_epoch)
    if error is ErrorCode.NONE:
        size = q.log.snapshot_size(snapshot)
        if size is None:
            error = ErrorCode.SNAPSHOT_NOT_FOUND
        elif not 0 <= part.position < max(size, 1):
            error = ErrorCode.POSITION_OUT_OF_RANGE
    response = messages.snapshot_response(error, q.leader_id, q.epoch, snapshot, part.position)
    if error is not ErrorCode.NONE:
        q.emit(Answer(event.token, response))
        return
    assert isinstance(q.role, Leader)
    if event.is_proven:
        q.role.tracker.record_contact(ReplicaKey(request.replica_id, part.replica_directory_id), steady_ms)
    max_bytes = min(request.max_bytes, q.config.fetch_snapshot_max_bytes)
    q.emit(AnswerFetchSnapshot(event.token, response, snapshot, part.position, max_bytes))
