"""A scan of a `.log` file from start to end, which continues after damage.

It holds only chunks, whatever the size of the file. Checksums are computed chunk by chunk, and a batch is read whole
only when its records are needed. A batch with a wrong checksum is shown with its header, and the scan continues after
its length. Bytes that cannot be a header are skipped up to the next batch with a right checksum. An unfinished write
looks like a truncated batch at the end of the file; it is reported and is no damage.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from crc32c import crc32c

from tidemill.protocol.records import HEADER_SIZE, BatchHeader, header_at, is_plausible

_CHUNK_BYTES = 1 << 20
_CRC_START = 21
_MAGIC_POSITION = 16
_MAGIC = b"\x02"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch found in the file."""

    position: int
    header: BatchHeader
    is_valid: bool


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that are not a batch. With `is_tail` they reach to the end of the file and may be a write in progress."""

    position: int
    size_bytes: int
    reason: str
    is_tail: bool = False


class Scan:
    """One pass over a file, up to the size that it had at the start."""

    def __init__(self, file: IO[bytes]) -> None:
        self._descriptor = file.fileno()
        self.size_bytes = os.fstat(self._descriptor).st_size
        self._chunk = b""
        self._chunk_start = 0

    def read(self, position: int, size: int) -> bytes:
        """Read bytes from a chunk: small batches share one read."""
        at = position - self._chunk_start
        if at < 0 or at + size > len(self._chunk):
            if size >= _CHUNK_BYTES:
                return os.pread(self._descriptor, size, position)
            self._chunk = os.pread(self._descriptor, _CHUNK_BYTES, position)
            self._chunk_start, at = position, 0
        return self._chunk[at : at + size]

    def batch(self, found: Batch) -> memoryview:
        """The whole batch, for the decoding of its records."""
        return memoryview(self.read(found.position, found.header.size))

    def __iter__(self) -> Iterator[Batch | Damage]:
        position = 0
        while position < self.size_bytes:
            found = self._at(position)
            if isinstance(found, Batch):
                if found.is_valid or self._continues(position + found.header.size):
                    yield found
                    position += found.header.size
                    continue
                found = Damage(
                    position, 0, "the checksum is wrong, and no batch follows where its length says"
                )
            following = self._next_batch(position + 1)
            end = self.size_bytes if following is None else following
            yield self._damage(found, end)
            position = end

    def _at(self, position: int) -> Batch | Damage:
        data = self.read(position, HEADER_SIZE)
        if len(data) < HEADER_SIZE:
            return Damage(position, 0, f"{len(data)} bytes are too few for a batch")
        header = header_at(data)
        if not is_plausible(header):
            reason = f"no batch has magic {header.magic}, a length of {header.batch_length} and offset {header.base_offset}"
            return Damage(position, 0, reason)
        if position + header.size > self.size_bytes:
            return Damage(
                position,
                0,
                f"the batch at offset {header.base_offset} has {header.size} bytes, of which "
                f"{self.size_bytes - position} are there",
            )
        return Batch(position, header, self._checksum(position, header.size) == header.crc)

    def _damage(self, found: Damage, end: int) -> Damage:
        size = end - found.position
        is_tail = end == self.size_bytes
        if is_tail and not self._has_content(found.position):
            return Damage(found.position, size, "zeros up to the end: space that was reserved", is_tail=True)
        return Damage(found.position, size, found.reason, is_tail=is_tail)

    def _checksum(self, position: int, size: int) -> int:
        value, at, end = 0, position + _CRC_START, position + size
        while at < end:
            chunk = self.read(at, min(_CHUNK_BYTES, end - at))
            if not chunk:
                return -1
            value = crc32c(chunk, value)
            at += len(chunk)
        return value

    def _continues(self, position: int) -> bool:
        if position == self.size_bytes:
            return True
        data = self.read(position, HEADER_SIZE)
        return len(data) == HEADER_SIZE and is_plausible(header_at(data))

    def _has_content(self, position: int) -> bool:
        while chunk := self.read(position, _CHUNK_BYTES):
            if chunk.count(0) != len(chunk):
                return True
            position += len(chunk)
        return False

    def _next_batch(self, position: int) -> int | None:
        """The position of the next batch with a right checksum. Candidates are found by their magic byte."""
        while position + HEADER_SIZE <= self.size_bytes:
            chunk = self.read(position, _CHUNK_BYTES + HEADER_SIZE)
            at = chunk.find(_MAGIC, _MAGIC_POSITION)
            while 0 <= at <= len(chunk) - HEADER_SIZE + _MAGIC_POSITION:
                candidate = at - _MAGIC_POSITION
                if is_plausible(header_at(chunk, candidate)):
                    found = self._at(position + candidate)
                    if isinstance(found, Batch) and found.is_valid:
                        return found.position
                at = chunk.find(_MAGIC, at + 1)
            position += max(1, len(chunk) - HEADER_SIZE + 1)
        return None
