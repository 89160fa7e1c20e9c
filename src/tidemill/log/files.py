"""The seam to the file system: the only module that opens files.

Everything under `log/` reaches the disk through `Files`. A simulated disk in its place can lose unsynced data, tear a
write, fill up or flip a bit. `DiskFiles` is the real one.

A `File` closes with its last reference. A response that is still being sent keeps its segment's file readable,
although retention has deleted the segment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
from collections.abc import Callable
from typing import NamedTuple, Protocol

# Readable by owner and group only: records may be confidential.
FOLDER_MODE = 0o750


class File(Protocol):
    """One open file. Every call names its position; there is no cursor."""

    @property
    def fd(self) -> int:
        """The file descriptor for `sendfile`; negative when the file has none."""

    def read(self, length: int, position: int) -> bytes: ...
    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        """Write all bytes or raise `OSError`. After an error the bytes at `position` are undefined."""

    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def size(self) -> int: ...


class Mapping(Protocol):
    """A writable memory map of a whole file. It supports the buffer protocol."""

    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...


class Files(Protocol):
    """The file system as the log sees it."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> File: ...
    def map(self, path: str, size: int) -> Mapping:
        """Map a file. It is created or extended to `size` bytes first."""

    def exists(self, path: str) -> bool: ...
    def size(self, path: str) -> int: ...
    def list(self, folder: str) -> list[str]: ...
    def make_folder(self, path: str) -> None: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, path: str) -> None:
        """Remove a file, or a folder with its content. A missing path is not an error."""

    def truncate(self, path: str, size: int) -> None: ...
    def sync_folder(self, path: str) -> None: ...
    def read(self, path: str) -> bytes: ...
    def replace(self, path: str, content: bytes) -> None:
        """Write a small file atomically: after a crash it has either the old or the new content."""

    def lock(self, path: str, owner: str) -> Callable[[], None]:
        """Take an exclusive lock for the life of this process. Raises `FolderInUse` when another process holds it."""

    def disk_bytes(self, path: str) -> tuple[int, int]:
        """Returns the total and the free bytes of the disk that holds a path."""


class FolderInUse(OSError):
    """Another process holds the lock. `owner` is the text that it wrote into the lock file."""

    def __init__(self, path: str, owner: str) -> None:
        super().__init__(errno.EWOULDBLOCK, f"{path} is locked by {owner}")
        self.owner = owner


class FileSlice(NamedTuple):
    """A range of bytes in a file. `sendfile` copies it to a socket without a detour through this process."""

    file: File
    position: int
    length: int

    def read(self) -> bytes:
        return self.file.read(self.length, self.position)


class DiskFile:
    """A file of the real file system."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)

    def read(self, length: int, position: int) -> bytes:
        return os.pread(self.fd, length, position)

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        written = os.pwrite(self.fd, data, position)
        if written == len(data):
            return
        view = memoryview(data)
        while written < len(view):
            # A short write means a nearly full disk. The next call raises with the errno.
            written += os.pwrite(self.fd, view[written:], position + written)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def sync(self) -> None:
        _fdatasync(self.fd)

    def size(self) -> int:
        return os.fstat(self.fd).st_size


# macOS has no fdatasync.
_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class DiskFiles:
    """The real file system."""

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> DiskFile:
        flags = (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC
        return DiskFile(os.open(path, flags | (os.O_CREAT if create else 0), 0o644))

    def map(self, path: str, size: int) -> mmap.mmap:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size < size:
                # Reserve the blocks: writing to a hole of a map on a full disk is a SIGBUS, not an error.
                _reserve(fd, size)
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    def make_folder(self, path: str) -> None:
        os.makedirs(path, mode=FOLDER_MODE, exist_ok=True)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.isdir(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)

    def truncate(self, path: str, size: int) -> None:
        os.truncate(path, size)

    def sync_folder(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def replace(self, path: str, content: bytes) -> None:
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
        self.sync_folder(os.path.dirname(path))

    def lock(self, path: str, owner: str) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "an unknown process"
            os.close(fd)
            raise FolderInUse(path, holder) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, owner.encode(), 0)
        return lambda: os.close(fd)

    def disk_bytes(self, path: str) -> tuple[int, int]:
        usage = shutil.disk_usage(path)
        return usage.total, usage.free


def _reserve(fd: int, size: int) -> None:
    try:
        os.posix_fallocate(fd, 0, size)
    except AttributeError:  # macOS lacks it
        os.ftruncate(fd, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(fd, size)
