"""Background work on the hosted logs (Kafka: LogManager): retention, timed flushes, checkpoints, truncation.

Checkpoints are written one at a time from the state at that moment, so that an older state never overwrites a newer one. A
log is cut only after no checkpoint on disk promises anything above the cut: otherwise, after a crash, the records that were
cut off would look like damage. All cuts that are due share one such write.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import NamedTuple

from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.platform import Platform
from tidemill.config import BrokerConfig
from tidemill.errors import StorageError
from tidemill.log.datadir import DataDir
from tidemill.log.log import Log
from tidemill.log.sync import DiskFull
from tidemill.replication.follower import RestartAt, TruncateTo
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

_PRODUCER_EXPIRY_CHECK_S = 600.0
_FULL_DISK_RETRY_S = 1.0


class _Cut(NamedTuple):
    log: Log
    leader_epoch: int
    effect: TruncateTo | RestartAt
    done: Callable[[], None]

    @property
    def recovery_point(self) -> int:
        """The largest recovery point that may be on disk when the cut is made."""
        if isinstance(self.effect, RestartAt):
            return 0
        return self.log.end_after_truncation(self.effect.end_offset)

    @property
    def log_start(self) -> int:
        if isinstance(self.effect, RestartAt):
            return self.effect.offset
        return self.log.log_start_offset


class LogManager:
    def __init__(
        self,
        config: BrokerConfig,
        platform: Platform,
        data_dir: DataDir,
        syncer: Syncer,
        partitions: Callable[[], Iterable[Partition]],
    ) -> None:
        self._config = config
        self._platform = platform
        self._data_dir = data_dir
        self._syncer = syncer
        self._partitions = partitions
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._checkpointing = asyncio.Lock()
        self._cuts: dict[Partition, _Cut] = {}
        self._cutting: asyncio.Task[None] | None = None
        # While a log is about to be cut or to be checked whole: no checkpoint may say more than this.
        self._recovery_limits: dict[TopicPartition, int] = {}
        self._log_start_limits: dict[TopicPartition, int] = {}
        self._written_high_watermarks: dict[TopicPartition, int] = dict(data_dir.high_watermarks)

    def start(self) -> None:
        storage, replication = self._config.storage, self._config.replication
        flush_s = min(1.0, storage.log_flush_scheduler_interval_ms / 1000)
        for interval_s, work in (
            (storage.log_retention_check_interval_ms / 1000, self.apply_retention),
            (storage.log_flush_offset_checkpoint_interval_ms / 1000, self.checkpoint),
            (replication.high_watermark_checkpoint_interval_ms / 1000, self.checkpoint_high_watermarks),
            (flush_s, self.flush_overdue),
            (_PRODUCER_EXPIRY_CHECK_S, self.expire_producers),
        ):
            self.spawn(self.every(interval_s, work))

    def reconfigure(self, config: BrokerConfig) -> None:
        """Producers are forgotten by the new age at once. The intervals of the other work are settled at the start."""
        is_shorter = config.storage.producer_id_expiration_ms < self._config.storage.producer_id_expiration_ms
        self._config = config
        if is_shorter:
            self.expire_producers()

    def spawn(self, coroutine: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    async def every(self, interval_s: float, work: Callable[[], object]) -> None:
        while True:
            await asyncio.sleep(interval_s)
            try:
                result = work()
                if asyncio.iscoroutine(result):
                    await result
            except Exception:
                # A background task that dies unseen is failure 26: it is logged and tried again.
                logger.exception("%s failed; trying again in %.0f s", work.__name__, interval_s)

    async def stop(self) -> None:
        """End all background work, after a checkpoint that is being written: its thread cannot be cancelled."""
        async with self._checkpointing:
            for task in list(self._tasks):
                task.cancel()

    # -- retention -------------------------------------------------------------------------------------------

    def apply_retention(self) -> None:
        wall_ms = self._platform.clock.wall_ms()
        for partition in list(self._partitions()):
            log = partition.log
            if log is None:
                continue
            limit = partition.high_watermark
            if partition.config.tidemill_delays_enable:
                limit = min(limit, partition.delivery.retained_offset(log))
                partition.delivery.carry(log.expired_end(wall_ms, partition.high_watermark))
            try:
                removed = log.apply_retention(wall_ms, limit)
            except OSError as error:
                partition.fence(f"retention failed: {error.strerror or error}")
                continue
            if removed:
                logger.info(
                    "%s: retention removed segments, the log starts at %d",
                    partition.name,
                    log.log_start_offset,
                )
                self.remove_later(removed)
                partition.reader.log_start_moved()

    def move_start(self, partition: Partition, offset: int) -> None:
        """Delete the records before an offset, for DeleteRecords here or at the leader."""
        assert partition.log is not None
        self.remove_later(partition.log.move_start(offset))
        partition.reader.log_start_moved()

    def remove_later(self, paths: list[str]) -> None:
        if paths:
            self.spawn(self._remove(paths))

    def remove_folders_later(self, paths: list[str]) -> None:
        """Remove folders that were renamed for it. Their new names are synced first.

        After a power failure a folder could otherwise be back under its old name, with a part of its files. A replica
        that returns would take it for a log that begins late. Once it leads, others would follow it.
        """
        if paths:
            self.spawn(self._remove_folders(paths))

    async def _remove_folders(self, paths: list[str]) -> None:
        try:
            await self._platform.run_blocking(partial(self._platform.files.sync_folder, self._data_dir.path))
        except OSError as error:
            logger.warning(
                "cannot sync %s: %s; %d folders in it wait to be removed",
                self._data_dir.path,
                error,
                len(paths),
            )
            return
        await self._remove(paths)

    async def _remove(self, paths: list[str]) -> None:
        for path in paths:
            try:
                await self._platform.run_blocking(partial(self._platform.files.remove, path))
            except OSError as error:
                logger.warning("cannot remove %s: %s", path, error)

    # -- flushing --------------------------------------------------------------------------------------------

    def flush_overdue(self) -> None:
        """Sync what has waited for `flush.ms`, and every sealed segment: recovery then reads the active one only."""
        wall_ms = self._platform.clock.wall_ms()
        for partition in self._partitions():
            log = partition.log
            if log is None or log.recovery_point >= log.log_end_offset:
                continue
            is_sealed = log.recovery_point < log.active.base_offset
            if is_sealed or wall_ms - log.last_flush_ms >= partition.config.flush_ms:
                self._syncer.sync(log, partial(self._flushed, partition))

    def _flushed(self, partition: Partition, error: OSError | None) -> None:
        # After a full disk everything is still there to be synced by the next round.
        if error is not None and not isinstance(error, DiskFull):
            # The kernel may have dropped what it could not write: a second sync would "succeed" without it.
            partition.fence(f"cannot sync: {error.strerror or error}")

    def expire_producers(self) -> None:
        oldest = self._platform.clock.wall_ms() - self._config.storage.producer_id_expiration_ms
        for partition in self._partitions():
            if partition.log is not None:
                partition.log.producers.expire(oldest)

    # -- checkpoints -----------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        async with self._checkpointing:
            self._data_dir.note_checkpoints(*self.offsets())
            await self._platform.run_blocking(self._data_dir.write_noted_checkpoints)

    def offsets(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The recovery points and log starts that may be on disk now."""
        recovery_points = dict(self._data_dir.recovery_points)
        log_starts = dict(self._data_dir.log_starts)
        for partition in self._partitions():
            if partition.log is not None:
                recovery_points[partition.name] = partition.log.recovery_point
                log_starts[partition.name] = partition.log.log_start_offset
        for limits, offsets in (
            (self._recovery_limits, recovery_points),
            (self._log_start_limits, log_starts),
        ):
            for name, limit in limits.items():
                offsets[name] = min(limit, offsets.get(name, limit))
        return recovery_points, log_starts

    async def checkpoint_high_watermarks(self) -> None:
        """Writes the high watermarks of partitions with other replicas; a sole replica knows by itself what is committed."""
        async with self._checkpointing:
            offsets = self._high_watermarks()
            if offsets != self._written_high_watermarks:
                await self._platform.run_blocking(partial(self._data_dir.write_high_watermarks, offsets))
                self._written_high_watermarks = offsets

    def _high_watermarks(self) -> dict[TopicPartition, int]:
        return {
            partition.name: partition.high_watermark
            for partition in self._partitions()
            if partition.log is not None and partition.is_replicated
        }

    def write_all(self) -> None:
        """At a clean shutdown, when nothing changes any more."""
        recovery_points, log_starts = self.offsets()
        if not self._data_dir.was_clean:
            # A log that was not opened since the crash is still as the crash left it; a clean mark must not cover it.
            opened = {partition.name for partition in self._partitions()}
            recovery_points = {name: offset for name, offset in recovery_points.items() if name in opened}
        self._data_dir.write_checkpoints(recovery_points, log_starts)
        offsets = self._high_watermarks()
        if offsets or self._written_high_watermarks:
            self._data_dir.write_high_watermarks(offsets)

    def check_whole_at_next_start(self, name: TopicPartition) -> None:
        """The log is damaged somewhere: the next start, after an unclean stop, has to look at all of it."""
        self._recovery_limits[name] = 0
        self._data_dir.write_checkpoints(*self.offsets())

    # -- cutting ---------------------------------------------------------------------------------------------

    def truncate(
        self, partition: Partition, effect: TruncateTo | RestartAt, done: Callable[[], None]
    ) -> None:
        """Cut a follower's log, now if the disk promises nothing above the cut, else once it does not."""
        assert partition.log is not None
        cut = _Cut(partition.log, partition.leader_epoch, effect, done)
        try:
            is_safe = isinstance(effect, TruncateTo) and self._is_safe(partition.name, cut)
        except StorageError as error:
            partition.fence(str(error))
            return
        if is_safe:
            self._cut(partition, cut)
            return
        self._cuts[partition] = cut
        if self._cutting is None:
            self._cutting = self.spawn(self._cut_all())

    def _is_safe(self, name: TopicPartition, cut: _Cut) -> bool:
        first_dirty = self._data_dir.first_dirty_offset(name)
        limit = cut.recovery_point
        return cut.log.recovery_point <= limit and (first_dirty is None or first_dirty <= limit)

    async def _cut_all(self) -> None:
        try:
            while self._cuts:
                cuts, self._cuts = self._cuts, {}
                try:
                    await self._promise_no_more(cuts)
                except OSError as error:
                    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                        for partition in cuts:
                            partition.fence(f"cannot write a checkpoint: {error.strerror or error}")
                        continue
                    logger.error(
                        "the disk of %s is full; free some space: %d partitions wait to be truncated",
                        self._data_dir.path,
                        len(cuts),
                    )
                    self._cuts = {**cuts, **self._cuts}
                    await asyncio.sleep(_FULL_DISK_RETRY_S)
                    continue
                for partition, cut in cuts.items():
                    self._cut(partition, cut)
                    self._recovery_limits.pop(partition.name, None)
                    self._log_start_limits.pop(partition.name, None)
        finally:
            self._cutting = None

    async def _promise_no_more(self, cuts: dict[Partition, _Cut]) -> None:
        for partition, cut in cuts.items():
            try:
                limit = cut.recovery_point
            except StorageError as error:
                partition.fence(str(error))
                continue
            self._recovery_limits[partition.name] = limit
            self._log_start_limits[partition.name] = cut.log_start
            first_dirty = self._data_dir.first_dirty_offset(partition.name)
            if first_dirty is not None and first_dirty > limit:
                self._data_dir.set_first_dirty_offset(partition.name, limit)
        await self.checkpoint()
        await self._platform.run_blocking(self._data_dir.write_first_dirty_offsets)

    def _cut(self, partition: Partition, cut: _Cut) -> None:
        if partition.log is not cut.log or partition.is_leader or partition.leader_epoch != cut.leader_epoch:
            return  # the partition has another leader by now, and will be cut by what that one answers
        try:
            if isinstance(cut.effect, RestartAt):
                cut.log.restart_at(cut.effect.offset, self._platform.clock.wall_ms())
            else:
                cut.log.truncate_to(cut.effect.end_offset)
        except (OSError, StorageError) as error:
            partition.fence(f"cannot truncate: {error}")
            return
        partition.truncated()
        cut.done()

    def restart_within_batch(self, partition: Partition, offset: int) -> None:
        """Restart an empty log at once, although that blocks: the records are at hand and would not be sent again."""
        assert partition.log is not None
        name = partition.name
        self._recovery_limits[name], self._log_start_limits[name] = 0, offset
        self._data_dir.write_checkpoints(*self.offsets())
        partition.log.restart_at(offset, self._platform.clock.wall_ms())
        partition.truncated()
        del self._recovery_limits[name], self._log_start_limits[name]
