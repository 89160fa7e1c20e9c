"""The transaction index of a segment: the aborted transactions whose markers are in it (`.txnindex`, Kafka's format).

An entry has 34 bytes (version, producer id, first offset, last offset, last stable offset), in the order of the
markers. The entries are kept in memory and written when the segment is sealed or synced. A segment without aborted
transactions has no file. The file is synced with its segment, so below the recovery point it is trusted. Above it, and
when it is implausible, it is rebuilt from the batches.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from tidemill.log.files import File, Files
from tidemill.log.transactions import AbortedTransaction

_VERSION = 0
_ENTRY = struct.Struct(">hqqqq")


class TransactionIndex:
    """The entries of one segment, in memory and in the file."""

    __slots__ = ("_entries", "_file", "_files", "_is_too_long", "_saved", "is_damaged", "path")

    def __init__(self, files: Files, path: str, base_offset: int) -> None:
        self._files = files
        self.path = path
        self._entries: list[AbortedTransaction] = []
        self._file: File | None = None
        # How many entries the file holds.
        self._saved = 0
        # Whether the file may hold more than those.
        self._is_too_long = False
        self.is_damaged = False
        if files.exists(path):
            self._file = files.open(path)
            self._load(base_offset)

    def _load(self, base_offset: int) -> None:
        assert self._file is not None
        content = self._file.read(self._file.size(), 0)
        if len(content) % _ENTRY.size:
            self.is_damaged = True
            return
        entries = [AbortedTransaction._make(fields[1:]) for fields in _ENTRY.iter_unpack(content)]
        versions = content[0 :: _ENTRY.size] + content[1 :: _ENTRY.size]
        if any(versions) or not _is_plausible(entries, base_offset):
            self.is_damaged = True
            return
        self._entries = entries
        self._saved = len(entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entries(self) -> Sequence[AbortedTransaction]:
        return self._entries

    @property
    def file(self) -> File | None:
        return self._file

    @property
    def is_saved(self) -> bool:
        return self._saved == len(self._entries) and not self._is_too_long

    def append(self, aborted: AbortedTransaction) -> None:
        self._entries.append(aborted)

    def collect(self, offset: int, end_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add the entries that overlap `[offset, end_offset)`. Returns True when later segments cannot have another.

        A transaction that is aborted later started at or after the last stable offset of an entry.
        """
        entries = self._entries
        for number in range(bisect_left(entries, offset, key=_last_offset), len(entries)):
            aborted = entries[number]
            if aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return True
        return False

    def truncate(self, end_offset: int) -> None:
        """Drop the markers at `end_offset` and after it."""
        del self._entries[bisect_left(self._entries, end_offset, key=_last_offset) :]
        if self._saved > len(self._entries):
            self._saved = len(self._entries)
            if self._file is not None:
                self._file.truncate(self._saved * _ENTRY.size)

    def replace(self, entries: Sequence[AbortedTransaction]) -> None:
        """Replace the entries by rebuilt ones. The file keeps the entries that are the same."""
        same = 0
        limit = min(self._saved, len(entries))
        while same < limit and self._entries[same] == entries[same]:
            same += 1
        self._is_too_long |= self.is_damaged or same < self._saved
        self._saved = same
        self._entries = list(entries)
        self.is_damaged = False

    def save(self) -> bool:
        """Write the missing entries. Returns whether the file was created. After `OSError` the call can be repeated."""
        if self.is_saved:
            return False
        is_new = self._file is None
        if self._file is None:
            self._file = self._files.open(self.path, create=True)
        data = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in self._entries[self._saved :])
        self._file.write(data, self._saved * _ENTRY.size)
        if self._is_too_long:
            self._file.truncate(len(self._entries) * _ENTRY.size)
            self._is_too_long = False
        self._saved = len(self._entries)
        return is_new

    def create(self) -> None:
        """Create the file, even without entries."""
        if self._file is None:
            self._file = self._files.open(self.path, create=True)

    def remove(self) -> None:
        """Remove the file of an index without entries."""
        self._files.remove(self.path)
        self._file = None

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()


_last_offset = attrgetter("last_offset")


def _is_plausible(entries: Sequence[AbortedTransaction], base_offset: int) -> bool:
    return all(
        base_offset <= entry.last_offset and 0 <= entry.first_offset < entry.last_offset for entry in entries
    ) and all(a.last_offset < b.last_offset for a, b in pairwise(entries))
