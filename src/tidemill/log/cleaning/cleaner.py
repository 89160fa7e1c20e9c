"""Compaction: the log keeps the last record of each key, at its old offset.

`clean` does the heavy part over sealed segments, in a worker process. It writes new files beside the old ones
(`*.cleaned`) and changes no file that the log uses. `swap.py` then replaces the old segments; `cleanable.py` decides
what may be cleaned and when.

The first pass reads the dirty section and notes the last offset of each key in a map of fixed size. When the map is
full, the cleaning ends at the record that did not fit, and the next cleaning continues there. The second pass reads
the whole log up to that end. It drops a record when the map holds a later offset of its key. Small neighbouring
segments are merged. The last batch of each new segment stays, if only as a bare header, because it marks the end of
the segment's offsets.

Deleted keys never come back (failure 8). The cleaning that first finds a tombstone removes all older records of its
key. It stores in the batch when the tombstone itself expires: after `delete.retention.ms`. A later cleaning drops an
expired tombstone, but only below its own first dirty offset: there the earlier cleaning is complete and synced. A
consumer or replica that is offline for longer than `delete.retention.ms` may miss the tombstone. It must restart from
the log start offset.

The last batches of live producers stay too, at least as bare headers, so that replay after a crash still detects every
retry. Records of aborted transactions are dropped. Their markers follow when they are no longer needed
(`transactions.py`).

A wrong checksum or an undecodable record ends the cleaning with `StorageError` before the swap. Damage is never
rewritten under a fresh checksum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.cleaning.offset_map import OffsetMap
from tidemill.log.cleaning.rewrite import delete_horizon_of, with_records, without_records
from tidemill.log.cleaning.transactions import CleanedTransactions
from tidemill.log.files import Files
from tidemill.log.segments.segment import (
    CLEANED,
    SUFFIXES,
    PlacedBatch,
    Segment,
    placed,
    read_batches,
    segment_name,
)
from tidemill.log.transactions import AbortedTransaction
from tidemill.protocol.record_walk import RawRecord, records_of, walk
from tidemill.protocol.records import BatchHeader, checksum_matches, header_at

_RELATIVE_OFFSET_MAX = 0x7FFFFFFF
_LONG_MAX = (1 << 63) - 1
_WRITE_BYTES = 1 << 20
# The size of the larger kind of index entry. A segment has at most one time entry more than offset entries.
_INDEX_ENTRY_BYTES = 12


class SourceSegment(NamedTuple):
    """A sealed segment at the time when the cleaning was planned."""

    base_offset: int
    # The base offset of the next segment.
    end_offset: int
    size: int
    index_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning:
    """The plan of a cleaning: plain values that can be sent to another process."""

    folder: str
    sources: tuple[SourceSegment, ...]
    first_dirty_offset: int
    end_offset: int
    wall_ms: int
    delete_retention_ms: int
    segment_bytes: int
    index_interval_bytes: int
    index_size_max: int
    map_bytes: int
    map_load_factor: float
    # The last offsets of the batches that the producer state refers to.
    producer_batches: frozenset[int] = frozenset()
    # (producer id, epoch) of the producers that only a marker has recorded.
    marked_producers: frozenset[tuple[int, int]] = frozenset()
    # Every aborted transaction with a record below `end_offset` or a marker in the sources.
    aborted: tuple[AbortedTransaction, ...] = ()


class CleanedGroup(NamedTuple):
    """One new segment, written as `*.cleaned` and synced, with the segments that it replaces."""

    source_offsets: tuple[int, ...]
    size: int

    @property
    def base_offset(self) -> int:
        return self.source_offsets[0]


class CleaningResult(NamedTuple):
    """The result of a cleaning."""

    groups: tuple[CleanedGroup, ...]
    # The next first dirty offset, once every group has been swapped in.
    end_offset: int
    bytes_before: int
    bytes_after: int
    records_removed: int
    keys: int


def clean(files: Files, cleaning: Cleaning) -> CleaningResult:
    """Run both passes and leave the new segments as synced `*.cleaned` files. An error leaves no files."""
    try:
        return _clean(files, cleaning)
    except (StorageError, OSError):
        for source in cleaning.sources:
            _remove_cleaned(files, cleaning.folder, source.base_offset)
        raise


def _remove_cleaned(files: Files, folder: str, base_offset: int) -> None:
    for suffix in SUFFIXES:
        files.remove(f"{folder}/{segment_name(base_offset)}.{suffix}{CLEANED}")


def _clean(files: Files, cleaning: Cleaning) -> CleaningResult:
    offset_map, end_offset = _map_keys(files, cleaning)
    cleaner = _Cleaner(files, cleaning, offset_map, end_offset)
    reached = [source for source in cleaning.sources if source.base_offset < end_offset]
    cleaned = []
    for group in group_segments(reached, cleaning.segment_bytes, cleaning.index_size_max):
        found = cleaner.clean_group(group)
        if found is not None:
            cleaned.append(found)
    if cleaned:
        _sync_sources(files, cleaning)
    return CleaningResult(
        tuple(cleaned),
        end_offset,
        cleaner.bytes_before,
        cleaner.bytes_after,
        cleaner.records_removed,
        len(offset_map),
    )


def group_segments(
    sources: Sequence[SourceSegment], size_max: int, index_size_max: int
) -> Iterator[list[SourceSegment]]:
    """Group neighbouring segments that fit one segment even if no record is removed."""
    group: list[SourceSegment] = []
    size = index_size = 0
    for source in sources:
        source_index_size = (source.index_entries + 1) * _INDEX_ENTRY_BYTES
        if group and (
            size + source.size > size_max
            or index_size + source_index_size > index_size_max
            or source.end_offset - 1 - group[0].base_offset > _RELATIVE_OFFSET_MAX
        ):
            yield group
            group, size, index_size = [], 0, 0
        group.append(source)
        size += source.size
        index_size += source_index_size
    if group:
        yield group


def _sync_sources(files: Files, cleaning: Cleaning) -> None:
    """Sync the dirty segments, so that a record is dropped only when its successor is on disk.

    The successor may be in a segment that is swapped in later, or never if the machine stops.
    """
    for source in cleaning.sources:
        if source.end_offset > cleaning.first_dirty_offset:
            files.open(_path(cleaning.folder, source)).sync()


def _path(folder: str, source: SourceSegment) -> str:
    return f"{folder}/{segment_name(source.base_offset)}.log"


def _batches(files: Files, folder: str, source: SourceSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Returns every batch of a segment, verified. Raises `StorageError` when they do not fill the segment."""
    path = _path(folder, source)
    end = 0
    for position, header, batch in read_batches(files.open(path, writable=False), source.size):
        if not checksum_matches(batch, header):
            raise StorageError(f"{path}: the batch at position {position} is damaged")
        yield header, batch
        end = position + header.size
    if end != source.size:
        raise StorageError(f"{path}: no batch at position {end}")


@contextmanager
def _decoding(header: BatchHeader, folder: str) -> Iterator[None]:
    try:
        yield
    except ProtocolError as error:
        raise StorageError(f"{folder}: the batch at offset {header.base_offset}: {error}") from error


def _map_keys(files: Files, cleaning: Cleaning) -> tuple[OffsetMap, int]:
    """The first pass: returns the map, and the offset up to which it is complete."""
    start, end = cleaning.first_dirty_offset, cleaning.end_offset
    offset_map = OffsetMap(cleaning.map_bytes, cleaning.map_load_factor, keys_expected=end - start)
    transactions = CleanedTransactions(cleaning.aborted)
    for source in cleaning.sources:
        if source.end_offset <= start or source.base_offset >= end:
            continue
        for header, batch in _batches(files, cleaning.folder, source):
            if header.base_offset >= end:
                break
            if header.last_offset < start or header.is_control or transactions.is_aborted(header):
                continue
            base_offset = header.base_offset
            with _decoding(header, cleaning.folder):
                for _, _, _, offset_delta, key, _ in walk(records_of(batch, header), header):
                    offset = base_offset + offset_delta
                    if start <= offset < end and key is not None and not offset_map.put(key, offset):
                        return offset_map, offset
    return offset_map, end


class _Cleaner:
    """The second pass: copies the records that stay into new segments."""

    def __init__(self, files: Files, cleaning: Cleaning, offset_map: OffsetMap, end_offset: int) -> None:
        self._files = files
        self._cleaning = cleaning
        self._map = offset_map
        self._transactions = CleanedTransactions(cleaning.aborted)
        self._end_offset = end_offset
        self.bytes_before = 0
        self.bytes_after = 0
        self.records_removed = 0

    def clean_group(self, group: Sequence[SourceSegment]) -> CleanedGroup | None:
        """Write the group's new segment; None when it equals the old one."""
        cleaning = self._cleaning
        _remove_cleaned(self._files, cleaning.folder, group[0].base_offset)
        segment = Segment(
            self._files,
            cleaning.folder,
            group[0].base_offset,
            index_interval_bytes=cleaning.index_interval_bytes,
            index_size_max=cleaning.index_size_max,
            created_ms=cleaning.wall_ms,
            create=True,
            state=CLEANED,
        )
        is_changed = self._fill(segment, group)
        if self._transactions.has_index(group[0].base_offset, group[-1].end_offset):
            # Created even when empty: it replaces the old index.
            segment.txn_index.create()
        segment.seal()
        before = sum(source.size for source in group)
        self.bytes_before += before
        self.bytes_after += segment.size
        if not is_changed and len(group) == 1:
            segment.close()
            _remove_cleaned(self._files, cleaning.folder, segment.base_offset)
            return None
        segment.sync()
        segment.txn_index.sync()
        segment.close()
        return CleanedGroup(tuple(source.base_offset for source in group), segment.size)

    def _fill(self, segment: Segment, group: Sequence[SourceSegment]) -> bool:
        """Copy the batches that stay. Returns whether any batch was changed or dropped."""
        is_changed = False
        out = bytearray()
        batches: list[PlacedBatch] = []
        dropped: BatchHeader | None = None
        for source in group:
            for header, batch in _batches(self._files, self._cleaning.folder, source):
                is_changed |= dropped is not None
                with _decoding(header, self._cleaning.folder):
                    cleaned = self._cleaned(header, batch)
                dropped = header if cleaned is None else None
                if cleaned is None:
                    continue
                is_changed |= cleaned is not batch
                written = header if cleaned is batch else header_at(cleaned)
                if written.is_control and written.record_count:
                    aborted = self._transactions.aborted_by(header)
                    if aborted is not None:
                        segment.txn_index.append(aborted)
                batches.append(placed(written))
                out += cleaned
                if len(out) >= _WRITE_BYTES:
                    segment.append(out, batches)
                    out, batches = bytearray(), []
        if dropped is not None:
            is_changed |= dropped.record_count > 0
            bare = without_records(dropped)
            batches.append(placed(header_at(bare)))
            out += bare
        if out:
            segment.append(out, batches)
        return is_changed

    def _cleaned(self, header: BatchHeader, batch: memoryview) -> memoryview | bytearray | None:
        """Returns the same object when nothing changes, and None when the whole batch is dropped."""
        if header.base_offset >= self._end_offset:
            return batch
        if header.is_control:
            return self._cleaned_marker(header, batch)
        self._transactions.record_batch(header)
        kept: list[RawRecord] = []
        if header.record_count and not self._transactions.is_aborted(header):
            body = records_of(batch, header)
            kept = self._kept(header, walk(body, header))
        self.records_removed += header.record_count - len(kept)
        if kept:
            horizon_ms = self._new_delete_horizon(header, kept)
            if len(kept) == header.record_count and horizon_ms is None:
                return batch
            return with_records(header, body, kept, horizon_ms)
        if header.producer_id >= 0 and header.last_offset in self._cleaning.producer_batches:
            return without_records(header) if header.record_count else batch
        return None

    def _cleaned_marker(self, header: BatchHeader, batch: memoryview) -> memoryview | bytearray | None:
        is_needed = self._transactions.is_needed(header)
        self._transactions.record_marker(header)
        if header.producer_id < 0 or is_needed:
            return batch
        if header.record_count:
            horizon_ms = delete_horizon_of(header)
            if horizon_ms is None:
                body = records_of(batch, header)
                return with_records(header, body, list(walk(body, header)), self._delete_horizon_ms)
            if horizon_ms > self._cleaning.wall_ms:
                return batch
            self.records_removed += 1
        if (header.producer_id, header.producer_epoch) in self._cleaning.marked_producers:
            return without_records(header) if header.record_count else batch
        return None

    def _kept(self, header: BatchHeader, records: Iterable[RawRecord]) -> list[RawRecord]:
        base_offset, end_offset, last_offset_of = header.base_offset, self._end_offset, self._map.get
        drops_tombstones = self._may_drop_tombstones(header)
        kept = []
        for record in records:
            _, _, _, offset_delta, key, is_tombstone = record
            offset = base_offset + offset_delta
            if offset >= end_offset or (
                key is not None and not (drops_tombstones and is_tombstone) and offset >= last_offset_of(key)
            ):
                kept.append(record)
        return kept

    def _may_drop_tombstones(self, header: BatchHeader) -> bool:
        horizon_ms = delete_horizon_of(header)
        return (
            horizon_ms is not None
            and horizon_ms <= self._cleaning.wall_ms
            and header.last_offset < self._cleaning.first_dirty_offset
        )

    def _new_delete_horizon(self, header: BatchHeader, kept: Sequence[RawRecord]) -> int | None:
        """The delete horizon for a batch that has none. The first cleaning that covers the whole batch sets it."""
        if delete_horizon_of(header) is not None or header.last_offset >= self._end_offset:
            return None
        if not any(is_tombstone for *_, is_tombstone in kept):
            return None
        return self._delete_horizon_ms

    @property
    def _delete_horizon_ms(self) -> int:
        return min(self._cleaning.wall_ms + self._cleaning.delete_retention_ms, _LONG_MAX)
