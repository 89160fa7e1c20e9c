"""One segment of a partition: the batches in `.log`, two sparse indexes, and the transactions aborted in it.

Owns the segment's files and finds offsets and timestamps in them. It never decides when to roll or what to delete;
`log.py` does. An append is one positioned write at the end. A failed write is truncated, so the file up to `size`
always holds whole batches. Readers get a `FileSlice`, never bytes.

An index entry is written every `index.interval.bytes`, with the position of a batch and its last offset, as Kafka
does. When an entry does not point at a batch, the index is rebuilt from the log.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from tidemill.errors import StorageError
from tidemill.log.files import File, Files, FileSlice
from tidemill.log.segments.index import CorruptIndex, OffsetEntry, OffsetIndex, TimeEntry, TimeIndex
from tidemill.log.segments.txn_index import TransactionIndex
from tidemill.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    checksum_matches,
    header_at,
    is_plausible,
)

logger = logging.getLogger(__name__)

# The largest relative offset that an index entry can hold.
RELATIVE_OFFSET_MAX = 0x7FFFFFFF
_SCAN_CHUNK_BYTES = 1 << 20
# The suffixes of a segment's file names during a swap (see `cleaning/swap.py`).
CLEANED, SWAP, IN_PLACE = ".cleaned", ".swap", ""
INDEX_SUFFIXES = ("index", "timeindex")
# The last one exists only when the segment has aborted transactions.
SUFFIXES = ("log", *INDEX_SUFFIXES, "txnindex")
# The tag index of topics with views. A sealed segment has one; the active one may have parts of one.
TAG_INDEX = "tagindex"
# A consumer at the end of the log fetches an offset that was appended a moment ago. These need no index lookup.
_RECENT_APPENDS_MAX = 64


# Base offset, last offset, maximum timestamp and size of a batch. A plain tuple, because one is made for every
# produced batch.
PlacedBatch = tuple[int, int, int, int]


def placed(header: BatchHeader) -> PlacedBatch:
    return header.base_offset, header.last_offset, header.max_timestamp, header.size


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


def can_hold(base_offset: int, header: BatchHeader) -> bool:
    """Whether a header is plausible in a segment of this base offset. The CRC does not cover the batch's base
    offset."""
    relative = header.base_offset - base_offset
    return is_plausible(header) and 0 <= relative <= RELATIVE_OFFSET_MAX - header.last_offset_delta


def read_batches(file: File, size: int, position: int = 0) -> Iterator[tuple[int, BatchHeader, memoryview]]:
    """Returns every whole batch from a position on, with its bytes. Stops at the first implausible one."""
    chunk = memoryview(b"")
    chunk_start = position

    def chunk_of(needed: int) -> memoryview:
        return memoryview(file.read(min(max(needed, _SCAN_CHUNK_BYTES), size - position), position))

    while position + HEADER_SIZE <= size:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = chunk_of(HEADER_SIZE), position, 0
            if len(chunk) < HEADER_SIZE:
                return
        header = header_at(chunk, at)
        if not is_plausible(header) or position + header.size > size:
            return
        if at + header.size > len(chunk):
            chunk, chunk_start, at = chunk_of(header.size), position, 0
        if len(chunk) - at < header.size:
            return
        yield position, header, chunk[at : at + header.size]
        position += header.size


class TagIndexPart:
    """The file of the tag index of a part of a growing segment. Each has an identity of its own."""

    __slots__ = ("end_position", "path", "start_position")

    def __init__(self, path: str, start_position: int, end_position: int) -> None:
        self.path = path
        self.start_position = start_position
        self.end_position = end_position


class Segment:
    """One segment and its index files."""

    __slots__ = (
        "_bytes_since_index_entry",
        "_file",
        "_files",
        "_first_timestamp",
        "_folder",
        "_index_interval_bytes",
        "_index_size_max",
        "_is_damaged",
        "_recent",
        "_state",
        "_tag_index_parts",
        "_time_index",
        "base_offset",
        "created_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "size",
        "tag_index_key",
        "txn_index",
    )

    def __init__(
        self,
        files: Files,
        folder: str,
        base_offset: int,
        *,
        index_interval_bytes: int,
        index_size_max: int,
        created_ms: int,
        create: bool = False,
        state: str = IN_PLACE,
        has_tag_index: bool = False,
    ) -> None:
        self._files = files
        self._folder = folder
        self._state = state
        self.base_offset = base_offset
        self.created_ms = created_ms
        self._index_interval_bytes = index_interval_bytes
        self._index_size_max = index_size_max
        self._bytes_since_index_entry = 0
        self._recent: dict[int, int] = {}
        self._is_damaged = False
        # Another object for each tag index that the segment gets; None while it has none.
        self.tag_index_key: object | None = object() if has_tag_index else None
        # While it has none: the indexes of its batches, part by part, from the first batch on.
        self._tag_index_parts: list[TagIndexPart] = []
        if create:
            # Index files of an earlier segment of this name, left by a crash, do not belong to the new one.
            for path in self.paths[1:]:
                files.remove(path)
        self._file: File = files.open(self.path_of("log"), create=create)
        self.size = self._file.size()
        self._first_timestamp: int | None = None
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.txn_index = TransactionIndex(files, self.path_of("txnindex"), base_offset)
        self._open_indexes()

    def path_of(self, suffix: str) -> str:
        return f"{self._folder}/{segment_name(self.base_offset)}.{suffix}{self._state}"

    @property
    def paths(self) -> list[str]:
        suffixes = SUFFIXES if self.tag_index_key is None else (*SUFFIXES, TAG_INDEX)
        return [self.path_of(suffix) for suffix in suffixes]

    def _open_indexes(self) -> None:
        try:
            self._open_index_files()
            newest = self._time_index.last
            if newest is None and self.size:
                raise CorruptIndex("sealing leaves a time entry in every segment that holds batches")
        except CorruptIndex:
            for path in map(self.path_of, INDEX_SUFFIXES):
                # Truncated instead of removed: a full disk may have no room for a new file.
                if self._files.exists(path):
                    self._files.truncate(path, 0)
            self._open_index_files()
            self.rebuild_indexes()
            return
        if newest is not None:
            self.max_timestamp, self.max_timestamp_offset = newest

    def _open_index_files(self) -> None:
        """Open both indexes. They have the same number of entries at most, since the log rolls when the offset index
        is full.
        """
        size_max = self._index_size_max
        self.offset_index = OffsetIndex(self._files, self.path_of("index"), self.base_offset, size_max)
        time_size_max = size_max * 3 // 2
        self._time_index = TimeIndex(self._files, self.path_of("timeindex"), self.base_offset, time_size_max)

    def verify(self) -> None:
        """Rebuild the indexes of a sealed segment unless their last entries match the log.

        An index is not synced, so a power failure may leave zeros in it. A timestamp of zero would make the segment
        look older than any retention.
        """
        try:
            if not self._index_ends_are_right():
                self.rebuild_indexes()
        except StorageError:
            # The log is damaged, not the index, which still leads past the damage. A read of the damaged batch reports
            # it.
            self._is_damaged = True

    def _index_ends_are_right(self) -> bool:
        last, newest = self.offset_index.last, self._time_index.last
        if newest is None:
            return self.size == 0 and last is None
        if last is not None:
            header = self.header_at(last.position)
            if not last.position or header is None or header.last_offset != last.offset:
                return False
        header = self.header_at(self.locate(newest.offset)) if newest.offset >= self.base_offset else None
        if header is None or header.max_timestamp != newest.timestamp:
            return False
        position = last.position if last else 0
        while position < self.size and header is not None and header.max_timestamp <= newest.timestamp:
            header = self.header_at(position)
            position += header.size if header is not None else 0
        return header is None or header.max_timestamp <= newest.timestamp

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, data: memoryview | bytearray, batches: Sequence[PlacedBatch]) -> None:
        """Write whole batches at the end."""
        position = self.size
        try:
            self._file.write(data, position)
        except OSError:
            # A torn batch must never be readable. When even truncation fails, the log is taken offline.
            self._file.truncate(position)
            raise
        self.size = position + len(data)
        for batch in batches:
            self._note(batch, position)
            position += batch[3]

    def _note(self, batch: PlacedBatch, position: int) -> None:
        """Update timestamps, indexes and recent appends for a batch at the end of the segment."""
        base_offset, last_offset, max_timestamp, size = batch
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self._add_index_entries(last_offset, position)
        self._bytes_since_index_entry += size
        recent = self._recent
        recent[base_offset] = position
        if len(recent) > _RECENT_APPENDS_MAX:
            del recent[next(iter(recent))]

    def _add_index_entries(self, last_offset: int, position: int) -> None:
        try:
            self.offset_index.append(last_offset, position)
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)
        except OSError as error:
            # The batch is in the log and must not be written twice. A sparse index may lack an entry; the next batch
            # adds one.
            logger.warning("%s: cannot extend an index: %s", self.path_of("log"), error)
            return
        self._bytes_since_index_entry = 0

    def sync(self) -> None:
        self._file.sync()

    @property
    def file(self) -> File:
        return self._file

    def seal(self) -> None:
        """End the appends: complete the time index and truncate both index files to their content."""
        self._recent.clear()
        if self._file.size() > self.size:
            self._file.truncate(self.size)  # left by a failed write that could not be truncated at once
        self._complete_indexes()
        self.txn_index.save()

    def _complete_indexes(self) -> None:
        if self.size:
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)
        self.offset_index.trim()
        self._time_index.trim()

    def close(self) -> None:
        """Release the index maps. The log file closes with its last reader."""
        self.offset_index.close()
        self._time_index.close()

    def release(self) -> None:
        """Let go of the files for good. Readers of the segment go on without its indexes."""
        self.offset_index.release()
        self._time_index.release()

    def truncate_to_position(self, position: int) -> None:
        """Truncate and sync: the removed batches must never reappear after later appends."""
        self._file.truncate(position)
        self._file.sync()
        self.size = position
        self.rebuild_indexes()

    def cut_back(self, position: int) -> int:
        """Truncate an intact segment at a batch, with its indexes. Returns its new end offset.

        Raises `StorageError` when an earlier batch is damaged; the file is truncated nevertheless.
        """
        self.drop_tag_index()
        self._file.truncate(position)
        self._file.sync()
        self.size = position
        self._recent.clear()
        index = self.offset_index
        while index.last is not None and index.last.position >= position:
            index.count -= 1
        start = index.last.position if index.last is not None else 0
        headers = [header for _, header, _ in self.batches(start)]
        if start + sum(header.size for header in headers) != position:
            raise StorageError(f"{self.path_of('log')}: a batch before position {position} is damaged")
        end_offset = headers[-1].next_offset if headers else self.base_offset
        while self._time_index.last is not None and self._time_index.last.offset >= end_offset:
            self._time_index.count -= 1
        newest = self._time_index.last
        self.max_timestamp, self.max_timestamp_offset = newest or (-1, self.base_offset)
        for header in headers:
            if header.max_timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = header.max_timestamp, header.last_offset
        if not position:
            self._first_timestamp = None
        self._bytes_since_index_entry = position - start
        self.txn_index.truncate(end_offset)
        return end_offset

    def move_to(self, state: str) -> None:
        """Rename the files; readers are not affected. The log file is renamed last, when its indexes are in place."""
        self.close()
        old_paths = self.paths
        self._state = state
        for old, new in zip(reversed(old_paths), reversed(self.paths), strict=True):
            if self._files.exists(old):
                self._files.rename(old, new)
        self.offset_index.path = self.path_of("index")
        self._time_index.path = self.path_of("timeindex")
        self.txn_index.path = self.path_of("txnindex")

    def mark_deleted(self) -> list[str]:
        """Rename the files to `*.deleted`, so that a restart finishes the deletion. Returns the paths to remove."""
        self.release()
        renamed = []
        for path in self.paths:
            if self._files.exists(path):
                self._files.rename(path, f"{path}.deleted")
                renamed.append(f"{path}.deleted")
        self.tag_index_key = None
        self._drop_tag_index_parts()
        return renamed

    def take_tag_index(self, path: str) -> None:
        """Take a new tag index: the file at `path`."""
        self._files.rename(path, self.path_of(TAG_INDEX))
        self.tag_index_key = object()
        self._drop_tag_index_parts()

    def take_tag_index_part(self, path: str, start_position: int, end_position: int) -> None:
        """Take the file at `path` for the tag index of the next part, unless the segment has that by now."""
        if self.tag_index_key is None and start_position == self.tag_index_end:
            part_path = f"{self.path_of(TAG_INDEX)}.{start_position}.tmp"
            part = TagIndexPart(part_path, start_position, end_position)
            self._files.rename(path, part.path)
            self._tag_index_parts.append(part)

    @property
    def tag_index_end(self) -> int:
        """The position up to which parts have tag indexes."""
        return self._tag_index_parts[-1].end_position if self._tag_index_parts else 0

    def tag_index_part_at(self, position: int) -> TagIndexPart | None:
        parts = self._tag_index_parts
        if not parts or position >= parts[-1].end_position:
            return None
        return parts[bisect_right(parts, position, key=lambda part: part.end_position)]

    def drop_tag_index(self) -> None:
        """Remove the tag index, before the batches change that it describes or because it is broken."""
        if self.tag_index_key is not None:
            self._files.remove(self.path_of(TAG_INDEX))
            self.tag_index_key = None
        self._drop_tag_index_parts()

    def _drop_tag_index_parts(self) -> None:
        while self._tag_index_parts:
            self._files.remove(self._tag_index_parts[-1].path)
            self._tag_index_parts.pop()

    # -- reading ---------------------------------------------------------------------------------------------

    def header_at(self, position: int) -> BatchHeader | None:
        """The batch header at a position; None when it is not plausible."""
        if position < 0 or position + HEADER_SIZE > self.size:
            return None
        data = self._file.read(HEADER_SIZE, position)
        if len(data) < HEADER_SIZE:
            return None
        header = header_at(data)
        return header if can_hold(self.base_offset, header) and position + header.size <= self.size else None

    @property
    def first_timestamp(self) -> int | None:
        """The maximum timestamp of the first batch. Rolling by time counts from it."""
        if self._first_timestamp is None:
            header = self.header_at(0)
            self._first_timestamp = header.max_timestamp if header else None
        return self._first_timestamp

    def locate(self, offset: int) -> int:
        """The position of the batch that holds `offset`, or of the next batch in a gap; `size` at the end."""
        position = self._recent.get(offset)
        if position is not None:
            return position
        entry = self._trusted_entry(offset)
        if entry is None:
            self._repair_indexes()
            entry = self._trusted_entry(offset)
        position = entry.position if entry is not None else 0
        while position < self.size:
            header = self.header_at(position)
            if header is None:
                raise StorageError(f"{self.path_of('log')}: no batch at position {position}")
            if header.last_offset >= offset:
                return position
            position += header.size
        return self.size

    def _trusted_entry(self, offset: int) -> OffsetEntry | None:
        """The index entry before an offset, if it matches the log."""
        try:
            entry = self.offset_index.at_or_before_offset(offset)
        except CorruptIndex:
            return None
        if entry.position:
            header = self.header_at(entry.position)
            if header is None or header.last_offset != entry.offset:
                return None
        return entry

    def _repair_indexes(self) -> None:
        """Rebuild the indexes after a mismatch. A damaged log keeps its indexes, which still lead past the damage."""
        if not self._is_damaged:
            whole_bytes = sum(header.size for _, header, _ in self.batches())
            if whole_bytes == self.size:
                self.rebuild_indexes()
                return
            self._is_damaged = True
        raise StorageError(f"{self.path_of('log')}: a batch is damaged")

    def read(self, offset: int, max_bytes: int, end_offset: int | None, *, at_least_one: bool) -> FileSlice:
        """Returns whole batches from the one that holds `offset`, below `end_offset`, in at most `max_bytes`.

        `at_least_one` returns a first batch larger than `max_bytes` all the same; without it a consumer would never
        get past it.
        """
        start = self.locate(offset)
        end = self.size if end_offset is None else self.locate(end_offset)
        if end - start > max_bytes:
            end = self._cut(start, max_bytes, end, at_least_one)
        return FileSlice(self._file, start, max(0, end - start))

    def _cut(self, start: int, max_bytes: int, end: int, at_least_one: bool) -> int:
        """The last batch boundary within `max_bytes` that needs little reading to find."""
        entry = self.offset_index.at_or_before_position(start + max_bytes)
        if entry.position > start:
            header = self.header_at(entry.position)
            if header is not None and header.last_offset == entry.offset:
                return entry.position
        header = self.header_at(start)
        if header is None:
            raise StorageError(f"{self.path_of('log')}: no batch at position {start}")
        position = start + header.size
        if position - start > max_bytes:
            return position if at_least_one else start
        while position < end:
            header = self.header_at(position)
            if header is None or position + header.size - start > max_bytes:
                break
            position += header.size
        return position

    def batches(
        self, position: int = 0, end_position: int | None = None
    ) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Returns every whole batch from a position on, with its bytes. Stops at the first implausible one."""
        for found in read_batches(self._file, self.size if end_position is None else end_position, position):
            if not can_hold(self.base_offset, found[1]):
                return
            yield found

    def position_before(self, timestamp: int, from_offset: int) -> int:
        """The position from which to search the first record, at or after an offset, that is not older than a
        timestamp.
        """
        entry = self._trusted_time_entry(timestamp)
        return self.locate(max(from_offset, entry.offset if entry else 0))

    def _trusted_time_entry(self, timestamp: int) -> TimeEntry | None:
        """The last entry older than a timestamp, if it matches the batch that it names."""
        entry = self._time_index.before(timestamp)
        if entry is None:
            return None
        header = self.header_at(self.locate(entry.offset)) if entry.offset >= self.base_offset else None
        if header is None or header.max_timestamp != entry.timestamp:
            self._repair_indexes()
            return self._time_index.before(timestamp)
        return entry

    # -- repairing -------------------------------------------------------------------------------------------

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes and the timestamps in memory from the batches."""
        self._forget_indexes()
        for position, header, _ in self.batches():
            self._note(placed(header), position)
        self._complete_rebuilt_indexes()

    def _complete_rebuilt_indexes(self) -> None:
        try:
            self._complete_indexes()
        except OSError as error:
            # A full disk must not take the partition offline. The entries in memory are right, and sealing writes them
            # again.
            logger.warning("%s: cannot write the indexes: %s", self.path_of("log"), error)

    def recover(self, on_batch: Callable[[BatchHeader], None]) -> int:
        """Verify every batch and rebuild the indexes. Returns the position of the first broken batch.

        The log file is not changed; the log decides whether to truncate it. The tag index may be of batches that a
        crash has taken, so it goes.
        """
        self.drop_tag_index()
        self._forget_indexes()
        end = 0
        expected_offset = self.base_offset
        for position, header, batch in self.batches():
            if header.base_offset < expected_offset or not checksum_matches(batch, header):
                break
            self._note(placed(header), position)
            end = position + header.size
            expected_offset = header.next_offset
            on_batch(header)
        if end == self.size:
            self._complete_rebuilt_indexes()
        return end

    def next_offset(self) -> int | None:
        """The offset after the last batch, found from the last index entry; None when a batch is broken."""
        last = self.offset_index.last
        position = last.position if last else 0
        next_offset = self.base_offset
        while position < self.size:
            header = self.header_at(position)
            if header is None or header.base_offset < next_offset:
                return None
            next_offset = header.next_offset
            position += header.size
        return next_offset

    def _forget_indexes(self) -> None:
        self.offset_index.clear()
        self._time_index.clear()
        self._recent.clear()
        self._bytes_since_index_entry = 0
        self._first_timestamp = None
        self.max_timestamp = -1
        self.max_timestamp_offset = self.base_offset

    def check_invariants(self) -> None:
        entries = self.offset_index.entries()
        assert all(a.position < b.position and a.offset < b.offset for a, b in pairwise(entries))
        positions = {position: header.last_offset for position, header, _ in self.batches()}
        assert all(positions.get(entry.position) == entry.offset for entry in entries), "index points astray"
        assert sum(header.size for _, header, _ in self.batches()) == self.size, (
            "the log does not consist of whole batches"
        )
        markers = {h.base_offset for _, h, _ in self.batches() if h.is_control and h.record_count}
        assert markers.issuperset(entry.last_offset for entry in self.txn_index.entries), (
            "the transaction index lists a transaction without a marker"
        )
