"""The tag index of a sealed segment: which parts of it cannot contain a record that matches a filter.

The segment is divided into runs of whole batches, of about 64 KiB each. A run has a summary of its records
(`summaries.py`), and is skipped when the summary excludes a match. A run with a damaged batch, or with records that do
not decode, has no summary and is always read.

Control batches have no terms. The index lists each of them with its place, and a reader gets it although its run is
skipped: consumers need the markers of transactions.

The index only spares work. `TagIndex.open` returns None for a file that is damaged, of another version, or of a segment
of another size; the segment is then read as without an index.

The file: a CRC-32C of everything after it, a head, one entry for each run and one for the end, the control batches,
and the bits of the summaries. Offsets are relative to the first batch.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from tidemill.errors import StorageError
from tidemill.log.segments.summaries import Probe, Summary, TermCollector
from tidemill.protocol.records import BatchHeader
from tidemill.protocol.steps import Steps

RUN_BYTES = 64 * 1024

_MAGIC = b"TMTI"
_VERSION = 1
# Magic, version, segment size, first offset, number of runs, number of control batches, bytes of summaries.
_HEAD = struct.Struct(">4sHQqIII")
_CRC = struct.Struct(">I")
# Position, first offset, next offset, number of control batches before it, start of the summary, log2 of its bits.
_RUN = struct.Struct(">IIIIIB")
# Position, size, first offset, next offset.
_CONTROL = struct.Struct(">IIII")

_UINT32_MAX = 0xFFFFFFFF
_UNKNOWN = 0
# A run is skipped in two microseconds, and half a microsecond for each term of the filter.
_RUNS_A_STEP = 200
_TERMS_A_RUN = 4


class Piece(NamedTuple):
    """Whole batches that have to be read: a run that may match, or a control batch."""

    position: int
    end_position: int
    # The offsets of the whole run, even when the position is inside it.
    base_offset: int
    next_offset: int


class _Writer:
    """Writes runs one after the other."""

    def __init__(self, first_offset: int) -> None:
        self._first_offset = first_offset
        self._runs = bytearray()
        self._controls = bytearray()
        self._summaries = bytearray()
        # Of the run that is being collected.
        self._position = 0
        self._run_offset = first_offset
        self._controls_before = 0
        self._terms = TermCollector()
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
        else:
            self._terms.add(header, batch)
        self._end_position = position + header.size
        self._next_offset = header.next_offset

    def _end_run(self, following_offset: int) -> None:
        summary = self._terms.summary()
        self._append_run(_UNKNOWN if summary is None else summary.log2_bits)
        if summary is not None:
            self._summaries += summary.bits.to_bytes(1 << summary.log2_bits - 3, "big")
        self._position, self._run_offset = self._end_position, following_offset
        self._controls_before = len(self._controls) // _CONTROL.size
        self._terms = TermCollector()

    def _append_run(self, log2_bits: int) -> None:
        self._runs += _RUN.pack(
            self._position,
            self._run_offset - self._first_offset,
            self._next_offset - self._first_offset,
            self._controls_before,
            len(self._summaries),
            log2_bits,
        )

    def finish(self, segment_size: int) -> bytes:
        if self._end_position != segment_size or segment_size > _UINT32_MAX:
            raise StorageError(f"of {segment_size} bytes of a segment, {self._end_position} are batches")
        if segment_size:
            self._end_run(self._next_offset)
        run_count = len(self._runs) // _RUN.size
        self._append_run(_UNKNOWN)
        head = _HEAD.pack(
            _MAGIC,
            _VERSION,
            segment_size,
            self._first_offset,
            run_count,
            self._controls_before,
            len(self._summaries),
        )
        content = head + self._runs + self._controls + self._summaries
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


class TagIndex:
    """The index of one segment, as it is in its file."""

    __slots__ = (
        "_content",
        "_controls_start",
        "_first_offset",
        "_run_count",
        "_runs_start",
        "_summaries_start",
    )

    def __init__(self, content: bytes, first_offset: int, run_count: int, control_count: int) -> None:
        self._content = content
        self._first_offset = first_offset
        self._run_count = run_count
        self._runs_start = _CRC.size + _HEAD.size
        self._controls_start = self._runs_start + (run_count + 1) * _RUN.size
        self._summaries_start = self._controls_start + control_count * _CONTROL.size

    @classmethod
    def open(cls, content: bytes, segment_size: int) -> TagIndex | None:
        """The index, or None when the content is no undamaged index of a segment of this size."""
        if len(content) < _CRC.size + _HEAD.size:
            return None
        magic, version, size, first_offset, runs, controls, summary_bytes = _HEAD.unpack_from(
            content, _CRC.size
        )
        if (magic, version, size) != (_MAGIC, _VERSION, segment_size):
            return None
        index = cls(content, first_offset, runs, controls)
        if len(content) != index._summaries_start + summary_bytes:
            return None
        if _CRC.unpack_from(content)[0] != crc32c(memoryview(content)[_CRC.size :]):
            return None
        return index

    @property
    def size(self) -> int:
        return len(self._content)

    def next_piece(self, probe: Probe, position: int) -> Steps[Piece | None]:
        """The first batches at or after the batch at `position` that have to be read. None when there are none.

        What lies before the piece has no match and no control batch. A position inside a run cuts the piece.
        """
        runs_a_step = max(1, _RUNS_A_STEP // (1 + probe.term_count // _TERMS_A_RUN))
        number = max(0, bisect_right(range(self._run_count), position, key=self._position_of) - 1)
        for count, run in enumerate(range(number, self._run_count), 1):
            start, base_offset, next_offset, controls, summary_start, log2_bits = self._run(run)
            end, _, _, controls_end, _, _ = self._run(run + 1)
            if position < end:
                if probe.may_match(self._summary(summary_start, log2_bits)):
                    return Piece(
                        max(start, position),
                        end,
                        self._first_offset + base_offset,
                        self._first_offset + next_offset,
                    )
                for control in range(controls, controls_end):
                    piece = self._control(control)
                    if piece.position >= position:
                        return piece
            if not count % runs_a_step:
                yield None
        return None

    def _run(self, number: int) -> tuple[int, int, int, int, int, int]:
        return _RUN.unpack_from(self._content, self._runs_start + number * _RUN.size)

    def _position_of(self, number: int) -> int:
        return self._run(number)[0]

    def _summary(self, start: int, log2_bits: int) -> Summary | None:
        if log2_bits == _UNKNOWN:
            return None
        start += self._summaries_start
        return Summary(log2_bits, int.from_bytes(self._content[start : start + (1 << log2_bits - 3)], "big"))

    def _control(self, number: int) -> Piece:
        position, size, first, following = _CONTROL.unpack_from(
            self._content, self._controls_start + number * _CONTROL.size
        )
        return Piece(position, position + size, self._first_offset + first, self._first_offset + following)
