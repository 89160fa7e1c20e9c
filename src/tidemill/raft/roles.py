"""What a replica can be, and what it remembers only while it is that.

    from          to            when
    Unattached    Prospective   the election timeout is over
    Follower      Prospective   the fetch timeout is over
    Prospective   Candidate     a majority would vote for it
                  Follower      lost or timed out, and a leader was known
                  Unattached    lost or timed out, and none was known
    Candidate     Leader        a majority voted for it
                  Prospective   lost or timed out
    Leader        Resigned      asked to, or a majority is silent, or it was removed from the voters
    Resigned      Prospective   the election timeout is over

A larger epoch makes anybody Unattached, or Follower when its leader is known. A replica that is not a voter
(an observer) is only ever Unattached or Follower, and Resigned if it led until it was removed. A
Prospective (KIP-996) asks whether it *would* be elected before it disturbs anybody with a new epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from tidemill.protocol.api.data import FetchPartition
from tidemill.raft.effects import QuorumResponse
from tidemill.raft.events import Token
from tidemill.raft.log import SnapshotKey
from tidemill.raft.tracker import Tracker
from tidemill.raft.voters import ReplicaKey


@dataclass(slots=True)
class Unattached:
    """Knows an epoch but no leader; may have voted in it."""

    election_deadline_ms: int


@dataclass(slots=True)
class Prospective:
    election_deadline_ms: int
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Candidate:
    election_deadline_ms: int
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    has_lost: bool = False


@dataclass(slots=True)
class ParkedFetch:
    """A fetch that found nothing new. One per replica."""

    token: Token
    part: FetchPartition
    max_bytes: int
    deadline_ms: int


@dataclass(slots=True)
class PendingChange:
    """A VotersRecord that is appended but not committed, and who waits for it."""

    offset: int
    token: Token | None
    response: QuorumResponse
    timed_out: QuorumResponse
    deadline_ms: int


@dataclass(slots=True)
class Leader:
    # Where its leader change record stands: the first of its epoch.
    epoch_start_offset: int
    # Includes what this very step appends, which the log does not show yet.
    log_end_offset: int
    tracker: Tracker
    begin_epoch_deadline_ms: int
    # Of the voter set that the tracker knows.
    voters_offset: int
    is_active: bool = False
    parked: dict[ReplicaKey, ParkedFetch] = field(default_factory=dict)
    change: PendingChange | None = None


@dataclass(slots=True)
class FetchingSnapshot:
    key: SnapshotKey
    position: int = 0


@dataclass(slots=True)
class Follower:
    leader_id: int
    fetch_timeout_ms: int
    fetch_deadline_ms: int
    # Whoever has heard from its leader does not help to replace it.
    has_fetched: bool = False
    # Whom it fetches from: an observer that hears nothing from its leader asks others.
    contact: int | None = None
    leader_high_watermark: int = -1
    # Fetches in a row for which there was not even a connection.
    failures: int = 0
    snapshot: FetchingSnapshot | None = None


@dataclass(slots=True)
class Resigned:
    """Led this epoch, and does not any more. Tells the voters until they know."""

    election_deadline_ms: int
    successors: list[ReplicaKey]
    unacknowledged: set[int]


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Follower | Resigned
