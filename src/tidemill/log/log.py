"""One partition's log: an ordered list of segments, of which the last is written to.

Decides when to roll, what retention removes, and how a log comes back after a crash; `segment.py` does the files.
One owner (the event loop) calls it, so there are no locks. It blocks only for page-cache writes; what may take
long (syncing, removing files) is handed out as plain work for a thread: `sync_work()` and the paths that deletion
returns.

Recovery. After a clean shutdown everything is trusted. Otherwise each segment that reaches past the recovery point is
read whole and cut at the first batch whose checksum or length is wrong; the producer state, the epochs and the indexes
are rebuilt on the way. A broken batch *below* the recovery point was synced once, so it is no torn tail but damage:
the log refuses to open and nothing is changed on disk. Segments behind a torn one are set aside as `*.torn`, never
deleted.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.config import TopicConfig
from tidemill.errors import StorageError
from tidemill.log.epochs import LeaderEpochs
from tidemill.log.files import File, Files, FileSlice
from tidemill.log.producers import Producers
from tidemill.log.segment import PlacedBatch, Segment, TimestampedOffset, segment_name
from tidemill.protocol.records import LENGTH_PREFIX, BatchHeader, stamp

_RELATIVE_OFFSET_MAX = 0x7FFFFFFF
_SNAPSHOTS_KEPT = 2
_LEFTOVERS = (".deleted", ".tmp")


class OffsetOutOfRange(Exception):
    """The offset is below the log's start or above its end."""


class SyncWork(NamedTuple):
    """What makes the log durable up to `end_offset`. Safe to do in another thread, once."""

    files: Files
    segments: Sequence[File]
    folder: str | None
    epochs: tuple[str, bytes] | None
    end_offset: int

    def run(self) -> None:
        for file in self.segments:
            file.sync()
        if self.epochs is not None:
            self.files.replace(*self.epochs)
        if self.folder is not None:
            self.files.sync_folder(self.folder)


class Log:
    def __init__(
        self,
        files: Files,
        folder: str,
        config: TopicConfig,
        *,
        now_ms: int,
        is_clean: bool = True,
        recovery_point: int = 0,
        log_start_offset: int = 0,
    ) -> None:
        self._files = files
        self.folder = folder
        self.config = config
        self.recovery_point = recovery_point
        self.recovered_bytes_cut = 0
        self.producers = Producers()
        self.epochs = LeaderEpochs(files, f"{folder}/leader-epoch-checkpoint")
        self._folder_is_dirty = False
        self._segments: list[Segment] = []
        self._bases: list[int] = []
        self._load_segments(log_start_offset, now_ms)
        self.log_start_offset = max(log_start_offset, self._bases[0])
        self.log_end_offset = self._find_end() if is_clean else self._recover()
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.epochs.truncate_from_end(self.log_end_offset)
        self._restore_producers()
        self.size = sum(segment.size for segment in self._segments)
        self.last_flush_ms = now_ms

    # -- opening ---------------------------------------------------------------------------------------------

    def _load_segments(self, log_start_offset: int, now_ms: int) -> None:
        self._files.make_folder(self.folder)
        names = self._files.list(self.folder)
        for name in names:
            if name.endswith(_LEFTOVERS):
                self._files.remove(f"{self.folder}/{name}")
        for name in names:
            if name.endswith(".log"):
                if not name[:-4].isdigit():
                    raise StorageError(f"{self.folder}/{name}: not the name of a segment")
                self._add_segment(int(name[:-4]), now_ms, create=False)
        if not self._segments:
            self._add_segment(log_start_offset, now_ms, create=True)

    def _add_segment(self, base_offset: int, now_ms: int, *, create: bool) -> Segment:
        segment = Segment(
            self._files,
            self.folder,
            base_offset,
            index_interval_bytes=self.config.index_interval_bytes,
            index_size_max=self.config.segment_index_bytes,
            created_ms=now_ms,
            create=create,
        )
        self._segments.append(segment)
        self._bases.append(base_offset)
        self._folder_is_dirty |= create
        return segment

    def _find_end(self) -> int:
        end = self.active.next_offset()
        if end is None:
            raise StorageError(
                f"{self.active.path_of('log')}: a batch is damaged although the shutdown was clean"
            )
        return end

    def _recover(self) -> int:
        end_offset = self._bases[0]
        for number, segment in enumerate(list(self._segments)):
            following = self._bases[number + 1] if number + 1 < len(self._bases) else None
            if following is not None and following <= self.recovery_point:
                segment.verify()
                continue
            end_offset = segment.base_offset

            def note(header: BatchHeader) -> None:
                nonlocal end_offset
                end_offset = header.next_offset
                self.epochs.assign(header.leader_epoch, header.base_offset)

            end = segment.recover(note)
            if end == segment.size:
                continue
            if end_offset < self.recovery_point:
                raise StorageError(
                    f"{segment.path_of('log')}: the batch at position {end} (offset {end_offset}) is damaged, "
                    f"but everything below offset {self.recovery_point} was on disk. Restore the file from a "
                    "replica or a backup; nothing was changed"
                )
            self.recovered_bytes_cut += segment.size - end
            segment.truncate_to_position(end)
            self._set_aside_after(number)
            break
        return end_offset

    def _set_aside_after(self, number: int) -> None:
        for segment in self._segments[number + 1 :]:
            segment.close()
            self.recovered_bytes_cut += segment.size
            for path in segment.paths:
                if self._files.exists(path):
                    self._files.rename(path, f"{path}.torn")
        del self._segments[number + 1 :]
        del self._bases[number + 1 :]

    def _restore_producers(self) -> None:
        """The newest usable snapshot, and every batch after it."""
        self.producers.clear()
        start = self._bases[0]
        for offset in reversed(self._snapshot_offsets()):
            path = self._snapshot_path(offset)
            if offset > self.log_end_offset:
                self._files.remove(path)
                continue
            try:
                self.producers.restore(self._files.read(path))
            except StorageError:
                self._files.remove(path)
                continue
            start = offset
            break
        if start >= self.log_end_offset:
            return
        first = max(0, bisect_right(self._bases, start) - 1)
        for segment in self._segments[first:]:
            for _, header, _ in segment.batches(segment.locate(start)):
                if header.producer_id >= 0 and header.base_offset >= start and not header.is_control:
                    self.producers.record(header)

    # -- writing ---------------------------------------------------------------------------------------------

    @property
    def active(self) -> Segment:
        return self._segments[-1]

    def append(self, data: memoryview, headers: Sequence[BatchHeader], leader_epoch: int, now_ms: int) -> int:
        """As the leader: give the batches the next offsets, in place, and write them. Returns the first offset.

        The caller has checked the batches and asked `producers` about duplicates.
        """
        base_offset = offset = self.log_end_offset
        position = 0
        placed = []
        for header in headers:
            stamp(data, position, offset, leader_epoch)
            size = header.batch_length + LENGTH_PREFIX
            placed.append(PlacedBatch(offset, offset + header.last_offset_delta, header.max_timestamp, size))
            position += size
            offset += header.last_offset_delta + 1
        segment = self._segments[-1]
        if segment.size and self._must_roll(segment, len(data), offset - 1, headers[0].max_timestamp, now_ms):
            segment = self.roll(now_ms)
        segment.append(data, placed)
        self.size += len(data)
        self.log_end_offset = offset
        if leader_epoch != self.epochs.latest:
            self.epochs.assign(leader_epoch, base_offset)
        for header, batch in zip(headers, placed, strict=True):
            if header.producer_id >= 0:
                self.producers.record(header._replace(base_offset=batch.base_offset))
        return base_offset

    def _must_roll(
        self, segment: Segment, added_bytes: int, last_offset: int, timestamp: int, now_ms: int
    ) -> bool:
        config = self.config
        if segment.size + added_bytes > config.segment_bytes:
            return True
        if segment.offset_index.is_full or last_offset - segment.base_offset > _RELATIVE_OFFSET_MAX:
            return True
        first = segment.first_timestamp
        if first is not None and first >= 0 and timestamp >= 0:
            waited_ms = timestamp - first
        else:
            waited_ms = now_ms - segment.created_ms
        return waited_ms > config.segment_ms

    def roll(self, now_ms: int) -> Segment:
        """Seal the active segment and begin the next at the log's end."""
        self.active.seal()
        self._write_snapshot()
        return self._add_segment(self.log_end_offset, now_ms, create=True)

    def _snapshot_path(self, offset: int) -> str:
        return f"{self.folder}/{segment_name(offset)}.snapshot"

    def _snapshot_offsets(self) -> list[int]:
        names = self._files.list(self.folder)
        return sorted(int(n[:-9]) for n in names if n.endswith(".snapshot") and n[:-9].isdigit())

    def _write_snapshot(self) -> None:
        """Unsynced on purpose: a snapshot that a crash damages is ignored and the log replayed instead."""
        file = self._files.open(self._snapshot_path(self.log_end_offset), create=True)
        content = self.producers.snapshot()
        file.truncate(0)
        file.write(content, 0)
        usable = [offset for offset in self._snapshot_offsets() if offset <= self.recovery_point]
        for offset in usable[:-_SNAPSHOTS_KEPT]:
            self._files.remove(self._snapshot_path(offset))

    def sync_work(self) -> SyncWork:
        first = max(0, bisect_right(self._bases, self.recovery_point) - 1)
        unsaved = self.epochs.unsaved()
        work = SyncWork(
            self._files,
            [segment.file for segment in self._segments[first:]],
            self.folder if self._folder_is_dirty else None,
            None if unsaved is None else (self.epochs.path, unsaved),
            self.log_end_offset,
        )
        self._folder_is_dirty = False
        return work

    def synced(self, end_offset: int, now_ms: int) -> None:
        """`sync_work` with this end was done."""
        self.recovery_point = max(self.recovery_point, min(end_offset, self.log_end_offset))
        self.last_flush_ms = now_ms

    def close(self) -> None:
        """A clean shutdown: afterwards the files say everything and need no recovery."""
        self.active.seal()
        if self.log_end_offset > self._bases[0]:
            self._write_snapshot()
        if self.recovery_point < self.log_end_offset or self._folder_is_dirty:
            work = self.sync_work()
            work.run()
            self.recovery_point = work.end_offset
        self.release()

    def release(self) -> None:
        """Let go of the files without promising anything about their state."""
        for segment in self._segments:
            segment.close()

    def truncate_to(self, end_offset: int) -> None:
        """Drop every batch that reaches `end_offset` or beyond."""
        if end_offset >= self.log_end_offset:
            return
        while len(self._segments) > 1 and self._bases[-1] >= end_offset:
            for path in self._segments.pop().mark_deleted():
                self._files.remove(path)
            self._bases.pop()
        segment = self.active
        segment.truncate_to_position(segment.locate(end_offset))
        self.log_end_offset = segment.next_offset() or segment.base_offset
        self.log_start_offset = min(self.log_start_offset, self.log_end_offset)
        self.recovery_point = min(self.recovery_point, self.log_end_offset)
        self.epochs.truncate_from_end(self.log_end_offset)
        self.size = sum(segment.size for segment in self._segments)
        self._restore_producers()

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, end_offset: int, *, at_least_one: bool = True
    ) -> FileSlice | None:
        """Whole batches from the one that holds `offset`, all below `end_offset`; None when there are none."""
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
            number += 1  # the offset fell into the gap that compaction left at the end of this segment
        return None

    def bytes_between(self, offset: int, end_offset: int) -> int:
        """About how much a reader at `offset` could get now: what a waiting fetch is measured by."""
        if offset >= end_offset:
            return 0
        number = bisect_right(self._bases, offset) - 1
        if number < 0:
            return 0
        segment = self._segments[number]
        available = segment.size - segment.locate(offset)
        return available + sum(later.size for later in self._segments[number + 1 :])

    def first_at_or_after(self, timestamp: int) -> TimestampedOffset | None:
        for segment in self._segments:
            if segment.max_timestamp >= timestamp:
                found = segment.first_at_or_after(timestamp, self.log_start_offset)
                if found is not None:
                    return found
        return None

    def newest(self) -> TimestampedOffset | None:
        """The first record with the largest timestamp of the log."""
        best: Segment | None = None
        for segment in self._segments:
            if segment.size and (best is None or segment.max_timestamp > best.max_timestamp):
                best = segment
        return best.first_at_or_after(best.max_timestamp, self.log_start_offset) if best else None

    @property
    def segments(self) -> Sequence[Segment]:
        return self._segments

    # -- retention -------------------------------------------------------------------------------------------

    def move_start(self, offset: int) -> list[str]:
        """DeleteRecords: nothing below `offset` is served any more. Returns files to remove."""
        if offset <= self.log_start_offset:
            return []
        self.log_start_offset = offset
        self.epochs.truncate_from_start(offset)
        return self._delete_first(sum(1 for base in self._bases[1:] if base <= offset))

    def apply_retention(self, now_ms: int, high_watermark: int) -> list[str]:
        """Delete whole segments that are too old or too much. Returns files to remove."""
        if "delete" not in self.config.cleanup_policy:
            return []
        count = max(self._count_expired(now_ms, high_watermark), self._count_in_excess(high_watermark))
        if count == len(self._segments):
            self.roll(now_ms)
        removed = self._delete_first(count)
        if count:
            self.log_start_offset = max(self.log_start_offset, self._bases[0])
            self.epochs.truncate_from_start(self.log_start_offset)
        return removed

    def _end_of(self, number: int) -> int:
        return self._bases[number + 1] if number + 1 < len(self._bases) else self.log_end_offset

    def _count_expired(self, now_ms: int, high_watermark: int) -> int:
        if self.config.retention_ms < 0:
            return 0
        count = 0
        for number, segment in enumerate(self._segments):
            newest = segment.max_timestamp if segment.max_timestamp >= 0 else segment.created_ms
            if not segment.size or self._end_of(number) > high_watermark:
                break
            if now_ms - newest <= self.config.retention_ms:
                break
            count += 1
        return count

    def _count_in_excess(self, high_watermark: int) -> int:
        if self.config.retention_bytes < 0:
            return 0
        excess = self.size - self.config.retention_bytes
        count = 0
        for number, segment in enumerate(self._segments[:-1]):
            if excess < segment.size or self._end_of(number) > high_watermark:
                break
            excess -= segment.size
            count += 1
        return count

    def _delete_first(self, count: int) -> list[str]:
        removed = []
        for segment in self._segments[:count]:
            self.size -= segment.size
            removed += segment.mark_deleted()
        del self._segments[:count]
        del self._bases[:count]
        return removed

    def check_invariants(self) -> None:
        assert self._bases == sorted(set(self._bases)) == [s.base_offset for s in self._segments]
        assert self.log_start_offset <= self.log_end_offset
        assert self.recovery_point <= self.log_end_offset
        assert self.size == sum(segment.size for segment in self._segments)
        for segment in self._segments:
            segment.check_invariants()
