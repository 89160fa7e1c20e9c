"""The files and folders of the simulated disk: their visible and durable state, and the effect of a power failure.

`disk.py` adds paths, faults and steps.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from random import Random
from typing import Literal, NamedTuple

Keep = Literal["nothing", "some", "everything"]


class SimulatedMapping(mmap.mmap):
    """Memory that represents the first bytes of a file until it is closed."""

    _node: FileNode
    _before_flush: Callable[[], object]

    @classmethod
    def of(cls, node: FileNode, size: int, before_flush: Callable[[], object]) -> SimulatedMapping:
        mapping = cls(-1, size)
        mapping[:] = bytes(node.content[:size])
        mapping._node = node
        mapping._before_flush = before_flush
        return mapping

    def flush(self, *_range: int) -> None:
        self._before_flush()
        self._node.sync_mapped()

    def close(self) -> None:
        if not self.closed:
            self._node.unmap()
        super().close()


class FileNode:
    """One file's bytes."""

    __slots__ = ("_content", "_durable", "_mapping")

    def __init__(self, content: bytes = b"") -> None:
        self._content = bytearray(content)
        self._durable = b""
        self._mapping: SimulatedMapping | None = None

    @property
    def content(self) -> bytearray:
        mapping = self._mapping
        if mapping is not None:
            self._content[: len(mapping)] = mapping[:]
        return self._content

    def write(self, data: bytes, position: int) -> None:
        content = self._content
        if position > len(content):
            content += bytes(position - len(content))
        content[position : position + len(data)] = data

    def resize(self, size: int) -> None:
        content = self.content
        del content[size:]
        content += bytes(size - len(content))

    def flip_bit(self, position: int, bit: int) -> None:
        self._content[position] ^= 1 << bit
        if position < len(self._durable):
            durable = bytearray(self._durable)
            durable[position] ^= 1 << bit
            self._durable = bytes(durable)

    def sync(self) -> None:
        self._durable = bytes(self.content)

    def sync_mapped(self) -> None:
        """Make the bytes of a flushed map durable, and the file's size as far as they reach."""
        content = self.content
        mapped = len(self._mapping) if self._mapping is not None else 0
        self._durable = bytes(content[:mapped]) + self._durable[mapped:]

    def map(self, size: int, before_flush: Callable[[], object]) -> SimulatedMapping:
        self.unmap()
        self._mapping = SimulatedMapping.of(self, size, before_flush)
        return self._mapping

    def unmap(self) -> None:
        self._content = self.content
        self._mapping = None

    def copy(self) -> FileNode:
        twin = FileNode(bytes(self.content))
        twin._durable = self._durable
        return twin

    def after_crash(self, rng: Random, keep: Keep, page_bytes: int) -> FileNode:
        old, new = self._durable, bytes(self.content)
        if keep == "nothing":
            new = old
        elif keep == "some" and old != new:
            outcome = rng.choice((_lost, _kept, _torn, _mixed_pages))
            new = outcome(old, new, rng, page_bytes)
        node = FileNode(new)
        node.sync()
        return node


def _lost(old: bytes, _new: bytes, _rng: Random, _page_bytes: int) -> bytes:
    return old


def _kept(_old: bytes, new: bytes, _rng: Random, _page_bytes: int) -> bytes:
    return new


def _torn(old: bytes, new: bytes, rng: Random, _page_bytes: int) -> bytes:
    """The new bytes up to a random position, followed by nothing, or by zeros when the size was durable before the
    bytes.
    """
    changed_at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), len(old))
    cut = rng.randint(min(changed_at, len(new)), len(new))
    return new[:cut] + bytes(rng.choice((0, len(new) - cut)))


def _mixed_pages(old: bytes, new: bytes, rng: Random, page_bytes: int) -> bytes:
    size = rng.choice((len(old), len(new)))
    pages = []
    for start in range(0, size, page_bytes):
        length = min(page_bytes, size - start)
        chosen = rng.choice((old, new))[start : start + length]
        pages.append(chosen + bytes(length - len(chosen)))
    return b"".join(pages)


class _Entry(NamedTuple):
    """A change of a folder that is not durable yet: names that are added and removed."""

    linked: tuple[str, FileNode | FolderNode] | None
    unlinked: str | None


class FolderNode:
    """The names in a folder. `_pending` holds the changes since the last sync, in order."""

    __slots__ = ("_durable", "_pending", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, FileNode | FolderNode] = {}
        self._durable: dict[str, FileNode | FolderNode] = {}
        self._pending: list[_Entry] = []

    def link(self, name: str, node: FileNode | FolderNode) -> None:
        self._change(_Entry((name, node), None))

    def unlink(self, name: str) -> None:
        self._change(_Entry(None, name))

    def rename(self, old: str, new: str) -> None:
        self._change(_Entry((new, self.entries[old]), old))

    def _change(self, entry: _Entry) -> None:
        _apply(entry, self.entries)
        self._pending.append(entry)

    def sync(self) -> None:
        self._durable = dict(self.entries)
        self._pending.clear()

    def walk(self, path: str) -> Iterator[tuple[str, FileNode]]:
        for name, node in sorted(self.entries.items()):
            if isinstance(node, FileNode):
                yield f"{path}/{name}", node
            else:
                yield from node.walk(f"{path}/{name}")

    def copy(self, copies: dict[int, FileNode | FolderNode]) -> FolderNode:
        """A copy with its unsynced state. A node with two names is copied once."""

        def copy_of(node: FileNode | FolderNode) -> FileNode | FolderNode:
            if id(node) not in copies:
                copies[id(node)] = node.copy() if isinstance(node, FileNode) else node.copy(copies)
            return copies[id(node)]

        twin = FolderNode()
        twin.entries = {name: copy_of(node) for name, node in self.entries.items()}
        twin._durable = {name: copy_of(node) for name, node in self._durable.items()}
        twin._pending = [
            _Entry((linked[0], copy_of(linked[1])) if linked else None, unlinked)
            for linked, unlinked in self._pending
        ]
        return twin

    def after_crash(self, rng: Random, keep: Keep, page_bytes: int) -> FolderNode:
        found = dict(self._durable)
        kept = {"nothing": 0, "everything": len(self._pending)}.get(keep, rng.randint(0, len(self._pending)))
        for entry in self._pending[:kept]:
            _apply(entry, found)
        folder = FolderNode()
        for name, node in sorted(found.items()):
            folder.entries[name] = node.after_crash(rng, keep, page_bytes)
        folder.sync()
        return folder


def _apply(entry: _Entry, names: dict[str, FileNode | FolderNode]) -> None:
    if entry.unlinked is not None:
        names.pop(entry.unlinked, None)
    if entry.linked is not None:
        names[entry.linked[0]] = entry.linked[1]
