"""The tag index of a sealed segment: where the records are that match a filter.

The segment is divided into runs of whole batches, of about 64 KiB each. For a run the index knows the distinct keys and
sets of headers of its records (`dictionaries.py`), which of them each record has, and the size of each record. So a
reader reads only batches with a match, and of those it takes only the records that match. A run with a damaged
batch, or with records that do not decode, is unknown and always read whole. Neighbours with small dictionaries are
joined, so that a reader decides about some thousands of records at once.

Control batches have no keys or headers. The index lists each of them with its place, and a reader gets it although its
run is skipped: consumers need the markers of transactions.

The index only spares work. `TagIndex.open` returns None for a file that is damaged, of another version, or of a segment
of another size; the segment is then read as without an index.

The file begins with a CRC-32C of everything after it, and a head. Then come one entry for each run and one for the end,
the control batches, the dictionaries and their ends, and the records of the runs. Offsets are relative to the first
batch.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, pairwise
from typing import NamedTuple

from crc32c import crc32c

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.segments.dictionaries import (
    NO_MATCH,
    UNKNOWN,
    Columns,
    Joined,
    Probe,
    encode_headers,
    encode_keys,
    join_headers,
    join_keys,
)
from tidemill.protocol.record_walk import fields_of, records_in_steps
from tidemill.protocol.records import BatchHeader, checksum_matches
from tidemill.protocol.steps import Steps, run_steps

RUN_BYTES = 64 * 1024
# A run with more records is unknown. Only records of a few bytes, compressed, are so many.
RECORDS_A_RUN_MAX = 64 * 1024
# Runs are joined up to so many records, about which a reader decides within a step.
RECORDS_A_JOINED_RUN_MAX = 2048

_MAGIC = b"TMTI"
_VERSION = 2
# Magic, version, segment size, first offset, and the numbers of runs, control batches, dictionaries, and of bytes of
# dictionaries and of records.
_HEAD = struct.Struct(">4sHQqIIIII")
_CRC = struct.Struct(">I")
# Position, first offset, next offset, number of control batches before it, the dictionaries of keys and headers, and
# where its records begin.
_RUN = struct.Struct(">IIIIIII")
# Position, size, first offset, next offset.
_CONTROL = struct.Struct(">IIII")
_UINT32 = struct.Struct(">I")
# Flags, number of batches, number of records.
_RECORDS = struct.Struct(">BII")
_IS_COMPRESSED, _HAS_WIDE_SIZES, _HAS_KEYS, _HAS_HEADERS = 1, 2, 4, 8

_UINT32_MAX = 0xFFFFFFFF
# In place of the number of a dictionary. A run without known records has no records in the index.
_UNLISTED = _UINT32_MAX
# In place of the number of records of a batch.
_IS_CONTROL = _UINT32_MAX
_ZLIB_LEVEL = 1
# Below it the time that a read spends on decompression is worth more than the space.
_COMPRESSED_BYTES_MIN = 512
# A run is skipped in two microseconds.
_RUNS_A_STEP = 200
# In a batch with more matches than this, the places of all records are computed at once.
_SUMMED_MAX = 4


class Found(NamedTuple):
    """A batch to read, and where in its decompressed records those stand that match. None: a control batch."""

    position: int
    size: int
    record_count: int
    records: Sequence[tuple[int, int]] | None


class Piece(NamedTuple):
    """Whole batches that have to be looked at: a run that may match, or a control batch."""

    position: int
    end_position: int
    # The offsets of the whole run, even when the position is inside it.
    base_offset: int
    next_offset: int
    # None when nothing is known of the records: all batches have to be read.
    found: Sequence[Found] | None

    def since(self, position: int) -> Piece:
        """The part of it from the batch at `position` on."""
        found = self.found and [each for each in self.found if each.position >= position]
        return self._replace(position=position, found=found)


class _RunWriter:
    """Collects the records of a run."""

    def __init__(self) -> None:
        self.batch_sizes: list[int] = []
        self.record_counts: list[int] = []
        self._sizes: list[int] = []
        self._keys: list[bytes | None] = []
        self._headers: list[bytes] = []
        self._is_known = True

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        self.batch_sizes.append(header.size)
        self.record_counts.append(_IS_CONTROL if header.is_control else header.record_count)
        if header.is_control:
            return
        if not checksum_matches(batch, header):
            self._is_known = False
        if not self._is_known or not header.record_count:
            return
        if len(self._sizes) + header.record_count > RECORDS_A_RUN_MAX:
            self._is_known = False
            return
        try:
            fields = fields_of(run_steps(records_in_steps(batch, header)), header)
        except ProtocolError:
            self._is_known = False
            return
        self._sizes += fields.sizes
        self._keys += fields.keys
        self._headers += fields.headers

    def finish(self) -> _KnownRun | None:
        """The run, or None when it is unknown."""
        if not self._is_known:
            return None
        try:
            headers = encode_headers(set(self._headers))
        except ProtocolError:
            return None
        keys = encode_keys(set(self._keys))
        key_numbers, header_numbers = bytes(len(self._sizes)), bytes(len(self._sizes))
        if keys is not None:
            key_numbers = bytes(map(keys.numbers.__getitem__, self._keys))
        if headers is not None:
            header_numbers = bytes(map(headers.numbers.__getitem__, self._headers))
        return _KnownRun(
            None if keys is None else keys.content,
            None if headers is None else headers.content,
            self.batch_sizes,
            self.record_counts,
            self._sizes,
            key_numbers,
            header_numbers,
        )


@dataclass(slots=True)
class _KnownRun:
    """The records of a run, and of runs after it that have joined it."""

    # The dictionaries of keys and headers; None where they are not listed.
    keys: bytes | None
    headers: bytes | None
    batch_sizes: list[int]
    record_counts: list[int]
    sizes: list[int]
    # The number of each record's entry. All are 0 where nothing is listed.
    key_numbers: bytes
    header_numbers: bytes

    def join(self, following: _KnownRun) -> bool:
        """Take the records of the next run too. Returns False when it has to stay apart."""
        if len(self.sizes) + len(following.sizes) > RECORDS_A_JOINED_RUN_MAX:
            return False
        keys, headers = join_keys(self.keys, following.keys), join_headers(self.headers, following.headers)
        if keys is None or headers is None:
            return False
        self.key_numbers = _renumbered(self.key_numbers, following.key_numbers, keys)
        self.header_numbers = _renumbered(self.header_numbers, following.header_numbers, headers)
        self.keys, self.headers = keys.content, headers.content
        self.batch_sizes += following.batch_sizes
        self.record_counts += following.record_counts
        self.sizes += following.sizes
        return True

    def encode(self) -> bytes:
        flags = 0
        batches, records = len(self.batch_sizes), len(self.sizes)
        parts = [struct.pack(f">{2 * batches}I", *self.batch_sizes, *self.record_counts)]
        if max(self.sizes, default=0) > 0xFFFF:
            flags |= _HAS_WIDE_SIZES
        parts.append(struct.pack(f">{records}{'I' if flags else 'H'}", *self.sizes))
        if any(self.key_numbers):
            flags |= _HAS_KEYS
            parts.append(self.key_numbers)
        if any(self.header_numbers):
            flags |= _HAS_HEADERS
            parts.append(self.header_numbers)
        content = b"".join(parts)
        if len(content) >= _COMPRESSED_BYTES_MIN:
            compressed = zlib.compress(content, _ZLIB_LEVEL)
            if len(compressed) < len(content):
                content, flags = compressed, flags | _IS_COMPRESSED
        return _RECORDS.pack(flags, batches, records) + content


def _renumbered(first: bytes, second: bytes, joined: Joined) -> bytes:
    return first.translate(joined.first_numbers) + second.translate(joined.second_numbers)


@dataclass(slots=True)
class _Entry:
    """A run in the index, which is unknown without its records."""

    position: int
    base_offset: int
    next_offset: int
    controls_before: int
    run: _KnownRun | None


class _Writer:
    """Writes runs one after the other."""

    def __init__(self, first_offset: int, position: int) -> None:
        self._first_offset = first_offset
        self._runs = bytearray()
        self._controls = bytearray()
        self._records = bytearray()
        # Dictionaries by their content: most runs have the same ones.
        self._dictionaries: dict[bytes, int] = {}
        # Of the run that is being collected.
        self._position = position
        self._run_offset = first_offset
        self._controls_before = 0
        self._run = _RunWriter()
        # The last run, which the next one may join.
        self._last: _Entry | None = None
        self._end_position = position
        self._next_offset = first_offset

    def add(self, position: int, header: BatchHeader, batch: memoryview) -> None:
        relative = header.next_offset - self._first_offset
        if position != self._end_position or header.base_offset < self._next_offset or relative > _UINT32_MAX:
            raise StorageError(f"the batch at position {position} does not follow the one before")
        if position > self._position and position + header.size - self._position > RUN_BYTES:
            self._end_run(header.base_offset)
        if header.is_control:
            self._controls += _CONTROL.pack(
                position, header.size, header.base_offset - self._first_offset, relative
            )
        self._run.add(header, batch)
        self._end_position = position + header.size
        self._next_offset = header.next_offset

    def _end_run(self, following_offset: int) -> None:
        run, last = self._run.finish(), self._last
        if run is not None and last is not None and last.run is not None and last.run.join(run):
            last.next_offset = self._next_offset
        else:
            self._append_last()
            self._last = _Entry(
                self._position, self._run_offset, self._next_offset, self._controls_before, run
            )
        self._position, self._run_offset = self._end_position, following_offset
        self._controls_before = len(self._controls) // _CONTROL.size
        self._run = _RunWriter()

    def _append_last(self) -> None:
        entry = self._last
        if entry is None:
            return
        run = entry.run
        self._runs += _RUN.pack(
            entry.position,
            entry.base_offset - self._first_offset,
            entry.next_offset - self._first_offset,
            entry.controls_before,
            _UNLISTED if run is None else self._number_of(run.keys),
            _UNLISTED if run is None else self._number_of(run.headers),
            len(self._records),
        )
        if run is not None:
            self._records += run.encode()

    def _number_of(self, dictionary: bytes | None) -> int:
        if dictionary is None:
            return _UNLISTED
        return self._dictionaries.setdefault(dictionary, len(self._dictionaries))

    def finish(self, segment_size: int) -> bytes:
        if self._end_position != segment_size or segment_size > _UINT32_MAX:
            raise StorageError(f"of {segment_size} bytes of a segment, {self._end_position} are batches")
        if segment_size > self._position:
            self._end_run(self._next_offset)
        self._append_last()
        run_count = len(self._runs) // _RUN.size
        self._last = _Entry(self._position, self._run_offset, self._next_offset, self._controls_before, None)
        self._append_last()
        ends = list(accumulate(map(len, self._dictionaries)))
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            segment_size,
            self._first_offset,
            run_count,
            self._controls_before,
            len(ends),
            ends[-1] if ends else 0,
            len(self._records),
        )
        content = b"".join(
            (
                head,
                self._runs,
                self._controls,
                struct.pack(f">{len(ends)}I", *ends),
                *self._dictionaries,
                self._records,
            )
        )
        return _CRC.pack(crc32c(content)) + content


def build(
    batches: Iterable[tuple[int, BatchHeader, memoryview]], segment_size: int, start_position: int = 0
) -> bytes:
    """The index of a segment from its batches with their positions, as `read_batches` returns them.

    It decodes every record, so it belongs into a thread or a worker process. Raises `StorageError` unless the
    batches follow each other and fill the segment. Of a segment that grows, it is the index from a position to a size.
    """
    writer = None
    for position, header, batch in batches:
        writer = writer or _Writer(header.base_offset, start_position)
        writer.add(position, header, batch)
    return (writer or _Writer(0, start_position)).finish(segment_size)


class _Records(NamedTuple):
    """The batches of a run and its records, as the index has them."""

    batch_sizes: Sequence[int]
    record_counts: Sequence[int]
    sizes: array[int]
    columns: Columns


class TagIndex:
    """The index of one segment, as it is in its file."""

    __slots__ = (
        "_content",
        "_controls_start",
        "_dictionaries",
        "_first_offset",
        "_records_start",
        "_run_positions",
        "_runs",
    )

    def __init__(
        self,
        content: bytes,
        first_offset: int,
        run_count: int,
        control_count: int,
        dictionary_count: int,
        dictionary_bytes: int,
    ) -> None:
        self._content = content
        self._first_offset = first_offset
        runs_start = _CRC.size + _HEAD.size
        self._controls_start = runs_start + (run_count + 1) * _RUN.size
        ends_start = self._controls_start + control_count * _CONTROL.size
        start = ends_start + dictionary_count * _UINT32.size
        self._records_start = start + dictionary_bytes
        self._dictionaries: list[bytes] = []
        self._runs: list[tuple[int, int, int, int, int, int, int]] = []
        if self._records_start <= len(content):
            ends = struct.unpack_from(f">{dictionary_count}I", content, ends_start)
            self._dictionaries = [content[start + begin : start + end] for begin, end in pairwise((0, *ends))]
            self._runs = list(_RUN.iter_unpack(content[runs_start : self._controls_start]))
        self._run_positions = [run[0] for run in self._runs[:-1]]

    @classmethod
    def open(cls, content: bytes, segment_size: int) -> TagIndex | None:
        """The index, or None when the content is no undamaged index of a segment of this size."""
        if len(content) < _CRC.size + _HEAD.size:
            return None
        magic, version, size, first_offset, *counts, record_bytes = _HEAD.unpack_from(content, _CRC.size)
        if (magic, version, size) != (_MAGIC, _VERSION, segment_size):
            return None
        if _CRC.unpack_from(content)[0] != crc32c(memoryview(content)[_CRC.size :]):
            return None
        index = cls(content, first_offset, *counts)
        return index if len(content) == index._records_start + record_bytes else None

    @property
    def size(self) -> int:
        return len(self._content)

    @property
    def next_offset(self) -> int:
        """The offset after its last batch."""
        return self._first_offset + self._runs[-1][2]

    def next_piece(self, probe: Probe, position: int) -> Steps[Piece | None]:
        """The first batches at or after the batch at `position` that have to be looked at. None when there are none.

        What lies before the piece has no match and no control batch. A position inside a run cuts the piece.
        """
        number = max(0, bisect_right(self._run_positions, position) - 1)
        for count, run in enumerate(range(number, len(self._run_positions)), 1):
            start, base_offset, next_offset, controls, keys, headers, records = self._runs[run]
            end, _, _, controls_end, _, _, records_end = self._runs[run + 1]
            if position < end:
                verdict = UNKNOWN
                if records < records_end:
                    verdict = yield from probe.verdict(self._dictionary(keys), self._dictionary(headers))
                found: list[Found] | None = None
                if verdict is not NO_MATCH and verdict is not UNKNOWN:
                    of_run = self._records(records, records_end)
                    kept = yield from probe.kept(verdict, of_run.columns)
                    found = _batches_with(of_run, kept, start, position)
                if verdict is UNKNOWN or found:
                    first, following = self._first_offset + base_offset, self._first_offset + next_offset
                    return Piece(max(start, position), end, first, following, found)
                if verdict is NO_MATCH:
                    for control in range(controls, controls_end):
                        piece = self._control(control)
                        if piece.position >= position:
                            return piece
            if not count % _RUNS_A_STEP:
                yield None
        return None

    def _dictionary(self, number: int) -> bytes | None:
        return None if number == _UNLISTED else self._dictionaries[number]

    def _records(self, start: int, end: int) -> _Records:
        start, end = self._records_start + start, self._records_start + end
        flags, batches, records = _RECORDS.unpack_from(self._content, start)
        content = self._content[start + _RECORDS.size : end]
        if flags & _IS_COMPRESSED:
            content = zlib.decompress(content)
        numbers = struct.unpack_from(f">{2 * batches}I", content)
        at = 8 * batches
        sizes = array("I" if flags & _HAS_WIDE_SIZES else "H")
        sizes_end = at + records * sizes.itemsize
        sizes.frombytes(content[at:sizes_end])
        if sys.byteorder == "little":
            sizes.byteswap()
        at = sizes_end
        keys = headers = None
        if flags & _HAS_KEYS:
            keys, at = content[at : at + records], at + records
        if flags & _HAS_HEADERS:
            headers = content[at : at + records]
        return _Records(numbers[:batches], numbers[batches:], sizes, Columns(records, keys, headers))

    def _control(self, number: int) -> Piece:
        position, size, first, following = _CONTROL.unpack_from(
            self._content, self._controls_start + number * _CONTROL.size
        )
        base_offset, next_offset = self._first_offset + first, self._first_offset + following
        return Piece(position, position + size, base_offset, next_offset, [Found(position, size, 0, None)])


def _batches_with(records: _Records, kept: bytes, start: int, position: int) -> list[Found]:
    """The batches to read of a run that begins at `start`, from a position on.

    These are control batches, and those with a record that is kept.
    """
    batch_sizes, record_counts, sizes, _ = records
    found: list[Found] = []
    positions = list(accumulate(batch_sizes, initial=start))
    first_batch = bisect_left(positions, position)
    if _IS_CONTROL in record_counts:
        ends = list(accumulate(0 if count == _IS_CONTROL else count for count in record_counts))
        controls = [
            number
            for number, count in enumerate(record_counts)
            if count == _IS_CONTROL and number >= first_batch
        ]
    else:
        ends, controls = list(accumulate(record_counts)), []
    # A response that is full ends inside a run, and the next one begins there.
    hit = kept.find(1, ends[first_batch - 1] if first_batch else 0)
    while hit >= 0:
        number = bisect_right(ends, hit)
        end = ends[number]
        first = end - record_counts[number]
        while controls and controls[0] < number:
            control = controls.pop(0)
            found.append(Found(positions[control], batch_sizes[control], 0, None))
        places = _places(sizes, kept, first, end, hit)
        found.append(Found(positions[number], batch_sizes[number], end - first, places))
        hit = kept.find(1, end)
    found += [Found(positions[control], batch_sizes[control], 0, None) for control in controls]
    return found


def _places(sizes: array[int], kept: bytes, first: int, end: int, hit: int) -> list[tuple[int, int]]:
    """Returns the kept records' places in a batch, which has the records from `first` to `end`. `hit` is the first."""
    if kept.count(1, hit, end) > _SUMMED_MAX:
        # Loops in C over all records are faster here than one in Python over those that are kept.
        bounds = list(accumulate(sizes[first:end], initial=0))
        of_batch = kept[first:end]
        return list(zip(compress(bounds, of_batch), compress(bounds[1:], of_batch), strict=True))
    places, start, number = [], 0, first
    while hit >= 0:
        start += sum(sizes[number:hit])
        places.append((start, start + sizes[hit]))
        number, hit = hit, kept.find(1, hit + 1, end)
    return places
