"""The records of a consumer group, built from its parts. The caller decides the order in which they are
written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.coordinator.groups.modern import ModernGroupRecords
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
)

RECORDS = ModernGroupRecords(
    group_key=ConsumerGroupMetadataKey,
    group_value=ConsumerGroupMetadataValue,
    member_key=ConsumerGroupMemberMetadataKey,
    current_key=ConsumerGroupCurrentMemberAssignmentKey,
    target_key=ConsumerGroupTargetAssignmentMemberKey,
    target_value=ConsumerGroupTargetAssignmentMemberValue,
    target_epoch_key=ConsumerGroupTargetAssignmentMetadataKey,
    target_epoch_value=ConsumerGroupTargetAssignmentMetadataValue,
)
epoch_record = RECORDS.epoch
member_record = RECORDS.member
current_assignment_record = RECORDS.current_assignment
target_record = RECORDS.target
target_epoch_record = RECORDS.target_epoch
member_tombstones = RECORDS.member_tombstones


def regex_record(group_id: str, regex: str, topics: Iterable[str], timestamp_ms: int) -> Record:
    key = ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex)
    return Record(key, ConsumerGroupRegularExpressionValue(topics=sorted(topics), timestamp=timestamp_ms))


def regex_tombstone(group_id: str, regex: str) -> Record:
    return Record(ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=regex), None)


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
