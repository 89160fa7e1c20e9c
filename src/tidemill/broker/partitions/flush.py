"""Syncs one partition's log, and completes the acks that wait for the disk.

Owns which end of the log was given to the syncer. Does not decide what a finished sync means: `on_synced` gets the end that
is on disk, `on_disk_full` is called when there was no space, and `fence` when the disk failed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.partitions.delayed_operations import OffsetWaiters, Settled, Waiter
from tidemill.broker.partitions.reader import PartitionReader
from tidemill.errors import ErrorCode
from tidemill.log.log import Log
from tidemill.log.sync import DiskFull


class LogFlush:
    __slots__ = ("_fence", "_on_disk_full", "_on_synced", "_reader", "_requested_end", "_syncer", "_waiting")

    def __init__(
        self,
        reader: PartitionReader,
        syncer: Syncer,
        *,
        on_synced: Callable[[int], None],
        on_disk_full: Callable[[], None],
        fence: Callable[[str], None],
    ) -> None:
        self._reader = reader
        self._syncer = syncer
        self._on_synced = on_synced
        self._on_disk_full = on_disk_full
        self._fence = fence
        self._waiting = OffsetWaiters()
        # The log's end when a sync was last requested.
        self._requested_end = 0

    def request(self, log: Log) -> None:
        """Sync everything that the log holds now."""
        self._requested_end = log.log_end_offset
        self._syncer.sync(log, partial(self._synced, log, log.log_end_offset))

    def request_rest(self, log: Log) -> None:
        """Sync what no request covers, which a full disk may have left behind."""
        if max(self._requested_end, log.recovery_point) < log.log_end_offset:
            self.request(log)

    def when_synced(self, end_offset: int, settled: Settled) -> Waiter:
        """Call when everything below an offset is on disk."""
        log = self._reader.log
        waiter = self._waiting.add(end_offset, settled)
        if log is None:
            self.fail()
        elif self._requested_end < end_offset:
            self.request(log)
        return waiter

    def truncated(self) -> None:
        """Forgets the requested end: batches after a truncation have offsets that earlier requests did not mean."""
        self._requested_end = 0

    def fail(self) -> None:
        self._waiting.fail(ErrorCode.KAFKA_STORAGE_ERROR)

    def _synced(self, log: Log, end_offset: int, error: OSError | None) -> None:
        if self._reader.log is not log:
            return
        if isinstance(error, DiskFull):
            self._requested_end = 0
            self.fail()
            self._on_disk_full()
            return
        if error is not None:
            # The kernel may have dropped what it could not write: a second sync would "succeed" without it.
            self._fence(f"cannot sync: {error.strerror or error}")
            return
        # The recovery point is below the requested end when the log was cut meanwhile.
        self._on_synced(min(end_offset, log.recovery_point))
        self._waiting.reached(log.recovery_point)
