"""The files of tag indexes: `<base offset>.tagindex` beside a sealed segment, parts of a growing one, those in memory.

A worker process writes the index of a segment to a temporary file. The owner of the log then gives it to the segment,
unless the log has lost or replaced segments meanwhile. The file is not synced: it has a checksum, and without it reads
are only slower.

The index names its segment by size alone, so a segment loses it before its batches change: `Segment.drop_tag_index`.
After a crash, segments above the recovery point lose theirs too. Segments get one only below the recovery point.

The active segment has its index in parts, each of the batches that were appended since the last. Their files are temporary:
the next start removes them. The index of the sealed segment takes their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from tidemill.errors import StorageError
from tidemill.log.files import Files
from tidemill.log.segments.segment import TAG_INDEX, Segment, read_batches
from tidemill.log.segments.tag_index import TagIndex, build
from tidemill.protocol.steps import Steps

# A gibibyte of records of 1 KB has an index of about 2 MiB, one of small records about 10.
_LOADED_BYTES_MAX = 32 << 20


class Indexing(NamedTuple):
    """The plan of an index: plain values that can be sent to another process."""

    segment_path: str
    segment_size: int
    # Ends with `.tmp`, so that the next start removes what a crash leaves.
    path: str
    # Above 0 for a part.
    start_position: int = 0
    is_part: bool = False

    @classmethod
    def of(cls, segment: Segment) -> Indexing:
        return cls(segment.path_of("log"), segment.size, f"{segment.path_of(TAG_INDEX)}.tmp")

    @classmethod
    def of_next_part(cls, segment: Segment) -> Indexing:
        """Returns the indexing of a growing segment's batches that no part has yet."""
        return cls.of(segment)._replace(start_position=segment.tag_index_end, is_part=True)

    @property
    def indexed_bytes(self) -> int:
        return self.segment_size - self.start_position


def write_index(files: Files, indexing: Indexing) -> None:
    """Build an index and write its temporary file. Raises `StorageError` when the segment is damaged."""
    file = files.open(indexing.segment_path, writable=False)
    start, end = indexing.start_position, indexing.segment_size
    content = build(read_batches(file, end, start), end, start)
    target = files.open(indexing.path, create=True)
    target.truncate(0)
    target.write(content, 0)


def write_indexes(files: Files, indexings: Sequence[Indexing]) -> list[Exception | None]:
    """Build some indexes. Returns for each what went wrong, if anything did."""
    outcomes: list[Exception | None] = []
    for indexing in indexings:
        try:
            write_index(files, indexing)
            outcomes.append(None)
        except (StorageError, OSError) as error:
            outcomes.append(error)
    return outcomes


class Covering(NamedTuple):
    """An index, and the position where the batches end of which it is."""

    tag_index: TagIndex
    end_position: int


class TagIndexes:
    """The indexes in memory, up to a number of bytes. The least recently used one goes first."""

    def __init__(self, files: Files, bytes_max: int = _LOADED_BYTES_MAX) -> None:
        self._files = files
        self._bytes_max = bytes_max
        # By the segment's key for it, so that no deleted segment is kept here.
        self._loaded: dict[object, TagIndex] = {}
        self._loaded_bytes = 0

    def at(self, segment: Segment, position: int) -> Steps[Covering | None]:
        """The index of the batches from a position on. None when they have none, or a broken one, which is removed."""
        part = segment.tag_index_part_at(position)
        key: object
        if part is not None:
            key, path, end_position = part, part.path, part.end_position
        elif segment.tag_index_key is not None:
            key, path, end_position = segment.tag_index_key, segment.path_of(TAG_INDEX), segment.size
        else:
            return None
        index = self._loaded.pop(key, None)
        if index is None:
            index = yield partial(_load, self._files, path, end_position)
            if key not in (segment.tag_index_key, segment.tag_index_part_at(position)):
                return None
            if index is None:
                _drop(segment)
                return None
            if key not in self._loaded:
                self._loaded_bytes += index.size
        self._loaded[key] = index
        while self._loaded_bytes > self._bytes_max:
            self._loaded_bytes -= self._loaded.pop(next(iter(self._loaded))).size
        return Covering(index, end_position)


def _load(files: Files, path: str, segment_size: int) -> TagIndex | None:
    try:
        return TagIndex.open(files.read(path), segment_size)
    except OSError:
        return None


def _drop(segment: Segment) -> None:
    try:
        segment.drop_tag_index()
    except OSError:
        # The disk fails. The index is read again by the next reader, and not used.
        return
