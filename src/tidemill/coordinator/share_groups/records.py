"""The records of a share group, built from its parts. The caller decides the order in which they are written."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordinator.groups.modern import ModernGroupRecords
from tidemill.coordinator.records import Record
from tidemill.coordinator.share_groups.partition_states import PartitionStates
from tidemill.protocol.api.coordinator_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
)

RECORDS = ModernGroupRecords(
    group_key=ShareGroupMetadataKey,
    group_value=ShareGroupMetadataValue,
    member_key=ShareGroupMemberMetadataKey,
    current_key=ShareGroupCurrentMemberAssignmentKey,
    target_key=ShareGroupTargetAssignmentMemberKey,
    target_value=ShareGroupTargetAssignmentMemberValue,
    target_epoch_key=ShareGroupTargetAssignmentMetadataKey,
    target_epoch_value=ShareGroupTargetAssignmentMetadataValue,
)
epoch_record = RECORDS.epoch
member_record = RECORDS.member
current_assignment_record = RECORDS.current_assignment
target_record = RECORDS.target
target_epoch_record = RECORDS.target_epoch
member_tombstones = RECORDS.member_tombstones


def states_record(group_id: str, states: PartitionStates) -> Record:
    return Record(ShareGroupStatePartitionMetadataKey(group_id=group_id), states.to_record())


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> list[Record]:
    tombstones = [record for member_id in member_ids for record in member_tombstones(group_id, member_id)]
    return [
        *tombstones,
        Record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        Record(ShareGroupStatePartitionMetadataKey(group_id=group_id), None),
        Record(ShareGroupMetadataKey(group_id=group_id), None),
    ]
