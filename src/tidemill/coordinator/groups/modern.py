"""The common part of consumer groups (KIP-848) and share groups (KIP-932) (Kafka: ModernGroup).

The coordinator computes the assignment of such a group. The *group epoch* grows whenever that must be done again. The
*assignment epoch* is the group epoch of the target assignment. A *member epoch* is the assignment epoch that a member
has reached. Each part of a group is one record; the kinds of groups differ in the types of these records.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tidemill.coordinator.groups.assignors import Partitions
from tidemill.coordinator.groups.group import Environment, Group, RebalanceEvent, Topics
from tidemill.coordinator.records import Record
from tidemill.protocol.api.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    TopicPartition,
)
from tidemill.protocol.schema import DataMessage
from tidemill.types import TopicId


class ModernMember(Protocol):
    """A member of a consumer group or a share group."""

    @property
    def member_id(self) -> str: ...

    @property
    def member_epoch(self) -> int: ...

    def to_metadata(self) -> DataMessage: ...

    def to_current_assignment(self) -> DataMessage: ...


MemberT = TypeVar("MemberT", bound=ModernMember)


@dataclass(frozen=True, slots=True)
class ModernGroupRecords:
    """The record types of one kind of group. Builds records; the caller decides the order in which they are written."""

    group_key: type[ConsumerGroupMetadataKey] | type[ShareGroupMetadataKey]
    group_value: type[ConsumerGroupMetadataValue] | type[ShareGroupMetadataValue]
    member_key: type[ConsumerGroupMemberMetadataKey] | type[ShareGroupMemberMetadataKey]
    current_key: type[ConsumerGroupCurrentMemberAssignmentKey] | type[ShareGroupCurrentMemberAssignmentKey]
    target_key: type[ConsumerGroupTargetAssignmentMemberKey] | type[ShareGroupTargetAssignmentMemberKey]
    target_value: type[ConsumerGroupTargetAssignmentMemberValue] | type[ShareGroupTargetAssignmentMemberValue]
    target_epoch_key: (
        type[ConsumerGroupTargetAssignmentMetadataKey] | type[ShareGroupTargetAssignmentMetadataKey]
    )
    target_epoch_value: (
        type[ConsumerGroupTargetAssignmentMetadataValue] | type[ShareGroupTargetAssignmentMetadataValue]
    )

    def epoch(self, group_id: str, epoch: int, metadata_hash: int) -> Record:
        return Record(
            self.group_key(group_id=group_id), self.group_value(epoch=epoch, metadata_hash=metadata_hash)
        )

    def member(self, group_id: str, member: ModernMember) -> Record:
        return Record(self.member_key(group_id=group_id, member_id=member.member_id), member.to_metadata())

    def current_assignment(self, group_id: str, member: ModernMember) -> Record:
        key = self.current_key(group_id=group_id, member_id=member.member_id)
        return Record(key, member.to_current_assignment())

    def target(self, group_id: str, member_id: str, target: Partitions) -> Record:
        value = self.target_value(
            topic_partitions=[
                TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
                for topic_id, partitions in target.items()
            ]
        )
        return Record(self.target_key(group_id=group_id, member_id=member_id), value)

    def target_epoch(self, group_id: str, epoch: int, timestamp_ms: int) -> Record:
        value = self.target_epoch_value(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
        return Record(self.target_epoch_key(group_id=group_id), value)

    def member_tombstones(self, group_id: str, member_id: str) -> list[Record]:
        """Returns the tombstones of a member: its current assignment and target before its metadata."""
        return [
            Record(key(group_id=group_id, member_id=member_id), None)
            for key in (self.current_key, self.target_key, self.member_key)
        ]


class ModernGroup(Group, Generic[MemberT]):
    """The epochs, the members and the target assignment of a group. A subclass replays its members' records."""

    records: ModernGroupRecords

    def __init__(self, group_id: str, environment: Environment, *, assignment_epoch: int) -> None:
        super().__init__(group_id, environment)
        # Kafka's groups begin at 1, so their first member gets epoch 2.
        self.group_epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = assignment_epoch
        # 0 before the first assignment.
        self.assignment_timestamp_ms = 0
        self.members: dict[str, MemberT] = {}
        self.target: dict[str, Partitions] = {}
        # Soft: the topics that changed since the metadata hash was computed; None when they are not known.
        self.changed_topics: dict[str, None] | None = None

    def replay(self, record: Record) -> None:
        """Replays what every modern group has. A subclass replays its own records."""
        key, value = record
        records = self.records
        if isinstance(key, records.group_key):
            assert isinstance(value, records.group_value)
            self.group_epoch, self.metadata_hash = value.epoch, value.metadata_hash
            self.changed_topics = {}
        elif isinstance(key, records.target_key):
            if value is None:
                self.target.pop(key.member_id, None)
                return
            assert isinstance(value, records.target_value)
            self.target[key.member_id] = {
                TopicId(each.topic_id): frozenset(each.partitions) for each in value.topic_partitions
            }
        elif isinstance(key, records.target_epoch_key):
            assert value is None or isinstance(value, records.target_epoch_value)
            self.assignment_epoch = -1 if value is None else value.assignment_epoch
            self.assignment_timestamp_ms = 0 if value is None else value.assignment_timestamp

    @property
    def epochs(self) -> tuple[int, int, int, int]:
        """The replicated state of the group's epochs."""
        return self.group_epoch, self.metadata_hash, self.assignment_epoch, self.assignment_timestamp_ms

    @property
    def is_empty(self) -> bool:
        return not self.members

    def check_invariants(self) -> None:
        for member_id, member in self.members.items():
            assert member.member_id == member_id
            assert member.member_epoch <= self.group_epoch, member_id
        assert self.target.keys() <= self.members.keys(), self.group_id
        assert self.assignment_epoch <= self.group_epoch, self.group_id


GroupT = TypeVar("GroupT", bound=ModernGroup[Any])


class ModernGroupChange(Generic[GroupT]):
    """A decision about one group that is being built."""

    def __init__(self, group: GroupT, steady_ms: int, records: Iterable[Record] = ()) -> None:
        self.group = group
        self.steady_ms = steady_ms
        self.records: list[Record] = list(records)
        self.group_epoch: int = group.group_epoch
        self.events: list[RebalanceEvent] = []

    def bump(self, new_hash: int, cause: str, members_after: int) -> None:
        """Bump the group epoch: the assignment must be computed again."""
        group = self.group
        self.group_epoch += 1
        self.records.append(group.records.epoch(group.group_id, self.group_epoch, new_hash))
        event = RebalanceEvent(
            group.group_id, self.group_epoch, self.steady_ms, cause, len(group.members), members_after
        )
        self.events.append(group.environment.record_event(event))


def count_in(counts: dict[str, int], names: Iterable[str], change: int) -> None:
    """Adds `change` to the count of each name. A count of 0 has no entry."""
    for name in names:
        count = counts.get(name, 0) + change
        if count:
            counts[name] = count
        else:
            del counts[name]


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """Returns a hash that changes when a topic is created, deleted, recreated or gets partitions.

    Only this code compares it.
    """
    digest = hashlib.blake2b(digest_size=8)
    has_topics = False
    for name in names:
        topic_id = topics.id_of(name)
        count = topics.partitions_of(name)
        if topic_id is not None and count is not None:
            has_topics = True
            encoded = name.encode()
            digest.update(struct.pack(">H16sI", len(encoded), topic_id, count) + encoded)
    # As in a new group: its epoch need not grow for a member without a subscription.
    return int.from_bytes(digest.digest(), "big", signed=True) if has_topics else 0
