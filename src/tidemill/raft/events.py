"""The events of the quorum's machine. Names are in the past tense.

A request from a peer has a `token`, which the effect with the response repeats. A response from a peer has the
`number` of the effect that sent the request. Messages are those of the protocol, with exactly one partition in them.
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
    """`deadline_ms` has passed. Every other event checks the timers too."""


@dataclass(frozen=True, slots=True)
class VoteRequested:
    """A peer sent a Vote request."""

    token: Token
    request: VoteRequest


@dataclass(frozen=True, slots=True)
class VoteAnswered:
    """A peer responded to a Vote request."""

    number: int
    response: VoteResponse


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochReceived:
    """A leader sent BeginQuorumEpoch."""

    token: Token
    request: BeginQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class BeginQuorumEpochAnswered:
    """A voter responded to BeginQuorumEpoch."""

    number: int
    response: BeginQuorumEpochResponse


@dataclass(frozen=True, slots=True)
class EndQuorumEpochReceived:
    """A leader that resigns sent EndQuorumEpoch."""

    token: Token
    request: EndQuorumEpochRequest


@dataclass(frozen=True, slots=True)
class EndQuorumEpochAnswered:
    """A voter responded to EndQuorumEpoch."""

    number: int
    response: EndQuorumEpochResponse


@dataclass(frozen=True, slots=True)
class FetchRequested:
    """A replica sent a Fetch request. Without a proof that it is that replica, the fetch changes nothing here."""

    token: Token
    request: FetchRequest
    is_proven: bool = True


@dataclass(frozen=True, slots=True)
class FetchAnswered:
    """A peer responded to a Fetch request. Its records are valid and start at the fetch offset; else RequestFailed is
    sent.
    """

    number: int
    response: FetchResponse


@dataclass(frozen=True, slots=True)
class FetchSnapshotRequested:
    """A replica sent a FetchSnapshot request. Without a proof that it is that replica, it changes nothing here."""

    token: Token
    request: FetchSnapshotRequest
    is_proven: bool = True


@dataclass(frozen=True, slots=True)
class FetchSnapshotAnswered:
    """The leader responded to a FetchSnapshot request."""

    number: int
    response: FetchSnapshotResponse


@dataclass(frozen=True, slots=True)
class SnapshotFoundDamaged:
    """The response would have completed the snapshot, but the fetched bytes differ from the leader's snapshot."""

    number: int


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """No response will arrive: not connected, connection lost, or the response was damaged."""

    number: int


@dataclass(frozen=True, slots=True)
class RequestAbandoned:
    """The sender of a request has disconnected: its delayed fetch needs no response."""

    token: Token


@dataclass(frozen=True, slots=True)
class AppendRequested:
    """The active controller wants to append `records` (opaque here), provided that it still leads in `epoch`."""

    token: Token
    epoch: int
    records: object
    record_count: int


@dataclass(frozen=True, slots=True)
class LogSynced:
    """The sync with this number is complete. `end_offset` was the log end offset when it started."""

    number: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class ResignRequested:
    """The node shuts down, or an operator has requested another leader."""


@dataclass(frozen=True, slots=True)
class AddVoterRequested:
    """A request to add a voter arrived."""

    token: Token
    request: AddRaftVoterRequest


@dataclass(frozen=True, slots=True)
class RemoveVoterRequested:
    """A request to remove a voter arrived."""

    token: Token
    request: RemoveRaftVoterRequest


@dataclass(frozen=True, slots=True)
class UpdateVoterRequested:
    """A request to update a voter's endpoints arrived."""

    token: Token
    request: UpdateRaftVoterRequest


@dataclass(frozen=True, slots=True)
class DescribeQuorumRequested:
    """A DescribeQuorum request arrived."""

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
