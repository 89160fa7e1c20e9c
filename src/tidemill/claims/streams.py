"""Payloads that are published piece by piece: files, and iterators of bytes.

The key of an object is the hash of its content, so a payload is read twice: for its hash, and into the store. A file that
can be rewound is read where it is. Anything else is copied to a temporary file first. Memory holds a chunk at a time.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Protocol, TypeGuard

from tidemill.claims.errors import PayloadUnreadable
from tidemill.objects.store import CHUNK_BYTES


class Readable(Protocol):
    """A binary file, or what reads like one: no bytes are its end."""

    def read(self, size: int, /) -> bytes: ...


Stream = Readable | Iterator[bytes]


def is_stream(value: object) -> TypeGuard[Stream]:
    return _is_readable(value) or isinstance(value, Iterator)


class Rewindable:
    """A payload whose size and hash are known, and that can be read again."""

    def __init__(self, file: IO[bytes], doing: str) -> None:
        self._file = file
        self._doing = doing
        self._start = file.tell()
        # Why it could not be read again. A store may have hidden it behind a failure of its own.
        self.failure: PayloadUnreadable | None = None
        digest = hashlib.sha256()
        self.size = 0
        for chunk in _pieces(file, doing):
            digest.update(chunk)
            self.size += len(chunk)
        self.sha256 = digest.hexdigest()

    def chunks(self) -> Iterator[bytes]:
        """The payload once more. `PayloadUnreadable` before its end when it is another one by now."""
        digest = hashlib.sha256()
        self._file.seek(self._start)
        try:
            for chunk in _pieces(self._file, self._doing):
                digest.update(chunk)
                yield chunk
            if digest.hexdigest() != self.sha256:
                raise _unreadable(self._doing, "it changed while it was read")
        except PayloadUnreadable as failure:
            self.failure = failure
            raise


@contextmanager
def rewindable(stream: Stream, doing: str) -> Iterator[Rewindable]:
    """`PayloadUnreadable` when the stream fails, or gives anything but bytes. `doing` begins its message."""
    if _can_rewind(stream):
        yield Rewindable(stream, doing)
        return
    with tempfile.TemporaryFile() as copy:
        for chunk in _pieces(stream, doing):
            copy.write(chunk)
        copy.seek(0)
        yield Rewindable(copy, doing)


def _is_readable(value: object) -> TypeGuard[Readable]:
    return callable(getattr(value, "read", None))


def _can_rewind(stream: Stream) -> TypeGuard[IO[bytes]]:
    seekable = getattr(stream, "seekable", None)
    return callable(seekable) and bool(seekable())


def _pieces(stream: Any, doing: str) -> Iterator[bytes]:
    while True:
        try:
            chunk = stream.read(CHUNK_BYTES) if _is_readable(stream) else next(stream, None)
        except Exception as error:
            raise _unreadable(doing, repr(error)) from error
        if chunk is None or (not chunk and _is_readable(stream)):
            return
        if not isinstance(chunk, bytes):
            raise _unreadable(doing, f"it consists of {type(chunk).__name__}, not of bytes")
        yield chunk


def _unreadable(doing: str, reason: str) -> PayloadUnreadable:
    return PayloadUnreadable(f"{doing}: the payload cannot be read, and no record was sent: {reason}")
