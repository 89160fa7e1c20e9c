"""One segment of a partition: a run of batches in `.log`, and its two sparse indexes.

Owns the segment's files and knows where in them an offset or a timestamp lies. It never decides when to roll or
what to delete; `log.py` does. Appends go to the end with one positioned write; a failed write is cut off again, so
that what the file holds up to `size` is always whole batches. Readers get a `FileSlice`, never bytes.

Index entries are written every `index.interval.bytes`, at a batch's first byte and with the batch's last offset, as
Kafka writes them. An entry that turns out not to point at a batch condemns the index: it is rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.files import File, Files, FileSlice
from tidemill.log.index import CorruptIndex, OffsetIndex, TimeIndex
from tidemill.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    checksum_matches,
    header_at,
    is_plausible,
    iterate_records,
)

_SCAN_CHUNK_BYTES = 1 << 20
# A consumer at the tail asks for an offset that was appended a moment ago: those need no search.
_RECENT_APPENDS_MAX = 64


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class PlacedBatch(NamedTuple):
    """What a segment needs to know of a batch that it takes in."""

    base_offset: int
    last_offset: int
    max_timestamp: int
    size: int


def placed(header: BatchHeader) -> PlacedBatch:
    return PlacedBatch(header.base_offset, header.last_offset, header.max_timestamp, header.size)


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Segment:
    __slots__ = (
        "_bytes_since_index_entry",
        "_file",
        "_files",
        "_first_timestamp",
        "_folder",
        "_index_interval_bytes",
        "_index_size_max",
        "_recent",
        "_time_index",
        "base_offset",
        "created_ms",
        "max_timestamp",
        "max_timestamp_offset",
        "offset_index",
        "size",
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
    ) -> None:
        self._files = files
        self._folder = folder
        self.base_offset = base_offset
        self.created_ms = created_ms
        self._index_interval_bytes = index_interval_bytes
        self._index_size_max = index_size_max
        self._bytes_since_index_entry = 0
        self._recent: dict[int, int] = {}
        self._file: File = files.open(self.path_of("log"), create=create)
        self.size = self._file.size()
        self._first_timestamp: int | None = None
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self._open_indexes()

    def path_of(self, suffix: str) -> str:
        return f"{self._folder}/{segment_name(self.base_offset)}.{suffix}"

    @property
    def paths(self) -> list[str]:
        return [self.path_of(suffix) for suffix in ("log", "index", "timeindex")]

    def _open_indexes(self) -> None:
        arguments = (self.base_offset, self._index_size_max)
        try:
            self.offset_index = OffsetIndex(self._files, self.path_of("index"), *arguments)
            self._time_index = TimeIndex(self._files, self.path_of("timeindex"), *arguments)
            newest = self._time_index.last
            if newest is None and self.size:
                raise CorruptIndex("sealing leaves a time entry in every segment that holds batches")
        except CorruptIndex:
            for suffix in ("index", "timeindex"):
                self._files.remove(self.path_of(suffix))
            self.offset_index = OffsetIndex(self._files, self.path_of("index"), *arguments)
            self._time_index = TimeIndex(self._files, self.path_of("timeindex"), *arguments)
            self.rebuild_indexes()
            return
        if newest is not None:
            self.max_timestamp, self.max_timestamp_offset = newest

    def verify(self) -> None:
        """After a crash: rebuild the indexes of a sealed segment unless their ends point at what they say.

        An index is not synced, so a power failure may leave zeros in it; a timestamp of zero would make the
        whole segment look older than any retention.
        """
        last, newest = self.offset_index.last, self._time_index.last
        trusted = newest is not None and newest.offset >= self.base_offset
        if last is not None:
            header = self.header_at(last.position)
            trusted = trusted and header is not None and header.last_offset == last.offset
        if trusted and newest is not None:
            header = self.header_at(self.locate(newest.offset))
            trusted = header is not None and header.max_timestamp == newest.timestamp
        if not trusted:
            self.rebuild_indexes()

    # -- writing ---------------------------------------------------------------------------------------------

    def append(self, data: memoryview | bytearray, batches: Sequence[PlacedBatch]) -> None:
        """Write whole batches at the end."""
        position = self.size
        try:
            self._file.write(data, position)
        except OSError:
            # Nobody may ever read a torn batch; a disk that cannot even truncate fences the log.
            self._file.truncate(position)
            raise
        self.size = position + len(data)
        for batch in batches:
            self._note(batch, position)
            position += batch.size

    def _note(self, batch: PlacedBatch, position: int) -> None:
        """Account for a batch at the end of the segment: timestamps, indexes, the recent appends."""
        base_offset, last_offset, max_timestamp, size = batch
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.max_timestamp_offset = last_offset
        if position == 0:
            self._first_timestamp = max_timestamp
        if self._bytes_since_index_entry > self._index_interval_bytes:
            self.offset_index.append(last_offset, position)
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size
        recent = self._recent
        recent[base_offset] = position
        if len(recent) > _RECENT_APPENDS_MAX:
            del recent[next(iter(recent))]

    def sync(self) -> None:
        self._file.sync()

    @property
    def file(self) -> File:
        return self._file

    def seal(self) -> None:
        """No more appends: complete the time index and cut both index files to their content."""
        self._recent.clear()
        if self.size:
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)
        self.offset_index.trim()
        self._time_index.trim()

    def close(self) -> None:
        """Release the index maps; the log file closes with its last reader."""
        self.offset_index.close()
        self._time_index.close()

    def truncate_to_position(self, position: int) -> None:
        self._file.truncate(position)
        self.size = position
        self.rebuild_indexes()

    def mark_deleted(self) -> list[str]:
        """Rename the files so that a restart finishes the deletion; returns what is left to remove."""
        self.close()
        renamed = []
        for path in self.paths:
            if self._files.exists(path):
                self._files.rename(path, f"{path}.deleted")
                renamed.append(f"{path}.deleted")
        return renamed

    # -- reading ---------------------------------------------------------------------------------------------

    def header_at(self, position: int) -> BatchHeader | None:
        """The batch header at a position, if there is one."""
        if position + HEADER_SIZE > self.size:
            return None
        header = header_at(self._file.read(HEADER_SIZE, position))
        return header if is_plausible(header) and position + header.size <= self.size else None

    @property
    def first_timestamp(self) -> int | None:
        """The newest timestamp of the first batch: rolling by time counts from it."""
        if self._first_timestamp is None:
            header = self.header_at(0)
            self._first_timestamp = header.max_timestamp if header else None
        return self._first_timestamp

    def locate(self, offset: int) -> int:
        """The position of the batch that holds `offset` or, in a gap, of the next one; `size` at the end."""
        position = self._recent.get(offset)
        if position is not None:
            return position
        entry = self.offset_index.at_or_before_offset(offset)
        header = self.header_at(entry.position)
        if header is None or (entry.position and header.last_offset != entry.offset):
            if self.size == 0:
                return 0
            if entry.position:
                self.rebuild_indexes()
                entry = self.offset_index.at_or_before_offset(offset)
        position = entry.position
        while position < self.size:
            header = self.header_at(position)
            if header is None or header.base_offset < self.base_offset:
                raise StorageError(f"{self.path_of('log')}: no batch at position {position}")
            if header.last_offset >= offset:
                return position
            position += header.size
        return self.size

    def read(self, offset: int, max_bytes: int, end_offset: int | None, *, at_least_one: bool) -> FileSlice:
        """Whole batches from the one that holds `offset`, below `end_offset`, in at most `max_bytes`.

        `at_least_one`: a first batch larger than `max_bytes` is returned all the same, or a reader would be
        stuck at it for ever.
        """
        start = self.locate(offset)
        end = self.size if end_offset is None else self.locate(end_offset)
        if end - start > max_bytes:
            end = self._cut(start, max_bytes, end, at_least_one)
        return FileSlice(self._file, start, max(0, end - start))

    def _cut(self, start: int, max_bytes: int, end: int, at_least_one: bool) -> int:
        """The last batch boundary within `max_bytes` that can be found with little reading."""
        position = self.offset_index.at_or_before_position(start + max_bytes).position
        if position > start:
            return position
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

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Every whole batch from a position on, with its bytes; ends at the first that is not plausible."""
        chunk = memoryview(b"")
        chunk_start = position
        while position + HEADER_SIZE <= self.size:
            at = position - chunk_start
            if at + HEADER_SIZE > len(chunk):
                chunk, chunk_start, at = self._chunk(position, HEADER_SIZE), position, 0
            header = header_at(chunk, at)
            if not is_plausible(header) or position + header.size > self.size:
                return
            if at + header.size > len(chunk):
                chunk, chunk_start, at = self._chunk(position, header.size), position, 0
            if len(chunk) - at < header.size:
                return
            yield position, header, chunk[at : at + header.size]
            position += header.size

    def _chunk(self, position: int, needed: int) -> memoryview:
        length = min(max(needed, _SCAN_CHUNK_BYTES), self.size - position)
        return memoryview(self._file.read(length, position))

    def first_at_or_after(self, timestamp: int, from_offset: int) -> TimestampedOffset | None:
        """The first record, at or after an offset, that is not older than a timestamp."""
        entry = self._time_index.before(timestamp)
        start = max(from_offset, entry.offset if entry else 0)
        for _, header, batch in self.batches(self.locate(start)):
            if header.max_timestamp < timestamp or header.last_offset < from_offset:
                continue
            for record in iterate_records(batch, header):
                if record.timestamp >= timestamp and record.offset >= from_offset:
                    return TimestampedOffset(record.timestamp, record.offset, header.leader_epoch)
        return None

    def newest(self) -> TimestampedOffset | None:
        """The first record that carries this segment's newest timestamp."""
        return self.first_at_or_after(self.max_timestamp, self.base_offset) if self.size else None

    # -- repairing -------------------------------------------------------------------------------------------

    def rebuild_indexes(self) -> None:
        """Make both indexes, and the timestamps kept in memory, anew from the batches."""
        self._forget_indexes()
        for position, header, _ in self.batches():
            self._note(placed(header), position)
        if self.size:
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)

    def recover(self, on_batch: Callable[[BatchHeader], None]) -> int:
        """Check every batch and rebuild the indexes; the position where the first broken batch begins.

        Changes nothing in the log file: whether to cut there is the log's decision.
        """
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
        if end:
            self._time_index.append(self.max_timestamp, self.max_timestamp_offset)
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
            "the log is not whole batches"
        )
