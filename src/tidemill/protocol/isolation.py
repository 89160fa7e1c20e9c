"""What a reader with `read_committed` leaves out of the batches that a fetch gave it.

The broker gives nothing above the last stable offset, so every transaction in an answer is decided; which of them were
aborted it lists by producer and first offset. A reader goes through the batches in order: from an aborted transaction's
first offset to its marker, that producer's transactional batches are not shown. Markers are shown to nobody.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.protocol.records import BatchHeader, iterate_records

READ_UNCOMMITTED, READ_COMMITTED = 0, 1

_COMMIT = 1


class AbortedBatches:
    """Of one answer of one partition: (producer id, first offset) of each aborted transaction."""

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(
            ((first_offset, producer_id) for producer_id, first_offset in transactions), reverse=True
        )
        self._open: set[int] = set()

    def includes(self, batch: memoryview, header: BatchHeader) -> bool:
        """Asked of every batch, in their order."""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            if header.producer_id in self._open and not is_commit_marker(batch, header):
                self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open


def is_commit_marker(batch: memoryview, header: BatchHeader) -> bool:
    """Of a control batch: its record's key is a version and a type, two bytes each."""
    record = next(iterate_records(batch, header), None)
    # Compaction leaves markers without their record behind, which say nothing.
    key = record.key or b"" if record is not None else b""
    return int.from_bytes(key[2:4], "big") == _COMMIT
