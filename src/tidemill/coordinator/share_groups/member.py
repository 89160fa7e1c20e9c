"""One member of a share group: its subscription, its epoch and its current assignment.

A member is a value; every change makes a new one. Its fields come from two records: the metadata record (its identity
and subscription) and the current assignment record (its epoch and its partitions). Members of a share group give
nothing up before others may have it, so a member moves to its target assignment at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidemill.coordinator.groups.assignors import NO_PARTITIONS, Partitions
from tidemill.protocol.api.coordinator_records import (
    ShareGroupCurrentMemberAssignmentTopicPartitions,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
)
from tidemill.types import TopicId

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
_STABLE = 1


@dataclass(frozen=True, slots=True)
class ShareMember:
    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # Sorted, each once.
    subscribed_topic_names: tuple[str, ...] = ()
    member_epoch: int = 0
    previous_member_epoch: int = -1
    assigned: Partitions = field(default_factory=lambda: NO_PARTITIONS)

    def moved_to(self, member_epoch: int, assigned: Partitions) -> ShareMember:
        return replace(
            self,
            member_epoch=member_epoch,
            previous_member_epoch=self.member_epoch,
            assigned=assigned,
        )

    def to_metadata(self) -> ShareGroupMemberMetadataValue:
        return ShareGroupMemberMetadataValue(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.subscribed_topic_names),
        )

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> ShareMember:
        return replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=tuple(sorted(set(value.subscribed_topic_names))),
        )

    def to_current_assignment(self) -> ShareGroupCurrentMemberAssignmentValue:
        return ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=_STABLE,
            assigned_partitions=[
                ShareGroupCurrentMemberAssignmentTopicPartitions(
                    topic_id=topic_id, partitions=sorted(partitions)
                )
                for topic_id, partitions in self.assigned.items()
            ],
        )

    def with_current_assignment(self, value: ShareGroupCurrentMemberAssignmentValue) -> ShareMember:
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            assigned={
                TopicId(each.topic_id): frozenset(each.partitions) for each in value.assigned_partitions
            },
        )

    def without_assignment(self) -> ShareMember:
        """Returns the member as it was before its first current assignment record."""
        return replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            assigned=NO_PARTITIONS,
        )
