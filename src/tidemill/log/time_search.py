"""Finding a record by its timestamp: the one search of a log that looks into batches.

A search goes from segment to segment. For each it asks its caller to look through a `Span`: a part of a file as it was at
that moment. The indexes are read by the log's owner; a span may be looked through in another thread, because what it
refers to stays readable although the log moves on. Whoever does so looks at `Log.removals` afterwards: when segments were
removed, cut or replaced meanwhile, the search must begin again.

Two kinds of failure. A batch that is none, or whose checksum is wrong, is damage: `StorageError`. Records that do not
decode although the checksum is right are what a client wrote (produce does not decode them): `ProtocolError`, which
fails this search and says nothing about the disk.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple, Protocol

from tidemill.errors import ProtocolError, StorageError
from tidemill.log.files import File
from tidemill.log.segment import Segment, can_hold, read_batches
from tidemill.protocol.records import BatchHeader, Record, checksum_matches, iterate_records


class TimestampedOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int


class Searched(Protocol):
    """What a search needs of a log."""

    @property
    def segments(self) -> Sequence[Segment]: ...
    @property
    def log_start_offset(self) -> int: ...


class Span(NamedTuple):
    """The batches of a segment from a position on."""

    path: str
    base_offset: int
    file: File
    position: int
    size: int
    from_offset: int
    # None when the newest record is wanted.
    timestamp: int | None

    def look_through(self) -> TimestampedOffset | None:
        """The first record at or after the timestamp, or the first of the newest ones."""
        best: TimestampedOffset | None = None
        for header, batch in self._batches():
            if header.last_offset < self.from_offset or not self._may_improve(header.max_timestamp, best):
                continue
            for record in self._records(header, batch):
                if record.offset >= self.from_offset and self._may_improve(record.timestamp, best):
                    best = TimestampedOffset(record.timestamp, record.offset, header.leader_epoch)
                    if self.timestamp is not None:
                        return best
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

    def _records(self, header: BatchHeader, batch: memoryview) -> Iterator[Record]:
        try:
            yield from iterate_records(batch, header)
        except ProtocolError as error:
            place = f"{self.path}: the batch at offset {header.base_offset}"
            if not checksum_matches(batch, header):
                raise StorageError(f"{place} is damaged: {error}") from error
            raise type(error)(f"{place} cannot be decoded: {error}") from error


# Yields what is to be looked through, is sent what was found there, returns what the whole search has found.
Search = Generator[Span, TimestampedOffset | None, TimestampedOffset | None]


def search_time(log: Searched, timestamp: int) -> Search:
    """The first record of the log that is not older than a timestamp."""
    looked_at = -1
    while True:
        # Anew each time: the log may have rolled.
        following = log.segments[bisect_right(log.segments, looked_at, key=lambda each: each.base_offset) :]
        segment = next((each for each in following if each.max_timestamp >= timestamp), None)
        if segment is None:
            return None
        looked_at = segment.base_offset
        found = yield _span(log, segment, timestamp)
        if found is not None:
            return found


def search_newest(log: Searched) -> Search:
    """The first record with the largest timestamp of the log."""
    best: TimestampedOffset | None = None
    looked_at: set[int] = set()
    while True:
        rest = [each for each in log.segments if each.size and each.base_offset not in looked_at]
        segment = max(rest, key=lambda each: each.max_timestamp, default=None)
        if segment is None or (best is not None and segment.max_timestamp <= best.timestamp):
            return best
        looked_at.add(segment.base_offset)
        found = yield _span(log, segment, segment.max_timestamp)
        if found is None:
            # The newest record is below the log's start, or compaction took it and kept its batch's header.
            found = yield _span(log, segment, None)
        if found is not None and (best is None or found.timestamp > best.timestamp):
            best = found


def _span(log: Searched, segment: Segment, timestamp: int | None) -> Span:
    from_offset = log.log_start_offset
    if timestamp is None:
        position = segment.locate(from_offset)
    else:
        position = segment.position_before(timestamp, from_offset)
    path, base_offset = segment.path_of("log"), segment.base_offset
    return Span(path, base_offset, segment.file, position, segment.size, from_offset, timestamp)


def run_search(search: Search) -> TimestampedOffset | None:
    """At once, however long it takes."""
    try:
        span = next(search)
        while True:
            span = search.send(span.look_through())
    except StopIteration as end:
        found: TimestampedOffset | None = end.value
        return found
