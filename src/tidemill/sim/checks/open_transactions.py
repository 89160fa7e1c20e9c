"""An independent model of transactions, derived from the batches of a log.

A producer's transaction opens with its first transactional batch and closes with the producer's next marker. No batch
of an older producer epoch may follow a newer one, and no marker of an older coordinator epoch a newer one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tidemill.protocol.isolation import is_commit_marker
from tidemill.protocol.records import BatchHeader, iterate_records


@dataclass(slots=True)
class OpenTransactions:
    """The transactions of one log."""

    end_offset: int = 0
    # Where the reading began. Of transactions that began earlier, only the ends can be seen.
    start_offset: int = 0
    # The first offset of each producer's open transaction.
    open: dict[int, int] = field(default_factory=dict)
    # The same of transactions whose first batches were deleted, and whose markers were not read yet.
    cut: dict[int, int] = field(default_factory=dict)
    # (producer, first offset, marker offset), in the order of the markers.
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    # By marker offset: the last batch of each aborted transaction. Without a batch that is left, nothing must know of it.
    last_batches: dict[int, int] = field(default_factory=dict)
    _latest: dict[int, int] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=dict)
    _coordinator_epochs: dict[int, int] = field(default_factory=dict)

    def stable_offset(self, high_watermark: int) -> int:
        return min(self.open.values(), default=high_watermark)

    def described(self) -> str:
        return ", ".join(f"{producer} since {offset}" for producer, offset in self.open.items()) or "none"

    def start_at(self, offset: int, *, has_read_all_before: bool) -> None:
        """Everything before an offset is deleted. Transactions that began there may go on.

        Without `has_read_all_before` their markers may be deleted, too: the reading begins anew.
        """
        before = {producer: first for producer, first in self.open.items() if first < offset}
        if before:
            self.open = {producer: first for producer, first in self.open.items() if first >= offset}
        if has_read_all_before:
            self.cut = {**before, **self.cut}
        else:
            self.cut.clear()
            self.start_offset = offset

    def take(self, batch: memoryview, header: BatchHeader) -> Iterator[str]:
        """Add the next transactional batch. Returns its violation, if any."""
        producer_id, epoch = header.producer_id, header.producer_epoch
        self.end_offset = header.next_offset
        known = self._epochs.get(producer_id, -1)
        kind = "marker" if header.is_control else "batch"
        if epoch < known:
            yield f"a {kind} of producer {producer_id} epoch {epoch} at {header.base_offset}, after epoch {known}"
        self._epochs[producer_id] = max(known, epoch)
        if not header.is_control:
            self.open.setdefault(producer_id, header.base_offset)
            self._latest[producer_id] = header.last_offset
            return
        coordinator_epoch = _coordinator_epoch(batch, header)
        known = self._coordinator_epochs.get(producer_id, -1)
        if coordinator_epoch < known:
            yield (
                f"a marker of coordinator epoch {coordinator_epoch} at {header.base_offset} for producer {producer_id}, "
                f"after one of epoch {known}"
            )
        self._coordinator_epochs[producer_id] = max(known, coordinator_epoch)
        first_offset = self.cut.pop(producer_id, self.open.pop(producer_id, None))
        if first_offset is not None and not is_commit_marker(batch, header):
            self.aborted.append((producer_id, first_offset, header.last_offset))
            self.last_batches[header.last_offset] = self._latest[producer_id]


def _coordinator_epoch(batch: memoryview, header: BatchHeader) -> int:
    """The coordinator epoch in a marker, whose value is a version and the epoch."""
    value = next(iterate_records(batch, header)).value or b""
    return int.from_bytes(value[2:6], "big", signed=True)
