"""The records of a consumer group, built from its parts. The caller decides the order in which they are
written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.coordinator.consumer_groups.member import ConsumerMember
from tidemill.coordinator.groups.assignors import Partitions
from tidemill.coordinator.records import Record
from tidemill.protocol.api.coordinator_records import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TopicPartition,
)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ConsumerGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ConsumerMember) -> Record:
    key = ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return Record(key, member.to_metadata())


def current_assignment_record(group_id: str, member: ConsumerMember) -> Record:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return Record(key, member.to_current_assignment())


def target_record(group_id: str, member_id: str, target: Partitions) -> Record:
    value = ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
    )
    return Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> Record:
    value = ConsumerGroupTargetAssignmentMetadataValue(
        assignment_epoch=epoch, assignment_timestamp=timestamp_ms
    )
    return Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def regex_record(group_id: str, regex: str, topics: Iterable[str], timestamp_ms: int) -> Record:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return Record(key, ConsumerGroupRegularExpressionValue(topics=sorted(topics), timestamp=timestamp_ms))


def regex_tombstone(group_id: str, regex: str) -> Record:
    return Record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Returns the tombstones of a member: its current assignment and target before its metadata."""
    return [
        Record(ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        Record(ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        Record(ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(
    group_id: str, members: Mapping[str, object], regexes: Iterable[str], *, has_partition_metadata: bool
) -> list[Record]:
    tombstones = [record for member_id in members for record in member_tombstones(group_id, member_id)]
    tombstones += [regex_tombstone(group_id, regex) for regex in regexes]
    tombstones.append(Record(ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), None))
    if has_partition_metadata:
        tombstones.append(Record(ConsumerGroupPartitionMetadataKey(group_id=group_id), None))
    tombstones.append(Record(ConsumerGroupMetadataKey(group_id=group_id), None))
    return tombstones
