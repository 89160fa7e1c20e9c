"""What the quorum's machine is told. Past tense: it has happened.

A request from a peer comes with a `token`, which the answering effect names. An answer from a peer comes
with the `number` of the effect that asked. Messages are the protocol's own, with exactly the quorum's one
partition in them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidemill.protocol.api.data import FetchRequest, FetchResponse
from tidemill.protocol.api.quorum import (
    AddRaftVoterRequest,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    DescribeQuorumRequest,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    RemoveRaftVoterRequest,
    UpdateRaftVoterRequest,
    VoteRequest,
    VoteResponse,
)

Token: TypeAlias = object


@dataclass(frozen=True, slots=True)
class TimerExpired:
    """`deadline_ms` has come. Every other event looks at the timers too."""


@dataclass(frozen=True, slots=True)
class VoteRequested:
    token: Token
    request: VoteRequest


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    number: int
    response: VoteResponse


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochReceived:
    token: Token
    request: BeginQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochAnswered:
    number: int
    response: BeginQuorumEpochResponse


@dataclass(frozen=True, slots=True)
class EndQuorumEpochReceived:
    token: Token
    request: EndQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class EndQuorumEpochAnswered:
    number: int
    response: EndQuorumEpochResponse


@dataclass(frozen=True, slots=True)
class FetchRequested:
    token: Token
    request: FetchRequest


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """Its records, if any, were found whole and to begin at the fetch offset; otherwise it is a RequestFailed."""

    number: int
    response: FetchResponse


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequested:
    token: Token
    request: FetchSnapshotRequest


@dataclass(frozen=True, slots=True)
class FetchSnapshotAnswered:
    number: int
    response: FetchSnapshotResponse


@dataclass(frozen=True, slots=True)
class SnapshotFoundDamaged:
    """The answer would have made the snapshot whole, but what was fetched of it is not what the leader has."""

    number: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No answer will come: not connected, connection lost, or the answer was damaged."""

    number: int


@dataclass(frozen=True, slots=True)
class RequestAbandoned:
    """Whoever asked is gone: a parked fetch of that connection need not be answered."""

    token: Token


@dataclass(frozen=True, slots=True)
class AppendRequested:
    """The active controller wants `records` (opaque here) in the log, provided that it still leads in `epoch`."""

    token: Token
    epoch: int
    records: object
    record_count: int


@dataclass(frozen=True, slots=True)
class LogSynced:
    """The sync with this number is done; `end_offset` was the log's end when it began."""

    number: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """The node shuts down, or an operator wants another leader."""


@dataclass(frozen=True, slots=True)
class AddVoterRequested:
    token: Token
    request: AddRaftVoterRequest


@dataclass(frozen=True, slots=True)
class RemoveVoterRequested:
    token: Token
    request: RemoveRaftVoterRequest


@dataclass(frozen=True, slots=True)
class UpdateVoterRequested:
    token: Token
    request: UpdateRaftVoterRequest


@dataclass(frozen=True, slots=True)
class DescribeQuorumRequested:
    token: Token
    request: DescribeQuorumRequest


PeerRequest: TypeAlias = (
    VoteRequested
    | BeginQuorumEpochReceived
    | EndQuorumEpochReceived
    | FetchRequested
    | FetchSnapshotRequested
    | AddVoterRequested
    | RemoveVoterRequested
    | UpdateVoterRequested
    | DescribeQuorumRequested
)
PeerAnswer: TypeAlias = (
    VoteAnswered
    | BeginQuorumEpochAnswered
    | EndQuorumEpochAnswered
    | FetchAnswered
    | FetchSnapshotAnswered
    | SnapshotFoundDamaged
    | RequestFailed
)
Event: TypeAlias = (
    PeerRequest | PeerAnswer | TimerExpired | RequestAbandoned | AppendRequested | LogSynced | ResignRequested
)
