"""Logs with tag indexes."""

from __future__ import annotations

from random import Random

from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.log.segments.segment import TAG_INDEX, Segment, read_batches
from tidemill.log.segments.tag_index import TagIndex, build
from tidemill.log.segments.tag_index_files import Indexing, write_index


def index_sealed_segments(files: Files, log: Log) -> int:
    """Give each sealed segment without an index one. Returns how many that were."""
    count = 0
    for segment in log.segments[:-1]:
        if segment.tag_index_key is None:
            indexing = Indexing.of(segment)
            write_index(files, indexing)
            segment.take_tag_index(indexing.path)
            count += 1
    return count


def index_in_parts(files: Files, segment: Segment, random: Random) -> int:
    """Index the first batches of a segment in parts of random size. Returns how many parts that were."""
    count = 0
    for position, header, _ in list(segment.batches()):
        end_position = position + header.size
        if random.random() < 0.05:
            break
        if random.random() < 0.4:
            indexing = Indexing.of_next_part(segment)._replace(segment_size=end_position)
            write_index(files, indexing)
            segment.take_tag_index_part(indexing.path, indexing.start_position, end_position)
            count += 1
    return count


def index_files(files: Files, folder: str) -> list[int]:
    """The base offsets of the segments of which there is an index. It fails for other files of indexes."""
    names = [name for name in files.list(folder) if TAG_INDEX in name]
    assert all(name.endswith(f".{TAG_INDEX}") for name in names), names
    return [int(name.partition(".")[0]) for name in names]


def check_indexes(files: Files, log: Log) -> int:
    """Each index is that of its segment, and no other file of one is there. Returns how many a crash has not torn."""
    indexed = [segment for segment in log.segments if segment.tag_index_key is not None]
    assert index_files(files, log.folder) == [segment.base_offset for segment in indexed]
    count = 0
    for segment in indexed:
        content = files.read(segment.path_of(TAG_INDEX))
        if TagIndex.open(content, segment.size) is not None:
            expected = build(read_batches(segment.file, segment.size), segment.size)
            assert content == expected, segment.base_offset
            count += 1
    return count
