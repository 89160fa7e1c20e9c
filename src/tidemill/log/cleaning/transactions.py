"""What a cleaning knows of transactions: whose records were aborted, and which markers are still needed.

A marker is needed for as long as one batch of its transaction is in the log, be it a bare header: a replay would find the
transaction open otherwise, and a reader would take what was aborted for committed. So a cleaning that reads the log from its
start asks of each marker whether it met a batch before it. If it met none, all of them went in an earlier cleaning
that is in place; then `delete.retention.ms` begins, in which replicas and readers that are behind get to see the marker
(failure 8). Only after that it goes, and its entry in the index of aborted transactions with it: a reader that is told of
an aborted transaction waits for its marker.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

from tidemill.log.transactions import AbortedTransaction
from tidemill.protocol.records import BatchHeader

_first_offset = attrgetter("first_offset")


class CleanedTransactions:
    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        # Those of one producer never overlap.
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        self._by_marker: dict[int, AbortedTransaction] = {}
        for transaction in sorted(aborted, key=_first_offset):
            self._aborted.setdefault(transaction.producer_id, []).append(transaction)
            self._by_marker[transaction.last_offset] = transaction
        # The producers of which a batch was met since their last marker.
        self._met: set[int] = set()

    def is_aborted(self, header: BatchHeader) -> bool:
        if not header.is_transactional:
            return False
        known = self._aborted.get(header.producer_id)
        if known is None:
            return False
        number = bisect_right(known, header.base_offset, key=_first_offset) - 1
        return number >= 0 and header.base_offset <= known[number].last_offset

    def meet(self, header: BatchHeader) -> None:
        """A batch that is no marker."""
        if header.is_transactional:
            self._met.add(header.producer_id)

    def is_needed(self, marker: BatchHeader) -> bool:
        """Whether a batch of the transaction that it ends was met. Asked once for each marker, in their order."""
        is_needed = marker.producer_id in self._met
        self._met.discard(marker.producer_id)
        return is_needed

    def aborted_by(self, marker: BatchHeader) -> AbortedTransaction | None:
        return self._by_marker.get(marker.base_offset)

    def has_index(self, base_offset: int, end_offset: int) -> bool:
        """Whether a segment with these offsets has aborted transactions to tell of."""
        return any(base_offset <= offset < end_offset for offset in self._by_marker)
