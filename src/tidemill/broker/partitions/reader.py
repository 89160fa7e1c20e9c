"""Reads this broker's copy of a partition: the log, its high watermark and its last stable offset.

Owns the log, which is None while the partition is offline, and the high watermark. Leaders and followers have both: a
follower serves consumers too (KIP-392). Never decides when the high watermark moves; the leader's machine or the leader
itself does.

A record is visible when the high watermark has passed it. A consumer of committed transactions reads below the last
stable offset. That moves with the high watermark, stays behind while a transaction is open, and then jumps. Fetches
that wait for stable records get the number of bytes that it jumped over.
"""

from __future__ import annotations

import logging
from itertools import pairwise

from tidemill.broker.partitions.delayed_operations import MANY_BYTES, DelayedOperations, Grew
from tidemill.errors import ErrorCode, StorageError
from tidemill.log.files import FileSlice
from tidemill.log.filtered_read import Filtered, FilteredRead
from tidemill.log.log import Log, OffsetOutOfRange
from tidemill.protocol.api.data import FetchPartition
from tidemill.protocol.fetch import Fetched
from tidemill.protocol.records import HEADER_SIZE, header_at, is_plausible
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)


class PartitionReader:
    __slots__ = ("_delayed", "_name", "_reported_stable_offset", "high_watermark", "log")

    def __init__(
        self, name: TopicPartition, log: Log | None, high_watermark: int, delayed: DelayedOperations
    ) -> None:
        self._name = name
        # None while the partition is offline: its log could not be opened or its disk failed.
        self.log = log
        self.high_watermark = 0
        if log is not None:
            self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self._delayed = delayed
        # Up to where the fetches that wait for stable records were notified.
        self._reported_stable_offset = 0

    @property
    def last_stable_offset(self) -> int:
        """The offset below which no transaction is open and every ended one is known to have ended."""
        log = self.log
        return self.high_watermark if log is None else log.last_stable_offset(self.high_watermark)

    # -- reading ---------------------------------------------------------------------------------------------

    def fetch(
        self, wanted: FetchPartition, max_bytes: int, *, reads_committed: bool, at_least_one: bool
    ) -> tuple[Fetched, FileSlice | None]:
        """Read whole batches for a consumer. `StorageError` when the log is damaged there."""
        index, log, high_watermark = wanted.partition, self.log, self.high_watermark
        if log is None:
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR), None
        stable_offset = log.last_stable_offset(high_watermark)
        fetched = Fetched(
            index, 0, high_watermark, stable_offset, log.log_start_offset, [] if reads_committed else None
        )
        if wanted.last_fetched_epoch >= 0:
            diverging = _diverging(log, wanted)
            if diverging is not None:
                return (
                    Fetched(index, ErrorCode.OFFSET_OUT_OF_RANGE)
                    if diverging[0] < 0
                    else fetched._replace(diverging=diverging)
                ), None
        end_offset = stable_offset if reads_committed else high_watermark
        try:
            records = log.read(wanted.fetch_offset, max_bytes, end_offset, at_least_one=at_least_one)
        except OffsetOutOfRange:
            return Fetched(index, ErrorCode.OFFSET_OUT_OF_RANGE), None
        if reads_committed and records is not None:
            aborted = aborted_within(log, wanted.fetch_offset, records, end_offset)
            if aborted:
                fetched = fetched._replace(aborted=aborted)
        return fetched, records

    def fetch_filtered(
        self, wanted: FetchPartition, read: FilteredRead | None, *, reads_committed: bool
    ) -> tuple[Fetched, Filtered | None]:
        """As `fetch`, with the records that a filtered read of this log has found so far."""
        index, log = wanted.partition, self.log
        if log is None:
            return Fetched(index, ErrorCode.KAFKA_STORAGE_ERROR), None
        fetched = self.without_records(index, reads_committed=reads_committed)
        diverging = _diverging(log, wanted) if wanted.last_fetched_epoch >= 0 else None
        is_in_range = log.log_start_offset <= wanted.fetch_offset <= log.log_end_offset
        if not is_in_range or (diverging is not None and diverging[0] < 0):
            return Fetched(index, ErrorCode.OFFSET_OUT_OF_RANGE), None
        if diverging is not None:
            return fetched._replace(diverging=diverging), None
        records = read.result() if read is not None and read.is_of(log) else None
        if reads_committed and records is not None and read is not None:
            aborted = log.aborted_between(wanted.fetch_offset, read.next_offset)
            fetched = fetched._replace(aborted=[(each.producer_id, each.first_offset) for each in aborted])
        return fetched, records

    def without_records(self, index: int, *, reads_committed: bool) -> Fetched:
        """The answer that only carries offsets."""
        log = self.log
        assert log is not None
        aborted: list[tuple[int, int]] | None = [] if reads_committed else None
        return Fetched(index, 0, self.high_watermark, self.last_stable_offset, log.log_start_offset, aborted)

    # -- waiting ---------------------------------------------------------------------------------------------

    def wait(self, grew: Grew, *, for_stable: bool = False) -> None:
        """Call `grew` with the bytes that became visible, or stable, each time some do."""
        delayed = self._delayed
        if not for_stable:
            delayed.fetches[grew] = None
            return
        if not delayed.stable_fetches:
            self._reported_stable_offset = self.last_stable_offset
        delayed.stable_fetches[grew] = None

    def stop_waiting(self, grew: Grew) -> None:
        self._delayed.fetches.pop(grew, None)
        self._delayed.stable_fetches.pop(grew, None)

    # -- the high watermark ----------------------------------------------------------------------------------

    def appended_and_committed(self, end_offset: int, size: int) -> None:
        """A sole replica appended a batch, which is committed at once. No ack waits and no follower reads."""
        before, self.high_watermark = self.high_watermark, end_offset
        delayed = self._delayed
        if delayed.fetches:
            for fetch in list(delayed.fetches):
                fetch(size)
        if delayed.stable_fetches:
            self._complete_stable_fetches(before, size)

    def advance_high_watermark(self, offset: int, acks_code: ErrorCode = ErrorCode.NONE) -> None:
        """Move the high watermark forward, then complete acks, then fetches.

        A response to a producer can start a request that waited behind it, and that request must see the write.
        """
        before = self.high_watermark
        if offset <= before:
            return
        self.high_watermark = offset
        delayed = self._delayed
        delayed.acks.reached(offset, acks_code)
        added_bytes = delayed.complete_fetches(offset)
        if delayed.stable_fetches:
            self._complete_stable_fetches(before, added_bytes)

    def log_start_moved(self) -> None:
        """Records were deleted at the front of the log: consumers and followers read again."""
        log = self.log
        if log is not None and self.high_watermark < log.log_start_offset:
            self.advance_high_watermark(log.log_start_offset)
        self._delayed.wake_fetches()

    def truncated(self) -> None:
        """The log was cut: nothing above its end is known to be committed here."""
        log = self.log
        assert log is not None
        if self.high_watermark > log.log_end_offset:
            logger.warning(
                "%s was truncated to %d, below its high watermark of %d",
                self._name,
                log.log_end_offset,
                self.high_watermark,
            )
        self.high_watermark = max(log.log_start_offset, min(self.high_watermark, log.log_end_offset))
        self._reported_stable_offset = self.last_stable_offset
        self._delayed.truncated()

    def _complete_stable_fetches(self, committed_from: int, added_bytes: int) -> None:
        """`added_bytes` from `committed_from` on became visible: report how many became stable."""
        reported, stable = self._reported_stable_offset, self.last_stable_offset
        if stable <= reported:
            return
        self._reported_stable_offset = stable
        if reported != committed_from or stable != self.high_watermark:
            added_bytes = self._bytes_between(reported, stable)
        for fetch in list(self._delayed.stable_fetches):
            fetch(added_bytes)

    def _bytes_between(self, start_offset: int, end_offset: int) -> int:
        added_bytes = 0
        try:
            for segment in reversed(self.log.segments if self.log is not None else ()):
                if segment.base_offset < end_offset:
                    start = segment.locate(start_offset) if segment.base_offset < start_offset else 0
                    added_bytes += segment.locate(end_offset) - start
                if segment.base_offset <= start_offset:
                    break
        except StorageError:
            return MANY_BYTES  # the fetch reads, finds the damage and reports it
        return added_bytes


def _diverging(log: Log, wanted: FetchPartition) -> tuple[int, int] | None:
    """(epoch, end offset) where the client's log and this one part; the epoch is negative when this one knows none."""
    epoch, epoch_end = log.epochs.end_offset_of(wanted.last_fetched_epoch, log.log_end_offset)
    if 0 <= wanted.last_fetched_epoch <= epoch and epoch_end >= wanted.fetch_offset:
        return None
    return epoch, epoch_end


def aborted_within(log: Log, fetch_offset: int, records: FileSlice, end_offset: int) -> list[tuple[int, int]]:
    """(producer id, first offset) of the aborted transactions that overlap a slice of the log."""
    aborted = log.aborted_between(fetch_offset, min(end_offset, _offset_after(log, records, end_offset)))
    return [(transaction.producer_id, transaction.first_offset) for transaction in aborted]


def _offset_after(log: Log, records: FileSlice, end_offset: int) -> int:
    """Returns the base offset of the batch behind a slice, or of the next segment when the slice ends with its own."""
    behind = records.file.read(HEADER_SIZE, records.position + records.length)
    if len(behind) == HEADER_SIZE and is_plausible(header_at(behind)):
        return header_at(behind).base_offset
    for segment, following in pairwise(log.segments):
        if segment.file is records.file:
            return following.base_offset
    return end_offset
