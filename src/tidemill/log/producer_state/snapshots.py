"""The `<offset>.snapshot` files of a log: its producer state at an offset.

Snapshots only shorten the replay at startup. A damaged one, or one of a diverged log, is removed and the log is
replayed instead, so snapshots are not synced.
"""

from __future__ import annotations

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.producer_state.producers import Producers
from tidemill.log.segments.segment import segment_name

_KEPT = 2


class ProducerSnapshots:
    """The snapshot files in one log's folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def _path(self, offset: int) -> str:
        return f"{self._folder}/{segment_name(offset)}.snapshot"

    def _offsets(self) -> list[int]:
        names = self._files.list(self._folder)
        return sorted(int(n[:-9]) for n in names if n.endswith(".snapshot") and n[:-9].isdigit())

    def write(self, offset: int, producers: Producers, recovery_point: int) -> None:
        """Write the state before `offset`. Of the snapshots at or below the recovery point only the newest are kept."""
        file = self._files.open(self._path(offset), create=True)
        content = producers.snapshot()
        file.truncate(0)
        file.write(content, 0)
        usable = [offset for offset in self._offsets() if offset <= recovery_point]
        for old in usable[:-_KEPT]:
            self._files.remove(self._path(old))

    def drop_after(self, end_offset: int) -> None:
        """Remove the snapshots after `end_offset`: the log was truncated there."""
        for offset in self._offsets():
            if offset > end_offset:
                self._files.remove(self._path(offset))

    def restore(
        self, producers: Producers, start_offset: int, end_offset: int, newest: int | None = None
    ) -> int:
        """Load the newest snapshot between `start_offset` and `end_offset`. Returns the offset from which to replay.

        Snapshots above `newest` are removed: the caller replays the batches from there on, and their result replaces
        them. Otherwise a later restart could restore a producer whose batches are gone.
        """
        producers.clear()
        for offset in reversed(self._offsets()):
            # A snapshot of a diverged log, or one followed by removed batches, would block a producer.
            is_foreign = not start_offset <= offset <= end_offset
            if is_foreign or (newest is not None and offset > newest):
                self._files.remove(self._path(offset))
                continue
            try:
                producers.restore(self._files.read(self._path(offset)))
            except StorageError:
                self._files.remove(self._path(offset))
                continue
            return offset
        # A log that begins later, and has no snapshot from before, was copied from one whose first records were deleted.
        producers.is_complete = start_offset == 0
        return start_offset
