"""Reads the log for a share partition: which offsets have records to deliver, and the whole batches that hold them.

Batches are walked by their headers only, as far as the share partition needs them, and go out as slices of the file.
A gap of compaction, a batch without records, a control batch and, where only committed records are delivered, an aborted
batch are spans without records. So are delayed records of a topic with delays, which are hidden; only there batches are
decoded as they are walked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.delays.requests import delay_records, is_hidden, meaning_of
from tidemill.errors import StorageError
from tidemill.log.files import FileSlice
from tidemill.log.log import Log
from tidemill.log.transactions import AbortedTransaction
from tidemill.protocol.records import HEADER_SIZE, BatchHeader, header_at, is_plausible
from tidemill.replication.share_partition import Acquired, Span

_CHUNK_BYTES = 16 * 1024

Part = FileSlice | bytearray


class SharedRead:
    """A slice of the log from one offset on, walked once."""

    __slots__ = ("_aborted", "_batches", "_has_delays", "_offset", "_slice")

    def __init__(
        self,
        found: FileSlice,
        offset: int,
        aborted: Sequence[AbortedTransaction] = (),
        *,
        has_delays: bool = False,
    ) -> None:
        self._slice = found
        self._has_delays = has_delays
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
            has_records = bool(header.record_count) and not header.is_control and not self._is_aborted(header)
            if has_records:
                self._batches.append((first_offset, end_offset, position, header.size))
            if has_records and self._has_delays:
                yield from self._shown_spans(position, header, first_offset)
            else:
                yield Span(first_offset, end_offset, has_records)
            expected = end_offset

    def _shown_spans(self, position: int, header: BatchHeader, first_offset: int) -> Iterator[Span]:
        """The spans of one batch around its hidden records."""
        batch = memoryview(self._slice.file.read(header.size, position))
        expected = first_offset
        for record in delay_records(batch, header):
            if record.offset < expected or not is_hidden(meaning_of(record)):
                continue
            if record.offset > expected:
                yield Span(expected, record.offset, has_records=True)
            yield Span(record.offset, record.offset + 1, has_records=False)
            expected = record.offset + 1
        if expected < header.next_offset:
            yield Span(expected, header.next_offset, has_records=True)

    def _is_aborted(self, header: BatchHeader) -> bool:
        return header.is_transactional and any(
            each.producer_id == header.producer_id
            and each.first_offset <= header.base_offset <= each.last_offset
            for each in self._aborted
        )

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
    log: Log,
    offset: int,
    max_bytes: int,
    end_offset: int,
    *,
    at_least_one: bool,
    is_committed: bool,
    has_delays: bool = False,
) -> SharedRead | None:
    """Read whole batches below `end_offset`; None when there are none. `OffsetOutOfRange`, `StorageError` as `Log.read`."""
    found = log.read(offset, max_bytes, end_offset, at_least_one=at_least_one)
    if found is None or not found.length:
        return None
    aborted = log.aborted_between(offset, end_offset) if is_committed else ()
    return SharedRead(found, offset, aborted, has_delays=has_delays)


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
