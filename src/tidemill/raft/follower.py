"""The follower's rules: fetch, truncate what the leader does not have, append, sync, and fetch again.

One fetch is in flight at a time. A fetch offset claims that everything below it is on disk, so a fetch is sent only
when the log is synced to its end. A response belongs to the role that sent the request; after a change of role it is
ignored.

The follower adopts the leader's high watermark as far as its log is synced. Truncation below the high watermark would
lose committed records and is treated as a bug.

A replica that knows no leader, or gets no response from it, fetches from the voters in turn. Each returns the leader
that it knows.
"""

from __future__ import annotations

from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchPartition, FetchResponse, PartitionData
from tidemill.protocol.api.quorum import (
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    FetchSnapshotResponse,
    FetchSnapshotResponsePartitionSnapshot,
)
from tidemill.raft import messages
from tidemill.raft.effects import (
    AppendFetched,
    AppendToSnapshot,
    SendBeginQuorumEpoch,
    SendFetch,
    SendFetchSnapshot,
)
from tidemill.raft.elections import adopt, claim_error
from tidemill.raft.log import EpochEnd, SnapshotKey
from tidemill.raft.roles import FetchingSnapshot, Follower
from tidemill.raft.state import QuorumState
from tidemill.raft.voters import ReplicaKey

_FAILURES_MAX = 3
# Spreads the elections of followers that lose their leader at the same moment.
_SPREAD_MS = 150

# -- hearing of a leader -------------------------------------------------------------------------------------


def answer_begin_epoch(
    q: QuorumState, request: BeginQuorumEpochRequest, steady_ms: int
) -> BeginQuorumEpochResponse:
    if request.cluster_id is not None and q.cluster_id is not None and request.cluster_id != q.cluster_id:
        return BeginQuorumEpochResponse(error_code=ErrorCode.INCONSISTENT_CLUSTER_ID)
    part = messages.begin_request_part(request)
    if part is None:
        return BeginQuorumEpochResponse(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    error = claim_error(q, part.leader_id, part.leader_epoch)
    asked = ReplicaKey(request.voter_id, part.voter_directory_id)
    if error is not ErrorCode.NONE:
        pass
    elif asked.id >= 0 and not q.own.matches(asked):
        error = ErrorCode.INVALID_VOTER_KEY
    elif part.leader_epoch == q.epoch and q.election.leader_id not in (None, part.leader_id):
        error = ErrorCode.INVALID_REQUEST
    else:
        adopt(q, part.leader_epoch, part.leader_id, steady_ms)
        if not isinstance(q.role, Follower):
            # Prospective, while its leader is alive after all.
            q.become_follower(part.leader_epoch, part.leader_id, steady_ms)
    return messages.begin_response(error, q.leader_id, q.epoch)


def begin_epoch_answered(
    q: QuorumState, sent: SendBeginQuorumEpoch, response: BeginQuorumEpochResponse, steady_ms: int
) -> None:
    part = messages.begin_response_part(response)
    if part is None or response.error_code:
        q.requests.failed(sent.to, steady_ms)
        return
    adopt(q, part.leader_epoch, messages.known_leader(part.leader_id), steady_ms)


# -- fetching ------------------------------------------------------------------------------------------------


def poll_follower(q: QuorumState, role: Follower, steady_ms: int) -> None:
    _take_high_watermark(q, role)
    if q.is_incomplete and has_all_committed(q, role):
        q.complete()
    is_overdue = steady_ms >= role.fetch_deadline_ms
    if is_overdue and q.is_voter:
        q.become_prospective(steady_ms)
        return
    role.contact = q.next_contact() if is_overdue else role.leader_id
    fetch(q, role.contact, role.snapshot, steady_ms)


def fetch(q: QuorumState, to: int | None, snapshot: FetchingSnapshot | None, steady_ms: int) -> None:
    if to is None or not q.is_synced or not q.requests.is_ready(to, steady_ms):
        return
    number = q.requests.next_number()
    if snapshot is not None:
        max_bytes = q.config.fetch_snapshot_max_bytes
        q.send(
            SendFetchSnapshot(
                number,
                to,
                messages.snapshot_request(
                    q.cluster_id, q.own, q.epoch, snapshot.key, snapshot.position, max_bytes
                ),
            ),
            steady_ms,
        )
        return
    part = FetchPartition(
        current_leader_epoch=q.epoch,
        fetch_offset=q.log.log_end_offset,
        last_fetched_epoch=q.log.last_epoch,
        log_start_offset=q.log.log_start_offset,
        partition_max_bytes=q.config.fetch_max_bytes,
        replica_directory_id=q.own.directory_id,
        high_watermark=q.high_watermark,
    )
    request = messages.fetch_request(
        q.cluster_id,
        q.own.id,
        part,
        max_wait_ms=q.config.fetch_max_wait_ms,
        max_bytes=q.config.fetch_max_bytes,
    )
    q.send(SendFetch(number, to, request), steady_ms)


def fetch_answered(q: QuorumState, sent: SendFetch, response: FetchResponse, steady_ms: int) -> None:
    asked = messages.fetch_request_part(sent.request)
    part = messages.fetch_response_part(response)
    assert asked is not None
    role = q.role
    if part is None or response.error_code:
        _fetch_failed(q, sent.to, steady_ms)
        return
    adopt(
        q, part.current_leader.leader_epoch, messages.known_leader(part.current_leader.leader_id), steady_ms
    )
    if q.role is not role:
        return
    if part.error_code or not isinstance(role, Follower) or role.leader_id != sent.to:
        _fetch_failed(q, sent.to, steady_ms)
        return
    if asked.fetch_offset != q.log.log_end_offset:
        return
    _heard_from_leader(role, steady_ms)
    if role.leader_end_at_contact < 0:
        role.leader_end_at_contact = messages.leader_end(part)
    _take(q, role, part)


def _heard_from_leader(role: Follower, steady_ms: int) -> None:
    role.has_fetched = True
    role.failures = 0
    role.fetch_deadline_ms = steady_ms + role.fetch_timeout_ms


def connection_failed(q: QuorumState, to: int, steady_ms: int) -> None:
    """A leader that refuses connections is gone: do not wait for the fetch timeout.

    If the leader is alive after all, the other voters still fetch from it and reject the pre-vote.
    """
    role = q.role
    if isinstance(role, Follower) and to == role.leader_id:
        role.failures += 1
        if role.failures == _FAILURES_MAX:
            role.has_fetched = False
            role.fetch_deadline_ms = min(role.fetch_deadline_ms, steady_ms + q.jitter(_SPREAD_MS))
    _fetch_failed(q, to, steady_ms)


def _fetch_failed(q: QuorumState, to: int, steady_ms: int) -> None:
    q.requests.failed(to, steady_ms)
    q.try_another_contact()


def _take(q: QuorumState, role: Follower, part: PartitionData) -> None:
    if part.snapshot_id.end_offset >= 0:
        role.snapshot = FetchingSnapshot(SnapshotKey(part.snapshot_id.end_offset, part.snapshot_id.epoch))
    elif part.diverging_epoch.end_offset >= 0:
        diverge(q, EpochEnd(part.diverging_epoch.epoch, part.diverging_epoch.end_offset))
    else:
        role.leader_high_watermark = max(role.leader_high_watermark, part.high_watermark)
        if part.records:
            q.emit(AppendFetched(q.log.log_end_offset, part.records))
            q.start_sync()
        else:
            _take_high_watermark(q, role)


def diverge(q: QuorumState, leaders: EpochEnd) -> None:
    """Truncate to the point where the logs diverge: the leader has `leaders.epoch` up to there and nothing that
    follows here.
    """
    own = q.log.end_offset_of(leaders.epoch)
    end_offset = min(own.end_offset, leaders.end_offset)
    if end_offset < q.log.log_end_offset:
        q.truncate(end_offset)


def _take_high_watermark(q: QuorumState, role: Follower) -> None:
    q.advance_high_watermark(min(role.leader_high_watermark, q.synced_end_offset))


def has_all_committed(q: QuorumState, role: Follower) -> bool:
    """Whether every record is on this disk that is committed, or that this replica helps to commit without knowing.

    The leader's high watermark proves the first once it has passed the first record of the leader's own epoch. Before
    that it may be older than what earlier leaders committed. A snapshot that ends in that epoch includes that record.

    For the second, a fetch that this replica sent before it lost its log may still be under way to the leader of this
    epoch. It vouches for records that the leader had by then, so all before its end at the first contact are needed.
    """
    if q.log.last_epoch != q.epoch:
        return False
    before = q.log.end_offset_of(q.epoch - 1)
    committed_from = before.end_offset + (before.epoch != q.epoch)
    needed = max(role.leader_high_watermark, role.leader_end_at_contact)
    return committed_from <= role.leader_high_watermark and needed <= q.synced_end_offset


# -- snapshots -----------------------------------------------------------------------------------------------


def snapshot_answered(
    q: QuorumState, sent: SendFetchSnapshot, response: FetchSnapshotResponse, steady_ms: int
) -> None:
    part = messages.snapshot_response_part(response)
    role = q.role
    if part is None or response.error_code:
        _fetch_failed(q, sent.to, steady_ms)
        return
    adopt(
        q, part.current_leader.leader_epoch, messages.known_leader(part.current_leader.leader_id), steady_ms
    )
    if q.role is not role or not isinstance(role, Follower):
        return
    if part.error_code:
        # The leader may have a newer snapshot: continue with a fetch.
        role.snapshot = None
        _fetch_failed(q, sent.to, steady_ms)
        return
    if role.snapshot is None or role.snapshot.position != part.position:
        return
    _heard_from_leader(role, steady_ms)
    _take_part_of_snapshot(q, role, role.snapshot, part)


def _take_part_of_snapshot(
    q: QuorumState,
    role: Follower,
    snapshot: FetchingSnapshot,
    part: FetchSnapshotResponsePartitionSnapshot,
) -> None:
    q.emit(AppendToSnapshot(snapshot.key, snapshot.position, part.unaligned_records))
    snapshot.position += len(part.unaligned_records)
    if snapshot.position >= part.size:
        role.snapshot = None
        q.install_snapshot(snapshot.key)


def snapshot_damaged(q: QuorumState, sent: SendFetchSnapshot, steady_ms: int) -> None:
    """Discard a damaged snapshot; the next fetch names the snapshot to take."""
    if isinstance(q.role, Follower):
        q.role.snapshot = None
    _fetch_failed(q, sent.to, steady_ms)
