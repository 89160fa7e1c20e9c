"""The filtered read: a read that leaves records out and keeps offsets right.

Batches of which nothing is left out are file slices, as in any read. A batch that loses records is written anew: its first
and last offset, producer, sequence numbers, transactional flag, timestamps and codec stay, its checksum is new. Control
batches stay. A run of batches without any record left is skipped. Only at the end of the result one empty batch
covers it, so that the reader's position gets past it.

It decodes records, so it runs in steps (`protocol/steps.py`) and may be continued when the log has grown. A log that lost or
replaced segments meanwhile is read from the start again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.cleaning.rewrite import with_records
from tidemill.log.files import FileSlice
from tidemill.log.log import Log
from tidemill.log.segments.segment import Segment
from tidemill.protocol.record_walk import RawRecord, records_in_steps
from tidemill.protocol.records import (
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_SEQUENCE,
    BatchHeader,
    assemble,
    checksum_matches,
)
from tidemill.protocol.steps import Steps
from tidemill.types import NO_TIMESTAMP

# Batches without a look at their records between two steps.
_BATCHES_A_STEP = 64
# Larger ones are compressed in a thread.
_BYTES_A_STEP = 16 * 1024
_OFFSET_DELTA_MAX = 0x7FFFFFFF
_NO_PRODUCER = -1

Part = FileSlice | bytearray
# The kept records of a batch, from its decompressed records and its header. `ProtocolError` when they do not decode.
# None stands for all of them.
Select = Callable[[bytes, BatchHeader], Steps[list[RawRecord] | None]]


class Filtered:
    """The result: whole batches as parts of a response."""

    __slots__ = ("length", "parts")

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.length = sum(part.length if isinstance(part, FileSlice) else len(part) for part in parts)


class FilteredRead:
    """One reader's position in a log, and what it found so far."""

    def __init__(
        self,
        log: Log,
        offset: int,
        select: Select,
        max_bytes: int,
        on_undecodable: Callable[[str], None],
    ) -> None:
        self.log = log
        self._offset = offset
        self._select = select
        self._max_bytes = max_bytes
        self._on_undecodable = on_undecodable
        # Set by the reader's owner: the log is damaged there.
        self.has_failed = False
        self._start_over()

    def _start_over(self) -> None:
        self._removals = self.log.removals
        self._parts: list[Part] = []
        self.length = 0
        self.is_full = False
        # Everything before it was looked at.
        self.next_offset = self._offset
        # Where the run of batches begins of which nothing is kept, and the leader epoch of its last batch.
        self._empty_from = self._offset
        self._empty_epoch = -1

    def is_of(self, log: Log) -> bool:
        """Whether what was found is still what this log holds."""
        return self.log is log and log.removals == self._removals

    def has_more(self, end_offset: int) -> bool:
        return not self.is_full and self.next_offset < end_offset

    def advance(self, end_offset: int, scan_bytes_max: int) -> Steps[int]:
        """Look through more batches below `end_offset`. Returns how many bytes were looked through."""
        if self.log.removals != self._removals:
            self._start_over()
        scanned_bytes = 0
        while not self.is_full and self.next_offset < end_offset and scanned_bytes < scan_bytes_max:
            before = self.next_offset
            scanned_bytes += yield from self._look_through(
                self._segment(), end_offset, scan_bytes_max - scanned_bytes
            )
            if self.log.removals != self._removals:
                self._start_over()
            elif self.next_offset == before and not self.is_full:
                break
        return scanned_bytes

    def _segment(self) -> Segment:
        segments = self.log.segments
        number = bisect_right(segments, self.next_offset, key=lambda each: each.base_offset) - 1
        return segments[max(0, number)]

    def _look_through(self, segment: Segment, end_offset: int, scan_bytes_max: int) -> Steps[int]:
        """Look through one segment."""
        scanned_bytes, removals = 0, self._removals
        size, file = segment.size, segment.file
        position = segment.locate(self.next_offset)
        for number, (at, header, batch) in enumerate(segment.batches(position), 1):
            if header.base_offset >= end_offset or at >= size:
                return scanned_bytes
            if number % _BATCHES_A_STEP == 0:
                yield None
            part: Part | None = FileSlice(file, at, header.size)
            if not header.is_control:
                part = yield from self._left_of(header, batch, FileSlice(file, at, header.size))
            if self.log.removals != removals or self.is_full:
                return scanned_bytes
            if part is not None and not self._has_room(part):
                self.is_full = True
                return scanned_bytes
            scanned_bytes += header.size
            self.next_offset = header.next_offset
            if part is not None:
                self._add(part)
                self._empty_from = self.next_offset
            self._empty_epoch = header.leader_epoch
            if scanned_bytes >= scan_bytes_max:
                return scanned_bytes
        self._step_over_gap(segment, end_offset)
        return scanned_bytes

    def _step_over_gap(self, segment: Segment, end_offset: int) -> None:
        """Compaction may leave a gap between the last batch of a segment and the next segment."""
        following = next(
            (each.base_offset for each in self.log.segments if each.base_offset > segment.base_offset), None
        )
        if following is not None:
            self.next_offset = max(self.next_offset, min(following, end_offset))

    def _left_of(self, header: BatchHeader, batch: memoryview, whole: FileSlice) -> Steps[Part | None]:
        """What is kept of a batch; None when that is nothing."""
        if not header.record_count:
            return None
        try:
            body = yield from records_in_steps(batch, header)
            kept = yield from self._select(body, header)
            if kept is None or len(kept) == header.record_count:
                return whole
            if not kept:
                return None
            rewrite = partial(with_records, header, body, kept, None)
            if not header.codec or len(body) <= _BYTES_A_STEP:
                return rewrite()
            rewritten: bytearray = yield rewrite
            return rewritten
        except ProtocolError as error:
            if not checksum_matches(batch, header):
                raise StorageError(f"the batch at offset {header.base_offset} is damaged: {error}") from error
            # It cannot be said whether they match, so they are not shown.
            self._on_undecodable(f"the batch at offset {header.base_offset} cannot be decoded: {error}")
            return None

    def _has_room(self, part: Part) -> bool:
        size = part.length if isinstance(part, FileSlice) else len(part)
        return not self._parts or self.length + size <= self._max_bytes

    def _add(self, part: Part) -> None:
        last = self._parts[-1] if self._parts else None
        if isinstance(part, FileSlice):
            self.length += part.length
            if (
                isinstance(last, FileSlice)
                and last.file is part.file
                and last.position + last.length == part.position
            ):
                self._parts[-1] = last._replace(length=last.length + part.length)
                return
        else:
            self.length += len(part)
        self._parts.append(part)
        self.is_full = self.length >= self._max_bytes

    def result(self) -> Filtered | None:
        """What was found, ending with an empty batch when nothing is kept of the last batches."""
        parts = list(self._parts)
        first, end = self._empty_from, self.next_offset
        while first < end:
            last = min(end - 1, first + _OFFSET_DELTA_MAX)
            parts.append(_empty_batch(first, last, self._empty_epoch))
            first = last + 1
        return Filtered(parts) if parts else None


def both(first: Select, second: Select) -> Select:
    """Keeps what both keep."""

    def select(body: bytes, header: BatchHeader) -> Steps[list[RawRecord] | None]:
        kept = yield from first(body, header)
        kept_too = yield from second(body, header)
        if kept is None or kept_too is None:
            return kept if kept_too is None else kept_too
        offsets = {record[3] for record in kept}
        return [record for record in kept_too if record[3] in offsets]

    return select


def _empty_batch(first_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
    """A batch without records that covers a range of offsets."""
    return assemble(
        BatchHeader(
            base_offset=first_offset,
            batch_length=HEADER_SIZE - LENGTH_PREFIX,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=last_offset - first_offset,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=_NO_PRODUCER,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        ),
        b"",
    )
