"""Compacts logs in the background (Kafka: LogCleaner), one after the other, the dirtiest first.

Each round finds the hosted logs that are due (`cleanable.py`), cleans the one with the largest dirty share and looks
again; when none is due it waits `log.cleaner.backoff.ms`. The heavy part runs outside of this process (small logs: in a
thread). Only the short steps of the swap run on the loop, each after checking that the partition is still the same.

A log whose cleaning fails is reported once and left alone until the broker restarts, as Kafka does: it stays readable
and writable, it only grows.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from tidemill.broker.clock import WallClock
from tidemill.broker.disk.rounds import Rounds
from tidemill.broker.disk.syncer import RunBlocking
from tidemill.broker.partitions.partition import Partition
from tidemill.config import BrokerConfig
from tidemill.errors import StorageError
from tidemill.log.cleaning.cleanable import Dirt, find_dirt, plan_cleaning
from tidemill.log.cleaning.cleaner import Cleaning, CleaningResult, clean
from tidemill.log.cleaning.swap import CleaningAbandoned, SegmentSwap
from tidemill.log.datadir import DataDir
from tidemill.log.files import Files
from tidemill.log.log import Log

logger = logging.getLogger(__name__)

RunCleaning = Callable[[Cleaning], Awaitable[CleaningResult]]

# Up to here a thread is done before a process would have started. Few bytes may hold very many records.
_IN_THREAD_BYTES_MAX = 1 << 20
_IN_THREAD_RECORDS_MAX = 100_000


class Compactor:
    def __init__(
        self,
        config: BrokerConfig,
        files: Files,
        data_dir: DataDir,
        clock: WallClock,
        partitions: Callable[[], Iterable[Partition]],
        run_blocking: RunBlocking,
        run_elsewhere: RunCleaning | None = None,
    ) -> None:
        """`run_elsewhere` does a large cleaning outside of this process; without it a thread does them all."""
        self._config = config.storage
        self._files = files
        self._data_dir = data_dir
        self._clock = clock
        self._partitions = partitions
        self._run_blocking = run_blocking
        self._run_elsewhere = run_elsewhere
        self._uncleanable: set[Log] = set()
        self._rounds = Rounds("compaction", self.clean_dirtiest, self._config.log_cleaner_backoff_ms / 1000)

    def start(self) -> None:
        if self._config.log_cleaner_enable:
            self._rounds.start()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Takes effect with the next log that is cleaned."""
        self._config = config.storage
        self._rounds.set_pause(self._config.log_cleaner_backoff_ms / 1000)

    async def stop(self) -> None:
        """Stop at once. The files are left as a crash would leave them, which the next start completes or drops."""
        await self._rounds.stop()

    async def clean_dirtiest(self) -> bool:
        """Clean the log that is due and has the largest dirty share; False when there is nothing to do now."""
        due = list(self._due())
        if not due:
            return False
        partition, log, dirt = max(due, key=lambda candidate: candidate[2].ratio)
        try:
            await self._clean(partition, log, dirt)
        except CleaningAbandoned:
            logger.info("%s: segments were removed during compaction; it begins again", partition.name)
        except (StorageError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                logger.warning("%s: no space to compact it; trying again later", partition.name)
                return False
            if partition.log is log:
                self._uncleanable.add(log)
                logger.error("%s cannot be compacted and will not be tried again: %s", partition.name, error)
        return True

    def _due(self) -> Iterable[tuple[Partition, Log, Dirt]]:
        wall_ms = self._clock.wall_ms()
        hosted = [(partition, partition.log) for partition in self._partitions()]
        self._uncleanable.intersection_update(log for _, log in hosted if log is not None)
        for partition, log in hosted:
            if log is None or not log.config.is_compacted or log in self._uncleanable:
                continue
            checkpoint = self._data_dir.first_dirty_offset(partition.name)
            stable_end = log.last_stable_offset(partition.high_watermark)
            dirt = find_dirt(log, checkpoint, wall_ms, stable_end)
            if dirt.is_due(log.config.min_cleanable_dirty_ratio):
                yield partition, log, dirt

    async def _clean(self, partition: Partition, log: Log, dirt: Dirt) -> None:
        swap = SegmentSwap(self._files, log)
        cleaning = plan_cleaning(
            log,
            dirt,
            self._clock.wall_ms(),
            map_bytes=self._config.log_cleaner_dedupe_buffer_size,
            map_load_factor=self._config.log_cleaner_io_buffer_load_factor,
        )
        result = await self._run_cleaning(cleaning)
        if partition.log is not log:
            return
        try:
            removed = await self._swap_in(partition, log, swap, result)
        except OSError as error:
            # Renaming failed half-way: what is on disk and what is in memory may differ.
            if partition.log is log:
                partition.fence(f"compaction could not swap segments: {error.strerror or error}")
            return
        if removed is None:
            return
        self._data_dir.set_first_dirty_offset(partition.name, result.end_offset)
        await self._run_blocking(self._data_dir.write_first_dirty_offsets)
        for path in removed:
            await self._run_blocking(partial(self._files.remove, path))
        _report(partition, result)

    async def _run_cleaning(self, cleaning: Cleaning) -> CleaningResult:
        size = sum(source.size for source in cleaning.sources)
        count = sum(source.end_offset - source.base_offset for source in cleaning.sources)
        is_small = size <= _IN_THREAD_BYTES_MAX and count <= _IN_THREAD_RECORDS_MAX
        if self._run_elsewhere is None or is_small:
            result: CleaningResult = await self._run_blocking(partial(clean, self._files, cleaning))
            return result
        return await self._run_elsewhere(cleaning)

    async def _swap_in(
        self, partition: Partition, log: Log, swap: SegmentSwap, result: CleaningResult
    ) -> list[str] | None:
        """Swap the cleaned segments in; returns the files to remove, None when the partition went away meanwhile."""
        sync = partial(self._files.sync_folder, log.folder)
        swap.begin(result)
        await self._run_blocking(sync)
        if partition.log is not log:
            return None
        removed = swap.switch()
        await self._run_blocking(sync)
        if partition.log is not log:
            return None
        swap.finish()
        await self._run_blocking(sync)
        return removed if partition.log is log else None


def _report(partition: Partition, result: CleaningResult) -> None:
    logger.info(
        "%s: compacted to offset %d, %d keys, %d records removed, %d bytes became %d",
        partition.name,
        result.end_offset,
        result.keys,
        result.records_removed,
        result.bytes_before,
        result.bytes_after,
    )
