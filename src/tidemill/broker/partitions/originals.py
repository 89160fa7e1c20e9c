"""Reads delayed records from a log: batches for the state of its delays, and single records for the copies made of them.

Records that are due one after the other often share a batch. So the last batches stay in memory, decompressed and with
the places of their records, up to a number of bytes.
"""

from __future__ import annotations

import logging
from array import array
from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from tidemill.delays.copies import Original
from tidemill.delays.requests import may_hold_requests
from tidemill.delays.state import PartitionDelays
from tidemill.errors import ProtocolError, StorageError
from tidemill.log.log import Log
from tidemill.log.segments.segment import Segment
from tidemill.log.transactions import marker_of
from tidemill.protocol.record_walk import records_in_steps, varint_at
from tidemill.protocol.records import BatchHeader, Record, checksum_matches, iterate_decompressed
from tidemill.protocol.steps import Steps

logger = logging.getLogger(__name__)

# What is read from the log within a step. To find and walk a batch costs as much as some bytes of it.
_BYTES_A_STEP = 256 * 1024
_READ_COST_BYTES = 16 * 1024
_RECORDS_A_STEP = 1000
_REPLAYED_A_STEP = 200
# The decompressed batches that stay in memory. A larger one does not.
_REMEMBERED_BYTES_MAX = 4 << 20
_REMEMBERED_BATCHES_MAX = 16


class _WalkedBatch(NamedTuple):
    header: BatchHeader
    body: bytes
    # Where each record begins.
    starts: array[int]

    def original_at(self, offset: int) -> Original | None:
        header, body, starts = self
        delta = offset - header.base_offset
        if delta < len(starts):
            original = Original.at(header, body, starts[delta])
            if original.offset == offset:
                return original
        # A batch may have gaps, or records in another order.
        found = (Original.at(header, body, start) for start in starts)
        return next((each for each in found if each.offset == offset), None)


class Originals:
    """The pending records of one log, as they are needed."""

    __slots__ = ("_batches", "_log", "_removals")

    def __init__(self) -> None:
        self._log: Log | None = None
        self._removals = 0
        # By base offset, in ascending order of their last use.
        self._batches: dict[int, _WalkedBatch] = {}

    def at(self, log: Log, offsets: Iterable[int], bytes_max: int) -> Steps[tuple[dict[int, Original], bool]]:
        """The records at some offsets, in their order, until they have so many bytes; and whether it was reached.

        Those below the log start are missing, and those that cannot be read.
        """
        found: dict[int, Original] = {}
        batch: _WalkedBatch | None = None
        found_bytes = read_bytes = 0
        for offset in sorted(offsets):
            if offset < log.log_start_offset:
                continue
            if found_bytes >= bytes_max:
                return found, True
            if batch is None or not batch.header.base_offset <= offset < batch.header.next_offset:
                batch = self._remembered(log, offset)
                if batch is None:
                    if read_bytes >= _BYTES_A_STEP:
                        read_bytes = 0
                        yield None
                    try:
                        batch = yield from _walked(log, offset)
                    except (StorageError, ProtocolError, IndexError) as error:
                        logger.error(
                            "%s: the record at offset %d cannot be read: %s", log.folder, offset, error
                        )
                        continue
                    read_bytes += _READ_COST_BYTES + batch.header.size
                    self._remember(batch)
            original = batch.original_at(offset)
            if original is None:
                logger.error("%s: the record at offset %d is not in its batch", log.folder, offset)
            else:
                found[offset] = original
                found_bytes += len(original.content)
        return found, False

    def forget(self) -> None:
        self._log = None
        self._batches.clear()

    def _remembered(self, log: Log, offset: int) -> _WalkedBatch | None:
        if self._log is not log or self._removals != log.removals:
            self._log, self._removals = log, log.removals
            self._batches.clear()
        for base_offset, batch in self._batches.items():
            if base_offset <= offset < batch.header.next_offset:
                return batch
        return None

    def _remember(self, batch: _WalkedBatch) -> None:
        batches = self._batches
        batches[batch.header.base_offset] = batch
        size = sum(len(each.body) for each in batches.values())
        while batches and (size > _REMEMBERED_BYTES_MAX or len(batches) > _REMEMBERED_BATCHES_MAX):
            size -= len(batches.pop(next(iter(batches))).body)


def _walked(log: Log, offset: int) -> Steps[_WalkedBatch]:
    segment = segment_of(log, offset)
    position = segment.locate(offset)
    header = segment.header_at(position)
    if header is None:
        raise StorageError(f"{segment.path_of('log')}: no batch at position {position}")
    batch = memoryview(segment.file.read(header.size, position))
    if len(batch) < header.size or not checksum_matches(batch, header):
        # A new checksum must not vouch for damaged records.
        raise StorageError(f"the batch at offset {header.base_offset} is damaged")
    body = yield from records_in_steps(batch, header)
    starts, position = array("I"), 0
    for number in range(1, header.record_count + 1):
        starts.append(position)
        length, position = varint_at(body, position)
        position += length
        if number % _RECORDS_A_STEP == 0:
            yield None
    return _WalkedBatch(header, body, starts)


def segment_of(log: Log, offset: int) -> Segment:
    """The segment that holds an offset, or a gap before the next one."""
    number = bisect_right(log.segments, offset, key=lambda each: each.base_offset) - 1
    return log.segments[max(0, number)]


def replay_batch(state: PartitionDelays, header: BatchHeader, batch: memoryview) -> Steps[None]:
    """Replay a batch of the log into the state of its delays."""
    if header.is_control:
        end = marker_of(batch, header)
        if end is None:
            state.replay(header)
        else:
            yield from state.end_transaction_in_steps(end.producer_id, end.is_commit, header.base_offset)
        return
    records: list[Record] = []
    try:
        body = yield from records_in_steps(batch, header)
        if may_hold_requests(body):
            for count, record in enumerate(iterate_decompressed(memoryview(body), header), 1):
                records.append(record)
                if count % _REPLAYED_A_STEP == 0:
                    yield None
    except ProtocolError:
        # No consumer can decode them, so nothing in them can be delivered.
        state.replay_undecodable(header)
        return
    yield from state.replay_in_steps(header, records)
