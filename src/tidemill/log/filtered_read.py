"""The filtered read: a read that leaves records out and keeps offsets right.

Batches of which nothing is left out are file slices, as in any read. A batch that loses records is written anew: its first
and last offset, producer, sequence numbers, transactional flag, timestamps and codec stay, its checksum is new. Control
batches stay. A run of batches without any record left is skipped. Only at the end of the result one empty batch
covers it, so that the reader's position gets past it.

A sealed segment may have a tag index, and the active one indexes of its parts. They say where the records are that match.
Batches without any are skipped without a look at them, and in others the records that match are not searched for. Control
batches still come.

`filtered_batches.py` writes the batches. Those that follow each other are one part of the result.

It decodes records, so it runs in steps (`protocol/steps.py`) and may be continued when the log has grown. A log that lost or
replaced segments meanwhile is read from the start again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.files import FileSlice
from tidemill.log.filtered_batches import KeptRecords, Places, empty_batch, kept_of, kept_uncompressed
from tidemill.log.log import Log
from tidemill.log.segments.dictionaries import Probe
from tidemill.log.segments.segment import Segment, can_hold
from tidemill.log.segments.tag_index import Found, Piece, TagIndex
from tidemill.log.segments.tag_index_files import Covering, TagIndexes
from tidemill.protocol.record_walk import RawRecord, holds_record, records_in_steps
from tidemill.protocol.records import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    BatchHeader,
    checksum_matches,
    header_at,
)
from tidemill.protocol.steps import Steps

# Batches without a look at their records between two steps, and records of batches that are written anew.
_BATCHES_A_STEP = 16
_KEPT_A_STEP = 100
# What a look at one byte costs, in bytes that the tag index excludes, and in bytes of batches with known matches.
_SKIPPED_BYTES_A_BYTE = 256
_FOUND_BYTES_A_BYTE = 4
# The work between two steps on batches with known matches, in records: a batch costs as much as some of them.
_FOUND_A_STEP = 500
_BATCH_IN_RECORDS = 25
_PIECE_IN_RECORDS = 200
# Batches are read together up to this size, and over gaps that cost less than another call.
_READ_BYTES_MAX = 64 * 1024
_GAP_BYTES_MAX = 4 * 1024
# Batches that were written anew are joined up to this size.
_JOINED_BYTES_MAX = 256 * 1024
_OFFSET_DELTA_MAX = 0x7FFFFFFF

Part = FileSlice | bytearray
# What is kept of a batch.
Kept = FileSlice | KeptRecords
# The kept records of a batch, from its decompressed records and its header. `ProtocolError` when they do not decode.
# None stands for all of them.
Select = Callable[[bytes, BatchHeader], Steps[list[RawRecord] | None]]
# Kept records as the reader gets them, from the same and the records. None when they stay as they are.
Restate = Callable[[bytes, BatchHeader, Sequence[RawRecord]], Steps[list[bytes] | None]]


class Skipping(NamedTuple):
    """Skips parts of sealed segments in a read. `probe` must exclude only what `Select` leaves out."""

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
        restate: Restate | None = None,
    ) -> None:
        """`known_run` returns what is known in advance of the records from an offset on."""
        self.log = log
        self._offset = offset
        self._select = select
        self._max_bytes = max_bytes
        self._takes_any_first = True
        self._on_undecodable = on_undecodable
        self._skipping = skipping
        self._known_run = known_run
        self._restate = restate
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
        # Whether offsets were stepped over since that batch.
        self._has_skipped = False
        # The work on known matches since the last step.
        self._work = 0
        # The piece of an index in which the last turn ended.
        self._opened: tuple[TagIndex, Piece] | None = None

    def is_of(self, log: Log) -> bool:
        """Whether what was found is still what this log holds."""
        return self.log is log and log.removals == self._removals

    def has_more(self, end_offset: int) -> bool:
        return not self.is_full and self.next_offset < end_offset

    def limit(self, max_bytes: int, *, takes_any_first: bool) -> None:
        """Find no more than so many bytes from now on; with `takes_any_first` one batch, whatever its size."""
        self._max_bytes = max_bytes
        self._takes_any_first = takes_any_first

    def advance(self, end_offset: int, scan_bytes_max: int) -> Steps[int]:
        """Look through more batches below `end_offset`. Returns how many bytes were looked through.

        Bytes that an index excludes count for as much as they cost.
        """
        if self.log.removals != self._removals:
            self._start_over()
        scanned_bytes = 0
        while not self.is_full and self.next_offset < end_offset and scanned_bytes < scan_bytes_max:
            if self.log.is_released:
                break
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
        at_least_one = self._takes_any_first and not self._parts
        found = segment.read(self.next_offset, room, end_offset, at_least_one=at_least_one)
        if not found.length:
            self.is_full = not at_least_one and found.position < segment.locate(end_offset)
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
        self._has_skipped = True
        return found.length

    def _segment(self) -> Segment:
        segments = self.log.segments
        number = bisect_right(segments, self.next_offset, key=lambda each: each.base_offset) - 1
        return segments[max(0, number)]

    def _look_through(self, segment: Segment, end_offset: int, scan_bytes_max: int) -> Steps[int]:
        """Look through one segment, or through the part of it that has an index."""
        covering: Covering | None = None
        skipping, position = self._skipping, segment.locate(self.next_offset)
        if skipping is not None and (segment.tag_index_key is not None or position < segment.tag_index_end):
            yield None
            covering = yield from skipping.indexes.at(segment, position)
            if self.log.removals != self._removals:
                return 0
        if skipping is None or covering is None:
            end_position = segment.size
            scanned_bytes, is_through = yield from self._look_at(
                segment, position, end_position, end_offset, scan_bytes_max
            )
        else:
            end_position = covering.end_position
            scanned_bytes, is_through = yield from self._look_at_pieces(
                segment, covering, skipping, position, end_offset, scan_bytes_max
            )
            if is_through:
                self._skip_to(min(covering.tag_index.next_offset, end_offset))
        if is_through and end_position == segment.size:
            self._step_over_gap(segment, end_offset)
        return scanned_bytes

    def _look_at_pieces(
        self,
        segment: Segment,
        covering: Covering,
        skipping: Skipping,
        position: int,
        end_offset: int,
        scan_bytes_max: int,
    ) -> Steps[tuple[int, bool]]:
        """As `_look_at`, to the end of what an index covers, for the batches that it does not exclude."""
        scanned_bytes, (index, size) = 0, covering
        while position < size:
            piece: Piece | None
            if (
                self._opened is not None
                and self._opened[0] is index
                and position < self._opened[1].end_position
            ):
                piece = self._opened[1].since(position)
            else:
                piece = yield from index.next_piece(skipping.probe, position)
                self._work += _PIECE_IN_RECORDS
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
            self._opened = None if is_through else (index, piece)
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
        scanned_bytes, chunk, chunk_start = 0, b"", 0
        removals, file = self._removals, segment.file
        for number, each in enumerate(found):
            position, size, record_count, places = each
            at = position - chunk_start
            if at + size > len(chunk):
                length = _bytes_at_once(found, number, is_exact=is_exact)
                chunk, chunk_start, at = file.read(length, position), position, 0
            header = _header_of(segment, each, chunk, at)
            if header.base_offset >= end_offset:
                self._skip_to(end_offset)
                return scanned_bytes, False
            kept: Kept | None
            if places is None or (is_exact and len(places) == record_count):
                kept = FileSlice(file, position, size)
            elif is_exact and not header.attributes & COMPRESSION_MASK and _fit(places, chunk, at):
                _check_sum(memoryview(chunk)[at : at + size], header)
                kept = kept_uncompressed(chunk, at, places)
                self._work += len(places)
            else:
                batch, whole = memoryview(chunk)[at : at + size], FileSlice(file, position, size)
                kept = yield from self._left_of(header, batch, whole, places if is_exact else None)
                if self.log.removals != removals:
                    return scanned_bytes, False
                self._work += len(places)
            if kept is not None and not self._has_room(kept):
                self._skip_to(header.base_offset)
                self.is_full = True
                return scanned_bytes, False
            scanned_bytes += -(-size // _FOUND_BYTES_A_BYTE)
            self._pass(header, kept)
            if self.is_full or scanned_bytes >= scan_bytes_max:
                return scanned_bytes, False
            self._work += _BATCH_IN_RECORDS
            if self._work >= _FOUND_A_STEP:
                self._work = 0
                yield None
                if self.log.removals != removals:
                    return scanned_bytes, False
        return scanned_bytes, True

    def _look_at(
        self, segment: Segment, position: int, end_position: int, end_offset: int, scan_bytes_max: int
    ) -> Steps[tuple[int, bool]]:
        """Look through the batches between two positions. Returns how many bytes that were, and whether it was all."""
        scanned_bytes, removals, file = 0, self._removals, segment.file
        kept_records = 0
        batches = segment.batches(position, end_position)
        for number, (at, header, batch) in enumerate(batches, 1):
            if header.base_offset >= end_offset:
                return scanned_bytes, False
            if number % _BATCHES_A_STEP == 0 or kept_records >= _KEPT_A_STEP:
                kept_records = 0
                yield None
            kept: Kept | None = FileSlice(file, at, header.size)
            if not header.is_control:
                kept = yield from self._left_of(header, batch, FileSlice(file, at, header.size))
                kept_records += kept.record_count if isinstance(kept, KeptRecords) else 0
            if self.log.removals != removals or self.is_full:
                return scanned_bytes, False
            if kept is not None and not self._has_room(kept):
                self.is_full = True
                return scanned_bytes, False
            scanned_bytes += header.size
            self._pass(header, kept)
            position = at + header.size
            if scanned_bytes >= scan_bytes_max:
                return scanned_bytes, False
        if self.log.removals != removals:
            return scanned_bytes, False
        if position < end_position:
            raise StorageError(f"{segment.path_of('log')}: no batch at position {position}")
        return scanned_bytes, True

    def _pass(self, header: BatchHeader, kept: Kept | None) -> None:
        """Go on behind a batch, of which `kept` is left."""
        self.next_offset = header.next_offset
        self._empty_epoch = header.leader_epoch
        self._has_skipped = False
        if not header.is_control:
            self.scanned_records += header.record_count
            if kept is not None:
                self.shown_records += (
                    header.record_count if isinstance(kept, FileSlice) else kept.record_count
                )
        if kept is not None:
            self._add(kept)
            self._empty_from = self.next_offset

    def _skip_to(self, offset: int) -> None:
        """Step over offsets without a record to show."""
        if offset > self.next_offset:
            self.next_offset = offset
            self._has_skipped = True

    def _step_over_gap(self, segment: Segment, end_offset: int) -> None:
        """Step to the next segment. Compaction may leave a gap before it, and the index may exclude the rest."""
        following = self._following(segment)
        if following is not None:
            self._skip_to(min(following, end_offset))

    def _following(self, segment: Segment) -> int | None:
        """Returns the base offset of the next segment."""
        bases = (each.base_offset for each in self.log.segments)
        return next((base for base in bases if base > segment.base_offset), None)

    def _left_of(
        self,
        header: BatchHeader,
        batch: memoryview,
        whole: FileSlice,
        places: Places | None = None,
    ) -> Steps[Kept | None]:
        """Returns the kept part of a batch; None when there is none. `places` are the kept records, where they are known."""
        if not header.record_count:
            return None
        try:
            body = yield from records_in_steps(batch, header)
            if places is None or not holds_record(body, *places[0]):
                records = yield from self._select(body, header)
                if records and self._restate is not None:
                    restated = yield from self._restate(body, header, records)
                    if restated is not None:
                        _check_sum(batch, header)
                        return (yield from kept_of(header, restated))
                if records is None or len(records) == header.record_count:
                    return whole
                if not records:
                    return None
                places = [(record[0], record[1]) for record in records]
            _check_sum(batch, header)
            return (yield from kept_of(header, [body[start:end] for start, end in places]))
        except ProtocolError as error:
            _check_sum(batch, header, f": {error}")
            # It cannot be said whether they match, so they are not shown.
            self._on_undecodable(f"the batch at offset {header.base_offset} cannot be decoded: {error}")
            return None

    def _has_room(self, kept: Kept) -> bool:
        if self._takes_any_first and not self._parts:
            return True
        return self.length + kept.length <= self._max_bytes

    def _add(self, kept: Kept) -> None:
        parts = self._parts
        last = parts[-1] if parts else None
        self.length += kept.length
        if isinstance(kept, KeptRecords):
            if not isinstance(last, bytearray) or len(last) >= _JOINED_BYTES_MAX:
                last = bytearray()
                parts.append(last)
            kept.append_to(last)
        elif (
            isinstance(last, FileSlice)
            and last.file is kept.file
            and last.position + last.length == kept.position
        ):
            parts[-1] = last._replace(length=last.length + kept.length)
        else:
            parts.append(kept)
        self.is_full = self.length >= self._max_bytes

    def result(self) -> Filtered | None:
        """Returns the kept batches, ending with an empty batch when nothing is kept of the last batches."""
        parts = list(self._parts)
        first, end = self._empty_from, self.next_offset
        if first < end:
            epoch = self._empty_epoch
            if self._has_skipped:
                # That of the last batch before the offset, or of a gap after it; never one above that of the next batch.
                epoch = max(epoch, self.log.epochs.epoch_of(end - 1))
            while first < end:
                last = min(end - 1, first + _OFFSET_DELTA_MAX)
                parts.append(empty_batch(first, last, epoch))
                first = last + 1
        return Filtered(parts) if parts else None


def _bytes_at_once(found: Sequence[Found], number: int, *, is_exact: bool) -> int:
    """Returns how much to read for a batch: with neighbours that are read anyway. Of a whole one the header is enough."""
    first = found[number]
    if first.records is None or (is_exact and len(first.records) == first.record_count):
        return HEADER_SIZE
    end = first.position + first.size
    for following in found[number + 1 :]:
        following_end = following.position + following.size
        if following.position > end + _GAP_BYTES_MAX or following_end - first.position > _READ_BYTES_MAX:
            break
        end = following_end
    return end - first.position


def _header_of(segment: Segment, found: Found, chunk: bytes, at: int) -> BatchHeader:
    """The header of a batch that an index names."""
    if len(chunk) - at >= HEADER_SIZE:
        header = header_at(chunk, at)
        if (
            can_hold(segment.base_offset, header)
            and header.size == found.size
            and (found.records is None or header.record_count == found.record_count)
        ):
            return header
    raise StorageError(f"{segment.path_of('log')}: no batch at position {found.position}")


def _fit(places: Places, chunk: bytes, at: int) -> bool:
    """Whether the first record of a batch without a codec is where the index says. The index is not trusted blindly."""
    start, end = places[0]
    return holds_record(chunk, at + HEADER_SIZE + start, at + HEADER_SIZE + end)


def _check_sum(batch: memoryview, header: BatchHeader, reason: str = "") -> None:
    """A new checksum must not vouch for damaged records."""
    if not checksum_matches(batch, header):
        raise StorageError(f"the batch at offset {header.base_offset} is damaged{reason}")


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
