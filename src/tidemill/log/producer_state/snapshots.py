"""The `<offset>.snapshot` files of a log: what it knew of its producers at an offset.

They spare the replay of old segments and nothing else: one that is damaged, or that belongs to another course of events, is
removed and the log replayed instead. Hence they are not synced.
"""

from __future__ import annotations

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.producer_state.producers import Producers
from tidemill.log.segments.segment import segment_name

_KEPT = 2


class ProducerSnapshots:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def _path(self, offset: int) -> str:
        return f"{self._folder}/{segment_name(offset)}.snapshot"

    def _offsets(self) -> list[int]:
        names = self._files.list(self._folder)
        return sorted(int(n[:-9]) for n in names if n.endswith(".snapshot") and n[:-9].isdigit())

    def write(self, offset: int, producers: Producers, recovery_point: int) -> None:
        """Of everything before `offset`. Of those that a recovery can use, the newest are kept."""
        file = self._files.open(self._path(offset), create=True)
        content = producers.snapshot()
        file.truncate(0)
        file.write(content, 0)
        usable = [offset for offset in self._offsets() if offset <= recovery_point]
        for old in usable[:-_KEPT]:
            self._files.remove(self._path(old))

    def drop_after(self, end_offset: int) -> None:
        """The log was cut there: what it knew further on is of another course of events."""
        for offset in self._offsets():
            if offset > end_offset:
                self._files.remove(self._path(offset))

    def restore(
        self, producers: Producers, start_offset: int, end_offset: int, newest: int | None = None
    ) -> int:
        """Load the newest that fits a log from `start_offset` to `end_offset`; the offset to replay from.

        None above `newest` is used, or kept: who replays wants to see the batches from there on, and what he finds stands.
        A producer that is gone with its batches must not come back with an older snapshot at the restart after.
        """
        producers.clear()
        for offset in reversed(self._offsets()):
            # Of another course of events, or followed by batches that are gone: both would block a producer.
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
        return start_offset
