"""The roles of a replica, and the state of each role.

    from          to            when
    Unattached    Prospective   the election timeout is over
    Follower      Prospective   the fetch timeout is over
    Prospective   Candidate     a majority would vote for it
                  Follower      lost or timed out, and a leader was known
                  Unattached    lost or timed out, and none was known
    Candidate     Leader        a majority voted for it
                  Prospective   lost or timed out
    Leader        Resigned      requested, no fetches from a majority, or removed from the voters
    Resigned      Prospective   the election timeout is over

A larger epoch makes every role Unattached, or Follower when its leader is known. An observer, which is not a voter, is
Unattached or Follower, and Resigned if it led until its removal. A Prospective replica (KIP-996) collects pre-votes before
it starts a new epoch.
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
    """An epoch without a known leader; the replica may have voted in it."""

    election_deadline_ms: int


@dataclass(slots=True)
class Prospective:
    """A candidate in the pre-vote phase (KIP-996)."""

    election_deadline_ms: int
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Candidate:
    """A candidate that has voted for itself."""

    election_deadline_ms: int
    granted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    has_lost: bool = False


@dataclass(slots=True)
class DelayedFetch:
    """A delayed fetch: it found no new records. Each known replica has at most one."""

    token: Token
    part: FetchPartition
    max_bytes: int
    deadline_ms: int


@dataclass(slots=True)
class PendingChange:
    """A VotersRecord that is appended but not committed, and the request that waits for it."""

    offset: int
    token: Token | None
    response: QuorumResponse
    timed_out: QuorumResponse
    deadline_ms: int


@dataclass(slots=True)
class Leader:
    """The state of a leader."""

    # The offset of the leader change record, the first of the epoch.
    epoch_start_offset: int
    # Includes the records that this step appends and the log does not show yet.
    log_end_offset: int
    tracker: Tracker
    begin_epoch_deadline_ms: int
    # The offset of the voter set that the tracker uses.
    voters_offset: int
    is_active: bool = False
    # By the replica, or by the token where it is not known which replica fetches.
    delayed_fetches: dict[ReplicaKey | Token, DelayedFetch] = field(default_factory=dict)
    change: PendingChange | None = None


@dataclass(slots=True)
class FetchingSnapshot:
    """The progress of a snapshot that is being fetched."""

    key: SnapshotKey
    position: int = 0


@dataclass(slots=True)
class Follower:
    """The state of a follower."""

    leader_id: int
    fetch_timeout_ms: int
    fetch_deadline_ms: int
    # A replica that has fetched from its leader rejects pre-votes.
    has_fetched: bool = False
    # The node to fetch from. An observer without responses from its leader tries other nodes.
    contact: int | None = None
    leader_high_watermark: int = -1
    # Where the leader's log ended when it first responded; -1 before that.
    leader_end_at_contact: int = -1
    # The number of fetches in a row that failed to connect.
    failures: int = 0
    snapshot: FetchingSnapshot | None = None


@dataclass(slots=True)
class Resigned:
    """A former leader of this epoch. It sends EndQuorumEpoch until every voter has responded."""

    election_deadline_ms: int
    successors: list[ReplicaKey]
    unacknowledged: set[int]


Role: TypeAlias = Unattached | Prospective | Candidate | Leader | Follower | Resigned
