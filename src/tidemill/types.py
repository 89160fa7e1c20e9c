"""The ids and small values that all layers share, each with its own type."""

from __future__ import annotations

import base64
from typing import NamedTuple, NewType

BrokerId = NewType("BrokerId", int)
BrokerEpoch = NewType("BrokerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)
PartitionEpoch = NewType("PartitionEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)

# The 16 raw bytes of the wire, so that a slice of a request is a dictionary key without parsing.
TopicId = NewType("TopicId", bytes)

NO_TOPIC_ID = TopicId(bytes(16))
NO_BROKER = BrokerId(-1)
NO_LEADER_EPOCH = LeaderEpoch(-1)
NO_OFFSET = -1
NO_TIMESTAMP = -1


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def uuid_text(raw: bytes) -> str:
    """Format a uuid as Kafka does: URL-safe base64 without padding, 22 characters."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def uuid_bytes(text: str) -> bytes:
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a uuid of 22 base64 characters")
    return raw
