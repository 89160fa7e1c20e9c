"""A simulated disk that loses, tears and runs out of space as real disks do, reproducibly by seed.

`SimulatedDisk` implements `Files` of `log/files.py`. It keeps two states of everything: what a process sees, and what
is durable. The rules are those of a journaling file system at its weakest:

- A file's bytes and size are durable after `sync` (a map's after `flush`). Until then a power failure keeps them, loses
  them, tears them at any byte (with or without zeros behind), or mixes old and new pages.
- A folder's entries (creations, renames, removals) are durable after `sync_folder`. Until then a power failure keeps the
  first few of them, in order; the order between folders, and between entries and content, is not kept.
- `replace` is atomic and durable, as its contract says.

There are three ways to stop. `crash` is a power failure and `kill` the death of the process, after which the kernel
keeps all writes. Both return a new disk, and the old one is dead. `stop_at` stops the process at an exact step: before
it, or in the middle of a write. `every_cut_point` uses it to stop a scenario at every step.

It has three faults. `free_bytes` limits the disk: a write that does not fit is cut short and then fails with ENOSPC.
`fail` makes operations on matching paths raise, and `flip_bit` damages stored bytes. `on_step` is called before every
step.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from random import Random
from typing import Generic, Literal, NamedTuple, TypeVar

from tidemill.log.files import FolderInUse
from tidemill.sim.platform.disk_nodes import FileNode, FolderNode, Keep, SimulatedMapping

Operation = Literal[
    "create",
    "write",
    "truncate",
    "sync",
    "map",
    "flush",
    "rename",
    "remove",
    "make_folder",
    "sync_folder",
    "replace",
    "read",
]
_UNLIMITED = 1 << 62


class Stopped(BaseException):
    """The process died here. Not an `Exception`, so that no handler of the code under test catches it."""


class Step(NamedTuple):
    """One change of the disk by a process; reads are not steps."""

    operation: Operation
    path: str
    length: int = 0


@dataclass(slots=True)
class Fault:
    """An injected error."""

    operations: frozenset[str]
    pattern: str
    error: int
    times: int


class SimulatedFile:
    """An open file. It lives as long as its node, so unlinked files stay readable."""

    __slots__ = ("_disk", "_node", "_path", "_writable")
    fd = -1

    def __init__(self, disk: SimulatedDisk, node: FileNode, path: str, writable: bool) -> None:
        self._disk = disk
        self._node = node
        self._path = path
        self._writable = writable

    def read(self, length: int, position: int) -> bytes:
        self._disk.check("read", self._path)
        return bytes(self._node.content[position : position + length])

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        if not self._writable:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        self._disk.write(self._node, self._path, bytes(data), position)

    def truncate(self, size: int) -> None:
        self._disk.truncate_node(self._node, self._path, size)

    def sync(self) -> None:
        self._disk.step(Step("sync", self._path))
        self._node.sync()

    def size(self) -> int:
        return len(self._node.content)


class SimulatedDisk:
    """The disk of one machine."""

    def __init__(self, *, page_bytes: int = 4096) -> None:
        self.page_bytes = page_bytes
        # How many bytes may still be added; settable at any time.
        self.free_bytes = _UNLIMITED
        self.trace: list[Step] = []
        # Called before each step.
        self.on_step: Callable[[Step], None] | None = None
        self._root = FolderNode()
        self._locks: dict[str, str] = {}
        self._faults: list[Fault] = []
        self._stop: tuple[int, int] | None = None
        self._is_dead = False

    # -- the end of a process --------------------------------------------------------------------------------

    def crash(self, rng: Random, *, keep: Keep = "some") -> SimulatedDisk:
        """The disk as it may be found after a power failure.

        `keep` decides about everything that was not synced: `nothing` and `everything` are the extremes, and with
        `some` the random source decides for each file and folder.
        """
        return self._successor(self._root.after_crash(rng, keep, self.page_bytes))

    def kill(self) -> SimulatedDisk:
        """The disk after `kill -9`: all writes stay, and what was not durable still is not."""
        return self._successor(self._root.copy({}))

    def _successor(self, root: FolderNode) -> SimulatedDisk:
        self._is_dead = True
        disk = SimulatedDisk(page_bytes=self.page_bytes)
        disk._root = root
        disk.free_bytes = self.free_bytes
        return disk

    def stop_at(self, step_number: int, *, bytes_written: int = 0) -> None:
        """Die before that step of the trace or, if it is a write, after its first bytes."""
        self._stop = (step_number, bytes_written)

    # -- faults ----------------------------------------------------------------------------------------------

    def fail(
        self, *operations: Operation, pattern: str = "*", error: int = errno.EIO, times: int = -1
    ) -> None:
        """Make operations on matching paths raise, from now on or so many times."""
        self._faults.append(Fault(frozenset(operations), pattern, error, times))

    def heal(self) -> None:
        self._faults.clear()
        self.free_bytes = _UNLIMITED

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        self._file(path).flip_bit(position, bit)

    def check(self, operation: Operation, path: str) -> None:
        """Raise the error of an injected fault."""
        if self._is_dead:
            raise Stopped(f"{operation} {path}: this process is dead")
        for fault in self._faults:
            if fault.times and operation in fault.operations and fnmatchcase(path, fault.pattern):
                fault.times -= 1
                raise OSError(fault.error, os.strerror(fault.error), path)

    def step(self, step: Step) -> int | None:
        """Count a step. Returns the number of bytes to write before dying, when the process dies at this step."""
        self.check(step.operation, step.path)
        if self.on_step is not None:
            self.on_step(step)
        number = len(self.trace)
        self.trace.append(step)
        if self._stop is not None and self._stop[0] == number:
            if self._stop[1] and step.operation == "write":
                return self._stop[1]
            self.die()
        return None

    def die(self) -> None:
        self._is_dead = True
        raise Stopped

    # -- files -----------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False, writable: bool = True) -> SimulatedFile:
        folder, name = self._parent(path)
        node = folder.entries.get(name)
        if node is None and create:
            self.step(Step("create", path))
            self._take_space(path, 0)
            node = FileNode()
            folder.link(name, node)
        if not isinstance(node, FileNode):
            raise _missing(path) if node is None else IsADirectoryError(errno.EISDIR, "is a folder", path)
        return SimulatedFile(self, node, path, writable)

    def map(self, path: str, size: int) -> SimulatedMapping:
        self.open(path, create=True)
        node = self._file(path)
        if len(node.content) < size:
            self.step(Step("map", path, size))
            added = size - len(node.content)
            if added > self.free_bytes:
                raise _no_space(path)
            self._take_space(path, added)
            node.resize(size)
        return node.map(size, lambda: self.step(Step("flush", path)))

    def write(self, node: FileNode, path: str, data: bytes, position: int) -> None:
        cut = self.step(Step("write", path, len(data)))
        growth = max(0, position + len(data) - len(node.content))
        if growth > self.free_bytes:
            # A short write first, then the error, as the kernel does.
            node.write(data[: max(0, len(data) - (growth - self.free_bytes))], position)
            self.free_bytes = 0
            raise _no_space(path)
        node.write(data if cut is None else data[:cut], position)
        self.free_bytes -= growth
        if cut is not None:
            self.die()

    def truncate_node(self, node: FileNode, path: str, size: int) -> None:
        self.step(Step("truncate", path, size))
        self.free_bytes += max(0, len(node.content) - size)
        node.resize(size)

    def _take_space(self, path: str, count: int) -> None:
        if self.free_bytes <= 0:
            raise _no_space(path)
        self.free_bytes -= count

    # -- names -----------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        return self._find(path) is not None

    def size(self, path: str) -> int:
        return len(self._file(path).content)

    def list(self, folder: str) -> list[str]:
        return sorted(self._folder(folder).entries)

    def make_folder(self, path: str) -> None:
        node = self._root
        walked = ""
        for name in _names(path):
            walked = f"{walked}/{name}"
            child = node.entries.get(name)
            if child is None:
                self.step(Step("make_folder", walked))
                child = FolderNode()
                node.link(name, child)
            if not isinstance(child, FolderNode):
                raise NotADirectoryError(errno.ENOTDIR, "is a file", walked)
            node = child

    def rename(self, old: str, new: str) -> None:
        (old_folder, old_name), (new_folder, new_name) = self._parent(old), self._parent(new)
        if old_name not in old_folder.entries:
            raise _missing(old)
        self.step(Step("rename", f"{old} -> {new}"))
        if old_folder is new_folder:
            old_folder.rename(old_name, new_name)
        else:
            new_folder.link(new_name, old_folder.entries[old_name])
            old_folder.unlink(old_name)

    def remove(self, path: str) -> None:
        """Remove a path. A folder is removed file by file, each as a step, like a recursive removal."""
        node = self._find(path)
        if node is None:
            return
        if isinstance(node, FolderNode):
            for name in sorted(node.entries):
                self.remove(f"{path}/{name}")
        self.step(Step("remove", path))
        if isinstance(node, FileNode):
            self.free_bytes += len(node.content)
        folder, name = self._parent(path)
        folder.unlink(name)

    def truncate(self, path: str, size: int) -> None:
        self.truncate_node(self._file(path), path, size)

    def sync_folder(self, path: str) -> None:
        folder = self._folder(path)
        self.step(Step("sync_folder", path))
        folder.sync()

    def read(self, path: str) -> bytes:
        self.check("read", path)
        return bytes(self._file(path).content)

    def replace(self, path: str, content: bytes) -> None:
        folder, name = self._parent(path)
        self.step(Step("replace", path, len(content)))
        if len(content) > self.free_bytes:
            raise _no_space(path)
        node = FileNode(content)
        node.sync()
        folder.link(name, node)
        folder.sync()

    def lock(self, path: str, owner: str) -> Callable[[], None]:
        if path in self._locks:
            raise FolderInUse(path, self._locks[path])
        if not self.exists(path):
            self.open(path, create=True)
        self._locks[path] = owner

        def unlock() -> None:
            self._locks.pop(path, None)

        return unlock

    def disk_bytes(self, path: str) -> tuple[int, int]:
        self._find(path)
        return _UNLIMITED, self.free_bytes

    def contents(self) -> dict[str, bytes]:
        """Every file and its bytes, as a process sees them, for comparisons."""
        return {path: bytes(node.content) for path, node in self._root.walk("")}

    # -- finding ---------------------------------------------------------------------------------------------

    def _find(self, path: str) -> FileNode | FolderNode | None:
        node: FileNode | FolderNode | None = self._root
        for name in _names(path):
            if not isinstance(node, FolderNode):
                return None
            node = node.entries.get(name)
        return node

    def _parent(self, path: str) -> tuple[FolderNode, str]:
        *folders, name = _names(path)
        node = self._find("/".join(folders))
        if not isinstance(node, FolderNode):
            raise _missing(path)
        return node, name

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise _missing(path)
        return node

    def _folder(self, path: str) -> FolderNode:
        node = self._find(path)
        if not isinstance(node, FolderNode):
            raise _missing(path)
        return node


@lru_cache(maxsize=10_000)
def _names(path: str) -> tuple[str, ...]:
    return tuple(name for name in path.split("/") if name)


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _no_space(path: str) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


HistoryT = TypeVar("HistoryT")


@dataclass(slots=True)
class CutPoint(Generic[HistoryT]):
    """A scenario that died: the disk that it left, and its history until then."""

    disk: SimulatedDisk
    history: HistoryT
    # None when the scenario was not cut.
    step: Step | None
    bytes_written: int = 0

    def __str__(self) -> str:
        if self.step is None:
            return "after the last step"
        where = f"after {self.bytes_written} bytes of" if self.bytes_written else "before"
        return f"{where} {self.step.operation} {self.step.path} ({len(self.disk.trace) - 1} steps done)"


def every_cut_point(
    scenario: Callable[[SimulatedDisk, HistoryT], None],
    new_history: Callable[[], HistoryT],
    *,
    torn_writes: tuple[int, ...] = (-1,),
    stride_bytes: int = 1,
    page_bytes: int = 64,
) -> Iterator[CutPoint[HistoryT]]:
    """Run a deterministic scenario repeatedly, and let it die at a later step each time.

    `scenario` gets a new disk and a new history. It records each action when it is done, so the history of a cut run
    defines what the surviving disk must and may hold. Every write numbered in `torn_writes` (from the end: -1 is the
    last) is also cut after each of its bytes.
    """

    def run(stop: tuple[int, int] | None) -> CutPoint[HistoryT]:
        disk, history = SimulatedDisk(page_bytes=page_bytes), new_history()
        if stop is not None:
            disk.stop_at(stop[0], bytes_written=stop[1])
        try:
            scenario(disk, history)
        except Stopped:
            return CutPoint(disk, history, disk.trace[-1], stop[1] if stop else 0)
        assert stop is None, f"the scenario did not come to step {stop}: it is not deterministic"
        return CutPoint(disk, history, None)

    whole = run(None)
    yield whole
    trace = list(whole.disk.trace)
    for number in range(len(trace)):
        yield run((number, 0))
    writes = [number for number, step in enumerate(trace) if step.operation == "write"]
    for number in (writes[index] for index in torn_writes if -len(writes) <= index < len(writes)):
        for length in range(1, trace[number].length, stride_bytes):
            yield run((number, length))
