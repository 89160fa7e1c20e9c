"""The metadata log as the machine sees it: its start and end, its epochs and its voters.

The driver owns the records. The log that a machine gets at its start is durable up to its end.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from tidemill.raft.voters import VotersAt


class EpochEnd(NamedTuple):
    """An epoch and its end offset."""

    epoch: int
    end_offset: int


class SnapshotKey(NamedTuple):
    """The identity of a snapshot: it holds everything below `end_offset`, and `epoch` is that of its last record."""

    end_offset: int
    epoch: int


class QuorumLog(Protocol):
    """The part of the log that the machine reads."""

    @property
    def log_start_offset(self) -> int: ...

    @property
    def log_end_offset(self) -> int: ...

    @property
    def log_start_epoch(self) -> int:
        """The epoch of the record before the log start offset (from a snapshot); 0 when the log starts at 0."""

    @property
    def last_epoch(self) -> int:
        """The epoch of the last record; `log_start_epoch` when the log is empty."""

    @property
    def latest_snapshot(self) -> SnapshotKey | None: ...

    def snapshot_size(self, snapshot: SnapshotKey) -> int | None:
        """The size of a snapshot in bytes; None when it does not exist."""

    @property
    def voters(self) -> VotersAt:
        """The latest voter set in the log, committed or not."""

    def end_offset_of(self, epoch: int) -> EpochEnd:
        """The largest epoch in the log not above `epoch`, and its end offset. When all are larger: the log's start and
        its epoch.
        """
