"""Transactions during a cleaning: which records were aborted, and which markers are still needed.

A marker is needed while a batch of its transaction is in the log, even a bare header. Without it replay would find the
transaction open, and a consumer would read aborted records as committed. The cleaning reads the log from its start, so
it has seen every batch before a marker. If it has seen none of the transaction, an earlier cleaning removed them all.
Then `delete.retention.ms` starts, in which lagging replicas and consumers can still read the marker (failure 8). After
that the marker is removed, together with its entry in the transaction index: a consumer with such an entry waits for
the marker.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.log.transactions import AbortedTransaction, AbortedTransactions
from tidemill.protocol.records import BatchHeader


class CleanedTransactions:
    """The aborted transactions of a log, and the producers seen since their last marker."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._aborted = AbortedTransactions(aborted)
        self._by_marker = {each.last_offset: each for each in aborted}
        # The producers of batches seen since their last marker.
        self._seen: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        return self._aborted.has(header)

    def record_batch(self, header: BatchHeader) -> None:
        """Record a data batch that the cleaning has read."""
        if header.is_transactional:
            self._seen.add(header.producer_id)

    def is_needed(self, marker: BatchHeader) -> bool:
        """Whether the cleaning has read a batch of the transaction that this marker ends."""
        return marker.producer_id in self._seen

    def record_marker(self, marker: BatchHeader) -> None:
        """Record the end of a transaction: batches after it belong to the next one."""
        self._seen.discard(marker.producer_id)

    def aborted_by(self, marker: BatchHeader) -> AbortedTransaction | None:
        return self._by_marker.get(marker.base_offset)

    def has_index(self, base_offset: int, end_offset: int) -> bool:
        """Whether the transaction index of a segment with these offsets has entries."""
        return any(base_offset <= offset < end_offset for offset in self._by_marker)
