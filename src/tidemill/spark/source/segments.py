"""Splits of sealed segments, straight from the files of brokers' data directories: no broker moves a byte.

`segmentsPath` names one or more data directories (what `log.dirs` holds), comma separated: folders of this machine,
mounts that all executors see, or URIs that pyarrow opens (s3://, gs://, hdfs://). Copies must be whole: the
checkpoint files beside the partitions' folders say what may be trusted. Nothing here opens a file for writing;
nothing is repaired, and nothing is believed unchecked.

What of a replica's files may be read, all of these together:

    sealed        whole segments below the last one, which may still grow
    synced        below `recovery-point-offset-checkpoint`: there the indexes of aborted transactions and the leader
                  epochs are complete
    committed     with a broker: below the partition's high watermark, and below where the replica's leader epochs
                  part from the leader's, since an old leader's disk may hold records that no other replica has; without
                  one: below `replication-offset-checkpoint`, where all replicas agree (a partition that is not in it
                  has one replica)
    decided       read_committed: below the first transaction that is open where all of the above ends
    the topic's   with a broker: `partition.metadata` has the topic's id, or the folder is an older topic's of that name

Everything else of a range is the broker's; the two meet at an offset. Of several replicas the one that reaches
furthest is taken.

Segments come and go while they are read: retention removes them, compaction puts others of the same name in their
place. So a split says at which offset its first byte is, every batch is checked (header, order, CRC-32C), and the
last one must end where the split does. A file that is gone or not what it was is no error: the rest of that split
comes from the broker, if there is one. Files are read by position, not mapped: a replica that cuts its log must not
kill who reads it.
"""

from __future__ import annotations

import copy
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.fs as pafs

from tidemill.errors import ConfigError, StorageError
from tidemill.log.datadir import parse_checkpoint
from tidemill.log.epochs import LeaderEpochs
from tidemill.log.files import File, Files
from tidemill.log.producer_state.producers import Producers
from tidemill.log.segments.segment import read_batches, segment_name
from tidemill.log.segments.txn_index import TransactionIndex
from tidemill.log.transactions import AbortedTransaction, AbortedTransactions
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.protocol.records import HEADER_SIZE, BatchHeader, checksum_matches, header_at, is_plausible
from tidemill.spark.arrow.decode import Decoder
from tidemill.spark.source.work import BrokerWork, Work, arrow_batches
from tidemill.types import TopicPartition

logger = logging.getLogger("tidemill.spark")

SPLIT_BYTES = 64 << 20
READ_BYTES = 4 << 20
_SETTLING_TRIES = 40
_SETTLING_S = 0.05
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LOG_STARTS = "log-start-offset-checkpoint"
_HIGH_WATERMARKS = "replication-offset-checkpoint"

Batch = tuple[BatchHeader, memoryview]


class NotAsPlanned(Exception):
    """The file is gone, or holds something else than when the split was made. Nothing from `next_offset` on was given."""

    def __init__(self, next_offset: int, reason: str) -> None:
        super().__init__(reason)
        self.next_offset = next_offset


class SegmentPart(NamedTuple):
    """Whole batches of one file that hold the records of [start_offset, end_offset), and perhaps a few more."""

    path: str
    position: int
    end_position: int
    start_offset: int
    end_offset: int


class Leader(NamedTuple):
    """The cluster's facts about a partition: its topic's id, the end of what may be read, and the ends of epochs."""

    topic_id: str
    readable_end: int
    epoch_end: Callable[[int], tuple[int, int]]
    """The largest epoch not above the one given that the leader knows, and its end offset; -1 for neither."""


# --- reading files of any file system ---


class _OpenFile:
    """A `File` of `tidemill.log` that can only be read."""

    fd = -1

    def __init__(self, file: pa.NativeFile) -> None:
        self._file = file

    def read(self, length: int, position: int) -> bytes:
        return bytes(self._file.read_at(length, position))

    def size(self) -> int:
        return int(self._file.size())


@dataclass(frozen=True)
class SegmentFiles:
    """The part of `tidemill.log.files.Files` that reads, over a pyarrow file system. Picklable, as that is."""

    _fs: pafs.FileSystem

    def exists(self, path: str) -> bool:
        return bool(self._fs.get_file_info(path).type == pafs.FileType.File)

    def size(self, path: str) -> int:
        info = self._fs.get_file_info(path)
        if info.type != pafs.FileType.File:
            raise FileNotFoundError(path)
        return int(info.size)

    def list(self, folder: str) -> list[str]:
        infos = self._fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        return sorted(info.base_name for info in infos)

    def open(self, path: str) -> _OpenFile:
        return _OpenFile(self._fs.open_input_file(path))

    def read(self, path: str) -> bytes:
        with self._fs.open_input_stream(path) as stream:
            return bytes(stream.readall())


def read_part(
    files: SegmentFiles, part: SegmentPart, aborted: Sequence[AbortedTransaction]
) -> Iterator[tuple[list[Batch], int]]:
    """Batches to decode, some at a time, and the offset behind them; `NotAsPlanned` when the file is another by now."""
    hidden = AbortedTransactions(aborted)
    given = next_offset = part.start_offset
    try:
        file = files.open(part.path)
        position = part.position
        while position < part.end_position:
            chunk = _whole_batches(file, position, part.end_position)
            if not chunk:
                raise NotAsPlanned(given, f"{part.path}: no whole batch at position {position}")
            batches = []
            for header, batch in chunk:
                if header.base_offset >= part.end_offset:
                    break
                if header.last_offset < part.start_offset:
                    continue
                # The CRC does not cover the base offset; the order of batches tells when it is wrong.
                is_behind = header.base_offset < next_offset > part.start_offset
                if is_behind or not checksum_matches(batch, header):
                    raise NotAsPlanned(given, f"{part.path}: the batch at {header.base_offset} is damaged")
                next_offset = header.next_offset
                if not header.is_control and not hidden.has(header):
                    batches.append((header, batch))
            given = min(next_offset, part.end_offset)
            yield batches, given
            if chunk[-1][0].base_offset >= part.end_offset:
                return
            position += sum(header.size for header, _ in chunk)
    except (FileNotFoundError, pa.ArrowInvalid) as error:
        raise NotAsPlanned(given, f"{part.path}: {error}") from None


def _whole_batches(file: _OpenFile, position: int, end_position: int) -> list[Batch]:
    length = min(READ_BYTES, end_position - position)
    data = memoryview(file.read(length, position))
    if len(data) >= HEADER_SIZE:
        first = header_at(data)
        if is_plausible(first) and length < first.size <= end_position - position:
            data = memoryview(file.read(first.size, position))
    batches = []
    at = 0
    while len(data) - at >= HEADER_SIZE:
        header = header_at(data, at)
        if not is_plausible(header) or at + header.size > len(data):
            break
        batches.append((header, data[at : at + header.size]))
        at += header.size
    return batches


class SegmentWork(Work):
    """One or more parts that follow each other; `fallback` reads the same range from the broker."""

    def __init__(
        self,
        partition: TopicPartition,
        parts: Sequence[SegmentPart],
        files: SegmentFiles,
        aborted: Sequence[AbortedTransaction] = (),
        fallback: BrokerWork | None = None,
    ) -> None:
        super().__init__(partition, parts[0].start_offset, parts[-1].end_offset)
        self.parts = tuple(parts)
        self.files = files
        self.aborted = tuple(aborted)
        self.fallback = fallback

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(self.partition, self.start_offset, self.end_offset, columns)
        try:
            for part in self.parts:
                for batches, _ in read_part(self.files, part, self.aborted):
                    if batches:
                        for rows in decoder.parts(batches):
                            yield from arrow_batches(rows)
        except NotAsPlanned as change:
            yield from self._rest(change, columns)

    def _rest(self, change: NotAsPlanned, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if self.fallback is None:
            raise StorageError(
                f"{self.partition}: {change}; it was removed or changed while it was read, and there is no broker to ask "
                "for the rest (start the query again, or set kafka.bootstrap.servers)"
            )
        logger.warning(
            "%s: %s; the broker is asked from offset %d on", self.partition, change, change.next_offset
        )
        rest = copy.copy(self.fallback)
        rest.start_offset, rest.end_offset = change.next_offset, self.end_offset
        yield from rest.read(columns)


# --- what may be read ---


@dataclass(frozen=True)
class Replica:
    """One partition's folder as it was when it was looked at, and the offsets that may be read from it."""

    partition: TopicPartition
    files: SegmentFiles
    folder: str
    # Of sealed and synced segments, and at last the offset at which those end.
    base_offsets: tuple[int, ...]
    first_offset: int
    end_offset: int

    def path_of(self, base_offset: int, suffix: str) -> str:
        return f"{self.folder}/{segment_name(base_offset)}.{suffix}"

    def parts(self, start_offset: int, end_offset: int) -> list[SegmentPart]:
        """Returns the parts of a readable range: none larger than about `SPLIT_BYTES`, together without a gap."""
        found = []
        for base, following in zip(self.base_offsets, self.base_offsets[1:], strict=False):
            if base < end_offset and following > start_offset:
                found += self._parts_of(base, max(start_offset, base), min(end_offset, following))
        return found

    def _parts_of(self, base: int, start_offset: int, end_offset: int) -> list[SegmentPart]:
        path = self.path_of(base, "log")
        size = self.files.size(path)
        offsets, positions = self._index(base)
        first = int(np.searchsorted(offsets, start_offset, side="right")) - 1
        position = int(positions[first]) if first >= 0 else 0
        # An entry has its batch's last offset: the one after the first that reaches the end is surely behind it.
        behind = int(np.searchsorted(offsets, end_offset)) + 1
        end_position = int(positions[behind]) if behind < len(positions) else size
        file = self.files.open(path)
        parts = []
        while end_position - position > SPLIT_BYTES:
            slot = int(np.searchsorted(positions, position + SPLIT_BYTES))
            cut = int(positions[slot]) if slot < len(positions) else end_position
            if cut >= end_position:
                break
            header = header_at(file.read(HEADER_SIZE, cut))
            if not is_plausible(header) or header.last_offset != offsets[slot]:
                # An index that leads astray only costs larger splits.
                break
            if header.base_offset >= end_offset:
                end_position = cut
                break
            if header.base_offset > start_offset:
                parts.append(SegmentPart(path, position, cut, start_offset, header.base_offset))
                start_offset = header.base_offset
            position = cut
        return [*parts, SegmentPart(path, position, end_position, start_offset, end_offset)]

    def _index(self, base: int) -> tuple[np.ndarray, np.ndarray]:
        """Last offsets and positions of the batches that the sparse index knows; nothing when it makes no sense."""
        path = self.path_of(base, "index")
        content = self.files.read(path) if self.files.exists(path) else b""
        entries = np.frombuffer(content[: len(content) // 8 * 8], dtype=">i4").reshape(-1, 2).astype(np.int64)
        entries = entries[entries[:, 1] > 0]
        if (np.diff(entries, axis=0) <= 0).any():
            entries = entries[:0]
        return entries[:, 0] + base, entries[:, 1]

    def aborted(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that overlap a range. Their markers all lie in these segments."""
        found: list[AbortedTransaction] = []
        for base, following in zip(self.base_offsets, self.base_offsets[1:], strict=False):
            if following <= start_offset:
                continue
            index = TransactionIndex(cast(Files, self.files), self.path_of(base, "txnindex"), base)
            if index.is_damaged:
                raise StorageError(f"{index.path} is damaged; restart its broker, which makes it anew")
            if index.collect(start_offset, end_offset, found):
                break
        return found


class SegmentFolders:
    """The data directories of `segmentsPath`."""

    def __init__(self, paths: str) -> None:
        self._dirs = [_DataDir(part.strip()) for part in paths.split(",") if part.strip()]
        if not self._dirs:
            raise ConfigError(
                "segmentsPath: no folder is given; it should be a broker's data directory (log.dirs)"
            )

    def topics(self) -> dict[str, list[TopicPartition]]:
        """Every partition that has a folder, by topic."""
        found: dict[str, set[TopicPartition]] = {}
        for data_dir in self._dirs:
            for partition in data_dir.partitions():
                found.setdefault(partition.topic, set()).add(partition)
        return {topic: sorted(partitions) for topic, partitions in sorted(found.items())}

    def replica(
        self, partition: TopicPartition, isolation_level: int, leader: Leader | None = None
    ) -> Replica | None:
        """The one that reaches furthest; None when no directory has anything that may be read."""
        replicas = [data_dir.replica(partition, isolation_level, leader) for data_dir in self._dirs]
        usable = [each for each in replicas if each is not None and each.end_offset > each.first_offset]
        return max(usable, key=lambda each: each.end_offset, default=None)


class _DataDir:
    def __init__(self, path: str) -> None:
        self.name = path
        if "://" in path:
            try:
                file_system, self._path = pafs.FileSystem.from_uri(path)
            except (pa.ArrowInvalid, OSError) as error:
                reason = str(error).splitlines()[0]
                raise ConfigError(f"segmentsPath: {path} cannot be opened: {reason} (or mount it)") from None
        else:
            file_system, self._path = pafs.LocalFileSystem(), os.path.abspath(path)
        self._files = SegmentFiles(file_system)
        names = self._files.list(self._path)
        if not names:
            raise ConfigError(
                f"segmentsPath: {path} is empty or not there; it should be a data directory (log.dirs)"
            )
        self._names = names
        self._checkpoints: dict[str, Mapping[TopicPartition, int]] = {}

    def _checkpoint(self, name: str) -> Mapping[TopicPartition, int]:
        if name not in self._checkpoints:
            path = f"{self._path}/{name}"
            self._checkpoints[name] = (
                parse_checkpoint(path, self._files.read(path)) if self._files.exists(path) else {}
            )
        return self._checkpoints[name]

    def partitions(self) -> Iterator[TopicPartition]:
        for name in self._names:
            topic, dash, index = name.rpartition("-")
            if dash and index.isdigit() and topic:
                yield TopicPartition(topic, int(index))

    def replica(
        self, partition: TopicPartition, isolation_level: int, leader: Leader | None
    ) -> Replica | None:
        try:
            return self._replica(f"{self._path}/{partition}", partition, isolation_level, leader)
        except FileNotFoundError as gone:
            logger.warning("%s: %s was removed just now, so its segments are not read", partition, gone)
            return None

    def _replica(
        self, folder: str, partition: TopicPartition, isolation_level: int, leader: Leader | None
    ) -> Replica | None:
        bases = self._settled_bases(folder)
        recovery_point = self._checkpoint(_RECOVERY_POINTS).get(partition)
        if not bases or not self._is_of_topic(folder, leader):
            return None
        if recovery_point is None:
            logger.warning(
                "%s: %s has no recovery point for it yet, so its segments are not read", partition, self.name
            )
            return None
        synced = tuple(base for base in bases if base <= recovery_point)
        if len(synced) < 2:
            return None
        start = max(synced[0], self._checkpoint(_LOG_STARTS).get(partition, 0))
        end = synced[-1]
        if leader is None:
            end = min(end, self._checkpoint(_HIGH_WATERMARKS).get(partition, end))
        else:
            epochs = LeaderEpochs(cast(Files, self._files), f"{folder}/leader-epoch-checkpoint")
            end = min(end, leader.readable_end, common_end(epochs, end, leader.epoch_end))
        replica = Replica(partition, self._files, folder, synced, start, end)
        if isolation_level == READ_COMMITTED:
            end = min(end, _first_undecided(replica))
        return Replica(partition, self._files, folder, synced, start, end)

    def _settled_bases(self, folder: str) -> list[int]:
        """The segments' base offsets, not taken while compaction is exchanging segments."""
        before: list[str] | None = None
        for _ in range(_SETTLING_TRIES):
            names = self._files.list(folder)
            if names == before and not any(name.endswith(".swap") for name in names):
                return sorted(
                    int(name[:-4]) for name in names if name.endswith(".log") and name[:-4].isdigit()
                )
            if before is not None:
                time.sleep(_SETTLING_S)
            before = names
        logger.warning("%s: compaction keeps changing it, so its segments are not read", folder)
        return []

    def _is_of_topic(self, folder: str, leader: Leader | None) -> bool:
        path = f"{folder}/partition.metadata"
        if leader is None or not leader.topic_id:
            return True
        content = self._files.read(path).decode(errors="replace") if self._files.exists(path) else ""
        lines = (line.partition(":") for line in content.splitlines())
        found = next((value.strip() for key, _, value in lines if key == "topic_id"), None)
        if found != leader.topic_id:
            logger.warning("%s is of another topic of that name (id %s), so it is not read", folder, found)
        return found == leader.topic_id


def common_end(epochs: LeaderEpochs, end_offset: int, epoch_end: Callable[[int], tuple[int, int]]) -> int:
    """Up to where a replica's log, read to `end_offset`, is the leader's: by epochs, as a follower finds it."""
    entries = [entry for entry in epochs.entries if entry.start_offset < end_offset]
    while entries:
        asked = entries[-1].epoch
        leader_epoch, leader_end = epoch_end(asked)
        if leader_epoch < 0:
            return 0
        # The leader may never have had that epoch: then an older one is the last that both may share.
        while entries and entries[-1].epoch > leader_epoch:
            end_offset = entries.pop().start_offset
        if entries and entries[-1].epoch == leader_epoch:
            return min(end_offset, leader_end)
    return 0


def _first_undecided(replica: Replica) -> int:
    """The first offset of the oldest transaction that is open where the sealed segments end; that end if none is."""
    end = replica.base_offsets[-1]
    open_since: dict[int, int] = {}
    scan_from = replica.base_offsets[0]
    names = replica.files.list(replica.folder)
    snapshots = sorted(
        (int(n[:-9]) for n in names if n.endswith(".snapshot") and n[:-9].isdigit()), reverse=True
    )
    for offset in snapshots:
        if offset in replica.base_offsets:
            producers = Producers()
            try:
                producers.restore(replica.files.read(replica.path_of(offset, "snapshot")))
            except (StorageError, FileNotFoundError):
                continue
            open_since = {s.producer_id: s.txn_first_offset for s in producers.open_transactions()}
            scan_from = offset
            break
    for base in replica.base_offsets[:-1]:
        if base < scan_from:
            continue
        file = replica.files.open(replica.path_of(base, "log"))
        for _, header, _ in read_batches(cast(File, file), file.size()):
            if header.is_control:
                open_since.pop(header.producer_id, None)
            elif header.is_transactional:
                open_since.setdefault(header.producer_id, header.base_offset)
    return min([end, *open_since.values()])
