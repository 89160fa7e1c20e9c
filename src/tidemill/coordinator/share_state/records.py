"""The records of `__share_group_state`, in Kafka's format: a ShareSnapshot, a ShareUpdate, or a tombstone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from tidemill.errors import ProtocolError
from tidemill.protocol.api import coordinator_records as messages
from tidemill.protocol.api.coordinator_records import (
    SHARE_RECORDS,
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from tidemill.protocol.share_state import SharePartitionKey, StateBatch
from tidemill.protocol.wire import read_int16
from tidemill.types import TopicId


class ShareRecord(NamedTuple):
    """One record of a share partition. Without a value it is a tombstone: the state is gone."""

    key: SharePartitionKey
    value: ShareSnapshotValue | ShareUpdateValue | None


def batches_of(value: ShareSnapshotValue | ShareUpdateValue) -> tuple[StateBatch, ...]:
    return tuple(
        StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
        for each in value.state_batches
    )


def batch_messages(batches: Iterable[StateBatch]) -> list[messages.StateBatch]:
    return [messages.StateBatch(**batch._asdict()) for batch in batches]


def encode(record: ShareRecord) -> tuple[bytes, bytes | None]:
    key, value = record
    # Kafka writes tombstones with the key of a snapshot.
    key_type = ShareUpdateKey if isinstance(value, ShareUpdateValue) else ShareSnapshotKey
    message = key_type(group_id=key.group_id, topic_id=key.topic_id, partition=key.partition)
    return encode_key(message), None if value is None else encode_value(value)


def decode(key: bytes, value: bytes | None) -> ShareRecord | None:
    """Returns the record; None for a type that is not known here. A later version wrote it, and it stays in the log."""
    if len(key) < 2:
        raise ProtocolError("share state record without a type in its key")
    if read_int16(key, 0)[0] not in SHARE_RECORDS:
        return None
    decoded = decode_key(SHARE_RECORDS, key)
    assert isinstance(decoded, ShareSnapshotKey | ShareUpdateKey)
    message = decode_value(SHARE_RECORDS, decoded, value)
    assert message is None or isinstance(message, ShareSnapshotValue | ShareUpdateValue)
    return ShareRecord(
        SharePartitionKey(decoded.group_id, TopicId(decoded.topic_id), decoded.partition), message
    )
