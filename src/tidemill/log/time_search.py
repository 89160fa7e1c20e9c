"""Search by timestamp: finds a record by decoding batches.

A search may decode many batches, so it runs in steps (`protocol/steps.py`), and appends continue between them. It
reads a segment's indexes when it reaches the segment, and then the segment's file as it was at that moment. When
segments are removed, truncated or replaced in the meantime, the result is invalid and the search raises `LogChanged`.

There are two kinds of failure. An implausible batch or a wrong checksum is damage and raises `StorageError`. Records
that do not decode under a correct checksum were written so by a client, since produce does not decode them. They raise
`ProtocolError`, which fails this search only.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.files import File
from tidemill.log.segments.segment import Segment, can_hold, read_batches
from tidemill.protocol.record_walk import RECORDS_A_STEP, records_in_steps, walk
from tidemill.protocol.records import LOG_APPEND_TIME, BatchHeader, checksum_matches
from tidemill.protocol.steps import Steps

_BATCHES_A_STEP = 64


class TimestampedOffset(NamedTuple):
    """The result of a search: a record's timestamp, offset and leader epoch."""

    timestamp: int
    offset: int
    leader_epoch: int


Search: TypeAlias = Steps[TimestampedOffset | None]


class LogChanged(Exception):
    """Segments were removed or replaced during the search; the caller starts it again."""


class Searched(Protocol):
    """The part of a log that a search reads."""

    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def removals(self) -> int: ...


class Span(NamedTuple):
    """The batches of one segment from a position on."""

    path: str
    base_offset: int
    file: File
    position: int
    size: int
    from_offset: int
    # None searches for the newest record.
    timestamp: int | None

    def look_through(self) -> Search:
        """Find the first record at or after the timestamp, or the first of the newest records."""
        best: TimestampedOffset | None = None
        for number, (header, batch) in enumerate(self._batches(), 1):
            if number % _BATCHES_A_STEP == 0:
                yield None
            if header.last_offset < self.from_offset or not self._may_improve(header.max_timestamp, best):
                continue
            best = yield from self._look_into(header, batch, best)
            if best is not None and self.timestamp is not None:
                return best
            # The header's maximum timestamp exceeds that of its records. Many batches may be like that.
            yield None
        return best

    def _look_into(self, header: BatchHeader, batch: memoryview, best: TimestampedOffset | None) -> Search:
        try:
            body = yield from records_in_steps(batch, header)
            for number, (_, _, timestamp_delta, offset_delta, _, _) in enumerate(walk(body, header), 1):
                if number % RECORDS_A_STEP == 0:
                    yield None
                timestamp = header.base_timestamp + timestamp_delta
                if header.attributes & LOG_APPEND_TIME:
                    timestamp = header.max_timestamp
                offset = header.base_offset + offset_delta
                if offset >= self.from_offset and self._may_improve(timestamp, best):
                    best = TimestampedOffset(timestamp, offset, header.leader_epoch)
                    if self.timestamp is not None:
                        return best
        except ProtocolError as error:
            place = f"{self.path}: the batch at offset {header.base_offset}"
            if not checksum_matches(batch, header):
                raise StorageError(f"{place} is damaged: {error}") from error
            raise type(error)(f"{place} cannot be decoded: {error}") from error
        return best

    def _may_improve(self, timestamp: int, best: TimestampedOffset | None) -> bool:
        if self.timestamp is not None:
            return timestamp >= self.timestamp
        return best is None or timestamp > best.timestamp

    def _batches(self) -> Iterator[tuple[BatchHeader, memoryview]]:
        end = self.position
        for position, header, batch in read_batches(self.file, self.size, self.position):
            if not can_hold(self.base_offset, header):
                break
            yield header, batch
            end = position + header.size
        if end != self.size:
            raise StorageError(f"{self.path}: no batch at position {end}")


def search_time(log: Searched, timestamp: int) -> Search:
    """The first record of the log that is not older than a timestamp."""
    removals, looked_at = log.removals, -1
    while True:
        # Looked up again in each round because the log may have rolled.
        following = log.segments[bisect_right(log.segments, looked_at, key=lambda each: each.base_offset) :]
        segment = next((each for each in following if each.max_timestamp >= timestamp), None)
        if segment is None:
            return None
        looked_at = segment.base_offset
        found = yield from _look_through(log, removals, segment, timestamp)
        if found is not None:
            return found


def search_newest(log: Searched) -> Search:
    """The first record with the largest timestamp of the log."""
    removals = log.removals
    best: TimestampedOffset | None = None
    looked_at: set[int] = set()
    while True:
        rest = [each for each in log.segments if each.size and each.base_offset not in looked_at]
        segment = max(rest, key=lambda each: each.max_timestamp, default=None)
        if segment is None or (best is not None and segment.max_timestamp <= best.timestamp):
            return best
        looked_at.add(segment.base_offset)
        found = yield from _look_through(log, removals, segment, segment.max_timestamp)
        if found is None:
            # The newest record is below the log start offset, or compaction removed it and kept the batch header.
            found = yield from _look_through(log, removals, segment, None)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found


def _look_through(log: Searched, removals: int, segment: Segment, timestamp: int | None) -> Search:
    from_offset = log.log_start_offset
    if timestamp is None:
        position = segment.locate(from_offset)
    else:
        position = segment.position_before(timestamp, from_offset)
    path, base_offset = segment.path_of("log"), segment.base_offset
    span = Span(path, base_offset, segment.file, position, segment.size, from_offset, timestamp)
    try:
        found = yield from span.look_through()
    except StorageError:
        if log.removals != removals:
            raise LogChanged from None
        raise
    if log.removals != removals:
        raise LogChanged
    return found
