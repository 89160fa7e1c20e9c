"""The effects of the quorum's machine: what the driver carries out. Names are imperative.

The driver carries effects out in order, and all of them before it steps the next event. `PersistQuorumState` and
`InstallSnapshot` are complete when they are *durable*; only then the next effect starts. So a vote is on disk before
its response is sent. `AppendToLog`, `AppendControl`, `AppendFetched` and `TruncateLog` are complete when the log shows
them. `SyncLog` only starts a sync, and `LogSynced` reports its end. A process may die between any two effects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemill.errors import ErrorCode
from tidemill.protocol.api.data import FetchRequest, FetchResponse
from tidemill.protocol.api.quorum import (
    AddRaftVoterResponse,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumResponse,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderChangeMessage,
    RemoveRaftVoterResponse,
    UpdateRaftVoterResponse,
    VoteRequest,
    VoteResponse,
    VotersRecord,
)
from tidemill.raft.events import Token
from tidemill.raft.log import SnapshotKey
from tidemill.raft.voters import ReplicaKey

QuorumResponse: TypeAlias = (
    VoteResponse
    | BeginQuorumEpochResponse
    | EndQuorumEpochResponse
    | FetchResponse
    | FetchSnapshotResponse
    | AddRaftVoterResponse
    | RemoveRaftVoterResponse
    | UpdateRaftVoterResponse
    | DescribeQuorumResponse
)


@dataclass(frozen=True, slots=True)
class ElectionState:
    """The durable state of a replica: Kafka's `quorum-state` file."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class PersistQuorumState:
    """Write the `quorum-state` file and sync it."""

    state: ElectionState


@dataclass(frozen=True, slots=True)
class SendVote:
    """Send a Vote or pre-vote request."""

    number: int
    to: int
    request: VoteRequest


@dataclass(frozen=True, slots=True)
class SendBeginQuorumEpoch:
    """Send BeginQuorumEpoch to a voter."""

    number: int
    to: int
    request: BeginQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class SendEndQuorumEpoch:
    """Send EndQuorumEpoch to a voter."""

    number: int
    to: int
    request: EndQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class SendFetch:
    """Send a Fetch request to the leader, or to a voter that may know it."""

    number: int
    to: int
    request: FetchRequest


@dataclass(frozen=True, slots=True)
class SendFetchSnapshot:
    """Send a FetchSnapshot request to the leader."""

    number: int
    to: int
    request: FetchSnapshotRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """Send the response to a request."""

    token: Token
    response: QuorumResponse


@dataclass(frozen=True, slots=True)
class AnswerFetch:
    """Send a Fetch response with whole batches from `offset` to the log end: at most `max_bytes`, but at least one
    batch.
    """

    token: Token
    response: FetchResponse
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerFetchSnapshot:
    """Send a FetchSnapshot response with `size` and at most `max_bytes` of the snapshot from `position` on."""

    token: Token
    response: FetchSnapshotResponse
    snapshot: SnapshotKey
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class RejectAppend:
    """Reject an `AppendRequested` of an earlier epoch. An accepted one is answered by its `AppendToLog`."""

    token: Token
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class AppendToLog:
    """Append records as the leader."""

    token: Token
    epoch: int
    base_offset: int
    records: object
    record_count: int


@dataclass(frozen=True, slots=True)
class AppendControl:
    """Append one control batch with one record."""

    epoch: int
    base_offset: int
    record: LeaderChangeMessage | VotersRecord


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Append the leader's batches with their offsets and epochs."""

    base_offset: int
    records: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Truncate the log to `end_offset`."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SyncLog:
    """Start a sync of the log. One sync may serve several of these; then the newest number suffices."""

    number: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Commit everything below `offset`. The offset never exceeds what this replica has on disk."""

    offset: int


@dataclass(frozen=True, slots=True)
class AppendToSnapshot:
    """Append bytes to the snapshot that is being fetched. Position 0 starts it again."""

    snapshot: SnapshotKey
    position: int
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """Make the fetched snapshot durable, and empty the log, with start and end at the snapshot's end."""

    snapshot: SnapshotKey


@dataclass(frozen=True, slots=True)
class CompleteLog:
    """Clear the mark of an incomplete log: it holds every committed record again."""


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """This replica was elected. Its state is complete only with `ActivateLeader`; it must not decide before."""

    epoch: int
    epoch_start_offset: int


@dataclass(frozen=True, slots=True)
class ActivateLeader:
    """The first record of the leader's own epoch is committed, and all records before it. The leader may serve."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ResignLeadership:
    """This replica no longer leads the epoch. Uncommitted records may be lost."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """Follow the leader as known now; None when no leader is known."""

    epoch: int
    leader_id: int | None


Effect: TypeAlias = (
    PersistQuorumState
    | SendVote
    | SendBeginQuorumEpoch
    | SendEndQuorumEpoch
    | SendFetch
    | SendFetchSnapshot
    | Answer
    | AnswerFetch
    | AnswerFetchSnapshot
    | RejectAppend
    | AppendToLog
    | AppendControl
    | AppendFetched
    | TruncateLog
    | SyncLog
    | AdvanceHighWatermark
    | AppendToSnapshot
    | InstallSnapshot
    | CompleteLog
    | BecomeLeader
    | ActivateLeader
    | ResignLeadership
    | FollowLeader
)
