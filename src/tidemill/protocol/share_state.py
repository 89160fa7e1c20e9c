"""The durable state of one partition of a share group, as values: its key, what is written and what is read.

The messages are in `api/share_state.py`. These values are immutable, so that machines and tasks may keep them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.types import TopicId, uuid_bytes, uuid_text

# The start offset of a partition whose first read has not decided it yet (`share.auto.offset.reset`).
NO_START_OFFSET = -1
# The count of records that are complete, where a broker of an earlier version does not say it.
NO_DELIVERY_COMPLETE_COUNT = -1
# A state that a broker of an earlier version created.
NO_CREATION_OFFSET = -1
# The delivery state of a record that is given up and whose dead letter is not known to be written (KIP-1191).
ARCHIVING = 3
# Available, acknowledged, archiving and archived. What is acquired (1) is never durable.
DURABLE_STATES = frozenset({0, 2, ARCHIVING, 4})
# As Java reads a number. A negative one is a matter of the coordinator.
_PARTITION = re.compile(r"[+-]?[0-9]{1,10}", re.ASCII)


class SharePartitionKey(NamedTuple):
    """One partition of one share group. Its text is the key of FindCoordinator and decides the shard."""

    group_id: str
    topic_id: TopicId
    partition: int

    def __str__(self) -> str:
        return f"{self.group_id}:{uuid_text(self.topic_id)}:{self.partition}"

    @classmethod
    def parse(cls, text: str) -> SharePartitionKey:
        """Reads a key of FindCoordinator; `ValueError` says what is wrong. A group id may contain colons."""
        parts = text.rsplit(":", 2)
        if len(parts) != 3:
            raise ValueError(f"{text!r} has not the form groupId:topicId:partition")
        group_id, topic_id, partition = parts
        if not group_id.strip():
            raise ValueError("the group id is empty")
        if _PARTITION.fullmatch(partition) is None or not -(2**31) <= int(partition) < 2**31:
            raise ValueError(f"{partition!r} is not a partition")
        return cls(group_id, TopicId(uuid_bytes(topic_id)), int(partition))


class StateBatch(NamedTuple):
    """Consecutive offsets with the same delivery state and count. `last_offset` is inclusive, as on the wire."""

    first_offset: int
    last_offset: int
    # One of DURABLE_STATES.
    delivery_state: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareState:
    """The state of a share partition as its new leader reads it."""

    state_epoch: int
    # NO_START_OFFSET: the reader decides by `share.auto.offset.reset`.
    start_offset: int
    # In order of offsets, without overlap; offsets between them were never delivered.
    batches: tuple[StateBatch, ...] = ()
    # Where the share coordinator's log has the record that created the state. A state that was deleted and created anew
    # has another one.
    creation_offset: int = NO_CREATION_OFFSET


@dataclass(frozen=True, slots=True)
class ShareStateChange:
    """One write of the share partition's leader."""

    state_epoch: int
    leader_epoch: int
    # NO_START_OFFSET leaves it where it is.
    start_offset: int
    batches: tuple[StateBatch, ...] = ()
    # How many records from the start offset on are acknowledged or archived, for the lag (KIP-1226).
    delivery_complete_count: int = NO_DELIVERY_COMPLETE_COUNT
    # Of the state that it changes.
    creation_offset: int = NO_CREATION_OFFSET


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    """The state without its batches, for the offsets and the lag of a share group."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    creation_offset: int = NO_CREATION_OFFSET
