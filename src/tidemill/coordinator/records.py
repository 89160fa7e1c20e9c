"""The records of the groups machine in `__consumer_offsets`: a key message with a value message, or a tombstone.

The formats are Kafka's (`protocol/api/coordinator_records.py`), so that Kafka's tools read them. A message
in a record never changes: the machine that wrote it replays the same object.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import ProtocolError
from tidemill.protocol.api.coordinator_records import (
    GROUP_RECORDS,
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    OffsetCommitValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tidemill.protocol.schema import NO_UUID, DataMessage
from tidemill.protocol.wire import read_int16

# The versions that releases and tools of the last years can read. A topic id needs version 4 of an offset; only
# version 1 has room for an expiry of its own, and none for a leader epoch or topic id.
_GROUP_METADATA_VERSION = 3
_OFFSET_COMMIT_VERSION = 3
_OFFSET_COMMIT_VERSION_WITH_TOPIC_ID = 4
_OFFSET_COMMIT_VERSION_WITH_EXPIRY = 1


class Record(NamedTuple):
    """One record. A `value` of None is a tombstone: it removes the state that `key` names."""

    key: DataMessage
    value: DataMessage | None


def encode(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    if value is None:
        return encode_key(key), None
    version: int | None = None
    if isinstance(value, OffsetCommitValue):
        version = _offset_commit_version(value)
    elif isinstance(value, GroupMetadataValue):
        version = _GROUP_METADATA_VERSION
    return encode_key(key), encode_value(value, version)


def _offset_commit_version(value: OffsetCommitValue) -> int:
    if value.expire_timestamp != -1:
        return _OFFSET_COMMIT_VERSION_WITH_EXPIRY
    return _OFFSET_COMMIT_VERSION if value.topic_id == NO_UUID else _OFFSET_COMMIT_VERSION_WITH_TOPIC_ID


def decode(key: bytes, value: bytes | None) -> Record | None:
    """Returns the record; None for a type that is not known here. A later version wrote it, and it stays in the log."""
    if len(key) < 2:
        raise ProtocolError("coordinator record without a type in its key")
    if read_int16(key, 0)[0] not in GROUP_RECORDS:
        return None
    decoded = decode_key(GROUP_RECORDS, key)
    return Record(decoded, decode_value(GROUP_RECORDS, decoded, value))


def group_metadata_tombstone(group_id: str) -> Record:
    return Record(GroupMetadataKey(group=group_id), None)


def offset_commit_tombstone(group_id: str, topic: str, partition: int) -> Record:
    return Record(OffsetCommitKey(group=group_id, topic=topic, partition=partition), None)
