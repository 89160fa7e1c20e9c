"""The tag index of a sealed segment: where the records are that match a filter.

The segment is divided into runs of whole batches, of about 64 KiB each. For a run the index knows the distinct keys and
sets of headers of its records (`dictionaries.py`), which of them each record has, and the size of each record. So a
reader reads only batches with a match, and of those it decodes only the records that match. A run with a damaged
batch, or with records that do not decode, is unknown and always read whole.

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
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from crc32c import crc32c

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.segments.dictionaries import (
    NO_MATCH,
    UNKNOWN,
    Columns,
    Encoded,
    Probe,
    encode_headers,
    encode_keys,
)
from tidemill.protocol.record_walk import fields_of, records_in_steps
from tidemill.protocol.records import BatchHeader, checksum_matches
from tidemill.protocol.steps import Steps, run_steps

RUN_BYTES = 64 * 1024
# A run with more records is unknown. Only records of a few bytes, compressed, are so many.
RECORDS_A_RUN_MAX = 64 * 1024

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

    def finish(self) -> tuple[Encoded | None, Encoded | None, bytes] | None:
        """The dictionaries of keys and headers, and the records. None when the run is unknown."""
        if not self._is_known:
            return None
        try:
            headers = encode_headers(set(self._headers))
        except ProtocolError:
            return None
        keys = encode_keys(set(self._keys))
        return keys, headers, self._records(keys, headers)

    def _records(self, keys: Encoded | None, headers: Encoded | None) -> bytes:
        flags = 0
        batches, records = len(self.batch_sizes), len(self._sizes)
        parts = [struct.pack(f">{2 * batches}I", *self.batch_sizes, *self.record_counts)]
        if max(self._sizes, default=0) > 0xFFFF:
            flags |= _HAS_WIDE_SIZES
        parts.append(struct.pack(f">{records}{'I' if flags else 'H'}", *self._sizes))
        if keys is not None and len(keys.numbers) > 1:
            flags |= _HAS_KEYS
            parts.append(bytes(map(keys.numbers.__getitem__, self._keys)))
        if headers is not None and len(set(headers.numbers.values())) > 1:
            flags |= _HAS_HEADERS
            parts.append(bytes(map(headers.numbers.__getitem__, self._headers)))
        content = b"".join(parts)
        if len(content) >= _COMPRESSED_BYTES_MIN:
            compressed = zlib.compress(content, _ZLIB_LEVEL)
            if len(compressed) < len(content):
                content, flags = compressed, flags | _IS_COMPRESSED
        return _RECORDS.pack(flags, batches, records) + content


class _Writer:
    """Writes runs one after the other."""

    def __init__(self, first_offset: int) -> None:
        self._first_offset = first_offset
        self._runs = bytearray()
        self._controls = bytearray()
        self._records = bytearray()
        # Dictionaries by their content: most runs have the same ones.
        self._dictionaries: dict[bytes, int] = {}
        # Of the run that is being collected.
        self._position = 0
        self._run_offset = first_offset
        self._controls_before = 0
        self._run = _RunWriter()
        self._end_position = 0
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
        finished = self._run.finish()
        if finished is None:
            self._append_run(_UNLISTED, _UNLISTED)
        else:
            keys, headers, records = finished
            self._append_run(self._number_of(keys), self._number_of(headers))
            self._records += records
        self._position, self._run_offset = self._end_position, following_offset
        self._controls_before = len(self._controls) // _CONTROL.size
        self._run = _RunWriter()

    def _number_of(self, dictionary: Encoded | None) -> int:
        if dictionary is None:
            return _UNLISTED
        return self._dictionaries.setdefault(dictionary.content, len(self._dictionaries))

    def _append_run(self, keys: int, headers: int) -> None:
        self._runs += _RUN.pack(
            self._position,
            self._run_offset - self._first_offset,
            self._next_offset - self._first_offset,
            self._controls_before,
            keys,
            headers,
            len(self._records),
        )

    def finish(self, segment_size: int) -> bytes:
        if self._end_position != segment_size or segment_size > _UINT32_MAX:
            raise StorageError(f"of {segment_size} bytes of a segment, {self._end_position} are batches")
        if segment_size:
            self._end_run(self._next_offset)
        run_count = len(self._runs) // _RUN.size
        self._append_run(_UNLISTED, _UNLISTED)
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


def build(batches: Iterable[tuple[int, BatchHeader, memoryview]], segment_size: int) -> bytes:
    """The index of a segment from its batches with their positions, as `read_batches` returns them.

    It decodes every record, so it belongs into a thread or a worker process. Raises `StorageError` unless the
    batches follow each other and fill the segment.
    """
    writer = None
    for position, header, batch in batches:
        writer = writer or _Writer(header.base_offset)
        writer.add(position, header, batch)
    return (writer or _Writer(0)).finish(segment_size)


class _Records(NamedTuple):
    """The batches of a run and its records, as the index has them."""

    batch_sizes: Sequence[int]
    record_counts: Sequence[int]
    sizes: Sequence[int]
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
                found: Sequence[Found] | None = None
                if verdict is not NO_MATCH and verdict is not UNKNOWN:
                    of_run = self._records(records, records_end)
                    kept = yield from probe.kept(verdict, of_run.columns)
                    found = list(_found(of_run, kept, start, position))
                if verdict is UNKNOWN or found:
                    return Piece(
                        max(start, position),
                        end,
                        self._first_offset + base_offset,
                        self._first_offset + next_offset,
                        found,
                    )
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
        size_bytes = 4 if flags & _HAS_WIDE_SIZES else 2
        sizes = struct.unpack_from(f">{records}{'I' if size_bytes == 4 else 'H'}", content, at)
        at += records * size_bytes
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


def _found(records: _Records, kept: bytes, position: int, from_position: int) -> Iterator[Found]:
    """The batches of a run that have to be read: control batches, and those with a record that is kept."""
    first, hit = 0, kept.find(1)
    for size, count in zip(records.batch_sizes, records.record_counts, strict=True):
        if count == _IS_CONTROL:
            if position >= from_position:
                yield Found(position, size, 0, None)
        else:
            end = first + count
            if 0 <= hit < end:
                places, start, number = [], 0, first
                while 0 <= hit < end:
                    start += sum(records.sizes[number:hit])
                    places.append((start, start + records.sizes[hit]))
                    number, hit = hit, kept.find(1, hit + 1)
                if position >= from_position:
                    yield Found(position, size, count, places)
            first = end
        position += size
