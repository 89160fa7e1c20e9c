"""The log as the machine sees it: where it begins and ends, which epochs it is made of, and who votes.

Records stay with whoever drives the machine. The log given to a machine at its start is durable up to its
end.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidemill.raft.voters import VotersAt


class EpochEnd(NamedTuple):
    epoch: int
    end_offset: int


class SnapshotKey(NamedTuple):
    """A snapshot holds everything before `end_offset`; `epoch` is that of the last record in it."""

    end_offset: int
    epoch: int


class QuorumLog(Protocol):
    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def log_start_epoch(self) -> int:
        """The epoch of the record before the log's start (a snapshot's); 0 when the log starts at 0."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record, or `log_start_epoch` when there is none."""

    @property
    def latest_snapshot(self) -> SnapshotKey | None: ...

    def snapshot_size(self, snapshot: SnapshotKey) -> int | None:
        """In bytes; None when it is not there (any more)."""

    @property
    def voters(self) -> VotersAt:
        """The latest voter set in the log, committed or not."""

    def end_offset_of(self, epoch: int) -> EpochEnd:
        """The largest epoch in the log not above `epoch`, and where it ends. When all of them are above: the log's start
        and its epoch."""
