"""What the quorum's machine wants done. Imperative.

The contract of whoever drives it: effects are carried out in their order, and all of them before the next
event is stepped. `PersistQuorumState` and `InstallSnapshot` are done when they are *durable*, and only then
the next effect begins: that is why a vote is never answered before it is on disk. `AppendToLog`,
`AppendControl`, `AppendFetched` and `TruncateLog` are done when the log shows them. `SyncLog` only starts a
sync, whose end is told with `LogSynced`. A process may die between any two effects.
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
    """What a replica must never forget: Kafka's `quorum-state` file."""

    epoch: int = 0
    leader_id: int | None = None
    voted: ReplicaKey | None = None


@dataclass(frozen=True, slots=True)
class PersistQuorumState:
    state: ElectionState


@dataclass(frozen=True, slots=True)
class SendVote:
    number: int
    to: int
    request: VoteRequest


@dataclass(frozen=True, slots=True)
class SendBeginQuorumEpoch:
    number: int
    to: int
    request: BeginQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class SendEndQuorumEpoch:
    number: int
    to: int
    request: EndQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class SendFetch:
    number: int
    to: int
    request: FetchRequest


@dataclass(frozen=True, slots=True)
class SendFetchSnapshot:
    number: int
    to: int
    request: FetchSnapshotRequest


@dataclass(frozen=True, slots=True)
class Answer:
    token: Token
    response: QuorumResponse


@dataclass(frozen=True, slots=True)
class AnswerFetch:
    """Fill in whole batches from `offset` to the log's end, at most `max_bytes` but at least one, then answer."""

    token: Token
    response: FetchResponse
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class AnswerFetchSnapshot:
    """Fill in `size` and at most `max_bytes` of the snapshot from `position` on, then answer."""

    token: Token
    response: FetchSnapshotResponse
    snapshot: SnapshotKey
    position: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class RejectAppend:
    """The answer to an `AppendRequested` that was too late. An accepted one is answered by its `AppendToLog`."""

    token: Token
    error: ErrorCode


@dataclass(frozen=True, slots=True)
class AppendToLog:
    token: Token
    epoch: int
    base_offset: int
    records: object
    record_count: int


@dataclass(frozen=True, slots=True)
class AppendControl:
    """One control batch with one record."""

    epoch: int
    base_offset: int
    record: LeaderChangeMessage | VotersRecord


@dataclass(frozen=True, slots=True)
class AppendFetched:
    """Batches as the leader sent them: offsets and epochs stay."""

    base_offset: int
    records: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """`end_offset` is the new end."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class SyncLog:
    """Several at once may be served by one sync; the newest number then suffices."""

    number: int


@dataclass(frozen=True, slots=True)
class AdvanceHighWatermark:
    """Everything before `offset` is committed. Never beyond what this replica has on disk."""

    offset: int


@dataclass(frozen=True, slots=True)
class AppendToSnapshot:
    """Bytes of a snapshot that is being fetched; position 0 starts it anew."""

    snapshot: SnapshotKey
    position: int
    data: bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class InstallSnapshot:
    """The fetched snapshot is whole: make it durable, and the log empty with start and end at the snapshot's end."""

    snapshot: SnapshotKey


@dataclass(frozen=True, slots=True)
class CompleteLog:
    """The log, once found incomplete, holds everything committed again: forget that it did not."""


@dataclass(frozen=True, slots=True)
class BecomeLeader:
    """Elected. Nothing may be decided yet: the state is complete only with `ActivateLeader`."""

    epoch: int
    epoch_start_offset: int


@dataclass(frozen=True, slots=True)
class ActivateLeader:
    """The first record of the leader's own epoch is committed, and with it all that came before: now it may serve."""

    epoch: int


@dataclass(frozen=True, slots=True)
class ResignLeadership:
    """No longer leader of this epoch; whatever is not committed yet may be lost."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """The leader as known now; None when nobody is known to lead."""

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
