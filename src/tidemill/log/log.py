"""One partition's log: an ordered list of segments, of which the last one, the active segment, takes the appends.

The log decides when to roll, which segments retention deletes, and what recovery keeps after a crash. `Segment` owns
the files. Only the event loop calls the log, so it has no locks. It blocks only for writes to the page cache. Slow
work is handed to a thread: `sync_work()` returns what to sync, and deletion returns the paths to remove.

After a clean shutdown the log trusts its files when they are plausible. Otherwise `recovery/` checks them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import pairwise

from tidemill.config import TopicConfig
from tidemill.errors import StorageError
from tidemill.log.delay_snapshots import DelaySnapshots
from tidemill.log.epochs import LeaderEpochs
from tidemill.log.files import Files, FileSlice
from tidemill.log.producer_state.producers import Producers
from tidemill.log.producer_state.snapshots import ProducerSnapshots
from tidemill.log.recovery.folder import tidy
from tidemill.log.recovery.holes import HolesEnd, find_holes_end
from tidemill.log.recovery.recover import check_followed, check_reaches, recover
from tidemill.log.recovery.replay import check_continues, learn, replay, save_txn_indexes
from tidemill.log.retention import count_expired, count_in_excess
from tidemill.log.segments.segment import (
    RELATIVE_OFFSET_MAX,
    SUFFIXES,
    PlacedBatch,
    Segment,
    placed,
    segment_name,
)
from tidemill.log.sync import SyncWork
from tidemill.log.time_search import TimestampedOffset, search_newest
from tidemill.log.transactions import AbortedTransaction, TransactionEnd, build_marker
from tidemill.protocol.records import CONTROL, LENGTH_PREFIX, BatchHeader, header_at, stamp
from tidemill.protocol.steps import run_steps


class OffsetOutOfRange(Exception):
    """The offset is below the log's start or above its end."""


class Log:
    """One partition's log on disk (Kafka's UnifiedLog)."""

    def __init__(
        self,
        files: Files,
        folder: str,
        config: TopicConfig,
        *,
        wall_ms: int,
        is_clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int | None = None,
        first_offset: int = 0,
    ) -> None:
        """Open or create the log. `log_start_offset` is the checkpointed one; None when there is no checkpoint.

        `first_offset` is that of a log without segments and checkpoint.
        """
        self._files = files
        self.folder = folder
        self._use(config)
        self.recovery_point = recovery_point
        self.recovered_bytes_cut = 0
        self.producers = Producers()
        self._snapshots = ProducerSnapshots(files, folder)
        self.delay_snapshots = DelaySnapshots(files, folder)
        self.epochs = LeaderEpochs(files, f"{folder}/leader-epoch-checkpoint")
        # How many changes of the folder a sync has to cover, and how many are covered.
        self._folder_changes = self._folder_changes_synced = 0
        self._sync_work: SyncWork | None = None
        self._was_synced = False
        # A truncation after `sync_work` limits the offset up to which that work makes the log durable.
        self._sync_end_max = 0
        # How often segments were removed, truncated, replaced or released. A change invalidates plans made before.
        self.removals = 0
        self.is_released = False
        # Called before segments are removed or truncated.
        self.before_removal: Callable[[], None] | None = None
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        # The base offset of the first segment whose aborted transactions must be read from its batches.
        self._replay_from: int | None = None
        self._load_segments(first_offset if log_start_offset is None else log_start_offset, wall_ms)
        self._holes_end = HolesEnd(files, folder)
        if config.is_compacted and not self._holes_end.is_saved:
            # After a crash a hole above the recovery point is a torn tail.
            self._holes_end.offset = find_holes_end(self._segments, None if is_clean else recovery_point)
        self.log_start_offset = max(log_start_offset or 0, self._bases[0])
        if is_clean and log_start_offset is not None and log_start_offset < self._bases[0]:
            raise StorageError(
                f"{folder}: its first segment begins at offset {self._bases[0]}, but the log began at "
                f"{log_start_offset} when it was closed. Restore the files from a replica or a backup"
            )
        self.log_end_offset = self._find_end() if is_clean else self._recover()
        self.active.drop_tag_index()
        self.size = sum(segment.size for segment in self._segments)
        if self.log_start_offset > self.log_end_offset:
            self._restart_at(self.log_start_offset, wall_ms)
        # These were deleted before the crash and came back because the deletion was not synced.
        for path in self._delete_first(sum(base <= self.log_start_offset for base in self._bases[1:])):
            files.remove(path)
        self.epochs.truncate_from_end(self.log_end_offset)
        self.epochs.truncate_from_start(self.log_start_offset)
        self._restore_producers()
        if self.recovered_bytes_cut:
            # Removed segments must not come back beside the batches that are appended from here on.
            files.sync_folder(folder)
        self._mark_holes()
        self.last_flush_ms = wall_ms

    # -- opening ---------------------------------------------------------------------------------------------

    def _load_segments(self, log_start_offset: int, wall_ms: int) -> None:
        for base_offset, has_tag_index in tidy(self._files, self.folder).items():
            self._add_segment(base_offset, wall_ms, create=False, has_tag_index=has_tag_index)
        if not self._segments:
            self._add_segment(log_start_offset, wall_ms, create=True)

    def _add_segment(
        self, base_offset: int, wall_ms: int, *, create: bool, has_tag_index: bool = False
    ) -> Segment:
        try:
            segment = Segment(
                self._files,
                self.folder,
                base_offset,
                index_interval_bytes=self.config.index_interval_bytes,
                index_size_max=self.config.segment_index_bytes,
                created_ms=wall_ms,
                create=create,
                has_tag_index=has_tag_index,
            )
        except OSError:
            if create:
                # An empty segment would hide a smaller batch that the previous segment may still take.
                for suffix in SUFFIXES:
                    self._files.remove(f"{self.folder}/{segment_name(base_offset)}.{suffix}")
            raise
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._folder_changes += create
        return segment

    def _find_end(self) -> int:
        for segment in self._segments:
            segment.verify()
        for segment, following in pairwise(self._segments):
            check_followed(segment, following.base_offset, self._accepted_holes_end)
        self._replay_from = next((s.base_offset for s in self._segments if s.txn_index.is_damaged), None)
        end = self.active.next_offset()
        if end is None:
            raise StorageError(
                f"{self.active.path_of('log')}: a batch is damaged although the shutdown was clean"
            )
        check_reaches(self.active, end, self.recovery_point)
        return end

    def _recover(self) -> int:
        recovered = recover(
            self._files,
            self._segments,
            self.epochs,
            self.recovery_point,
            self._accepted_holes_end,
        )
        del self._bases[len(self._segments) :]
        self.recovered_bytes_cut = recovered.bytes_cut
        self._replay_from = recovered.replay_from
        return recovered.end_offset

    @property
    def _accepted_holes_end(self) -> int:
        """Holes between segments below this offset are no damage. Below the log start offset they are deletions."""
        return max(self.log_start_offset, self._holes_end.offset)

    def _mark_holes(self) -> None:
        if self.config.is_compacted and not self._holes_end.is_saved and self._holes_end.save():
            # The next sync covers the mark, as the first sync covers `partition.metadata`.
            self._was_synced = False
            self._folder_changes += 1

    def _restart_at(self, offset: int, wall_ms: int) -> None:
        """Restart the log at `offset`: DeleteRecords had moved the log start past the records that survived the
        crash."""
        count = len(self._segments)
        self.log_end_offset = offset
        self._add_segment(offset, wall_ms, create=True)
        for path in self._delete_first(count):
            self._files.remove(path)

    def _restore_producers(self) -> None:
        """Load the newest usable producer snapshot and replay every batch after it."""
        newest, self._replay_from = self._replay_from, None
        start = self._snapshots.restore(self.producers, self._bases[0], self.log_end_offset, newest)
        if start < self.log_end_offset:
            first = max(0, bisect_right(self._bases, start) - 1)
            replay(self.producers, self._segments[first:], start)
            if newest is not None:
                self._folder_changes += save_txn_indexes(self._segments, self.recovery_point)

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    def append(
        self, data: memoryview, headers: Sequence[BatchHeader], leader_epoch: int, wall_ms: int
    ) -> int:
        """As the leader: assign the next offsets in place and write the batches. Returns the first offset.

        The caller has validated the batches and checked them for duplicates with `producers`.
        """
        base_offset = offset = self.log_end_offset
        position = 0
        placements: list[PlacedBatch] = []
        for header in headers:
            stamp(data, position, offset, leader_epoch)
            size = header.batch_length + LENGTH_PREFIX
            end_offset = offset + header.last_offset_delta + 1
            placements.append((offset, end_offset - 1, header.max_timestamp, size))
            position += size
            offset = end_offset
        segment = self._segments[-1]
        if segment.size and self._must_roll(segment, position, offset - 1, headers[0].max_timestamp, wall_ms):
            segment = self.roll(wall_ms)
        segment.append(data, placements)
        self.size += position
        self.log_end_offset = offset
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        for number, header in enumerate(headers):
            if header.producer_id >= 0:
                header = header._replace(base_offset=placements[number][0])
                if header.attributes & CONTROL:
                    self._learn(header, data[sum(size for *_, size in placements[:number]) :])
                else:
                    self.producers.record(header)
        return base_offset

    def check_marker(self, end: TransactionEnd) -> None:
        """Raise `InvalidBatch` when a newer producer epoch or coordinator epoch is known."""
        self.producers.check_marker(end)

    def append_marker(self, end: TransactionEnd, leader_epoch: int, wall_ms: int) -> int:
        """As the leader: append the marker that ends a transaction. Returns the log end offset. Raises as
        `check_marker`.
        """
        self.producers.check_marker(end)
        batch = bytearray(build_marker(end, wall_ms))
        self.append(memoryview(batch), (header_at(batch),), leader_epoch, wall_ms)
        self.producers.remember_ordinal(end)
        return self.log_end_offset

    def _learn(self, header: BatchHeader, batch: memoryview) -> None:
        aborted = learn(self.producers, header, batch)
        if aborted is not None:
            self._segments[-1].txn_index.append(aborted)

    def append_fetched(self, data: memoryview, headers: Sequence[BatchHeader], wall_ms: int) -> None:
        """As a follower: append batches that have their offsets and epochs. Raises `InvalidBatch` unless they continue
        the log.

        The caller has verified the checksums.
        """
        check_continues(data, headers, self.log_end_offset, self.epochs.latest)
        start = position = 0
        run: list[BatchHeader] = []
        segment = self._segments[-1]
        size = segment.size
        for header in headers:
            if size and self._must_roll_at(segment, size, header, wall_ms):
                self._append_run(data[start:position], run)
                segment = self.roll(wall_ms)
                start, size, run = position, 0, []
            run.append(header)
            position += header.size
            size += header.size
        self._append_run(data[start:position], run)

    def _must_roll_at(self, segment: Segment, size: int, header: BatchHeader, wall_ms: int) -> bool:
        """Whether a batch must start a new segment, once the active one has grown to `size`."""
        if size != segment.size and size + header.size <= self.config.segment_bytes:
            return header.last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
        added_bytes = size - segment.size + header.size
        return self._must_roll(segment, added_bytes, header.last_offset, header.max_timestamp, wall_ms)

    def _append_run(self, data: memoryview, headers: Sequence[BatchHeader]) -> None:
        if not headers:
            return
        self._segments[-1].append(data, [placed(header) for header in headers])
        self.size += len(data)
        self.log_end_offset = headers[-1].next_offset
        position = 0
        for header in headers:
            if header.leader_epoch != self.epochs.latest:
                self.epochs.assign(header.leader_epoch, header.base_offset)
            size = header.size
            if header.producer_id >= 0:
                self._learn(header, data[position : position + size])
            position += size

    @property
    def latest_epoch(self) -> int:
        return self.epochs.latest

    def end_offset_of(self, epoch: int) -> tuple[int, int]:
        """Returns the largest epoch in the log not above `epoch`, and its end offset; (-1, -1) when none is known."""
        return self.epochs.end_offset_of(epoch, self.log_end_offset)

    def _must_roll(
        self, segment: Segment, added_bytes: int, last_offset: int, timestamp: int, wall_ms: int
    ) -> bool:
        if (
            segment.size + added_bytes > self.config.segment_bytes
            or last_offset - segment.base_offset > RELATIVE_OFFSET_MAX
            or segment.offset_index.is_full
        ):
            return True
        first = segment.first_timestamp
        if first is not None and first >= 0 and timestamp >= 0:
            return timestamp - first > self._roll_after_ms
        return wall_ms - segment.created_ms > self._roll_after_ms

    def configure(self, config: TopicConfig) -> None:
        self._use(config)
        self._mark_holes()

    def _use(self, config: TopicConfig) -> None:
        self.config = config
        self._roll_after_ms = config.segment_ms
        if config.is_compacted:
            # Only sealed segments are cleaned, so a record must not stay in the active one for longer.
            self._roll_after_ms = min(config.segment_ms, config.max_compaction_lag_ms)

    def roll(self, wall_ms: int) -> Segment:
        """Seal the active segment and start a new one at the log end offset."""
        if not self.active.size:
            return self.active
        self.active.seal()
        self._write_snapshot()
        return self._add_segment(self.log_end_offset, wall_ms, create=True)

    def _write_snapshot(self) -> None:
        self._snapshots.write(self.log_end_offset, self.producers, self.recovery_point)

    def sync_work(self) -> SyncWork:
        segments = self._segments[max(0, bisect_right(self._bases, self.recovery_point) - 1) :]
        failure: OSError | None = None
        for segment in segments:
            try:
                self._folder_changes += segment.txn_index.save()
            except OSError as error:
                failure = error
        indexes = (segment.txn_index.file for segment in segments)
        work = self._sync_work = SyncWork(
            self._files,
            [*(segment.file for segment in segments), *(file for file in indexes if file is not None)],
            self.folder,
            self._is_folder_dirty,
            not self._was_synced,
            (self.epochs.path, self.epochs.content()) if self.epochs.is_dirty else None,
            self.log_end_offset,
            self._folder_changes,
            self.epochs.changes,
            failure,
        )
        self._sync_end_max = self.log_end_offset
        return work

    @property
    def is_unsynced(self) -> bool:
        return self.recovery_point < self.log_end_offset or self._is_folder_dirty or self.epochs.is_dirty

    @property
    def _is_folder_dirty(self) -> bool:
        return self._folder_changes != self._folder_changes_synced

    def synced(self, end_offset: int, wall_ms: int) -> None:
        """Record that the last `sync_work` is done, up to this end."""
        assert self._sync_work is not None
        self._was_synced = True
        self._folder_changes_synced = self._sync_work.folder_changes
        self.epochs.saved(self._sync_work.epoch_changes)
        self.recovery_point = max(self.recovery_point, min(end_offset, self._sync_end_max))
        self.last_flush_ms = wall_ms

    def close(self) -> None:
        """Close the log cleanly: afterwards the files are complete and need no recovery."""
        self.active.seal()
        if self.log_end_offset > self._bases[0]:
            self._write_snapshot()
        if self.is_unsynced:
            work = self.sync_work()
            work.run()
            self.synced(work.end_offset, self.last_flush_ms)
        self.release()

    def release(self) -> None:
        """Close the files without completing them: the next start recovers the log."""
        self.is_released = True
        self.removals += 1
        for segment in self._segments:
            segment.release()

    def end_after_truncation(self, end_offset: int) -> int:
        """The log end offset after `truncate_to(end_offset)`, which cuts between batches."""
        segment = self._segments[max(0, bisect_right(self._bases, end_offset) - 1)]
        header = segment.header_at(segment.locate(end_offset))
        return end_offset if header is None else min(end_offset, header.base_offset)

    def restart_at(self, offset: int, wall_ms: int) -> None:
        """Delete everything. The log is empty and continues at `offset` (Kafka's truncateFullyAndStartAt).

        The caller has checkpointed a recovery point of 0 and a log start offset not above `offset`.
        """
        self._note_removal()
        doomed = [path for segment in self._segments for path in segment.mark_deleted()]
        self._segments.clear()
        self._bases.clear()
        for path in doomed:
            self._files.remove(path)
        self.epochs.truncate_from_end(0)
        # One at `offset` itself may be of records that diverge.
        self._snapshots.drop_after(-1)
        if self.config.tidemill_delays_enable:
            self.delay_snapshots.drop_after(-1)
        self._add_segment(offset, wall_ms, create=True)
        self.log_start_offset = self.log_end_offset = offset
        # No batch is known to be on disk, so a crash may leave any part of the new log.
        self.recovery_point = self._sync_end_max = self.size = 0
        self._restore_producers()
        self._files.sync_folder(self.folder)
        self._holes_end.lower_to(0)

    def truncate_to(self, end_offset: int) -> None:
        """Remove every batch that reaches `end_offset` or beyond.

        The caller has checkpointed a recovery point not above `end_after_truncation`. Otherwise recovery would take
        the missing batches for damage after a crash.
        """
        if end_offset >= self.log_end_offset:
            # An epoch in which this replica led without a write is dropped too.
            self.epochs.truncate_from_end(self.log_end_offset)
            return
        self._note_removal()
        while len(self._segments) > 1 and self._bases[-1] >= end_offset:
            for path in self._segments.pop().mark_deleted():
                self._files.remove(path)
            self._bases.pop()
        segment = self.active
        log_end_offset = segment.cut_back(segment.locate(end_offset))
        self.log_end_offset = log_end_offset
        self._sync_end_max = min(self._sync_end_max, log_end_offset)
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.epochs.truncate_from_end(self.log_end_offset)
        self.size = sum(segment.size for segment in self._segments)
        if len(self.producers) or not self.producers.is_stable:
            self._restore_producers()
        else:
            self._snapshots.drop_after(self.log_end_offset)
        if self.config.tidemill_delays_enable:
            self.delay_snapshots.drop_after(self.log_end_offset)
        self._files.sync_folder(self.folder)
        self._holes_end.lower_to(self.log_end_offset)

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> FileSlice | None:
        """Returns whole batches from the one that holds `offset`, all below `end_offset`; None when there are none."""
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRange(offset)
        if offset >= end_offset:
            return None
        number = bisect_right(self._bases, offset) - 1
        while number < len(self._segments):
            following = self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset
            limit = end_offset if end_offset < following else None
            found = self._segments[number].read(offset, max_bytes, limit, at_least_one=at_least_one)
            if found.length or limit is not None or found.position < self._segments[number].size:
                return found if found.length else None
            number += 1  # the offset is in the gap that compaction left at the end of this segment
        return None

    def last_stable_offset(self, high_watermark: int) -> int:
        """The first offset of an undecided transaction, or the high watermark. Called for every fetch.

        A marker that was once below a high watermark counts as committed from then on.
        """
        if self.producers.is_stable:
            return high_watermark
        self.producers.drop_committed_markers(high_watermark)
        first = self.producers.first_unstable_offset
        return high_watermark if first is None else min(high_watermark, max(first, self.log_start_offset))

    def aborted_between(self, offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap `[offset, end_offset)`. The end must be a last stable offset."""
        found: list[AbortedTransaction] = []
        for segment in self._segments[max(0, bisect_right(self._bases, offset) - 1) :]:
            if segment.txn_index.collect(offset, end_offset, found):
                break
        return found

    def newest(self) -> TimestampedOffset | None:
        """The first record with the largest timestamp in the log."""
        return run_steps(search_newest(self))

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    # -- retention -------------------------------------------------------------------------------------------

    def move_start(self, offset: int) -> list[str]:
        """Advance the log start offset for DeleteRecords. Returns the paths to remove."""
        if offset <= self.log_start_offset:
            return []
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return self._delete_first(sum(1 for base in self._bases[1:] if base <= offset))

    def apply_retention(self, wall_ms: int, high_watermark: int) -> list[str]:
        """Delete segments beyond `retention.ms` and `retention.bytes`. Returns the paths to remove."""
        # A replica without consumers must drop them too.
        self.producers.drop_committed_markers(high_watermark)
        if "delete" not in self.config.cleanup_policy:
            return []
        count = self._count_expired(wall_ms, high_watermark)
        if count == len(self._segments):
            self.roll(wall_ms)
        removed = self._delete_first(count)
        if count:
            self.log_start_offset = max(self.log_start_offset, self._bases[0])
            self.epochs.truncate_from_start(self.log_start_offset)
        return removed

    def expired_end(self, wall_ms: int, high_watermark: int) -> int:
        """Returns the end offset of the segments that retention would delete."""
        count = self._count_expired(wall_ms, high_watermark) if self.config.is_deleted else 0
        return self._end_of(count - 1) if count else self.log_start_offset

    def _count_expired(self, wall_ms: int, high_watermark: int) -> int:
        committed = [
            segment for number, segment in enumerate(self._segments) if self._end_of(number) <= high_watermark
        ]
        return max(
            count_expired(committed, self.config.retention_ms, wall_ms),
            count_in_excess(committed, self.config.retention_bytes, self.size),
        )

    def _end_of(self, number: int) -> int:
        return self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset

    def _note_removal(self) -> None:
        self.removals += 1
        if self.before_removal is not None:
            self.before_removal()

    def _delete_first(self, count: int) -> list[str]:
        if count:
            self._note_removal()
        removed = []
        for segment in self._segments[:count]:
            self.size -= segment.size
            removed += segment.mark_deleted()
        del self._segments[:count]
        del self._bases[:count]
        return removed

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> list[str]:
        """Replace neighbouring segments by their compacted one. Returns the paths to remove."""
        first = self._segments.index(old[0])
        span = slice(first, first + len(old))
        assert self._segments[span] == list(old), "the segments are not neighbours"
        removed = [path for segment in old for path in segment.mark_deleted()]
        self.removals += 1
        self.size += new.size - sum(segment.size for segment in old)
        self._segments[span] = [new]
        self._bases[span] = [new.base_offset]
        return removed

    def check_invariants(self) -> None:
        assert self._bases == sorted(set(self._bases)) == [s.base_offset for s in self._segments]
        assert self.log_start_offset <= self.log_end_offset
        assert self.recovery_point <= self.log_end_offset
        assert self.size == sum(segment.size for segment in self._segments)
        self.producers.check_invariants()
        assert self.active.tag_index_key is None, "only a sealed segment may have a tag index"
        for segment in self._segments:
            segment.check_invariants()
