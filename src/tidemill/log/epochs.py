"""Which leader epoch began at which offset: the `leader-epoch-checkpoint` of a partition.

Replicas compare these to find where their logs part; a consumer asks to learn whether its log was truncated. The
file is Kafka's: a version line, a count, and one `epoch start_offset` pair a line.

A new epoch is not written at once: every batch carries its epoch, so recovery finds again what came after the
recovery point. Whoever advances the recovery point saves `content()` first.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.files import Files


class EpochStart(NamedTuple):
    epoch: int
    start_offset: int


class LeaderEpochs:
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
        """A batch of `epoch` is about to stand at `start_offset`. Cheap when the epoch is the current one."""
        if epoch < 0 or epoch <= self.latest:
            return
        # An epoch that wrote nothing leaves no trace: its start is where the next one's is.
        self._entries = [entry for entry in self._entries if entry.start_offset < start_offset]
        self._entries.append(EpochStart(epoch, start_offset))
        self.changes += 1

    def end_offset_of(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch not above `epoch`, and where it ends; (-1, -1) when nothing is known."""
        if epoch < 0 or not self._entries or epoch > self.latest:
            return -1, -1
        if epoch == self.latest:
            return epoch, log_end_offset
        found = -1
        for entry in self._entries:
            if entry.epoch > epoch:
                # Older than every epoch in the log: nothing before its start can be shared.
                return (found, entry.start_offset) if found >= 0 else (epoch, entry.start_offset)
            found = entry.epoch
        raise AssertionError("the latest epoch was checked above")

    def epoch_of(self, offset: int) -> int:
        found = -1
        for entry in self._entries:
            if entry.start_offset > offset:
                break
            found = entry.epoch
        return found

    def truncate_from_end(self, end_offset: int) -> None:
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if kept != self._entries:
            self._entries = kept
            self.changes += 1

    def truncate_from_start(self, start_offset: int) -> None:
        """The log now begins at `start_offset`: keep the epoch that covers it, beginning there."""
        older = [entry for entry in self._entries if entry.start_offset <= start_offset]
        if len(older) > 1 or (older and older[-1].start_offset < start_offset):
            covering = EpochStart(older[-1].epoch, start_offset)
            self._entries = [covering, *(e for e in self._entries if e.start_offset > start_offset)]
            self.changes += 1

    @property
    def is_dirty(self) -> bool:
        """Whether the file says something else."""
        return self.changes != self._changes_saved

    def saved(self, changes: int) -> None:
        """The file now says what these were after so many changes."""
        self._changes_saved = changes

    def content(self) -> bytes:
        """What the file should say."""
        lines = ["0", str(len(self._entries)), *(f"{e.epoch} {e.start_offset}" for e in self._entries)]
        return "".join(f"{line}\n" for line in lines).encode()

    @property
    def path(self) -> str:
        return self._path


def _parse(path: str, content: bytes) -> list[EpochStart]:
    try:
        version, count, *lines = content.decode().split("\n")
        entries = [EpochStart(*map(int, line.split())) for line in lines if line]
        if int(version) != 0 or len(entries) != int(count):
            raise ValueError
    except (ValueError, TypeError) as error:
        raise StorageError(f"{path}: not a leader epoch checkpoint") from error
    return entries
