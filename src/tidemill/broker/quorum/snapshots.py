"""Snapshots of the metadata: files that hold everything before an offset, and how they come to be.

`<end offset>-<epoch>.checkpoint`, in Kafka's format: a control batch with the header and, where the log keeps them, the
voters; batches of records; a control batch with the footer. Earlier versions wrote the records alone, which is still
read. Every batch has its checksum, and without its footer a snapshot is not whole: a damaged one is found when it is
read, never believed, and set aside.

A snapshot appears under its name when it is durable. One that was fetched from the leader replaces the log, in more
than one step. It first gets the name `….installing`, and a start that finds such a file finishes the job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tidemill.broker.quorum.records import control_batch, control_records, data_batch
from tidemill.errors import ProtocolError, StorageError
from tidemill.log.files import File, Files
from tidemill.log.segments.segment import read_batches
from tidemill.protocol.api.quorum import (
    KRaftVersionRecord,
    SnapshotFooterRecord,
    SnapshotHeaderRecord,
    VotersRecord,
)
from tidemill.protocol.records import BatchHeader, checksum_matches, iterate_records
from tidemill.raft.log import SnapshotKey
from tidemill.raft.voters import KRAFT_VERSION_MAX, VoterSet

SUFFIX = ".checkpoint"
_INSTALLING = f"{SUFFIX}.installing"
_DAMAGED = ".damaged"
# Names that end so are removed when the log is opened.
_WRITTEN_PART, _FETCHED_PART = f"{SUFFIX}.tmp", f"{SUFFIX}.fetched.tmp"
_NAME = re.compile(r"(\d{20})-(\d{10})")
_BATCH_RECORDS_MAX = 1_000
_BATCH_BYTES_MAX = 512 << 10


class SnapshotDamaged(StorageError):
    """The file does not hold a whole snapshot."""


@dataclass(frozen=True, slots=True)
class SnapshotSummary:
    voters: VoterSet | None
    last_timestamp: int


def snapshot_name(key: SnapshotKey) -> str:
    return f"{key.end_offset:020d}-{key.epoch:010d}"


class SnapshotFiles:
    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._folder = folder

    def path(self, key: SnapshotKey, suffix: str = SUFFIX) -> str:
        return f"{self._folder}/{snapshot_name(key)}{suffix}"

    def _find(self, suffix: str) -> list[SnapshotKey]:
        found = []
        for name in self._files.list(self._folder):
            if name.endswith(suffix):
                match = _NAME.fullmatch(name.removesuffix(suffix))
                if match is not None:
                    found.append(SnapshotKey(int(match[1]), int(match[2])))
        return sorted(found)

    def find(self) -> list[SnapshotKey]:
        """Oldest first."""
        return self._find(SUFFIX)

    # -- reading ---------------------------------------------------------------------------------------------

    def size(self, key: SnapshotKey) -> int | None:
        return self._files.size(self.path(key)) if self._files.exists(self.path(key)) else None

    def read(self, key: SnapshotKey, position: int, max_bytes: int) -> bytes:
        return self._files.open(self.path(key), writable=False).read(max_bytes, position)

    def check(self, key: SnapshotKey) -> SnapshotSummary:
        """Read all of it; `SnapshotDamaged` when it is not whole."""
        return self._check(self.path(key))

    def _check(self, path: str) -> SnapshotSummary:
        try:
            return self._summarize(path)
        except ProtocolError as error:
            raise SnapshotDamaged(f"{path}: {error}") from error

    def _summarize(self, path: str) -> SnapshotSummary:
        voters: VoterSet | None = None
        last_timestamp = -1
        has_header = is_ended = False
        for header, batch in self._batches(path):
            if is_ended:
                raise SnapshotDamaged(f"{path}: something follows its footer")
            if not header.is_control:
                continue
            for _, record in control_records(batch, header):
                match record:
                    case SnapshotHeaderRecord():
                        has_header, last_timestamp = True, record.last_contained_log_timestamp
                    case SnapshotFooterRecord():
                        is_ended = True
                    case VotersRecord():
                        voters = VoterSet.from_record(record)
        if has_header and not is_ended:
            raise SnapshotDamaged(f"{path}: it has no footer, so its end is missing")
        return SnapshotSummary(voters, last_timestamp)

    def _batches(self, path: str) -> Iterator[tuple[BatchHeader, memoryview]]:
        file = self._files.open(path, writable=False)
        size, end = file.size(), 0
        for position, header, batch in read_batches(file, size):
            if not checksum_matches(batch, header):
                break
            # What cannot be decoded is damaged too, whatever its checksum.
            for _ in iterate_records(batch, header):
                pass
            yield header, batch
            end = position + header.size
        if end != size or not size:
            raise SnapshotDamaged(f"{path}: damaged at byte {end} of {size}")

    def values(self, key: SnapshotKey) -> Iterator[bytes]:
        """The controller's records."""
        for header, batch in self._batches(self.path(key)):
            if not header.is_control:
                for record in iterate_records(batch, header):
                    yield record.value or b""

    # -- writing our own -------------------------------------------------------------------------------------

    def write(
        self, key: SnapshotKey, values: Iterable[bytes], voters: VoterSet | None, last_timestamp: int
    ) -> None:
        """For a thread: touches nothing but its own file."""
        part = self.path(key, _WRITTEN_PART)
        file = self._files.open(part, create=True)
        file.truncate(0)
        head: list[SnapshotHeaderRecord | KRaftVersionRecord | VotersRecord]
        head = [SnapshotHeaderRecord(last_contained_log_timestamp=last_timestamp)]
        if voters is not None:
            head += [KRaftVersionRecord(k_raft_version=KRAFT_VERSION_MAX), voters.to_record()]
        content = control_batch(head, 0, key.epoch, last_timestamp)
        file.write(content, 0)
        position, offset = len(content), len(head)
        for batch_values in _in_batches(values):
            content = data_batch(batch_values, offset, key.epoch, last_timestamp)
            file.write(content, position)
            position, offset = position + len(content), offset + len(batch_values)
        file.write(control_batch([SnapshotFooterRecord()], offset, key.epoch, last_timestamp), position)
        file.sync()
        self._files.rename(part, self.path(key))
        self._files.sync_folder(self._folder)

    # -- taking the leader's ---------------------------------------------------------------------------------

    def receive(self, key: SnapshotKey, position: int, data: bytes | bytearray | memoryview) -> None:
        file: File = self._files.open(self.path(key, _FETCHED_PART), create=True)
        if position == 0:
            file.truncate(0)
        file.write(data, position)

    def check_received(self, key: SnapshotKey) -> SnapshotSummary:
        return self._check(self.path(key, _FETCHED_PART))

    def begin_install(self, key: SnapshotKey) -> None:
        """From here on the snapshot counts, and the log that it replaces does not."""
        part = self.path(key, _FETCHED_PART)
        self._files.open(part).sync()
        self._files.rename(part, self.path(key, _INSTALLING))
        self._files.sync_folder(self._folder)

    def installing(self) -> SnapshotKey | None:
        found = self._find(_INSTALLING)
        return found[-1] if found else None

    def finish_install(self, key: SnapshotKey) -> None:
        """The log is out of the way."""
        for other in self.find():
            self._files.remove(self.path(other))
        self._files.rename(self.path(key, _INSTALLING), self.path(key))
        self._files.sync_folder(self._folder)

    # -- the end of one --------------------------------------------------------------------------------------

    def remove(self, key: SnapshotKey) -> None:
        self._files.remove(self.path(key))

    def set_aside(self, key: SnapshotKey) -> None:
        self._files.rename(self.path(key), f"{self.path(key)}{_DAMAGED}")
        self._files.sync_folder(self._folder)


def _in_batches(values: Iterable[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for value in values:
        batch.append(value)
        size += len(value)
        if len(batch) == _BATCH_RECORDS_MAX or size >= _BATCH_BYTES_MAX:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
