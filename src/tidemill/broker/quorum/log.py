"""The metadata log on disk, as the quorum's machine sees it.

A `Log` with Kafka's batches, the snapshots beside it, and what is derived from both: which epoch began where, and who
voted since when. The derived is rebuilt from the batches at every start, so nothing else on disk can contradict them.

Where things begin: the two newest snapshots are kept, and the log reaches back to the end of the older one; to 0, as long
as there is only one. So a snapshot that turns out to be damaged is made up for by the one before it and the log.

Durability: every sync also writes down how far the log is durable (recovery_point.py), before the machine is stepped. A
log that ends before that point was damaged, not torn, and is refused (`MetadataDamaged`). A fetched snapshot replaces
the whole log; see snapshots.py for how that survives a crash.

A replica that has lost its metadata, and has others to get it from, sets what is left aside and starts over. The file
`incomplete` says so until it has everything again: until then it may not vote (see raft/state.py).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.broker.disk.recovery_point import RecoveryPoint
from tidemill.broker.quorum.records import ControlRecord, control_batch, control_records, data_batch
from tidemill.broker.quorum.snapshots import SnapshotDamaged, SnapshotFiles, SnapshotSummary
from tidemill.config import TopicConfig
from tidemill.errors import ProtocolError, StorageError
from tidemill.log.epochs import EpochStart
from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.log.segments.segment import segment_name
from tidemill.log.sync import SyncWork
from tidemill.protocol.api.quorum import VotersRecord
from tidemill.protocol.records import (
    HEADER_SIZE,
    BatchHeader,
    InvalidBatch,
    checksum_matches,
    header_at,
    iterate_records,
    split_batches,
)
from tidemill.raft.log import EpochEnd, SnapshotKey
from tidemill.raft.voters import BOOTSTRAP_OFFSET, VoterHistory, VotersAt, VoterSet

logger = logging.getLogger(__name__)

METADATA_FOLDER = "__cluster_metadata-0"
_INCOMPLETE = "incomplete"
_SETTING_ASIDE, _FETCHING = b"setting aside\n", b"fetching\n"
_LOG_SUFFIXES = (".log", ".index", ".timeindex", ".snapshot")
_EPOCHS = "leader-epoch-checkpoint"
_SNAPSHOTS_KEPT = 2
_READ_BYTES = 1 << 20
_CONFIG = TopicConfig(segment_bytes=64 << 20, segment_index_bytes=256 << 10, segment_ms=1 << 62)


class MetadataDamaged(StorageError):
    """Something that was durable is gone or wrong."""


class _SyncWork(NamedTuple):
    """The log first, then the point up to which it is durable. For a thread."""

    work: SyncWork
    recovery_point: RecoveryPoint
    generation: int

    @property
    def end_offset(self) -> int:
        return self.work.end_offset

    def run(self) -> None:
        self.work.run()
        self.recovery_point.raise_to(self.work.end_offset, self.generation)


class MetadataLog:
    """Synced through `sync_work` and `synced`, as a `Log` is."""

    def __init__(self, files: Files, folder: str, bootstrap: VoterSet, wall_ms: int) -> None:
        self._files = files
        self.folder = folder
        self.snapshots = SnapshotFiles(files, folder)
        self._bootstrap = bootstrap
        self.is_closed = False
        files.make_folder(folder)
        try:
            self._recovery_point = RecoveryPoint(files, folder)
        except StorageError as error:
            raise MetadataDamaged(str(error)) from error
        if self._marker() == _SETTING_ASIDE:
            self._set_aside()
        installing = self.snapshots.installing()
        if installing is not None:
            self._make_way_for(installing)
        self._open(wall_ms)

    # -- opening ---------------------------------------------------------------------------------------------

    def _open(self, wall_ms: int) -> None:
        self._kept: list[tuple[SnapshotKey, SnapshotSummary]] = []
        damaged: list[SnapshotKey] = []
        for key in self.snapshots.find():
            try:
                self._kept.append((key, self.snapshots.check(key)))
            except SnapshotDamaged as error:
                logger.error("a snapshot of the metadata is damaged: %s", error)
                damaged.append(key)
        start_offset = self._start_offset()
        try:
            self.log = Log(
                self._files,
                self.folder,
                _CONFIG,
                wall_ms=wall_ms,
                is_clean=False,
                recovery_point=self._recovery_point.offset,
                log_start_offset=start_offset,
            )
        except StorageError as error:
            raise MetadataDamaged(str(error)) from error
        try:
            self._check_reach(start_offset)
            self._derive()
            self.sync(wall_ms)
        except BaseException:
            self.log.release()
            raise
        for key in damaged:
            self.snapshots.set_aside(key)

    def _start_offset(self) -> int:
        if not self._kept or (
            len(self._kept) < _SNAPSHOTS_KEPT and self._files.exists(f"{self.folder}/{segment_name(0)}.log")
        ):
            return 0
        return self._kept[0][0].end_offset

    def _check_reach(self, start_offset: int) -> None:
        log = self.log
        if log.log_start_offset > start_offset:
            raise MetadataDamaged(
                f"{self.folder}: the log begins at offset {log.log_start_offset}, and no whole snapshot holds what "
                "was before"
            )
        if self._kept and log.log_end_offset < self._kept[-1][0].end_offset:
            raise MetadataDamaged(
                f"{self.folder}: the log ends at offset {log.log_end_offset}, before its snapshot of "
                f"{self._kept[-1][0].end_offset}"
            )

    def _derive(self) -> None:
        """Epochs and voters, from every batch."""
        self._epochs: list[EpochStart] = []
        self._history = VoterHistory(self._bootstrap)
        self.last_timestamp = -1
        if self._kept:
            oldest, summary = self._kept[0]
            self.last_timestamp = summary.last_timestamp
            if summary.voters is not None and oldest.end_offset == self.log_start_offset:
                self._history.install(oldest.end_offset, summary.voters)
        end_offset = self.log_start_offset
        try:
            for header, batch in self.batches(self.log_start_offset, self.log_end_offset):
                self._note(header, batch)
                end_offset = header.next_offset
        except ProtocolError as error:
            raise MetadataDamaged(f"{self.folder}: the batch at offset {end_offset}: {error}") from error
        if end_offset != self.log_end_offset:
            raise MetadataDamaged(f"{self.folder}: the batch at offset {end_offset} is damaged")

    def _note(self, header: BatchHeader, batch: memoryview) -> None:
        if header.leader_epoch != self.last_epoch or not self._epochs:
            self._epochs.append(EpochStart(header.leader_epoch, header.base_offset))
        self.last_timestamp = max(self.last_timestamp, header.max_timestamp)
        if header.is_control:
            for offset, record in control_records(batch, header):
                if isinstance(record, VotersRecord) and offset > self._history.latest.offset:
                    self._history.append(offset, VoterSet.from_record(record))

    # -- what the machine reads ------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> int:
        return self.log.log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.log_end_offset

    @property
    def log_start_epoch(self) -> int:
        for key, _ in self._kept:
            if key.end_offset == self.log_start_offset:
                return key.epoch
        return 0

    @property
    def last_epoch(self) -> int:
        return self._epochs[-1].epoch if self._epochs else self.log_start_epoch

    @property
    def latest_snapshot(self) -> SnapshotKey | None:
        return self._kept[-1][0] if self._kept else None

    def snapshot_size(self, snapshot: SnapshotKey) -> int | None:
        return self.snapshots.size(snapshot)

    @property
    def voters(self) -> VotersAt:
        return self._history.latest

    @property
    def has_voters_record(self) -> bool:
        return self._history.latest.offset != BOOTSTRAP_OFFSET

    def set_bootstrap(self, voters: VoterSet) -> None:
        """Sets the voters that other nodes report, as long as the log itself has none."""
        self._bootstrap = voters
        if not self.has_voters_record:
            self._history = VoterHistory(voters)

    @property
    def is_empty(self) -> bool:
        return self.log_end_offset == 0

    def end_offset_of(self, epoch: int) -> EpochEnd:
        end_offset = self.log_end_offset
        for entry in reversed(self._epochs):
            if entry.epoch <= epoch:
                return EpochEnd(entry.epoch, end_offset)
            end_offset = entry.start_offset
        return EpochEnd(self.log_start_epoch, self.log_start_offset)

    def epoch_before(self, end_offset: int) -> int:
        """Returns the epoch of the last record before `end_offset`."""
        found = self.log_start_epoch
        for entry in self._epochs:
            if entry.start_offset >= end_offset:
                break
            found = entry.epoch
        return found

    # -- reading ---------------------------------------------------------------------------------------------

    def _read(self, offset: int, max_bytes: int) -> bytes:
        found = self.log.read(offset, max_bytes, self.log_end_offset)
        return b"" if found is None else found.read()

    def read(self, offset: int, max_bytes: int) -> bytes:
        """Whole batches from `offset` on, at least one if there is one. Checked: a peer must not get damaged ones."""
        content = self._read(offset, max_bytes)
        try:
            split_batches(memoryview(content))
        except InvalidBatch as error:
            raise MetadataDamaged(f"{self.folder}: a batch after offset {offset}: {error}") from error
        return content

    def batches(self, offset: int, end_offset: int) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Yields the batches that begin at `offset` or later and before `end_offset`. Ends early at a damaged one."""
        while offset < end_offset:
            content = memoryview(self._read(offset, _READ_BYTES))
            position = 0
            while position + HEADER_SIZE <= len(content):
                header = header_at(content, position)
                batch = content[position : position + header.size]
                if len(batch) < header.size or not checksum_matches(batch, header):
                    return
                if header.base_offset >= end_offset:
                    return
                if header.base_offset >= offset:
                    yield header, batch
                position += header.size
                offset = max(offset, header.next_offset)
            if position == 0:
                return

    def records(self, offset: int, end_offset: int) -> Iterator[tuple[int, list[tuple[int, bytes]]]]:
        """The controller's records of each batch, with the offset at which the batch ends."""
        reached = offset
        for header, batch in self.batches(offset, end_offset):
            values: list[tuple[int, bytes]] = []
            if not header.is_control:
                values = [(record.offset, record.value or b"") for record in iterate_records(batch, header)]
            reached = header.next_offset
            yield reached, values
        if reached < end_offset:
            raise MetadataDamaged(f"{self.folder}: the batch at offset {reached} is damaged")

    # -- writing ---------------------------------------------------------------------------------------------

    def append_values(self, values: Sequence[bytes], epoch: int, wall_ms: int) -> None:
        self._append(data_batch(values, self.log_end_offset, epoch, wall_ms), wall_ms)

    def append_control(self, records: Sequence[ControlRecord], epoch: int, wall_ms: int) -> None:
        self._append(control_batch(records, self.log_end_offset, epoch, wall_ms), wall_ms)

    def append_fetched(self, content: bytes | bytearray | memoryview, wall_ms: int) -> None:
        """Batches that `check_fetched` has found good; they get the offsets and epochs that they have."""
        self._append(bytearray(content), wall_ms)

    def _append(self, content: bytearray, wall_ms: int) -> None:
        view, position = memoryview(content), 0
        while position < len(content):
            header = header_at(view, position)
            batch = view[position : position + header.size]
            assert header.base_offset == self.log_end_offset, "batches follow each other"
            self.log.append(batch, (header,), header.leader_epoch, wall_ms)
            self._note(header, batch)
            position += header.size

    def check_fetched(self, content: memoryview, offset: int, epoch_max: int) -> None:
        """`InvalidBatch` or `ProtocolError` when these batches cannot stand at `offset`."""
        epoch = self.last_epoch
        position = 0
        for header in split_batches(content):
            if header.base_offset != offset or header.record_count != header.last_offset_delta + 1:
                raise ProtocolError(f"a batch of offset {header.base_offset} came where {offset} was due")
            if not epoch <= header.leader_epoch <= epoch_max:
                raise ProtocolError(f"a batch of epoch {header.leader_epoch} came after epoch {epoch}")
            batch = content[position : position + header.size]
            if header.is_control:
                for _ in control_records(batch, header):
                    pass
            epoch, offset, position = header.leader_epoch, header.next_offset, position + header.size
        if position != len(content):
            raise ProtocolError(f"the batch at offset {offset} is cut off")

    def truncate(self, end_offset: int) -> None:
        end_offset = self.log.end_after_truncation(end_offset)
        logger.info("truncating the metadata log from offset %d to %d", self.log_end_offset, end_offset)
        self._recovery_point.lower_to(end_offset)
        self.log.truncate_to(end_offset)
        self._epochs = [entry for entry in self._epochs if entry.start_offset < self.log_end_offset]
        self._history.truncate(self.log_end_offset)

    def sync(self, wall_ms: int) -> None:
        """Sync at once. It blocks, so only for a node that does not serve yet."""
        work = self.sync_work()
        work.run()
        self.synced(work.end_offset, wall_ms)

    def sync_work(self) -> _SyncWork:
        return _SyncWork(self.log.sync_work(), self._recovery_point, self._recovery_point.generation)

    def synced(self, end_offset: int, wall_ms: int) -> None:
        self.log.synced(end_offset, wall_ms)

    @property
    def synced_end_offset(self) -> int:
        return self.log.recovery_point

    # -- snapshots -------------------------------------------------------------------------------------------

    def snapshot_voters(self, end_offset: int) -> VoterSet | None:
        """Returns the voters in a snapshot of that point; None when they are not in the log."""
        entry = self._history.at(end_offset)
        return None if entry.offset == BOOTSTRAP_OFFSET else entry.voters

    def snapshot_written(self, key: SnapshotKey, wall_ms: int) -> Iterable[str]:
        """Keep it, and drop what two snapshots make superfluous. Returns files to remove."""
        latest = self.latest_snapshot
        if latest is not None and key.end_offset <= latest.end_offset:
            # A newer one was fetched meanwhile.
            self.snapshots.remove(key)
            return []
        self._kept.append((key, SnapshotSummary(self.snapshot_voters(key.end_offset), self.last_timestamp)))
        # The next but one can then drop everything that is in this one.
        self.log.roll(wall_ms)
        if len(self._kept) < _SNAPSHOTS_KEPT:
            return []
        old, self._kept = self._kept[:-_SNAPSHOTS_KEPT], self._kept[-_SNAPSHOTS_KEPT:]
        start = self._kept[0][0]
        # Before the log's beginning goes: a snapshot without the log after it is worth nothing.
        for other, _ in old:
            self.snapshots.remove(other)
        self._files.sync_folder(self.folder)
        removed = self.log.move_start(start.end_offset)
        kept = [entry for entry in self._epochs if entry.start_offset >= start.end_offset]
        covering = self._epoch_at(start.end_offset)
        if covering is not None and (not kept or kept[0].start_offset > start.end_offset):
            kept.insert(0, EpochStart(covering, start.end_offset))
        self._epochs = kept
        return removed

    def _epoch_at(self, offset: int) -> int | None:
        """Returns the epoch of the record at `offset`; None when the log ends before it."""
        return self.epoch_before(offset + 1) if offset < self.log_end_offset else None

    def install(self, key: SnapshotKey, wall_ms: int) -> None:
        """A fetched snapshot takes the place of everything."""
        self.snapshots.begin_install(key)
        self.log.release()
        self._make_way_for(key)
        self._open(wall_ms)

    def _make_way_for(self, key: SnapshotKey) -> None:
        """Each step can be repeated."""
        self._recovery_point.lower_to(0)
        for name in self._files.list(self.folder):
            if name.endswith(_LOG_SUFFIXES) or name == _EPOCHS:
                self._files.remove(f"{self.folder}/{name}")
        self._files.sync_folder(self.folder)
        self.snapshots.finish_install(key)

    # -- starting over ---------------------------------------------------------------------------------------

    @staticmethod
    def start_over(files: Files, folder: str) -> None:
        """Set a damaged log aside, so that the next `MetadataLog` is an empty one that knows it is incomplete."""
        files.replace(f"{folder}/{_INCOMPLETE}", _SETTING_ASIDE)
        RecoveryPoint.remove(files, folder)

    def mark_incomplete(self) -> None:
        self._files.replace(f"{self.folder}/{_INCOMPLETE}", _FETCHING)

    def _set_aside(self) -> None:
        for name in self._files.list(self.folder):
            if name.endswith((*_LOG_SUFFIXES, ".checkpoint", ".checkpoint.installing")) or name == _EPOCHS:
                self._files.rename(f"{self.folder}/{name}", f"{self.folder}/{name}.damaged")
        self._recovery_point.lower_to(0)
        self.mark_incomplete()

    def _marker(self) -> bytes | None:
        path = f"{self.folder}/{_INCOMPLETE}"
        return self._files.read(path) if self._files.exists(path) else None

    @property
    def is_incomplete(self) -> bool:
        return self._marker() is not None

    def completed(self) -> None:
        self._files.remove(f"{self.folder}/{_INCOMPLETE}")
        self._files.sync_folder(self.folder)

    def close(self) -> None:
        self.is_closed = True
        self.log.close()
        self._recovery_point.raise_to(self.log.recovery_point, self._recovery_point.generation)

    def release(self) -> None:
        """Let go of the files without promising anything about them."""
        self.is_closed = True
        self.log.release()
