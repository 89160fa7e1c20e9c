"""The filtered read: a read that leaves records out and keeps offsets right.

Batches of which nothing is left out are file slices, as in any read. A batch that loses records is written anew: its first
and last offset, producer, sequence numbers, transactional flag, timestamps and codec stay, its checksum is new. Control
batches stay. A run of batches without any record left is skipped. Only at the end of the result one empty batch
covers it, so that the reader's position gets past it.

A sealed segment may have a tag index, which says where the records are that match. Batches without any are skipped
without a look at them, and in others the records that match are not searched for. Control batches still come.

A batch that is written anew has the codec of its source, unless what is left of it is smaller than that without one.

It decodes records, so it runs in steps (`protocol/steps.py`) and may be continued when the log has grown. A log that lost or
replaced segments meanwhile is read from the start again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.cleaning.rewrite import with_records
from tidemill.log.files import FileSlice
from tidemill.log.log import Log
from tidemill.log.segments.dictionaries import Probe
from tidemill.log.segments.segment import Segment, can_hold
from tidemill.log.segments.tag_index import Found, TagIndex
from tidemill.log.segments.tag_index_files import TagIndexes
from tidemill.protocol.record_walk import RawRecord, record_at, records_in_steps
from tidemill.protocol.records import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_SEQUENCE,
    BatchHeader,
    assemble,
    checksum_matches,
    header_at,
)
from tidemill.protocol.steps import Steps
from tidemill.types import NO_TIMESTAMP

# Batches without a look at their records between two steps.
_BATCHES_A_STEP = 64
# Larger ones are compressed in a thread.
_BYTES_A_STEP = 16 * 1024
# What a look at one byte costs, in bytes that the tag index excludes, and in bytes of batches with known matches.
_SKIPPED_BYTES_A_BYTE = 256
_FOUND_BYTES_A_BYTE = 4
# Batches with known matches, and records of them, between two steps.
_FOUND_A_STEP = 16
_FOUND_RECORDS_A_STEP = 150
_OFFSET_DELTA_MAX = 0x7FFFFFFF
_NO_PRODUCER = -1

Part = FileSlice | bytearray
# The kept records of a batch, from its decompressed records and its header. `ProtocolError` when they do not decode.
# None stands for all of them.
Select = Callable[[bytes, BatchHeader], Steps[list[RawRecord] | None]]


class Skipping(NamedTuple):
    """How a read skips parts of sealed segments. `probe` must exclude only what `Select` leaves out."""

    probe: Probe
    indexes: TagIndexes
    # Whether `Select` keeps all that the probe finds.
    is_exact: bool = True


class KnownRun(NamedTuple):
    """Up to `end_offset`, `Select` leaves out all records, or none. It is where the run begins when nothing is known."""

    end_offset: int
    is_left_out: bool


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
        skipping: Skipping | None = None,
        known_run: Callable[[int], KnownRun] | None = None,
    ) -> None:
        """`known_run` returns what is known in advance of the records from an offset on."""
        self.log = log
        self._offset = offset
        self._select = select
        self._max_bytes = max_bytes
        self._on_undecodable = on_undecodable
        self._skipping = skipping
        self._known_run = known_run
        # Set by the reader's owner: the log is damaged there.
        self.has_failed = False
        # Over all batches that were looked at; those that had to be looked at again count again.
        self.scanned_records = 0
        self.shown_records = 0
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
        """Look through more batches below `end_offset`. Returns how many bytes were looked through.

        Bytes that an index excludes count for as much as they cost.
        """
        if self.log.removals != self._removals:
            self._start_over()
        scanned_bytes = 0
        while not self.is_full and self.next_offset < end_offset and scanned_bytes < scan_bytes_max:
            before = self.next_offset
            left = scan_bytes_max - scanned_bytes
            if self._known_run is not None:
                known_end, is_left_out = self._known_run(before)
                if is_left_out and known_end > before:
                    self._skip_to(min(known_end, end_offset))
                    scanned_bytes += 1
                    continue
                plain_bytes = self._take_plain(min(known_end, end_offset))
                if plain_bytes or self.is_full:
                    scanned_bytes += 1 + plain_bytes // _SKIPPED_BYTES_A_BYTE
                    continue
                # Behind the next batch there may be a run without anything to leave out.
                left = 1
            scanned_bytes += yield from self._look_through(self._segment(), end_offset, left)
            if self.log.removals != self._removals:
                self._start_over()
            elif self.next_offset == before and not self.is_full:
                break
        return scanned_bytes

    def _take_plain(self, end_offset: int) -> int:
        """Take whole batches below an offset, none of which loses a record, as a slice. Returns its size."""
        if end_offset <= self.next_offset:
            return 0
        segment = self._segment()
        room = max(0, self._max_bytes - self.length)
        found = segment.read(self.next_offset, room, end_offset, at_least_one=not self._parts)
        if not found.length:
            self.is_full = bool(self._parts) and found.position < segment.locate(end_offset)
            return 0
        first = segment.header_at(found.position)
        if first is None or first.base_offset < self.next_offset:
            # Records of the batch before this offset may have to be left out.
            return 0
        behind = segment.header_at(found.position + found.length)
        if behind is None:
            following = self._following(segment)
            self.next_offset = end_offset if following is None else min(following, end_offset)
        else:
            self.next_offset = min(behind.base_offset, end_offset)
        self._add(found)
        self._empty_from = self.next_offset
        self._empty_epoch = self.log.epochs.epoch_of(self.next_offset - 1)
        return found.length

    def _segment(self) -> Segment:
        segments = self.log.segments
        number = bisect_right(segments, self.next_offset, key=lambda each: each.base_offset) - 1
        return segments[max(0, number)]

    def _look_through(self, segment: Segment, end_offset: int, scan_bytes_max: int) -> Steps[int]:
        """Look through one segment."""
        index: TagIndex | None = None
        skipping = self._skipping
        if skipping is not None and segment.tag_index_key is not None:
            yield None
            index = yield from skipping.indexes.of(segment)
            if self.log.removals != self._removals:
                return 0
        position, size = segment.locate(self.next_offset), segment.size
        if skipping is None or index is None:
            scanned_bytes, is_through = yield from self._look_at(
                segment, position, size, end_offset, scan_bytes_max
            )
        else:
            scanned_bytes, is_through = yield from self._look_at_pieces(
                segment, index, skipping, position, end_offset, scan_bytes_max
            )
        if is_through:
            self._step_over_gap(segment, end_offset)
        return scanned_bytes

    def _look_at_pieces(
        self,
        segment: Segment,
        index: TagIndex,
        skipping: Skipping,
        position: int,
        end_offset: int,
        scan_bytes_max: int,
    ) -> Steps[tuple[int, bool]]:
        """As `_look_at`, to the end of a sealed segment, for the batches that its index does not exclude."""
        scanned_bytes, size = 0, segment.size
        while position < size:
            piece = yield from index.next_piece(skipping.probe, position)
            if self.log.removals != self._removals:
                return scanned_bytes, False
            begin = size if piece is None else piece.position
            scanned_bytes += (begin - position) // _SKIPPED_BYTES_A_BYTE
            if piece is None:
                break
            if begin > position:
                self._skip_to(min(piece.base_offset, end_offset))
            left = scan_bytes_max - scanned_bytes
            if piece.found is None:
                scanned, is_through = yield from self._look_at(
                    segment, begin, piece.end_position, end_offset, left
                )
            else:
                scanned, is_through = yield from self._take(
                    segment, piece.found, end_offset, left, is_exact=skipping.is_exact
                )
            scanned_bytes += scanned
            if not is_through:
                return scanned_bytes, False
            position = piece.end_position
            self._skip_to(min(piece.next_offset, end_offset))
        return scanned_bytes, True

    def _take(
        self,
        segment: Segment,
        found: Sequence[Found],
        end_offset: int,
        scan_bytes_max: int,
        *,
        is_exact: bool,
    ) -> Steps[tuple[int, bool]]:
        """As `_look_at`, for the batches that the index has found."""
        scanned_bytes, removals = 0, self._removals
        for number, each in enumerate(found, 1):
            batch = memoryview(segment.file.read(each.size, each.position))
            header = _header_of(segment, each, batch)
            self._skip_to(min(header.base_offset, end_offset))
            if header.base_offset >= end_offset:
                return scanned_bytes, False
            whole = FileSlice(segment.file, each.position, each.size)
            part: Part | None = whole
            if each.records is not None:
                places = each.records if is_exact else None
                part = yield from self._left_of(header, batch, whole, places)
            if self.log.removals != removals:
                return scanned_bytes, False
            if part is not None and not self._has_room(part):
                self.is_full = True
                return scanned_bytes, False
            scanned_bytes += -(-each.size // _FOUND_BYTES_A_BYTE)
            self._pass(header, part)
            if self.is_full or scanned_bytes >= scan_bytes_max:
                return scanned_bytes, False
            if number % _FOUND_A_STEP == 0:
                yield None
        return scanned_bytes, True

    def _look_at(
        self, segment: Segment, position: int, end_position: int, end_offset: int, scan_bytes_max: int
    ) -> Steps[tuple[int, bool]]:
        """Look through the batches between two positions. Returns how many bytes that were, and whether it was all."""
        scanned_bytes, removals, file = 0, self._removals, segment.file
        batches = segment.batches(position, end_position)
        for number, (at, header, batch) in enumerate(batches, 1):
            if header.base_offset >= end_offset:
                return scanned_bytes, False
            if number % _BATCHES_A_STEP == 0:
                yield None
            part: Part | None = FileSlice(file, at, header.size)
            if not header.is_control:
                part = yield from self._left_of(header, batch, FileSlice(file, at, header.size))
            if self.log.removals != removals or self.is_full:
                return scanned_bytes, False
            if part is not None and not self._has_room(part):
                self.is_full = True
                return scanned_bytes, False
            scanned_bytes += header.size
            self._pass(header, part)
            position = at + header.size
            if scanned_bytes >= scan_bytes_max:
                return scanned_bytes, False
        if self.log.removals != removals:
            return scanned_bytes, False
        if position < end_position:
            raise StorageError(f"{segment.path_of('log')}: no batch at position {position}")
        return scanned_bytes, True

    def _pass(self, header: BatchHeader, part: Part | None) -> None:
        """Go on behind a batch, of which `part` is kept."""
        self.next_offset = header.next_offset
        if not header.is_control:
            self.scanned_records += header.record_count
        if part is not None:
            if not header.is_control:
                kept = header if isinstance(part, FileSlice) else header_at(part, 0)
                self.shown_records += kept.record_count
            self._add(part)
            self._empty_from = self.next_offset
        self._empty_epoch = header.leader_epoch

    def _skip_to(self, offset: int) -> None:
        """Step over offsets without a record to show."""
        if offset > self.next_offset:
            self.next_offset = offset
            # That of the last batch before the offset, or of a gap after it; never one above that of the next batch.
            self._empty_epoch = max(self._empty_epoch, self.log.epochs.epoch_of(offset - 1))

    def _step_over_gap(self, segment: Segment, end_offset: int) -> None:
        """Step to the next segment. Compaction may leave a gap before it, and the index may exclude the rest."""
        following = self._following(segment)
        if following is not None:
            self._skip_to(min(following, end_offset))

    def _following(self, segment: Segment) -> int | None:
        """Where the next segment begins."""
        bases = (each.base_offset for each in self.log.segments)
        return next((base for base in bases if base > segment.base_offset), None)

    def _left_of(
        self,
        header: BatchHeader,
        batch: memoryview,
        whole: FileSlice,
        places: Sequence[tuple[int, int]] | None = None,
    ) -> Steps[Part | None]:
        """What is kept of a batch; None when that is nothing. `places` are the kept records, where they are known."""
        if not header.record_count:
            return None
        if places is not None and len(places) == header.record_count:
            return whole
        try:
            body = yield from records_in_steps(batch, header)
            if places is None:
                kept = yield from self._select(body, header)
            else:
                kept = yield from _records_at(places, body, header)
            if kept is None or len(kept) == header.record_count:
                return whole
            if not kept:
                return None
            if not checksum_matches(batch, header):
                # A new checksum must not vouch for damaged records.
                raise StorageError(f"the batch at offset {header.base_offset} is damaged")
            return (yield from _rewritten(header, body, kept))
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
        self.length += part.length if isinstance(part, FileSlice) else len(part)
        if (
            isinstance(part, FileSlice)
            and isinstance(last, FileSlice)
            and last.file is part.file
            and last.position + last.length == part.position
        ):
            self._parts[-1] = last._replace(length=last.length + part.length)
        else:
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


def _header_of(segment: Segment, found: Found, batch: memoryview) -> BatchHeader:
    """The header of a batch that an index names."""
    if len(batch) == found.size >= HEADER_SIZE:
        header = header_at(batch)
        if can_hold(segment.base_offset, header) and header.size == found.size:
            return header
    raise StorageError(f"{segment.path_of('log')}: no batch at position {found.position}")


def _records_at(
    places: Sequence[tuple[int, int]], body: bytes, header: BatchHeader
) -> Steps[list[RawRecord]]:
    kept = []
    for number, (start, end) in enumerate(places, 1):
        kept.append(record_at(body, start, end, header))
        if number % _FOUND_RECORDS_A_STEP == 0:
            yield None
    return kept


def _rewritten(header: BatchHeader, body: bytes, kept: Sequence[RawRecord]) -> Steps[Part]:
    """The batch with the kept records alone. It is not larger than the whole one."""
    if header.codec:
        size = sum(record[1] - record[0] for record in kept)
        if size <= header.size - HEADER_SIZE:
            # The codec would cost more time than the network.
            header = header._replace(attributes=header.attributes & ~COMPRESSION_MASK)
    rewrite = partial(with_records, header, body, kept, None)
    if not header.codec or len(body) <= _BYTES_A_STEP:
        return rewrite()
    rewritten: bytearray = yield rewrite
    return rewritten


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
