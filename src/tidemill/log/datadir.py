"""A data directory: its lock, its identity, its checkpoints and its clean-shutdown file.

The files are Kafka's:

- `meta.properties` names the cluster, the node and the directory;
- `recovery-point-offset-checkpoint` and `log-start-offset-checkpoint` hold one offset for each partition;
- `cleaner-offset-checkpoint` holds the first dirty offset of each compacted partition;
- `replication-offset-checkpoint` holds the last known high watermark of each replicated partition;
- `.kafka_cleanshutdown` exists only between a clean shutdown and the next start.

A folder `<topic>-<partition>` is a partition. Its `partition.metadata` names the topic id, so a recreated topic never
inherits the records of the old one. At startup a folder whose partition is not assigned to this broker is renamed to
`*-stray`. Stray folders are left to the operator; folders named `*-delete` are removed by the broker.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

from tidemill.errors import StorageError
from tidemill.log.files import Files, FolderInUse
from tidemill.types import TopicPartition, uuid_bytes, uuid_text

_CLEAN_MARK = ".kafka_cleanshutdown"
_RECOVERY_POINTS = "recovery-point-offset-checkpoint"
_LOG_STARTS = "log-start-offset-checkpoint"
_FIRST_DIRTY = "cleaner-offset-checkpoint"
_HIGH_WATERMARKS = "replication-offset-checkpoint"
_DELETED_SUFFIX = "-delete"
_STRAY_SUFFIX = "-stray"
_BROKER_EPOCH = re.compile(rb'"brokerEpoch":\s*"(-?\d+)"')
_PARTITION_FOLDER = re.compile(r"(?P<topic>[\w.-]+)-(?P<partition>0|[1-9]\d*)", re.ASCII)
_REMOVED_EPOCH = re.compile(rb"^removed_epoch: (\d{1,10})$", re.MULTILINE)
_METADATA_START = "version: 0\ntopic_id: "
# An id has 22 bytes in `partition.metadata`. A file with more wrong bytes than this names another topic.
_DAMAGED_BYTES_MAX = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of `meta.properties`. `cluster_id` is None until the node has joined a cluster."""

    cluster_id: str | None
    node_id: int
    directory_id: str


class DataDir:
    """One data directory. Opening it takes the lock, and fails with the owner's pid while another process holds it."""

    def __init__(self, files: Files, path: str, pid: int) -> None:
        self._files = files
        self.path = path
        try:
            if not files.exists(path):
                files.make_folder(path)
                parent, separator, _ = path.rstrip("/").rpartition("/")
                files.sync_folder(parent or separator or ".")
            self._unlock: Callable[[], None] = files.lock(f"{path}/.lock", f"pid {pid}")
        except FolderInUse as error:
            raise StorageError(
                f"the data directory {path} is in use by another broker ({error.owner})"
            ) from None
        except OSError as error:
            raise StorageError(f"cannot use the data directory {path}: {error.strerror or error}") from error
        self.was_clean = files.exists(f"{path}/{_CLEAN_MARK}")
        # The broker epoch of the registration that the clean shutdown ended; -1 when it is unknown.
        self.clean_broker_epoch = self._clean_broker_epoch()
        try:
            self.recovery_points = self._read_checkpoint(_RECOVERY_POINTS)
            self.log_starts = self._read_checkpoint(_LOG_STARTS)
            self._first_dirty = self._read_checkpoint(_FIRST_DIRTY)
            self.high_watermarks = self._read_checkpoint(_HIGH_WATERMARKS)
        except StorageError:
            self._unlock()
            raise
        # The recovery points and log start offsets that the checkpoints hold, or will hold after the next write.
        self._noted = (dict(self.recovery_points), dict(self.log_starts))
        self._checkpoints_lock = Lock()
        self._first_dirty_lock = Lock()

    # -- identity --------------------------------------------------------------------------------------------

    def identity(self) -> Identity | None:
        """Returns the identity in `meta.properties`; None for a new directory."""
        path = f"{self.path}/meta.properties"
        if not self._files.exists(path):
            return None
        lines = self._files.read(path).decode(errors="replace").splitlines()
        values = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
        try:
            return Identity(values.get("cluster.id"), int(values["node.id"]), values["directory.id"])
        except (KeyError, ValueError) as error:
            raise StorageError(f"{path} is damaged: {error} is missing or wrong") from error

    def claim(self, identity: Identity) -> None:
        """Write this identity, or raise `StorageError` when the directory belongs to another node or cluster."""
        found = self.identity()
        if found is not None:
            is_other_cluster = None not in (found.cluster_id, identity.cluster_id) and (
                found.cluster_id != identity.cluster_id
            )
            if found.node_id != identity.node_id or is_other_cluster:
                raise StorageError(
                    f"{self.path} belongs to node {found.node_id} of cluster {found.cluster_id or '(none yet)'}, "
                    f"not to node {identity.node_id} of cluster {identity.cluster_id or '(none yet)'}"
                )
        if found is None or found.cluster_id != (identity.cluster_id or found.cluster_id):
            cluster = f"cluster.id={identity.cluster_id}\n" if identity.cluster_id else ""
            content = (
                f"version=1\n{cluster}node.id={identity.node_id}\ndirectory.id={identity.directory_id}\n"
            )
            self._files.replace(f"{self.path}/meta.properties", content.encode())

    # -- shutdown and checkpoints ----------------------------------------------------------------------------

    def mark_in_use(self) -> None:
        """Remove the clean-shutdown file: a crash from here on is followed by recovery."""
        self._files.remove(f"{self.path}/{_CLEAN_MARK}")
        self._files.sync_folder(self.path)

    def mark_clean(self, broker_epoch: int) -> None:
        """Write the clean-shutdown file with the broker epoch. It proves to the controller that no data was lost."""
        content = f'{{"version":0,"brokerEpoch":"{broker_epoch}"}}'
        self._files.replace(f"{self.path}/{_CLEAN_MARK}", content.encode())

    def _clean_broker_epoch(self) -> int:
        if not self.was_clean:
            return -1
        epoch = _BROKER_EPOCH.search(self._files.read(f"{self.path}/{_CLEAN_MARK}"))
        return int(epoch[1]) if epoch else -1

    def unlock(self) -> None:
        self._unlock()

    def write_checkpoints(
        self, recovery_points: Mapping[TopicPartition, int], log_starts: Mapping[TopicPartition, int]
    ) -> None:
        self.note_checkpoints(recovery_points, log_starts)
        self.write_noted_checkpoints()

    def note_checkpoints(
        self, recovery_points: Mapping[TopicPartition, int], log_starts: Mapping[TopicPartition, int]
    ) -> None:
        """Set the offsets that the next write takes. Only the event loop calls this, so the last call is the newest."""
        self._noted = (dict(recovery_points), dict(log_starts))

    def write_noted_checkpoints(self) -> None:
        """Write the noted offsets. May run in a thread.

        The lock covers reading and writing. Two writers would share one temporary file. A late thread with its own
        copy would restore the offsets of a topic that has been deleted and recreated in the meantime.
        """
        with self._checkpoints_lock:
            recovery_points, log_starts = self._noted
            self._write_checkpoint(_RECOVERY_POINTS, recovery_points)
            self._write_checkpoint(_LOG_STARTS, log_starts)

    def write_high_watermarks(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._write_checkpoint(_HIGH_WATERMARKS, offsets)

    def first_dirty_offset(self, tp: TopicPartition) -> int | None:
        """Returns where the last finished cleaning of a partition ended; None when it was never cleaned."""
        return self._first_dirty.get(tp)

    def set_first_dirty_offset(self, tp: TopicPartition, offset: int) -> None:
        self._first_dirty[tp] = offset

    def write_first_dirty_offsets(self) -> None:
        """Write the cleaner's checkpoint, in a thread. The lock keeps an older state from overwriting a newer one."""
        with self._first_dirty_lock:
            self._write_checkpoint(_FIRST_DIRTY, dict(self._first_dirty))

    def _write_checkpoint(self, name: str, offsets: Mapping[TopicPartition, int]) -> None:
        lines = [f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items()]
        self._files.replace(f"{self.path}/{name}", f"0\n{len(lines)}\n{''.join(lines)}".encode())

    def _read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        path = f"{self.path}/{name}"
        if not self._files.exists(path):
            return {}
        return parse_checkpoint(path, self._files.read(path))

    def disk_bytes(self) -> tuple[int, int]:
        """Returns the total and the free bytes of the disk that holds this directory."""
        return self._files.disk_bytes(self.path)

    # -- partitions ------------------------------------------------------------------------------------------

    def folder_of(self, tp: TopicPartition) -> str:
        return f"{self.path}/{tp.topic}-{tp.partition}"

    def topic_id_of(self, tp: TopicPartition) -> bytes | None:
        """Returns the topic id in a partition's folder; None when the folder does not exist.

        Returns None too when a power failure tore the file. The folder's first sync covers the id, so no record there
        was synced.
        """
        path = f"{self.folder_of(tp)}/partition.metadata"
        if not self._files.exists(path):
            return None
        content = self._files.read(path)
        if not self.was_clean and _is_torn(content):
            return None
        for line in content.decode(errors="replace").splitlines():
            if line.startswith("topic_id:"):
                try:
                    return uuid_bytes(line.split(":", 1)[1].strip())
                except ValueError:
                    break
        raise StorageError(f"{path} is damaged: it names no topic id")

    def restore_topic_id(self, tp: TopicPartition, topic_id: bytes) -> bool:
        """Repair a `partition.metadata` that differs from this topic's in a few bytes. Returns whether it was
        repaired.

        Topic ids are random, so two of them differ nearly everywhere, and a few wrong bytes are damage. Without the
        repair the folder would count as another topic's, and the partition would start again without its records.
        """
        path = f"{self.folder_of(tp)}/partition.metadata"
        if not self._files.exists(path):
            return False
        content, right = self._files.read(path), _metadata_of(topic_id)
        found, rest = content[: len(right)], content[len(right) :]
        wrong_bytes = sum(one != other for one, other in itertools.zip_longest(found, right))
        if not 0 < wrong_bytes <= _DAMAGED_BYTES_MAX:
            return False
        self._files.replace(path, right + rest)
        return True

    def removed_epoch_of(self, tp: TopicPartition) -> int:
        """The removed epoch under which a partition's folder was created; -1 when none is named."""
        content = self._files.read(f"{self.folder_of(tp)}/partition.metadata")
        named = _REMOVED_EPOCH.search(content)
        return -1 if named is None else int(named[1])

    def create_folder(self, tp: TopicPartition, topic_id: bytes, removed_epoch: int = -1) -> str:
        """Create a partition's folder. The first sync of its log syncs the folder; no record is durable before that.

        `removed_epoch` is the last leader epoch of a partition that had this number before; -1 when none had.
        """
        folder = self.folder_of(tp)
        if removed_epoch >= 0 or not self._files.exists(folder):
            # They belong to an older topic or partition of this name and would hide the new one's records (failure 21).
            for offsets in (self.recovery_points, self.log_starts, self.high_watermarks):
                offsets.pop(tp, None)
            if any(tp in offsets for offsets in self._noted):
                recovery_points, log_starts = map(dict, self._noted)
                for noted in (recovery_points, log_starts):
                    noted.pop(tp, None)
                self.write_checkpoints(recovery_points, log_starts)
        if self._first_dirty.pop(tp, None) is not None:
            # It belongs to an older topic of this name. With it, tombstones would be removed before the records that
            # they delete.
            self.write_first_dirty_offsets()
        self._files.make_folder(folder)
        file = self._files.open(f"{folder}/partition.metadata", create=True)
        file.truncate(0)
        file.write(_metadata_of(topic_id, removed_epoch), 0)
        return folder

    def mark_folder_deleted(self, tp: TopicPartition, topic_id: bytes) -> str:
        """Rename a partition's folder to `*-delete`, which frees its name at once. Returns the path to remove.

        The caller syncs the new name before it removes any file inside.
        """
        return self._rename_folder(tp, topic_id, _DELETED_SUFFIX)

    def partition_folders(self) -> list[TopicPartition]:
        """Returns the partitions that have a folder, without deleted and stray ones."""
        found = [_PARTITION_FOLDER.fullmatch(name) for name in self._files.list(self.path)]
        partitions = [TopicPartition(match["topic"], int(match["partition"])) for match in found if match]
        return [tp for tp in partitions if self._files.exists(f"{self.folder_of(tp)}/partition.metadata")]

    def set_folder_aside(self, tp: TopicPartition, topic_id: bytes) -> str:
        """Rename the folder of a partition that is not assigned to this broker to `*-stray`. It is never removed."""
        renamed = self._rename_folder(tp, topic_id, _STRAY_SUFFIX)
        for offsets in (self.recovery_points, self.log_starts, self.high_watermarks):
            offsets.pop(tp, None)
        return renamed

    def _rename_folder(self, tp: TopicPartition, topic_id: bytes, suffix: str) -> str:
        # A partition can be deleted, recreated and deleted again before its first folder is gone.
        name = f"{self.path}/{tp.topic[:180]}-{tp.partition}.{topic_id.hex()}"
        renamed = f"{name}{suffix}"
        for number in itertools.count(1):
            if not self._files.exists(renamed):
                break
            renamed = f"{name}.{number}{suffix}"
        self._files.rename(self.folder_of(tp), renamed)
        return renamed

    def deleted_folders(self) -> list[str]:
        """Returns the deleted folders that an earlier run has not finished removing."""
        return [
            f"{self.path}/{name}" for name in self._files.list(self.path) if name.endswith(_DELETED_SUFFIX)
        ]


def parse_checkpoint(path: str, content: bytes) -> dict[TopicPartition, int]:
    """Parse a checkpoint: one offset for each partition. Raises `StorageError` when the file is damaged."""
    try:
        version, count, *lines = content.decode().split("\n")
        fields = [line.split(" ") for line in lines if line]
        offsets = {TopicPartition(topic, int(index)): int(offset) for topic, index, offset in fields}
        if int(version) != 0 or len(offsets) != int(count):
            raise ValueError("count or version")
    except ValueError as error:
        raise StorageError(f"{path} is damaged ({error}); remove it to recover every log whole") from error
    return offsets


def _metadata_of(topic_id: bytes, removed_epoch: int = -1) -> bytes:
    """The content of `partition.metadata`. Kafka reads its first two lines."""
    content = f"{_METADATA_START}{uuid_text(topic_id)}\n"
    if removed_epoch >= 0:
        content += f"removed_epoch: {removed_epoch}\n"
    return content.encode()


def _is_torn(metadata: bytes) -> bool:
    """Whether a crash cut off the writing of a `partition.metadata`: only its beginning is there, and perhaps zeros."""
    written = metadata.rstrip(b"\0")
    start = _METADATA_START.encode()
    return start.startswith(written) or (written.startswith(start) and not written.endswith(b"\n"))
