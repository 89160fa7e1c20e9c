"""The two sparse indexes of a segment, in Kafka's formats, memory-mapped.

`.index` maps an offset to the position of its batch: 8 bytes an entry, relative offset and position. `.timeindex` maps
a timestamp to an offset: 12 bytes, timestamp and relative offset. No record up to that offset is newer. Both only grow
at the end and are searched by bisection. An index can always be rebuilt from its segment, so it is never synced and a
broken one is discarded.

An empty index is not mapped, and an active one grows by doubling, so thousands of idle partitions cost neither maps
nor disk.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from typing import Generic, NamedTuple, TypeVar

from tidemill.log.files import Files, Mapping

_INITIAL_ENTRIES = 512


class OffsetEntry(NamedTuple):
    """An offset, and the position of the batch that ends with it."""

    offset: int
    position: int


class TimeEntry(NamedTuple):
    """A timestamp, and the offset up to which no record is newer."""

    timestamp: int
    offset: int


Entry = TypeVar("Entry", OffsetEntry, TimeEntry)


class CorruptIndex(Exception):
    """The file is not an index of this segment and must be rebuilt."""


class _SparseIndex(ABC, Generic[Entry]):
    """Entries of fixed size in a growing memory map. Subclasses define the entry."""

    _STRUCT: struct.Struct

    def __init__(self, files: Files, path: str, base_offset: int, size_max: int) -> None:
        self._files = files
        self.path = path
        self.base_offset = base_offset
        self._map: Mapping | None = None
        self._entries_max = max(1, size_max // self._STRUCT.size)
        size = files.size(path) if files.exists(path) else files.open(path, create=True).size()
        if size % self._STRUCT.size:
            raise CorruptIndex(f"{path}: {size} bytes are no multiple of {self._STRUCT.size}")
        self.count = size // self._STRUCT.size

    @property
    def is_full(self) -> bool:
        return self.count >= self._entries_max

    @abstractmethod
    def at(self, slot: int) -> Entry: ...

    @property
    def last(self) -> Entry | None:
        return self.at(self.count - 1) if self.count else None

    def entries(self) -> list[Entry]:
        return [self.at(slot) for slot in range(self.count)]

    def _mapped(self) -> Mapping:
        if self._map is None:
            self._map = self._files.map(self.path, max(self.count, 1) * self._STRUCT.size)
        return self._map

    def _append(self, first: int, second: int) -> None:
        size = self._STRUCT.size
        window = self._map
        if window is None or (self.count + 1) * size > len(window):
            window = self._grow()
        self._STRUCT.pack_into(window, self.count * size, first, second)
        self.count += 1

    def _grow(self) -> Mapping:
        entries = min(max(_INITIAL_ENTRIES, self.count * 2), self._entries_max)
        size = max(entries, self.count + 1) * self._STRUCT.size
        self.close()
        self._map = self._files.map(self.path, size)
        return self._map

    def clear(self) -> None:
        self.count = 0

    def trim(self) -> None:
        """Truncate the file to its entries, when the segment is sealed or closed."""
        if self._map is not None:
            self._map.flush()
        self.close()
        if self.count:
            self._files.truncate(self.path, self.count * self._STRUCT.size)
        else:
            self._files.truncate(self.path, 0)

    def close(self) -> None:
        """Release the map. It is mapped again when it is needed."""
        if self._map is not None:
            self._map.close()
            self._map = None

    def release(self) -> None:
        """Let go of the file for good: from now on there may be another one at its path, or none.

        An index without entries leaves the search to the log file, which its readers keep open.
        """
        self.close()
        self.count = 0


class OffsetIndex(_SparseIndex[OffsetEntry]):
    """The `.index` file."""

    _STRUCT = struct.Struct(">ii")

    def at(self, slot: int) -> OffsetEntry:
        relative, position = self._STRUCT.unpack_from(self._mapped(), slot * 8)
        return OffsetEntry(self.base_offset + relative, position)

    def append(self, offset: int, position: int) -> None:
        self._append(offset - self.base_offset, position)

    def at_or_before_offset(self, offset: int) -> OffsetEntry:
        """The last entry whose offset is not above `offset`; the segment's start when there is none.

        No entry points at the start, so an entry with position zero was lost in a power failure.
        """
        relative = offset - self.base_offset
        low, high = 0, self.count
        unpack, window = self._STRUCT.unpack_from, self._mapped() if high else b""
        while low < high:
            middle = (low + high) // 2
            if unpack(window, middle * 8)[0] <= relative:
                low = middle + 1
            else:
                high = middle
        if not low:
            return OffsetEntry(self.base_offset, 0)
        entry = self.at(low - 1)
        if entry.position <= 0:
            raise CorruptIndex(f"{self.path}: entry {low - 1} is empty")
        return entry

    def at_or_before_position(self, position: int) -> OffsetEntry:
        """The last entry at or before a position in the file."""
        low, high = 0, self.count
        unpack, window = self._STRUCT.unpack_from, self._mapped() if high else b""
        while low < high:
            middle = (low + high) // 2
            if unpack(window, middle * 8)[1] <= position:
                low = middle + 1
            else:
                high = middle
        return self.at(low - 1) if low else OffsetEntry(self.base_offset, 0)


class TimeIndex(_SparseIndex[TimeEntry]):
    """The `.timeindex` file."""

    _STRUCT = struct.Struct(">qi")

    def at(self, slot: int) -> TimeEntry:
        timestamp, relative = self._STRUCT.unpack_from(self._mapped(), slot * 12)
        return TimeEntry(timestamp, self.base_offset + relative)

    def append(self, timestamp: int, offset: int) -> None:
        """Add an entry unless its timestamp is not newer than the last one: timestamps rise strictly."""
        last = self.last
        if last is None or timestamp > last.timestamp:
            self._append(timestamp, offset - self.base_offset)

    def before(self, timestamp: int) -> TimeEntry | None:
        """The last entry older than a timestamp. A search may start after its offset."""
        low, high = 0, self.count
        unpack, window = self._STRUCT.unpack_from, self._mapped() if high else b""
        while low < high:
            middle = (low + high) // 2
            if unpack(window, middle * 12)[0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return self.at(low - 1) if low else None
