"""The recovery point: the offset up to which a log is synced, stored with every sync. It separates damage from a torn tail.

There are two small files, written in turn, each with a number and a checksum. A power failure tears at most the one
that is being written, and the other has the state before. A truncation lowers the point first, on the event loop. A
sync that began in a thread before must not raise it again, so each write names the generation in which its sync began.
"""

from __future__ import annotations

import struct
from threading import Lock

from crc32c import crc32c

from tidemill.errors import StorageError
from tidemill.log.files import Files

# Sequence number, offset; a CRC-32C of both follows.
_VALUE = struct.Struct(">qq")
_CRC = struct.Struct(">I")
_BYTES = _VALUE.size + _CRC.size
_NAMES = ("recovery-point-0", "recovery-point-1")


class RecoveryPoint:
    def __init__(self, files: Files, folder: str) -> None:
        self._folder = folder
        self._lock = Lock()
        self.generation = 0
        paths = [f"{folder}/{name}" for name in _NAMES]
        for path in paths:
            if not files.exists(path):
                files.replace(path, _content(0, 0))
        self._opened = [files.open(path) for path in paths]
        self._sequence, self._offset = self._read()

    @staticmethod
    def remove(files: Files, folder: str) -> None:
        for name in _NAMES:
            files.remove(f"{folder}/{name}")

    def _read(self) -> tuple[int, int]:
        found = []
        for file in self._opened:
            content = file.read(_BYTES, 0)
            if len(content) == _BYTES:
                sequence, offset = _VALUE.unpack_from(content)
                if content == _content(sequence, offset):
                    found.append((sequence, offset))
        if not found:
            raise StorageError(
                f"{self._folder}: both recovery points are damaged; it is unknown how much of the log was synced"
            )
        return max(found)

    @property
    def offset(self) -> int:
        return self._offset

    def _write(self, offset: int) -> None:
        sequence = self._sequence + 1
        file = self._opened[sequence % 2]
        file.write(_content(sequence, offset), 0)
        file.sync()
        self._sequence, self._offset = sequence, offset

    def raise_to(self, offset: int, generation: int) -> None:
        """For a thread that has synced the log up to there. Durable when it returns."""
        with self._lock:
            if generation == self.generation and offset > self._offset:
                self._write(offset)

    def lower_to(self, offset: int) -> None:
        """Before something is cut off. Durable when it returns; syncs that are under way raise it no more."""
        with self._lock:
            self.generation += 1
            if offset < self._offset:
                # Both: should the newer one rot, the older must not claim what is gone.
                self._write(offset)
                self._write(offset)


def _content(sequence: int, offset: int) -> bytes:
    value = _VALUE.pack(sequence, offset)
    return value + _CRC.pack(crc32c(value))
