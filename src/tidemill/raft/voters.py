"""The voter set: replicas by node id and directory id, and its history in the log.

A replica is a node id *and* the id of the directory that holds its log. A node with a new disk is another replica,
because its earlier votes and offsets are void (KIP-853). A voter set from the configuration has no directory ids. Its
voters match by node id alone, and it cannot be changed while the quorum runs.

A voter set takes effect when its VotersRecord is appended, not when it is committed; truncation reverts it. The owner
of the log keeps a `VoterHistory`. The machine sees only the latest entry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.protocol.api.quorum import Endpoint, KRaftVersionFeature, VotersRecord, VotersVoter
from tidemill.protocol.schema import NO_UUID

# The offset of a voter set from the configuration: before all records.
BOOTSTRAP_OFFSET = -1
# kraft.version 0 has a fixed voter set; version 1 keeps it in the log.
KRAFT_VERSION_MAX = 1


class ReplicaKey(NamedTuple):
    """A replica: its node id and its directory id."""

    id: int
    directory_id: bytes = NO_UUID

    def matches(self, other: ReplicaKey) -> bool:
        """Whether both may be the same replica. An unknown directory id matches any."""
        if self.id != other.id:
            return False
        return NO_UUID in (self.directory_id, other.directory_id) or self.directory_id == other.directory_id


class VoterEndpoint(NamedTuple):
    """The address of a voter's listener."""

    name: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Voter:
    """A voter and its endpoints."""

    key: ReplicaKey
    endpoints: tuple[VoterEndpoint, ...] = ()


class VoterSet:
    """An immutable voter set, ordered by node id."""

    __slots__ = ("_voters",)

    def __init__(self, voters: Iterable[Voter]) -> None:
        self._voters = {voter.key.id: voter for voter in sorted(voters, key=lambda voter: voter.key)}

    def __len__(self) -> int:
        return len(self._voters)

    def __iter__(self) -> Iterator[Voter]:
        return iter(self._voters.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VoterSet) and self._voters == other._voters

    def __hash__(self) -> int:
        return hash(tuple(self._voters.values()))

    def __repr__(self) -> str:
        return f"VoterSet({self.ids})"

    @property
    def ids(self) -> list[int]:
        return list(self._voters)

    @property
    def keys(self) -> list[ReplicaKey]:
        return [voter.key for voter in self._voters.values()]

    @property
    def majority(self) -> int:
        return len(self._voters) // 2 + 1

    @property
    def is_dynamic(self) -> bool:
        """Whether every voter's directory id is known, which a change of the set requires."""
        return all(voter.key.directory_id != NO_UUID for voter in self)

    def get(self, voter_id: int) -> Voter | None:
        return self._voters.get(voter_id)

    def has(self, key: ReplicaKey) -> bool:
        voter = self._voters.get(key.id)
        return voter is not None and voter.key.matches(key)

    def is_majority(self, ids: Iterable[int]) -> bool:
        return sum(1 for voter_id in set(ids) if voter_id in self._voters) >= self.majority

    def with_voter(self, voter: Voter) -> VoterSet:
        return VoterSet([*(other for other in self if other.key.id != voter.key.id), voter])

    def without(self, voter_id: int) -> VoterSet:
        return VoterSet(voter for voter in self if voter.key.id != voter_id)

    def to_record(self) -> VotersRecord:
        return VotersRecord(
            voters=[
                VotersVoter(
                    voter_id=voter.key.id,
                    voter_directory_id=voter.key.directory_id,
                    endpoints=[Endpoint(name=e.name, host=e.host, port=e.port) for e in voter.endpoints],
                    k_raft_version_feature=KRaftVersionFeature(max_supported_version=KRAFT_VERSION_MAX),
                )
                for voter in self
            ]
        )

    @classmethod
    def from_record(cls, record: VotersRecord) -> VoterSet:
        return cls(
            Voter(
                ReplicaKey(voter.voter_id, voter.voter_directory_id),
                tuple(VoterEndpoint(e.name, e.host, e.port) for e in voter.endpoints),
            )
            for voter in record.voters
        )


class VotersAt(NamedTuple):
    """A voter set and the offset of its record."""

    offset: int
    voters: VoterSet


class VoterHistory:
    """The voter sets of a log, oldest first. The first one is the bootstrap set or the snapshot's."""

    def __init__(self, bootstrap: VoterSet) -> None:
        self._entries = [VotersAt(BOOTSTRAP_OFFSET, bootstrap)]

    @property
    def latest(self) -> VotersAt:
        return self._entries[-1]

    def append(self, offset: int, voters: VoterSet) -> None:
        if offset <= self.latest.offset:
            raise ValueError(f"voters at {offset} do not follow those at {self.latest.offset}")
        self._entries.append(VotersAt(offset, voters))

    def truncate(self, end_offset: int) -> None:
        self._entries = [entry for entry in self._entries if entry.offset < end_offset]

    def install(self, end_offset: int, voters: VoterSet) -> None:
        """Replace all sets by that of a snapshot that ends at `end_offset`."""
        self._entries = [VotersAt(end_offset - 1, voters)]

    def at(self, end_offset: int) -> VotersAt:
        """The voter set of a log that ends at `end_offset`: the one that a snapshot at that offset must hold."""
        return [entry for entry in self._entries if entry.offset < end_offset][-1]
