"""Reads the log for a share partition: which offsets have records to deliver, and the whole batches that hold them.

Batches are walked by their headers only, as far as the share partition needs them, and go out as slices of the file.
A gap of compaction, a batch without records, a control batch and, where only committed records are delivered, an aborted
batch are spans without records.

Views, and topics with delayed records, show less than the log holds. `log/filtered_read.py` reads them, in steps: what
is not shown does not leave the broker, and is a span without records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from tidemill.errors import StorageError
from tidemill.log.files import FileSlice
from tidemill.log.filtered_read import FilteredRead
from tidemill.log.log import Log
from tidemill.log.transactions import AbortedTransactions
from tidemill.protocol.record_walk import records_of, walk
from tidemill.protocol.records import HEADER_SIZE, BatchHeader, header_at, is_plausible
from tidemill.protocol.steps import Steps
from tidemill.replication.share_messages import Acquired, Span

_CHUNK_BYTES = 16 * 1024
# For so many offsets aborted transactions are looked up at once.
_ABORTED_OFFSETS = 1_000

Part = FileSlice | bytearray


class Shared(Protocol):
    """The records that were read for a member."""

    @property
    def length(self) -> int: ...
    def spans(self) -> Iterator[Span]: ...
    def parts_with(self, acquired: Sequence[Acquired]) -> list[Part]: ...


class SharedRead:
    """A slice of the log from one offset on, walked once."""

    __slots__ = ("_aborted", "_batches", "_offset", "_slice")

    def __init__(self, found: FileSlice, offset: int, aborted: _AbortedBatches | None = None) -> None:
        self._slice = found
        self._offset = offset
        self._aborted = aborted
        # (first offset, end offset, position, size) of the batches that were walked and have records.
        self._batches: list[tuple[int, int, int, int]] = []

    @property
    def length(self) -> int:
        return self._slice.length

    def spans(self) -> Iterator[Span]:
        """Consecutive spans from the offset on. `StorageError` at bytes that are no batch."""
        expected = self._offset
        for position, header in _headers(self._slice):
            first_offset, end_offset = max(header.base_offset, expected), header.next_offset
            if first_offset > expected:
                yield Span(expected, first_offset, has_records=False)
            has_records = _has_records(header, self._aborted)
            if has_records:
                self._batches.append((first_offset, end_offset, position, header.size))
            yield Span(first_offset, end_offset, has_records)
            expected = end_offset

    def parts_with(self, acquired: Sequence[Acquired]) -> list[Part]:
        """The whole batches that hold what was acquired; neighbours in the file are one slice."""
        parts: list[Part] = []
        start = end = -1
        pieces = iter(acquired)
        piece = next(pieces, None)
        for first_offset, end_offset, position, size in self._batches:
            while piece is not None and piece.end_offset <= first_offset:
                piece = next(pieces, None)
            if piece is None:
                break
            if piece.first_offset >= end_offset:
                continue
            if position != end:
                if end > start:
                    parts.append(FileSlice(self._slice.file, start, end - start))
                start = position
            end = position + size
        if end > start:
            parts.append(FileSlice(self._slice.file, start, end - start))
        return parts


def read_shared(
    log: Log, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool, is_committed: bool
) -> SharedRead | None:
    """Read whole batches below `end_offset`; None when there are none. `OffsetOutOfRange`, `StorageError` as `Log.read`."""
    found = log.read(offset, max_bytes, end_offset, at_least_one=at_least_one)
    if found is None or not found.length:
        return None
    return SharedRead(found, offset, _AbortedBatches(log, end_offset) if is_committed else None)


def _headers(found: FileSlice) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch. Small batches are read many at a time."""
    position, end = found.position, found.position + found.length
    chunk, chunk_start = b"", position
    while position < end:
        at = position - chunk_start
        if at + HEADER_SIZE > len(chunk):
            chunk, chunk_start, at = found.file.read(min(_CHUNK_BYTES, end - position), position), position, 0
        if at + HEADER_SIZE > len(chunk):
            raise StorageError(f"no batch at position {position}")
        header = header_at(chunk, at)
        if not is_plausible(header):
            raise StorageError(f"no batch at position {position}")
        yield position, header
        position += header.size


class _AbortedBatches:
    """The aborted batches below a last stable offset, looked up as far as the log is walked."""

    __slots__ = ("_end_offset", "_first_offset", "_known", "_known_end_offset", "_log")

    def __init__(self, log: Log, end_offset: int) -> None:
        self._log = log
        self._end_offset = end_offset
        self._known = AbortedTransactions(())
        self._first_offset = self._known_end_offset = 0

    def has(self, header: BatchHeader) -> bool:
        offset = header.base_offset
        if not self._first_offset <= offset < self._known_end_offset:
            self._first_offset = offset
            self._known_end_offset = min(offset + _ABORTED_OFFSETS, self._end_offset)
            self._known = AbortedTransactions(self._log.aborted_between(offset, self._known_end_offset))
        return self._known.has(header)


def _has_records(header: BatchHeader, aborted: _AbortedBatches | None) -> bool:
    if not header.record_count or header.is_control:
        return False
    return aborted is None or not header.is_transactional or not aborted.has(header)


# -- what views and delays leave out -------------------------------------------------------------------------


class _ShownBatch(NamedTuple):
    first_offset: int
    end_offset: int
    part: Part
    spans: Sequence[Span]


class FilteredShare:
    """The visible records of a log between two offsets."""

    __slots__ = ("_batches", "end_offset", "offset", "read")

    def __init__(
        self, read: FilteredRead, offset: int, end_offset: int, batches: Sequence[_ShownBatch]
    ) -> None:
        self.read = read
        self.offset = offset
        self.end_offset = end_offset
        self._batches = batches

    @property
    def length(self) -> int:
        parts = (each.part for each in self._batches)
        return sum(part.length if isinstance(part, FileSlice) else len(part) for part in parts)

    def since(self, offset: int) -> FilteredShare:
        """The part of it from an offset on."""
        batches = [each for each in self._batches if each.end_offset > offset]
        return FilteredShare(self.read, offset, self.end_offset, batches)

    def spans(self) -> Iterator[Span]:
        expected = self.offset
        for each in self._batches:
            for span in each.spans:
                if span.end_offset <= expected:
                    continue
                if span.first_offset > expected:
                    yield Span(expected, span.first_offset, has_records=False)
                yield span._replace(first_offset=max(span.first_offset, expected))
                expected = span.end_offset
        if expected < self.end_offset:
            yield Span(expected, self.end_offset, has_records=False)

    def parts_with(self, acquired: Sequence[Acquired]) -> list[Part]:
        return [
            batch.part
            for batch in self._batches
            if any(
                each.first_offset < batch.end_offset and each.end_offset > batch.first_offset
                for each in acquired
            )
        ]


def read_filtered(
    read: FilteredRead, offset: int, end_offset: int, scan_bytes: int, *, is_committed: bool
) -> Steps[FilteredShare]:
    """Look through the log from `offset` on, which is where `read` begins."""
    yield from read.advance(end_offset, scan_bytes)
    result = read.result()
    aborted = _AbortedBatches(read.log, end_offset) if is_committed else None
    batches: list[_ShownBatch] = []
    for part in () if result is None else result.parts:
        if isinstance(part, FileSlice):
            for position, header in _headers(part):
                if _has_records(header, aborted):
                    span = Span(header.base_offset, header.next_offset)
                    whole = FileSlice(part.file, position, header.size)
                    batches.append(_ShownBatch(span.first_offset, span.end_offset, whole, (span,)))
            continue
        position = 0
        while position < len(part):
            header = header_at(part, position)
            if _has_records(header, aborted):
                yield None
                batch = part[position : position + header.size]
                records = walk(records_of(memoryview(batch), header), header)
                offsets = [header.base_offset + offset_delta for _, _, _, offset_delta, *_ in records]
                batches.append(_ShownBatch(header.base_offset, header.next_offset, batch, _runs(offsets)))
            position += header.size
    return FilteredShare(read, offset, max(offset, read.next_offset), batches)


def _runs(offsets: Sequence[int]) -> list[Span]:
    spans: list[Span] = []
    for offset in offsets:
        if spans and spans[-1].end_offset == offset:
            spans[-1] = spans[-1]._replace(end_offset=offset + 1)
        else:
            spans.append(Span(offset, offset + 1))
    return spans
