"""The embedded consumer protocol: the subscriptions and assignments of classic consumers, which the group protocol
carries as bytes.

A subscription or assignment is an int16 version and a message of that version. A version that is not known here begins
like the newest known one. This module translates topic names to ids and back; a topic that does not exist is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from tidemill.coordinator.groups.group import Topics
from tidemill.errors import ProtocolError
from tidemill.protocol.api.groups import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from tidemill.protocol.schema import DataMessage, decode, encode
from tidemill.protocol.wire import INT16, read_int16
from tidemill.types import TopicId

MessageT = TypeVar("MessageT", bound=DataMessage)


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """Parse a subscription. Raises ProtocolError."""
    return _decode(ConsumerProtocolSubscription, data)


def decode_assignment(data: bytes) -> ConsumerProtocolAssignment:
    """Parse an assignment. Empty bytes mean no partitions."""
    return _decode(ConsumerProtocolAssignment, data) if data else ConsumerProtocolAssignment()


def _decode(cls: type[MessageT], data: bytes) -> MessageT:
    version = version_of(data)
    if version < 0:
        raise ProtocolError(f"{cls.__name__} of version {version}")
    return decode(cls, min(version, cls.versions.max), data, INT16.size)


def version_of(data: bytes) -> int:
    if len(data) < INT16.size:
        raise ProtocolError("an embedded message without a version")
    return read_int16(data, 0)[0]


def encode_assignment(owned: Mapping[TopicId, Iterable[int]], topics: Topics, version: int) -> bytes:
    version = max(0, min(version, ConsumerProtocolAssignment.versions.max))
    message = ConsumerProtocolAssignment()
    for topic_id, partitions in owned.items():
        name = topics.name_of(topic_id)
        if name is not None:
            message.assigned_partitions.append(TopicPartition(topic=name, partitions=sorted(partitions)))
    return INT16.pack(version) + encode(message, version)


def by_topic_id(partitions: Iterable[TopicPartition], topics: Topics) -> dict[TopicId, list[int]]:
    found: dict[TopicId, list[int]] = {}
    for each in partitions:
        topic_id = topics.id_of(each.topic)
        if topic_id is not None:
            found.setdefault(topic_id, []).extend(each.partitions)
    return found
