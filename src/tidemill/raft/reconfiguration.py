"""Voter set changes (KIP-853): one voter at a time, decided by the leader, effective when appended.

Two sets that differ by one voter have no disjoint majorities, so replicas may use either. Two rules limit the
difference to one voter. A change starts only after the previous one is committed. A leader starts a change only after
it has committed a record of its own epoch; otherwise a change of an earlier leader could be pending unseen.

A new voter must already follow close to the log end, or commits would wait for it. A leader that removes itself leads
until the change is committed without its own vote, and then resigns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from tidemill.errors import ErrorCode
from tidemill.internal_topics import METADATA_TOPIC
from tidemill.protocol.api.quorum import (
    AddRaftVoterResponse,
    CurrentLeader,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    RemoveRaftVoterResponse,
    ReplicaState,
    UpdateRaftVoterResponse,
)
from tidemill.raft import messages
from tidemill.raft.effects import Answer, AppendControl, QuorumResponse
from tidemill.raft.events import (
    AddVoterRequested,
    DescribeQuorumRequested,
    RemoveVoterRequested,
    Token,
    UpdateVoterRequested,
)
from tidemill.raft.leader import grow
from tidemill.raft.roles import Leader, PendingChange
from tidemill.raft.state import QuorumState
from tidemill.raft.tracker import Progress
from tidemill.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet

Respond: TypeAlias = Callable[[ErrorCode], QuorumResponse]

_CHANGE_TIMEOUT_MS = 30_000


def add_voter(q: QuorumState, event: AddVoterRequested, steady_ms: int) -> None:
    request = event.request
    key = ReplicaKey(request.voter_id, request.voter_directory_id)

    def respond(error: ErrorCode) -> AddRaftVoterResponse:
        return AddRaftVoterResponse(error_code=error, error_message=error.message if error else None)

    error = _change_error(q, request.cluster_id)
    if error is ErrorCode.NONE:
        assert isinstance(q.role, Leader)
        if q.voters.get(key.id) is not None:
            error = ErrorCode.DUPLICATE_VOTER
        elif key.id < 0 or key.directory_id == ReplicaKey(0).directory_id:
            error = ErrorCode.INVALID_REQUEST
        elif not _is_following(q, q.role, key, steady_ms):
            error = ErrorCode.REQUEST_TIMED_OUT
    if error is not ErrorCode.NONE:
        q.emit(Answer(event.token, respond(error)))
        return
    voters = q.voters.with_voter(Voter(key, _endpoints(request.listeners)))
    if request.ack_when_committed:
        _change(q, voters, event.token, respond, request.timeout_ms, steady_ms)
    else:
        _change(q, voters, None, respond, request.timeout_ms, steady_ms)
        q.emit(Answer(event.token, respond(ErrorCode.NONE)))


def remove_voter(q: QuorumState, event: RemoveVoterRequested, steady_ms: int) -> None:
    request = event.request
    key = ReplicaKey(request.voter_id, request.voter_directory_id)

    def respond(error: ErrorCode) -> RemoveRaftVoterResponse:
        return RemoveRaftVoterResponse(error_code=error, error_message=error.message if error else None)

    error = _change_error(q, request.cluster_id)
    if error is ErrorCode.NONE and not q.voters.has(key):
        error = ErrorCode.VOTER_NOT_FOUND
    if error is ErrorCode.NONE and len(q.voters) == 1:
        error = ErrorCode.INVALID_REQUEST
    if error is not ErrorCode.NONE:
        q.emit(Answer(event.token, respond(error)))
        return
    _change(q, q.voters.without(key.id), event.token, respond, _CHANGE_TIMEOUT_MS, steady_ms)


def update_voter(q: QuorumState, event: UpdateVoterRequested, steady_ms: int) -> None:
    request = event.request
    key = ReplicaKey(request.voter_id, request.voter_directory_id)

    def respond(error: ErrorCode) -> UpdateRaftVoterResponse:
        leader = CurrentLeader(leader_id=messages.wire_leader(q.leader_id), leader_epoch=q.epoch)
        return UpdateRaftVoterResponse(error_code=error, current_leader=leader)

    error = _change_error(q, request.cluster_id)
    if error is ErrorCode.NONE and not q.voters.has(key):
        error = ErrorCode.VOTER_NOT_FOUND
    if error is ErrorCode.NONE and request.current_leader_epoch != q.epoch:
        error = ErrorCode.FENCED_LEADER_EPOCH
    if error is not ErrorCode.NONE:
        q.emit(Answer(event.token, respond(error)))
        return
    voters = q.voters.with_voter(Voter(key, _endpoints(request.listeners)))
    _change(q, voters, event.token, respond, _CHANGE_TIMEOUT_MS, steady_ms)


def _endpoints(listeners: list[Listener]) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(listener.name, listener.host, listener.port) for listener in listeners)


def _change_error(q: QuorumState, cluster_id: str | None) -> ErrorCode:
    if cluster_id is not None and q.cluster_id is not None and cluster_id != q.cluster_id:
        return ErrorCode.INCONSISTENT_CLUSTER_ID
    if not isinstance(q.role, Leader):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if not q.voters.is_dynamic:
        return ErrorCode.UNSUPPORTED_VERSION
    if not may_change(q, q.role):
        return ErrorCode.REQUEST_TIMED_OUT
    return ErrorCode.NONE


def may_change(q: QuorumState, leader: Leader) -> bool:
    return leader.is_active and q.log.voters.offset < q.high_watermark


def _is_following(q: QuorumState, leader: Leader, key: ReplicaKey, steady_ms: int) -> bool:
    progress = leader.tracker.observers.get(key)
    if progress is None or progress.last_fetch_ms + q.config.fetch_timeout_ms <= steady_ms:
        return False
    return progress.end_offset >= q.high_watermark or (
        progress.last_caught_up_ms + q.config.fetch_timeout_ms > steady_ms
    )


def _change(
    q: QuorumState, voters: VoterSet, token: Token | None, respond: Respond, timeout_ms: int, steady_ms: int
) -> None:
    leader = q.role
    assert isinstance(leader, Leader)
    assert leader.change is None
    offset = leader.log_end_offset
    leader.change = PendingChange(
        offset,
        token,
        respond(ErrorCode.NONE),
        respond(ErrorCode.REQUEST_TIMED_OUT),
        steady_ms + max(timeout_ms, 0),
    )
    q.emit(AppendControl(q.epoch, offset, voters.to_record()))
    grow(q, leader, 1, steady_ms)


def poll_change(q: QuorumState, leader: Leader, steady_ms: int) -> None:
    """Time out the request of a pending change. The change itself continues."""
    change = leader.change
    if change is not None and change.token is not None and steady_ms >= change.deadline_ms:
        q.emit(Answer(change.token, change.timed_out))
        change.token = None


# -- describing ----------------------------------------------------------------------------------------------


def describe(q: QuorumState, event: DescribeQuorumRequested, steady_ms: int) -> None:
    part = DescribeQuorumResponsePartitionData(
        leader_id=messages.wire_leader(q.leader_id), leader_epoch=q.epoch, high_watermark=q.high_watermark
    )
    if isinstance(q.role, Leader):
        leader = q.role
        part.current_voters = [
            _own_state(q, leader, steady_ms) if progress.key.id == q.own.id else _state(progress)
            for progress in leader.tracker.voters.values()
        ]
        part.observers = [_state(progress) for progress in leader.tracker.observers.values()]
    else:
        part.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    topic = DescribeQuorumResponseTopicData(topic_name=METADATA_TOPIC, partitions=[part])
    q.emit(Answer(event.token, DescribeQuorumResponse(topics=[topic])))


def _own_state(q: QuorumState, leader: Leader, steady_ms: int) -> ReplicaState:
    return ReplicaState(
        replica_id=q.own.id,
        replica_directory_id=q.own.directory_id,
        log_end_offset=leader.log_end_offset,
        last_fetch_timestamp=steady_ms,
        last_caught_up_timestamp=steady_ms,
    )


def _state(progress: Progress) -> ReplicaState:
    return ReplicaState(
        replica_id=progress.key.id,
        replica_directory_id=progress.key.directory_id,
        log_end_offset=progress.end_offset,
        last_fetch_timestamp=progress.last_fetch_ms,
        last_caught_up_timestamp=progress.last_caught_up_ms,
    )
