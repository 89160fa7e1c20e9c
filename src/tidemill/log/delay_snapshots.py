"""The `<end offset>.delays` files of a log: the state of its delayed records up to an offset.

A file spares the replay of the log when a leadership begins. It is not synced: it has a checksum, names the leader epoch
at its end, and is written to a temporary file first. What the log does not confirm is removed, and so is a file
beyond the end of a log that was cut.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from crc32c import crc32c

from tidemill.delays.snapshot import CRC_BYTES, FrozenDelays, packed_crc, pieces_of, restore
from tidemill.delays.state import PartitionDelays
from tidemill.log.files import File, Files
from tidemill.log.segments.segment import segment_name
from tidemill.protocol.steps import Steps

_SUFFIX = ".delays"
# The second one is for a crash that takes the end of the log, and with it the newest.
_KEPT = 2
_WRITE_BYTES = 1 << 20
_PIECES_A_STEP = 8
_BYTES_A_STEP = 128 * 1024


class DelaySnapshots:
    """The snapshot files in one log's folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def _path(self, offset: int) -> str:
        return f"{self._folder}/{segment_name(offset)}{_SUFFIX}"

    def _offsets(self) -> list[int]:
        ends = (
            name.removesuffix(_SUFFIX) for name in self._files.list(self._folder) if name.endswith(_SUFFIX)
        )
        return sorted(int(end) for end in ends if end.isdigit())

    def drop_after(self, end_offset: int) -> None:
        """Remove the snapshots after `end_offset`, where the log ends now."""
        for offset in self._offsets():
            if offset > end_offset:
                self._files.remove(self._path(offset))

    def write(self, frozen: FrozenDelays, last_epoch: int, is_still_true: Callable[[], bool]) -> Steps[int]:
        """Write a snapshot. Returns its size.

        `is_still_true` says at the end whether the log still has the batch before it. Raises `OSError`.
        """
        path = self._path(frozen.end_offset)
        temporary = f"{path}.tmp"
        file: File = yield partial(self._files.open, temporary, create=True)
        try:
            size = yield from _write(file, frozen, last_epoch)
            if is_still_true():
                self._files.rename(temporary, path)
                for old in self._offsets()[:-_KEPT]:
                    yield partial(self._files.remove, self._path(old))
        finally:
            # Nothing is left of it when the file was renamed.
            self._files.remove(temporary)
        return size

    def restore(
        self,
        log_start_offset: int,
        log_end_offset: int,
        high_watermark: int,
        epoch_before: Callable[[int], int],
    ) -> Steps[PartitionDelays | None]:
        """The state of the newest snapshot that the log confirms. Those that it does not confirm are removed."""
        for offset in reversed(self._offsets()):
            path = self._path(offset)
            try:
                file: File = yield partial(self._files.open, path, writable=False)
                found = yield from restore(
                    file.read, log_start_offset, log_end_offset, high_watermark, epoch_before
                )
            except OSError:
                found = None
            if found is not None:
                return found
            self._files.remove(path)
        return None


def _write(file: File, frozen: FrozenDelays, last_epoch: int) -> Steps[int]:
    yield partial(file.truncate, 0)
    crc, position, collected, in_step = 0, CRC_BYTES, bytearray(), 0
    for number, piece in enumerate(pieces_of(frozen, last_epoch), 1):
        collected += piece
        in_step += len(piece)
        if len(collected) >= _WRITE_BYTES:
            chunk, collected, in_step = bytes(collected), bytearray(), 0
            crc = yield partial(_write_chunk, file, chunk, position, crc)
            position += len(chunk)
        elif in_step >= _BYTES_A_STEP or number % _PIECES_A_STEP == 0:
            in_step = 0
            yield None
    crc = yield partial(_write_chunk, file, bytes(collected), position, crc)
    yield partial(file.write, packed_crc(crc), 0)
    return position + len(collected)


def _write_chunk(file: File, chunk: bytes, position: int, crc: int) -> int:
    file.write(chunk, position)
    return crc32c(chunk, crc)
