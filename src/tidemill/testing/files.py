"""The file system under a test broker: real files, since the kernel sends from them, but nobody waits for a disk.

What is written stays readable when the node is killed, because the kernel has it; a power failure, against which `sync`
is there, does not happen to a process. So syncing does nothing, and index files are holes until they are written. `fill`
makes every write fail as a full disk does. Once the node is dead, whatever is left of it writes nothing. `close` is what
the kernel does at the end of a process: a node is a ring of objects that would keep its files open until they are collected,
and a run of many tests would end for want of descriptors.
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
    """A `Files`."""

    def __init__(self) -> None:
        self._disk = DiskFiles()
        self.is_full = False
        self.is_dead = False
        self._open: weakref.WeakSet[ScratchFile | mmap.mmap] = weakref.WeakSet()
        # Called when a write was refused because the disk is full.
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
        """Nothing runs any more that could use a file."""
        self.is_dead = True
        for file in list(self._open):
            # A map of which a view is left goes with the view.
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
        """No power failure, no need."""

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
    """A `File` that knows whether its disk takes more."""

    __slots__ = ("__weakref__", "_disk", "_file", "fd")

    def __init__(self, disk: ScratchFiles, file: DiskFile) -> None:
        self._disk = disk
        self._file = file
        self.fd = file.fd

    def close(self) -> None:
        """The descriptor goes with the file; whatever comes after this fails, and does not reach a stranger's file."""
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
        """No power failure, no need."""

    def size(self) -> int:
        return self._file.size()
