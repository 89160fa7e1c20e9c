"""Builds the tag indexes of sealed segments in the background, for topics that views show.

One segment after the other, in a process with a low priority: an index decodes each record in Python. A process takes
several segments, because starting one costs as much as indexing some megabytes. Each index is used as soon as it is there.
The newest segments come first.
Retention keeps them longest, and a reader that starts at the beginning of a long log would overtake indexes that are
built from there.

A segment gets an index only below the recovery point: then no crash takes its batches back. The active segment, which may
hold all records of a topic, is indexed in parts: when it has grown by much, or by less and then rested. A part lasts as
long as the process, or until its segment is sealed and indexed.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

from tidemill.broker.disk.rounds import Rounds
from tidemill.broker.disk.syncer import RunBlocking
from tidemill.broker.partitions.partition import Partition
from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.log.segments.segment import Segment
from tidemill.log.segments.tag_index_files import Indexing, write_indexes

logger = logging.getLogger(__name__)

# Gets what went wrong with each indexing, in their order.
Finished = Callable[[Exception | None], None]
RunIndexing = Callable[[Sequence[Indexing], Finished], Awaitable[None]]

_INTERVAL_S = 2.0
# A smaller segment has a few runs only, and is read in less time than a process takes to start.
_SIZE_MIN = 256 * 1024
# A part of the active segment has so many bytes, or so many when the segment did not grow since the last look.
_PART_BYTES = 64 << 20
_PART_BYTES_AT_REST = 4 << 20
# What one process indexes before the newest segments are looked for again.
_PROCESS_BYTES = 256 << 20


class _Due(NamedTuple):
    """A segment that lacks an index, and how many removals its log had then."""

    partition: Partition
    log: Log
    segment: Segment
    removals: int
    indexing: Indexing


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
        self._part_bytes_at_rest = 1 if run_elsewhere is None else _PART_BYTES_AT_REST
        # The sizes of the active segments at the last look.
        self._active_sizes: dict[Segment, int] = {}
        # Segments that cannot be indexed: each is reported once, until the broker restarts.
        self._failed: set[Indexing] = set()
        self._rounds = Rounds("indexing for views", self.index_newest, _INTERVAL_S)

    def start(self) -> None:
        self._rounds.start()

    async def stop(self) -> None:
        """Stop at once. The next start removes the temporary file."""
        await self._rounds.stop()

    async def index_newest(self) -> bool:
        """Index the newest segments that lack an index; False when there is nothing to do now."""
        due = sorted(self._due(), key=lambda each: each.segment.max_timestamp, reverse=True)
        if not due:
            return False
        taken = self._for_one_process(due)
        left = deque(taken)
        has_space = True

        def finished(error: Exception | None) -> None:
            nonlocal has_space
            has_space = self._finish(left.popleft(), error) and has_space

        try:
            await self._write([each.indexing for each in taken], finished)
        except (StorageError, OSError) as error:
            # The process died. What it worked on is taken for the reason, so that the others have their turn.
            finished(error)
        for each in taken:
            self._files.remove(each.indexing.path)
        return has_space

    def _for_one_process(self, due: Sequence[_Due]) -> Sequence[_Due]:
        if self._run_elsewhere is None:
            return due[:1]
        size, count = due[0].indexing.indexed_bytes, 1
        while count < len(due) and (size := size + due[count].indexing.indexed_bytes) <= _PROCESS_BYTES:
            count += 1
        return due[:count]

    def _due(self) -> Iterable[_Due]:
        sizes, self._active_sizes = self._active_sizes, {}
        for partition in self._partitions():
            log = partition.log
            if log is None:
                continue
            for segment, following in pairwise(log.segments):
                if (
                    segment.tag_index_key is None
                    and segment.size >= self._size_min
                    and following.base_offset <= log.recovery_point
                    and (indexing := Indexing.of(segment)) not in self._failed
                ):
                    yield _Due(partition, log, segment, log.removals, indexing)
            active = log.active
            self._active_sizes[active] = active.size
            part_bytes = _PART_BYTES if sizes.get(active) != active.size else self._part_bytes_at_rest
            indexing = Indexing.of_next_part(active)
            if indexing.indexed_bytes >= part_bytes and _of_any_size(indexing) not in self._failed:
                yield _Due(partition, log, active, log.removals, indexing)

    async def _write(self, indexings: Sequence[Indexing], finished: Finished) -> None:
        if self._run_elsewhere is not None:
            await self._run_elsewhere(indexings, finished)
            return
        for outcome in await self._run_blocking(partial(write_indexes, self._files, indexings)):
            finished(outcome)

    def _finish(self, due: _Due, error: Exception | None) -> bool:
        """Give a segment its index, or note that it cannot have one. Returns False when the disk is full."""
        if due.partition.log is not due.log:
            return True
        # The index may be of other batches when the log was cut or compacted meanwhile.
        if error is None and due.log.removals == due.removals:
            indexing = due.indexing
            try:
                if indexing.is_part:
                    due.segment.take_tag_index_part(
                        indexing.path, indexing.start_position, indexing.segment_size
                    )
                else:
                    due.segment.take_tag_index(indexing.path)
            except OSError as failure:
                error = failure
        if error is None:
            return True
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return False
        self._failed.add(_of_any_size(due.indexing) if due.indexing.is_part else due.indexing)
        logger.warning("%s cannot be indexed for views: %s", due.indexing.segment_path, error)
        return True


def _of_any_size(part: Indexing) -> Indexing:
    """A part that cannot be indexed is not tried again when it has grown."""
    return part._replace(segment_size=0)
