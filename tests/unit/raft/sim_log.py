"""A replica's disk for tests: a log of (epoch, value) with its synced part, the quorum state, a snapshot.

The list of entries always starts at offset 0, so that logs can be compared whole. `log_start_offset` is only the first
offset that the machine sees. A snapshot's bytes are the entries before its end.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias

from tidemill.protocol.api.quorum import LeaderChangeMessage, VotersRecord
from tidemill.raft.effects import ElectionState
from tidemill.raft.log import EpochEnd, SnapshotKey
from tidemill.raft.voters import ReplicaKey, Voter, VoterHistory, VotersAt, VoterSet

Entry: TypeAlias = tuple[int, str]


def replica(node_id: int) -> ReplicaKey:
    return ReplicaKey(node_id, bytes([node_id]) * 16)


def voter_set(*ids: int) -> VoterSet:
    return VoterSet(Voter(replica(voter_id)) for voter_id in ids)


def encode(entries: list[Entry]) -> bytes:
    return json.dumps(entries).encode() if entries else b""


def decode(data: bytes | bytearray | memoryview) -> list[Entry]:
    return [(epoch, value) for epoch, value in json.loads(bytes(data))]


def control_value(record: LeaderChangeMessage | VotersRecord) -> str:
    if isinstance(record, LeaderChangeMessage):
        return f"leader {record.leader_id}"
    return "voters " + ",".join(str(voter.voter_id) for voter in record.voters)


class SimLog:
    """The log as the machine sees it, with the content of the page cache."""

    def __init__(
        self, bootstrap: VoterSet, entries: list[Entry], start: int, snapshot: SnapshotKey | None
    ) -> None:
        self._bootstrap = bootstrap
        self.entries = entries
        self.log_start_offset = start
        self.latest_snapshot = snapshot
        self._rebuild_history()

    def _rebuild_history(self) -> None:
        self._history = VoterHistory(self._bootstrap)
        for offset, (_, value) in enumerate(self.entries):
            self._note(offset, value)

    def _note(self, offset: int, value: str) -> None:
        if value.startswith("voters "):
            self._history.append(
                offset, voter_set(*(int(voter) for voter in value.removeprefix("voters ").split(",")))
            )

    @property
    def log_end_offset(self) -> int:
        return len(self.entries)

    @property
    def log_start_epoch(self) -> int:
        return self.entries[self.log_start_offset - 1][0] if self.log_start_offset else 0

    @property
    def last_epoch(self) -> int:
        return self.entries[-1][0] if self.entries else 0

    @property
    def voters(self) -> VotersAt:
        return self._history.latest

    def snapshot_size(self, snapshot: SnapshotKey) -> int | None:
        if snapshot != self.latest_snapshot:
            return None
        return len(encode(self.entries[: snapshot.end_offset]))

    def end_offset_of(self, epoch: int) -> EpochEnd:
        for offset in range(len(self.entries) - 1, self.log_start_offset - 1, -1):
            if self.entries[offset][0] <= epoch:
                return EpochEnd(self.entries[offset][0], offset + 1)
        return EpochEnd(self.log_start_epoch, self.log_start_offset)

    def append(self, base_offset: int, entries: list[Entry]) -> None:
        assert base_offset == len(self.entries), f"append at {base_offset}, end is {len(self.entries)}"
        for entry in entries:
            self._note(len(self.entries), entry[1])
            self.entries.append(entry)

    def truncate(self, end_offset: int) -> None:
        assert end_offset >= self.log_start_offset
        del self.entries[end_offset:]
        self._history.truncate(end_offset)

    def install(self, snapshot: SnapshotKey, entries: list[Entry]) -> None:
        assert len(entries) == snapshot.end_offset
        self.entries, self.log_start_offset, self.latest_snapshot = entries, snapshot.end_offset, snapshot
        self._rebuild_history()

    def take_snapshot(self, end_offset: int) -> None:
        """Of the committed state; the log before it is dropped."""
        self.latest_snapshot = SnapshotKey(end_offset, self.entries[end_offset - 1][0])
        self.log_start_offset = end_offset


@dataclass
class Disk:
    """The part that survives a crash."""

    election: ElectionState = field(default_factory=ElectionState)
    entries: list[Entry] = field(default_factory=list)
    start: int = 0
    snapshot: SnapshotKey | None = None
    last_sync: int = 0
    is_incomplete: bool = False

    def lose_log(self) -> None:
        self.entries, self.start, self.snapshot, self.is_incomplete = [], 0, None, True

    def sync(self, number: int, entries: list[Entry]) -> None:
        """The log as it was when the sync began. One that began earlier and ends later changes nothing."""
        if number > self.last_sync and len(entries) >= self.start:
            self.last_sync, self.entries = number, entries

    def keep(self, log: SimLog) -> None:
        """A snapshot is durable at once, and the log's new start with it."""
        self.start, self.snapshot = log.log_start_offset, log.latest_snapshot
        if len(self.entries) < self.start or self.entries[: self.start] != log.entries[: self.start]:
            self.entries = log.entries[: self.start]

    def crash(self, log: SimLog, random: Random) -> None:
        """Crash. Any part of the unsynced entries may have reached the disk."""
        synced = len(self.entries)
        if log.entries[:synced] == self.entries:
            kept = random.randint(synced, len(log.entries))
            self.entries = log.entries[:kept]
        elif random.random() < 0.5:
            self.entries = list(log.entries)

    def open(self, bootstrap: VoterSet) -> SimLog:
        self.last_sync = 0
        return SimLog(bootstrap, list(self.entries), self.start, self.snapshot)
