"""Replay: derives producer state and aborted transactions from a log's batches, on append and when a log is opened.

A replay continues from a snapshot. It rebuilds the transaction index of every segment that it reads. After compaction
the rebuilt index may lack a transaction of which no batch is left.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from tidemill.errors import ErrorCode, ProtocolError, StorageError
from tidemill.log.producer_state.producers import Producers
from tidemill.log.segments.segment import Segment
from tidemill.log.transactions import AbortedTransaction, marker_of
from tidemill.protocol.records import CONTROL, BatchHeader, InvalidBatch

logger = logging.getLogger(__name__)


def learn(producers: Producers, header: BatchHeader, batch: memoryview) -> AbortedTransaction | None:
    """Update the producer state with an appended batch. Returns the transaction that it aborted, if it is such a
    marker.
    """
    if not header.is_control:
        producers.record(header)
        return None
    try:
        end = marker_of(batch, header)
    except ProtocolError as error:
        raise StorageError(f"the marker at offset {header.base_offset} is damaged: {error}") from error
    if end is not None:
        return producers.record_end(end, header.base_offset, header.max_timestamp)
    if not header.record_count:
        producers.record_bare_marker(header)
    return None


def check_continues(data: memoryview, headers: Sequence[BatchHeader], end_offset: int, epoch: int) -> None:
    """Raise `InvalidBatch` unless these batches can follow a log that ends at `end_offset` in `epoch`.

    Compaction leaves gaps, but offsets and epochs never go back. Markers must be readable.
    """
    position = 0
    for header in headers:
        if header.base_offset < end_offset or header.last_offset_delta < 0 or header.leader_epoch < epoch:
            raise InvalidBatch(
                ErrorCode.CORRUPT_MESSAGE,
                f"a batch at offset {header.base_offset} of epoch {header.leader_epoch} cannot follow offset "
                f"{end_offset - 1} of epoch {epoch}",
            )
        if header.attributes & CONTROL:
            try:
                marker_of(data[position : position + header.size], header)
            except ProtocolError as error:
                raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        end_offset, epoch = header.next_offset, header.leader_epoch
        position += header.size


def replay(producers: Producers, segments: Sequence[Segment], start_offset: int) -> None:
    """Replay every batch of neighbouring segments from `start_offset` on."""
    for segment in segments:
        aborted = [entry for entry in segment.txn_index.entries if entry.last_offset < start_offset]
        for _, header, batch in segment.batches(segment.locate(start_offset)):
            if header.producer_id >= 0 and header.base_offset >= start_offset:
                found = learn(producers, header, batch)
                if found is not None:
                    aborted.append(found)
        segment.txn_index.replace(aborted)


def save_txn_indexes(segments: Sequence[Segment], recovery_point: int) -> int:
    """Write the rebuilt transaction indexes below the recovery point, which no sync covers. Returns how many files are
    new.
    """
    created = 0
    for segment in segments:
        index = segment.txn_index
        if segment.base_offset < recovery_point and not index.is_saved:
            try:
                created += index.save()
                index.sync()
            except OSError as error:
                # The entries in memory are right, and the next start rebuilds them again.
                logger.warning(
                    "%s: the index of aborted transactions cannot be rewritten; the next start rebuilds it: %s",
                    index.path,
                    error,
                )
    return created
