"""The leader epochs of a log: the `leader-epoch-checkpoint` file, which maps each epoch to its start offset.

Replicas compare their epochs to find where their logs diverge. Consumers use them to detect a truncated log. The file
is Kafka's: a version line, a count, and one `epoch start_offset` pair a line.

A new epoch is not written at once. Every batch carries its epoch, so recovery restores the epochs after the recovery
point. The caller that advances the recovery point saves `content()` first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.files import Files


class EpochStart(NamedTuple):
    """The first offset that was written in an epoch."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """The leader epoch cache of one log."""

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._path = path
        self._entries: list[EpochStart] = []
        self.changes = self._changes_saved = 0
        if files.exists(path):
            self._entries = _parse(path, files.read(path))

    @property
    def latest(self) -> int:
        return self._entries[-1].epoch if self._entries else -1

    @property
    def entries(self) -> list[EpochStart]:
        return list(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that a batch of `epoch` is appended at `start_offset`. Does nothing when the epoch is the current
        one.
        """
        if epoch < 0 or epoch <= self.latest:
            return
        # An epoch without records is dropped: it would start where its successor starts.
        self._entries = [entry for entry in self._entries if entry.start_offset < start_offset]
        self._entries.append(EpochStart(epoch, start_offset))
        self.changes += 1

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """Returns the largest known epoch not above `epoch`, and its end offset; (-1, -1) when none is known."""
        if epoch < 0 or not self._entries or epoch > self.latest:
            return -1, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        found = -1
        for entry in self._entries:
            if entry.epoch > epoch:
                # `epoch` is older than every epoch in the log, so the logs share nothing after this offset.
                return (found, entry.start_offset) if found >= 0 else (epoch, entry.start_offset)
            found = entry.epoch
        raise AssertionError("the latest epoch was checked above")

    def epoch_of(self, offset: int) -> int:
        return epoch_in(self._entries, offset)

    def truncate_from_end(self, end_offset: int) -> None:
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if kept != self._entries:
            self._entries = kept
            self.changes += 1

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now starts at `start_offset`: keep the epoch that covers it, with that offset as its start."""
        older = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if len(older) > 1 or (older and older[-1].start_offset < start_offset):
            covering = EpochStart(older[-1].epoch, start_offset)
            self._entries = [covering, *(e for e in self._entries if e.start_offset > start_offset)]
            self.changes += 1

    @property
    def is_dirty(self) -> bool:
        """Whether the entries have changed since the file was saved."""
        return self.changes != self._changes_saved

    def saved(self, changes: int) -> None:
        """Record that the file holds the entries as they were after this many changes."""
        self._changes_saved = changes

    def content(self) -> bytes:
        """The entries in the format of the file."""
        lines = ["0", str(len(self._entries)), *(f"{e.epoch} {e.start_offset}" for e in self._entries)]
        return "".join(f"{line}\n" for line in lines).encode()

    @property
    def path(self) -> str:
        return self._path


def epoch_in(entries: Iterable[EpochStart], offset: int) -> int:
    """Returns the epoch of an offset; -1 when it is not known."""
    found = -1
    for entry in entries:
        if entry.start_offset > offset:
            break
        found = entry.epoch
    return found


def _parse(path: str, content: bytes) -> list[EpochStart]:
    try:
        version, count, *lines = content.decode().split("\n")
        entries = [EpochStart(*map(int, line.split())) for line in lines if line]
        if int(version) != 0 or len(entries) != int(count):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise StorageError(f"{path}: not a leader epoch checkpoint") from error
    return entries
