"""Resolution of a position in a log to the offsets of partitions."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.cli.positions import AtOffset, AtTime, Beginning, End, Position
from tidemill.client.admin.topics import Admin
from tidemill.types import TopicPartition


def resolve(
    admin: Admin, partitions: Sequence[TopicPartition], position: Position
) -> dict[TopicPartition, int]:
    """Returns the offset of each partition. A time after every record is the end. An offset is not checked against the
    log.
    """
    match position:
        case Beginning():
            return admin.start_offsets(partitions)
        case End():
            return admin.end_offsets(partitions)
        case AtOffset(offset):
            return dict.fromkeys(partitions, offset)
        case AtTime(timestamp_ms):
            return admin.offsets_at(partitions, timestamp_ms)
