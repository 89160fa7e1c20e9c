"""The archive of topics as Parquet: what is in it, by partition and offset.

    <root>/topic=<name>/date=<yyyy-mm-dd>/<partition>-<first offset>-<end offset>-<run>.parquet
    <root>/_tidemill/<name>/<partition>.json

The small JSON file is the partition's manifest. It lists, in order and without a gap, chunks: ranges of offsets,
each with the files that hold its records, one for every date (UTC) that their timestamps fall on. A range counts by
its offsets, not by its rows: what compaction or an aborted transaction left out is archived when its range is. A
chunk that is marked as lost is one that retention took before it was archived. Files that no manifest names do not
exist for a reader.

Replacing a manifest is the commit. It carries a generation and the archiver's id. An archiver first claims a manifest,
which makes every commit of an earlier one fail (`ArchiveTaken`). Only then it removes files that no manifest names.
File names are random at their end, so no two archivers ever write the same file.

How atomic a commit is depends on where the root is:

    a local or mounted folder   written aside, synced and renamed; the check of the generation holds a lock (flock)
    s3://, gs://, abfs://       an object appears whole or not at all; between check and write another archiver may
                                slip in, and what one of the two committed then is lost: run one archiver at a time
    hdfs://                     as object stores, and a reader that meets a half-written manifest reads it again
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tidemill.claims.claim import has_claim
from tidemill.errors import ConfigError, StorageError, TidemillError
from tidemill.spark.arrow.decode import unresolved
from tidemill.spark.source.work import Work
from tidemill.types import TopicPartition

MANIFESTS = "_tidemill"
_VERSION = 1
_MICROSECONDS_A_DAY = 86_400_000_000
_ROW_GROUP_BYTES = 32 << 20
_READ_BYTES = 4 << 20
_TORN_READS_MAX = 20


class ArchiveTaken(TidemillError):
    """Another archiver works on the same partition of the same archive, and came later."""


class OffsetsNotArchived(TidemillError):
    """A range that lies in no file, and there is no broker to ask for it."""


class ArchiveFile(NamedTuple):
    """`path` is relative to the root; the offsets are those of its first and behind its last record."""

    path: str
    first_offset: int
    end_offset: int
    rows: int
    size_bytes: int
    min_timestamp_ms: int
    max_timestamp_ms: int


class Chunk(NamedTuple):
    """All records of [first_offset, end_offset), in as many files as dates; none when they were lost or hold nothing."""

    first_offset: int
    end_offset: int
    files: tuple[ArchiveFile, ...]
    is_lost: bool = False

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def max_timestamp_ms(self) -> int:
        """-1 when there is no record."""
        return max((file.max_timestamp_ms for file in self.files), default=-1)


@dataclass(frozen=True)
class Manifest:
    partition: TopicPartition
    topic_id: str
    generation: int
    archiver: str
    chunks: tuple[Chunk, ...] = ()

    @property
    def first_offset(self) -> int:
        return self.chunks[0].first_offset if self.chunks else -1

    @property
    def end_offset(self) -> int:
        """The offset at which archiving goes on; -1 when nothing is archived yet."""
        return self.chunks[-1].end_offset if self.chunks else -1

    def between(self, start_offset: int, end_offset: int) -> list[Chunk]:
        return [c for c in self.chunks if c.end_offset > start_offset and c.first_offset < end_offset]

    def with_chunks(self, added: Iterable[Chunk]) -> Manifest:
        """Continued by chunks that follow each other; `ValueError` for a gap or an overlap."""
        chunks = list(self.chunks)
        for chunk in added:
            if chunks and chunk.first_offset != chunks[-1].end_offset:
                raise ValueError(
                    f"{self.partition}: {chunk.first_offset} does not follow {chunks[-1].end_offset}"
                )
            if chunk.end_offset <= chunk.first_offset:
                raise ValueError(f"{self.partition}: an empty chunk at {chunk.first_offset}")
            chunks.append(chunk)
        return replace(self, chunks=tuple(chunks))


class Archive:
    """Opened by its root: a path, or a URI that pyarrow knows. Nothing is created before something is written."""

    def __init__(self, root: str) -> None:
        self._fs, self._path = _file_system(root)
        self.is_local = isinstance(self._fs, pafs.LocalFileSystem)
        # Absolute: tasks open it again, from another working directory.
        self.root = self._path if self.is_local else root

    # --- manifests ---

    def topics(self) -> list[str]:
        return sorted(
            unquote(name) for name in self._names(f"{self._path}/{MANIFESTS}", pafs.FileType.Directory)
        )

    def partitions(self, topic: str) -> list[TopicPartition]:
        names = self._names(f"{self._path}/{MANIFESTS}/{_quoted(topic)}", pafs.FileType.File)
        indexes = sorted(int(n[:-5]) for n in names if n.endswith(".json") and n[:-5].isdigit())
        return [TopicPartition(topic, index) for index in indexes]

    def manifest(self, partition: TopicPartition) -> Manifest | None:
        path = self._manifest_path(partition)
        for attempt in range(_TORN_READS_MAX):
            try:
                with self._fs.open_input_stream(path) as stream:
                    content = stream.readall()
            except FileNotFoundError:
                return None
            try:
                return _parse(partition, content)
            except ValueError as error:
                if self.is_local or attempt + 1 == _TORN_READS_MAX:
                    raise StorageError(f"{partition}: the manifest {path} is damaged ({error})") from None
            time.sleep(0.1)
        return None

    def claim(self, partition: TopicPartition, topic_id: str, archiver: str) -> Manifest:
        """From here on no other archiver can commit, until it claims the partition in turn."""
        with self._exclusive(partition):
            found = self.manifest(partition) or Manifest(partition, topic_id, 0, archiver)
            if topic_id and found.topic_id and found.topic_id != topic_id:
                raise StorageError(
                    f"{partition}: the archive {self.root} holds a topic {partition.topic} of id {found.topic_id}, the "
                    f"cluster's has id {topic_id}: it was deleted and created again; archive it to another root"
                )
            claimed = replace(
                found, topic_id=topic_id or found.topic_id, generation=found.generation + 1, archiver=archiver
            )
            self._write_manifest(claimed)
            return claimed

    def commit(self, claimed: Manifest, chunks: Sequence[Chunk]) -> Manifest:
        """Adds chunks whose files are there. `ArchiveTaken` when the manifest is not as this archiver left it."""
        with self._exclusive(claimed.partition):
            found = self.manifest(claimed.partition)
            if found is None or (found.generation, found.archiver) != (claimed.generation, claimed.archiver):
                other = "was removed" if found is None else f"was taken over by archiver {found.archiver}"
                raise ArchiveTaken(
                    f"{claimed.partition}: its manifest in {self.root} {other}; this archiver ({claimed.archiver}) "
                    "stops, and what it committed before stays (run one archiver for each topic and root)"
                )
            added = replace(claimed.with_chunks(chunks), generation=claimed.generation + 1)
            self._write_manifest(added)
            return added

    def remove_unnamed(self, claimed: Iterable[Manifest]) -> int:
        """Files of partitions that were claimed and that no manifest names; how many."""
        removed = 0
        by_topic: dict[str, dict[int, Manifest]] = {}
        for manifest in claimed:
            by_topic.setdefault(manifest.partition.topic, {})[manifest.partition.partition] = manifest
        for topic, manifests in by_topic.items():
            named = {file.path for m in manifests.values() for chunk in m.chunks for file in chunk.files}
            folder = f"{self._path}/topic={_quoted(topic)}"
            selector = pafs.FileSelector(folder, recursive=True, allow_not_found=True)
            for info in self._fs.get_file_info(selector):
                index = info.base_name.partition("-")[0]
                is_of_claimed = index.isdigit() and int(index) in manifests and info.extension == "parquet"
                if is_of_claimed and info.path[len(self._path) + 1 :] not in named:
                    self._fs.delete_file(info.path)
                    removed += 1
        return removed

    # --- records ---

    def write_chunk(
        self, partition: TopicPartition, first_offset: int, end_offset: int, batches: Sequence[pa.RecordBatch]
    ) -> Chunk:
        """Files of these records, which are all of the range. They count once a manifest names them."""
        table = pa.Table.from_batches(batches) if batches else None
        if table is None or not table.num_rows:
            return Chunk(first_offset, end_offset, ())
        timestamps = table.column("timestamp").combine_chunks().cast(pa.int64()).to_numpy()
        days = timestamps // _MICROSECONDS_A_DAY
        name = f"{partition.partition}-{first_offset}-{end_offset}-{secrets.token_hex(4)}.parquet"
        files = []
        for day in np.unique(days):
            of_day = days == day
            rows = table if of_day.all() else table.filter(pa.array(of_day))
            path = f"topic={_quoted(partition.topic)}/date={np.datetime64(int(day), 'D')}/{name}"
            files.append(self._write_file(path, rows, timestamps[of_day]))
        return Chunk(first_offset, end_offset, tuple(files))

    def _write_file(self, path: str, rows: pa.Table, timestamps_us: np.ndarray[Any, Any]) -> ArchiveFile:
        full = f"{self._path}/{path}"
        self._fs.create_dir(os.path.dirname(full), recursive=True)
        row_bytes = max(1, rows.nbytes // rows.num_rows)
        with self._fs.open_output_stream(full) as stream:
            pq.write_table(
                rows,
                stream,
                compression="zstd",
                row_group_size=max(1, _ROW_GROUP_BYTES // row_bytes),
                use_dictionary=["topic", "partition", "timestampType"],
            )
        if self.is_local:
            _sync(full)
            _sync(os.path.dirname(full))
        offsets = rows.column("offset")
        return ArchiveFile(
            path,
            offsets[0].as_py(),
            offsets[-1].as_py() + 1,
            rows.num_rows,
            self._fs.get_file_info(full).size,
            int(timestamps_us.min()) // 1000,
            int(timestamps_us.max()) // 1000,
        )

    def read_chunk(
        self, chunk: Chunk, start_offset: int, end_offset: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """The records of a chunk in [start_offset, end_offset), by offset."""
        files = sorted(
            (f for f in chunk.files if f.end_offset > start_offset and f.first_offset < end_offset),
            key=lambda file: file.first_offset,
        )
        if all(a.end_offset <= b.first_offset for a, b in pairwise(files)):
            for file in files:
                yield from self._read_file(file, start_offset, end_offset, columns)
            return
        # Timestamps went back and forth over midnight: the dates' files lie side by side.
        wanted = list(dict.fromkeys([*columns, "offset"]))
        parts = [b for file in files for b in self._read_file(file, start_offset, end_offset, wanted)]
        if parts:
            yield from (
                pa.Table.from_batches(parts)
                .sort_by("offset")
                .select(list(columns))
                .to_batches(_rows_a_batch(parts))
            )

    def _read_file(
        self, file: ArchiveFile, start_offset: int, end_offset: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        is_whole = file.first_offset >= start_offset and file.end_offset <= end_offset
        wanted = list(columns) if is_whole else list(dict.fromkeys([*columns, "offset"]))
        with self._open_parquet(file) as parquet:
            groups = _groups_between(parquet, start_offset, end_offset)
            if not groups:
                return
            for batch in parquet.iter_batches(_rows_a_read(parquet), row_groups=groups, columns=wanted):
                if not is_whole:
                    offsets = batch.column("offset").to_numpy()
                    first, end = np.searchsorted(offsets, [start_offset, end_offset])
                    batch = batch.slice(int(first), int(end - first))
                if batch.num_rows:
                    yield batch.select(list(columns))

    def _open_parquet(self, file: ArchiveFile) -> pq.ParquetFile:
        path = f"{self._path}/{file.path}"
        try:
            return pq.ParquetFile(self._fs.open_input_file(path), pre_buffer=not self.is_local)
        except FileNotFoundError:
            raise StorageError(
                f"the archive {self.root} has lost the file {file.path}, which its manifest names "
                f"(offsets {file.first_offset} to {file.end_offset - 1}); restore it, or read from a later offset"
            ) from None
        except pa.ArrowInvalid as error:
            raise StorageError(f"the archive's file {path} is damaged: {error}") from None

    def offset_at(self, manifest: Manifest, timestamp_ms: int) -> int | None:
        """The first offset whose record is not older; None when no archived record is as young."""
        for chunk in manifest.chunks:
            if chunk.max_timestamp_ms < timestamp_ms:
                continue
            for batch in self.read_chunk(
                chunk, chunk.first_offset, chunk.end_offset, ["offset", "timestamp"]
            ):
                timestamps_us = batch.column("timestamp").cast(pa.int64()).to_numpy()
                young = np.flatnonzero(timestamps_us >= timestamp_ms * 1000)
                if len(young):
                    return int(batch.column("offset")[int(young[0])].as_py())
        return None

    # --- files ---

    def _manifest_path(self, partition: TopicPartition) -> str:
        return f"{self._path}/{MANIFESTS}/{_quoted(partition.topic)}/{partition.partition}.json"

    def _names(self, folder: str, kind: pafs.FileType) -> list[str]:
        infos = self._fs.get_file_info(pafs.FileSelector(folder, allow_not_found=True))
        return [info.base_name for info in infos if info.type == kind]

    @contextlib.contextmanager
    def _exclusive(self, partition: TopicPartition) -> Iterator[None]:
        """No other process of this machine is between reading and replacing the same manifest."""
        if not self.is_local:
            yield
            return
        path = self._manifest_path(partition)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(f"{path[:-5]}.lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _write_manifest(self, manifest: Manifest) -> None:
        path = self._manifest_path(manifest.partition)
        content = _serialized(manifest)
        if not self.is_local:
            self._fs.create_dir(path.rpartition("/")[0], recursive=True)
            with self._fs.open_output_stream(path) as stream:
                stream.write(content)
            return
        with open(f"{path}.tmp", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{path}.tmp", path)
        _sync(os.path.dirname(path))


class ArchiveWork(Work):
    """Chunks that follow each other, of one partition."""

    def __init__(
        self,
        partition: TopicPartition,
        start_offset: int,
        end_offset: int,
        root: str,
        chunks: Sequence[Chunk],
    ) -> None:
        super().__init__(partition, start_offset, end_offset)
        self.root = root
        self.chunks = tuple(chunks)

    def read(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        archive = Archive(self.root)
        is_blind = "value" in columns and "headers" not in columns
        for chunk in self.chunks:
            is_checked = not is_blind
            for batch in archive.read_chunk(chunk, self.start_offset, self.end_offset, columns):
                if not is_checked and pc.any(pc.equal(pc.binary_length(batch.column("value")), 0)).as_py():
                    is_checked = True
                    self._refuse_claims(archive, chunk)
                yield batch

    def _refuse_claims(self, archive: Archive, chunk: Chunk) -> None:
        """Refuse an empty value that stands for a payload in an object store: the headers, which say so, are not read."""
        columns = ("offset", "value", "headers")
        for batch in archive.read_chunk(chunk, self.start_offset, self.end_offset, columns):
            empty = batch.filter(pc.equal(pc.binary_length(batch.column("value")), 0))
            for offset, headers in zip(empty.column("offset"), empty.column("headers"), strict=True):
                if has_claim(b"", [(each["key"], each["value"]) for each in headers.as_py() or ()]):
                    raise unresolved(self.partition, offset.as_py())


def _file_system(root: str) -> tuple[pafs.FileSystem, str]:
    if not root:
        raise ConfigError(
            "archive: no root is given; it should be a folder or a URI such as s3://bucket/archive"
        )
    if "://" not in root:
        return pafs.LocalFileSystem(), os.path.abspath(root)
    try:
        file_system, path = pafs.FileSystem.from_uri(root)
    except (pa.ArrowInvalid, OSError) as error:
        raise ConfigError(f"archive: {root} cannot be opened: {str(error).splitlines()[0]}") from None
    return file_system, path.rstrip("/")


def _quoted(topic: str) -> str:
    """As a folder's name. A topic's legal characters stand for themselves."""
    return quote(topic, safe="")


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def chunk_values(chunk: Chunk) -> dict[str, Any]:
    """As it stands in a manifest."""
    return {
        "first": chunk.first_offset,
        "end": chunk.end_offset,
        **({"lost": True} if chunk.is_lost else {}),
        "files": [file._asdict() for file in chunk.files],
    }


def parse_chunk(values: Mapping[str, Any]) -> Chunk:
    files = tuple(ArchiveFile(**file) for file in values["files"])
    return Chunk(values["first"], values["end"], files, values.get("lost", False))


def _serialized(manifest: Manifest) -> bytes:
    content = {
        "version": _VERSION,
        "topic": manifest.partition.topic,
        "partition": manifest.partition.partition,
        "topic_id": manifest.topic_id,
        "generation": manifest.generation,
        "archiver": manifest.archiver,
        "chunks": [chunk_values(chunk) for chunk in manifest.chunks],
    }
    return json.dumps(content, indent=1).encode()


def _parse(partition: TopicPartition, content: bytes) -> Manifest:
    """`ValueError` for what is not a whole manifest of this partition."""
    try:
        values = json.loads(content)
        if values["version"] != _VERSION:
            raise ValueError(f"version {values['version']} is not {_VERSION}")
        of = TopicPartition(values["topic"], values["partition"])
        if of != partition:
            raise ValueError(f"it is of {of}")
        empty = Manifest(partition, values["topic_id"], values["generation"], values["archiver"])
        return empty.with_chunks(map(parse_chunk, values["chunks"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _groups_between(parquet: pq.ParquetFile, start_offset: int, end_offset: int) -> list[int]:
    """The row groups that may hold offsets of a range, by their statistics."""
    metadata = parquet.metadata
    column = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == "offset")
    groups = []
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(column).statistics
        if statistics is None or (statistics.max >= start_offset and statistics.min < end_offset):
            groups.append(number)
    return groups


def _rows_a_read(parquet: pq.ParquetFile) -> int:
    metadata = parquet.metadata
    size = sum(metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups))
    return max(1, int(_READ_BYTES * metadata.num_rows // max(1, size)))


def _rows_a_batch(parts: Sequence[pa.RecordBatch]) -> int:
    size, rows = sum(part.nbytes for part in parts), sum(part.num_rows for part in parts)
    return max(1, int(_READ_BYTES * rows // max(1, size)))
