"""The file system of a test broker: real files for `sendfile`, without waiting for the disk.

Written data stays readable after a kill, because the kernel has it, and a power failure does not happen in a test. So
syncing does nothing, and index files are sparse. `fill` makes every write fail as on a full disk. A dead node writes
nothing more. `close` closes all descriptors, as the kernel does at the end of a process. Otherwise the node's
reference cycles would keep them open, and a run of many tests would exhaust them.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Callable
from contextlib import suppress

from tidemill.log.files import DiskFile, DiskFiles


class ScratchFiles:
    """A `Files` for tests."""

    def __init__(self) -> None:
        self._disk = DiskFiles()
        self.is_full = False
        self.is_dead = False
        self._open: weakref.WeakSet[ScratchFile | mmap.mmap] = weakref.WeakSet()
        # Called when a write fails because the disk is full.
        self.on_refused: Callable[[], None] = lambda: None

    def check_writable(self) -> None:
        if self.is_dead:
            raise OSError(errno.EIO, "the node is dead")
        if self.is_full:
            self.on_refused()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> ScratchFile:
        if create and not os.path.exists(path):
            self.check_writable()
        file = ScratchFile(self, self._disk.open(path, create=create, writable=writable))
        self._open.add(file)
        return file

    def map(self, path: str, size: int) -> mmap.mmap:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            if os.fstat(fd).st_size < size:
                self.check_writable()
                os.ftruncate(fd, size)
            mapped = mmap.mmap(fd, size)
        finally:
            os.close(fd)
        self._open.add(mapped)
        return mapped

    def close(self) -> None:
        """Close every file: no code uses them any more."""
        self.is_dead = True
        for file in list(self._open):
            # A map with a view closes with that view.
            with suppress(BufferError):
                file.close()

    def exists(self, path: str) -> bool:
        return self._disk.exists(path)

    def size(self, path: str) -> int:
        return self._disk.size(path)

    def list(self, folder: str) -> list[str]:
        return self._disk.list(folder)

    def make_folder(self, path: str) -> None:
        if not os.path.isdir(path):
            self.check_writable()
        self._disk.make_folder(path)

    def rename(self, old: str, new: str) -> None:
        if not self.is_dead:
            self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        if not self.is_dead:
            self._disk.remove(path)

    def truncate(self, path: str, size: int) -> None:
        if not self.is_dead:
            self._disk.truncate(path, size)

    def sync_folder(self, path: str) -> None:
        """Does nothing: there is no power failure."""

    def read(self, path: str) -> bytes:
        return self._disk.read(path)

    def replace(self, path: str, content: bytes) -> None:
        self.check_writable()
        temporary = f"{path}.tmp"
        with open(temporary, "wb") as file:
            file.write(content)
        os.rename(temporary, path)

    def lock(self, path: str, owner: str) -> Callable[[], None]:
        return self._disk.lock(path, owner)

    def disk_bytes(self, path: str) -> tuple[int, int]:
        total, free = self._disk.disk_bytes(path)
        return total, 0 if self.is_full else free


class ScratchFile:
    """A `File` that fails when its disk is full."""

    __slots__ = ("__weakref__", "_disk", "_file", "fd")

    def __init__(self, disk: ScratchFiles, file: DiskFile) -> None:
        self._disk = disk
        self._file = file
        self.fd = file.fd

    def close(self) -> None:
        """Close the descriptor. Later calls fail instead of reaching a file that reuses the number."""
        self.fd = -1
        del self._file

    def read(self, length: int, position: int) -> bytes:
        return self._file.read(length, position)

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        self._disk.check_writable()
        self._file.write(data, position)

    def truncate(self, size: int) -> None:
        if not self._disk.is_dead:
            self._file.truncate(size)

    def sync(self) -> None:
        """Does nothing: there is no power failure."""

    def size(self) -> int:
        return self._file.size()
