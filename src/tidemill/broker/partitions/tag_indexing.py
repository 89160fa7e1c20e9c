"""Builds the tag indexes of sealed segments in the background, for topics that views show.

One segment at a time, in a process with a low priority: an index takes 20 to 100 seconds of Python for each GiB. The
newest segment comes first. Retention keeps it longest, and a reader that starts at the beginning of a long log would
overtake indexes that are built from there.

A segment gets an index only below the recovery point: then no crash takes its batches back.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import pairwise

from tidemill.broker.disk.rounds import Rounds
from tidemill.broker.disk.syncer import RunBlocking
from tidemill.broker.partitions.partition import Partition
from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.log.segments.segment import Segment
from tidemill.log.segments.tag_index_files import Indexing, write_index

logger = logging.getLogger(__name__)

RunIndexing = Callable[[Indexing], Awaitable[None]]

_INTERVAL_S = 2.0
# A smaller segment has a few runs only, and is read in less time than a process takes to start.
_SIZE_MIN = 256 * 1024


class TagIndexer:
    def __init__(
        self,
        files: Files,
        partitions: Callable[[], Iterable[Partition]],
        run_blocking: RunBlocking,
        run_elsewhere: RunIndexing | None = None,
    ) -> None:
        """`partitions` are those that views show. Without `run_elsewhere`, a simulation, segments of all sizes are
        indexed in place.
        """
        self._files = files
        self._partitions = partitions
        self._run_blocking = run_blocking
        self._run_elsewhere = run_elsewhere
        self._size_min = 1 if run_elsewhere is None else _SIZE_MIN
        # Segments that cannot be indexed: each is reported once, until the broker restarts.
        self._failed: set[Indexing] = set()
        self._rounds = Rounds("indexing for views", self.index_newest, _INTERVAL_S)

    def start(self) -> None:
        self._rounds.start()

    async def stop(self) -> None:
        """Stop at once. The next start removes the temporary file."""
        await self._rounds.stop()

    async def index_newest(self) -> bool:
        """Index the newest segment that lacks an index; False when there is nothing to do now."""
        due = list(self._due())
        if not due:
            return False
        partition, log, segment = max(due, key=lambda candidate: candidate[2].max_timestamp)
        indexing = Indexing.of(segment)
        has_space = True
        try:
            await self._index(partition, log, segment, indexing)
        except (StorageError, OSError) as error:
            has_space = not (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))
            if has_space and partition.log is log:
                self._failed.add(indexing)
                logger.warning("%s cannot be indexed for views: %s", indexing.segment_path, error)
        self._files.remove(indexing.path)
        return has_space

    def _due(self) -> Iterable[tuple[Partition, Log, Segment]]:
        for partition in self._partitions():
            log = partition.log
            for segment, following in pairwise(() if log is None else log.segments):
                if (
                    log is not None
                    and segment.tag_index_key is None
                    and segment.size >= self._size_min
                    and following.base_offset <= log.recovery_point
                    and Indexing.of(segment) not in self._failed
                ):
                    yield partition, log, segment

    async def _index(self, partition: Partition, log: Log, segment: Segment, indexing: Indexing) -> None:
        removals = log.removals
        if self._run_elsewhere is None:
            await self._run_blocking(partial(write_index, self._files, indexing))
        else:
            await self._run_elsewhere(indexing)
        # The index may be of other batches when the log was cut or compacted meanwhile.
        if partition.log is log and log.removals == removals:
            segment.take_tag_index(indexing.path)
