"""This broker's copy of a partition: its log, what of it is visible, what is on disk, and who waits for either.

All that a copy does whoever leads it. It takes what `Fetchers` copied from the leader; `Partition` adds what a leader does.

A record becomes visible when the high watermark passes it: when all in sync have it, and for topics with
`flush.messages=1` when this replica has synced it, so that nobody reads what a power failure could take back. Who reads
committed transactions only sees what is below the last stable offset. That moves with the high watermark, stays behind
while a transaction is open, and then jumps: such readers hear of the bytes that it jumped over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.delayed_operations import (
    MANY_BYTES,
    DelayedFetches,
    OffsetWaiters,
    Settled,
    Waiter,
)
from tidemill.broker.partitions.partition_host import Host
from tidemill.config import TopicConfig
from tidemill.controller.image import PartitionImage
from tidemill.errors import ErrorCode, StorageError
from tidemill.log.log import Log
from tidemill.log.recovery import DiskFull
from tidemill.protocol.records import BatchHeader
from tidemill.types import NO_BROKER, NO_LEADER_EPOCH, TopicPartition

logger = logging.getLogger(__name__)


class Replica:
    __slots__ = (
        "_fetches",
        "_host",
        "_stable_fetches",
        "_sync_asked_end",
        "_syncs",
        "_told_stable_offset",
        "config",
        "counts",
        "delayed_fetches",
        "has_undecodable",
        "high_watermark",
        "image",
        "index",
        "leader_epoch",
        "leader_id",
        "log",
        "name",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: bytes,
        log: Log | None,
        config: TopicConfig,
        host: Host,
        high_watermark: int,
    ) -> None:
        self.name = name
        self.index = name.partition
        self.topic_id = topic_id
        # None while the partition is offline: its log could not be opened or its disk failed.
        self.log = log
        self._host = host
        self.config = config
        self.counts = TopicCounts()
        self.image: PartitionImage | None = None
        self.leader_id: int = NO_BROKER
        self.leader_epoch: int = NO_LEADER_EPOCH
        # Whether a search met records that do not decode, which is logged once.
        self.has_undecodable = False
        self.high_watermark = 0
        if log is not None:
            self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self.delayed_fetches = DelayedFetches()
        self._fetches, self._stable_fetches = (
            self.delayed_fetches.fetches,
            self.delayed_fetches.stable_fetches,
        )
        # Up to where those who wait for stable records have heard of them.
        self._told_stable_offset = 0
        self._syncs = OffsetWaiters()
        # The log's end when a sync was last asked for.
        self._sync_asked_end = 0

    @property
    def is_replicated(self) -> bool:
        return self.image is not None and len(self.image.replicas) > 1

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """What a client hears that believes in another leader epoch; it may also claim to know none."""
        if epoch in (-1, self.leader_epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # -- what `Partition` makes of it ------------------------------------------------------------------------

    def fence(self, reason: str) -> None:
        """The disk under this partition failed: stop serving it, touch nothing."""
        raise NotImplementedError

    def _sync_refused(self) -> None:
        """The disk is full: what could not be synced has to be tried again."""
        raise NotImplementedError

    def _synced_to(self, end_offset: int) -> None:
        """Everything below an offset is on disk."""
        raise NotImplementedError

    def _committed_to(self, offset: int) -> None:
        """Everything below an offset is committed: those who wrote it may hear so, before it is shown."""
        raise NotImplementedError

    # -- durability ------------------------------------------------------------------------------------------

    def _sync(self, log: Log) -> None:
        self._sync_asked_end = log.log_end_offset
        self._host.syncer.sync(log, partial(self._synced, log, log.log_end_offset))

    def when_synced(self, end_offset: int, settled: Settled) -> Waiter:
        """Call when everything below an offset is on disk."""
        log = self.log
        waiter = self._syncs.add(end_offset, settled)
        if log is None:
            self._syncs.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        elif self._sync_asked_end < end_offset:
            self._sync(log)
        return waiter

    def _synced(self, log: Log, end_offset: int, error: OSError | None) -> None:
        if self.log is not log:
            return
        if isinstance(error, DiskFull):
            self._sync_asked_end = 0
            self._syncs.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            self._sync_refused()
            return
        if error is not None:
            # The kernel may have dropped what it could not write: a second sync would "succeed" without it.
            self.fence(f"cannot sync {self.name}: {error.strerror or error}")
            return
        # Less than was asked for when the log was cut meanwhile.
        self._synced_to(min(end_offset, log.recovery_point))
        self._syncs.reached(log.recovery_point)

    # -- following -------------------------------------------------------------------------------------------

    def append_fetched(self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """As follower: what the leader sent, checked. `OSError` and `InvalidBatch` are the caller's to judge."""
        assert self.log is not None
        self.log.append_fetched(data, headers, now_ms)
        self.counts.replication_bytes_in += len(data)
        self.delayed_fetches.appended(self.log.log_end_offset, len(data))

    def follow_high_watermark(self, offset: int) -> None:
        """What the leader says is committed, as far as this replica has it."""
        assert self.log is not None
        self._show(min(offset, self.log.log_end_offset))

    def log_start_moved(self) -> None:
        """Records went away at the front: readers find out, followers are told."""
        log = self.log
        if log is not None and self.high_watermark < log.log_start_offset:
            self._show(log.log_start_offset)
        self.wake_waiters()

    def was_cut(self) -> None:
        """The log was truncated: nothing above its end is known to be committed here."""
        assert self.log is not None
        if self.high_watermark > self.log.log_end_offset:
            logger.warning(
                "%s was truncated to %d, below its high watermark of %d",
                self.name,
                self.log.log_end_offset,
                self.high_watermark,
            )
        self.high_watermark = max(
            self.log.log_start_offset, min(self.high_watermark, self.log.log_end_offset)
        )
        self._told_stable_offset = self.last_stable_offset
        self._sync_asked_end = 0
        self.delayed_fetches.truncated()

    # -- visibility ------------------------------------------------------------------------------------------

    @property
    def last_stable_offset(self) -> int:
        """Below it no transaction is open, and each that has ended is known to have ended."""
        log = self.log
        return self.high_watermark if log is None else log.last_stable_offset(self.high_watermark)

    def _show(self, offset: int) -> None:
        """The high watermark moves: tell those who wait for their write, then those who wait for data."""
        before = self.high_watermark
        if offset <= before:
            return
        self.high_watermark = offset
        self._committed_to(offset)
        added_bytes = self.delayed_fetches.shown(offset)
        if self._stable_fetches:
            self._tell_stable(before, added_bytes)

    def _tell_stable(self, shown_from: int, added_bytes: int) -> None:
        """Records from `shown_from` on were shown, `added_bytes` of them; how many became stable?"""
        told, stable = self._told_stable_offset, self.last_stable_offset
        if stable <= told:
            return
        self._told_stable_offset = stable
        if told != shown_from or stable != self.high_watermark:
            added_bytes = self._bytes_between(told, stable)
        for fetch in list(self._stable_fetches):
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
            return MANY_BYTES  # who looks finds the damage and reports it
        return added_bytes

    def wait(self, waiter: Callable[[int], None], *, for_stable: bool = False) -> None:
        """Call `waiter` with the bytes that became visible, or stable, each time some do."""
        if not for_stable:
            self._fetches[waiter] = None
            return
        if not self._stable_fetches:
            self._told_stable_offset = self.last_stable_offset
        self._stable_fetches[waiter] = None

    def stop_waiting(self, waiter: Callable[[int], None]) -> None:
        self._fetches.pop(waiter, None)
        self._stable_fetches.pop(waiter, None)

    def wake_waiters(self) -> None:
        """Something other than new data happened (deletion, new epoch): let every waiter look again."""
        self.delayed_fetches.wake()
