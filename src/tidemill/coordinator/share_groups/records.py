"""The records of a share group, built from its parts. The caller decides the order in which they are written."""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.coordinator.groups.assignors import Partitions
from tidemill.coordinator.records import Record
from tidemill.coordinator.share_groups.member import ShareMember
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
    TopicPartition,
)


def epoch_record(group_id: str, epoch: int, metadata_hash: int) -> Record:
    value = ShareGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    return Record(ShareGroupMetadataKey(group_id=group_id), value)


def member_record(group_id: str, member: ShareMember) -> Record:
    key = ShareGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id)
    return Record(key, member.to_metadata())


def current_assignment_record(group_id: str, member: ShareMember) -> Record:
    key = ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id)
    return Record(key, member.to_current_assignment())


def target_record(group_id: str, member_id: str, target: Partitions) -> Record:
    value = ShareGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TopicPartition(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
    )
    return Record(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value)


def target_epoch_record(group_id: str, epoch: int, timestamp_ms: int) -> Record:
    value = ShareGroupTargetAssignmentMetadataValue(assignment_epoch=epoch, assignment_timestamp=timestamp_ms)
    return Record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), value)


def states_record(group_id: str, states: PartitionStates) -> Record:
    return Record(ShareGroupStatePartitionMetadataKey(group_id=group_id), states.to_record())


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Returns the tombstones of a member: its current assignment and target before its metadata."""
    return [
        Record(ShareGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        Record(ShareGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        Record(ShareGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group_id: str, member_ids: Iterable[str]) -> list[Record]:
    tombstones = [record for member_id in member_ids for record in member_tombstones(group_id, member_id)]
    return [
        *tombstones,
        Record(ShareGroupTargetAssignmentMetadataKey(group_id=group_id), None),
        Record(ShareGroupStatePartitionMetadataKey(group_id=group_id), None),
        Record(ShareGroupMetadataKey(group_id=group_id), None),
    ]
