"""What the group machine writes to `__consumer_offsets`: a key message and a value message, or a tombstone.

The formats are Kafka's (`protocol/api/coordinator_records.py`), so that Kafka's tools read them. A message that is
in a record is never changed again: the machine that wrote it replays the very same object.
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

# Kafka 4 writes these versions, so that its releases and tools of the last years can read them. A topic id
# needs version 4 of an offset, and is written only when it is known.
_GROUP_METADATA_VERSION = 3
_OFFSET_COMMIT_VERSION = 3
_OFFSET_COMMIT_VERSION_WITH_TOPIC_ID = 4


class Record(NamedTuple):
    """`value` None is a tombstone: what `key` names is gone."""

    key: DataMessage
    value: DataMessage | None


def encode(record: Record) -> tuple[bytes, bytes | None]:
    key, value = record
    if value is None:
        return encode_key(key), None
    version: int | None = None
    if isinstance(value, OffsetCommitValue):
        has_topic_id = value.topic_id != NO_UUID
        version = _OFFSET_COMMIT_VERSION_WITH_TOPIC_ID if has_topic_id else _OFFSET_COMMIT_VERSION
    elif isinstance(value, GroupMetadataValue):
        version = _GROUP_METADATA_VERSION
    return encode_key(key), encode_value(value, version)


def decode(key: bytes, value: bytes | None) -> Record | None:
    """None for a record of a type that is not known here: a later version wrote it, and it stays in the log."""
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
