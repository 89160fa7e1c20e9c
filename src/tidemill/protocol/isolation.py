"""The filter of a `read_committed` consumer: which batches of a fetch response it skips.

The broker returns nothing above the last stable offset, so every transaction in a response is decided. The response
lists the aborted ones by producer and first offset. From an aborted transaction's first offset to its marker, that
producer's transactional batches are skipped. Markers are never returned.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.protocol.records import BatchHeader, iterate_records

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
# To be added to one of the two: also delayed records that wait. Not a level of Kafka's; it needs AlterConfigs on the topic.
READ_HIDDEN = 64
# To be added to one of the two: only delayed records that wait, as the partition's leader knows them. It needs the same.
READ_WAITING = 32

_COMMIT = 1


class AbortedBatches:
    """The aborted transactions of one partition in one response: (producer id, first offset) each."""

    def __init__(self, transactions: Iterable[tuple[int, int]]) -> None:
        self._coming = sorted(
            ((first_offset, producer_id) for producer_id, first_offset in transactions), reverse=True
        )
        self._open: set[int] = set()

    def includes(self, batch: memoryview, header: BatchHeader) -> bool:
        """Whether a batch is aborted. Must be called for every batch, in order."""
        while self._coming and self._coming[-1][0] <= header.last_offset:
            self._open.add(self._coming.pop()[1])
        if header.is_control:
            if header.producer_id in self._open and not is_commit_marker(batch, header):
                self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open


def is_commit_marker(batch: memoryview, header: BatchHeader) -> bool:
    """Whether a control batch is a commit marker: its record's key is a version and a type, two bytes each."""
    record = next(iterate_records(batch, header), None)
    # Compaction may leave a marker without its record, which has no effect.
    key = record.key or b"" if record is not None else b""
    return int.from_bytes(key[2:4], "big") == _COMMIT
