"""One member of a consumer group: its subscription and its current assignment.

A member is a value; every change makes a new one. Its fields come from two records: the metadata record (its identity
and subscription) and the current assignment record (its epoch and its partitions).

`assigned` are the partitions that the member may consume. `pending_revocation` are those that it must give up and has
not yet reported as given up. A partition in either has this member as its only owner. Each has the assignment epoch in
which the member got it, which tells a late commit of the owner from one of a former owner (KIP-1251).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

from tidemill.protocol.api.coordinator_records import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentTopicPartitions,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
)
from tidemill.types import TopicId

# Partitions by topic, each with the assignment epoch in which the member got it.
OwnedPartitions = Mapping[TopicId, Mapping[int, int]]
NOTHING_OWNED: OwnedPartitions = {}

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
# A static member has left and will return. No other member gets its partitions before its session ends.
STATIC_LEAVE_EPOCH = -2


class MemberState(IntEnum):
    """The values are those of the record."""

    STABLE = 1
    UNREVOKED_PARTITIONS = 2
    UNRELEASED_PARTITIONS = 3
    UNKNOWN = 127


_STATES = {state.value: state for state in MemberState}


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    # Sorted, each once.
    subscribed_topic_names: tuple[str, ...] = ()
    # Empty when the member has none.
    subscribed_topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    # Only set for a member that uses the classic protocol.
    classic: ClassicMemberMetadata | None = None
    member_epoch: int = 0
    previous_member_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)
    pending_revocation: OwnedPartitions = field(default_factory=lambda: NOTHING_OWNED)

    @property
    def is_classic(self) -> bool:
        return self.classic is not None

    @property
    def session_timeout_ms(self) -> int | None:
        """Returns the timeout that a classic member requested; other members have the group's."""
        return None if self.classic is None else self.classic.session_timeout_ms

    def is_reconciled_to(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.member_epoch == assignment_epoch

    def moved_to(
        self,
        state: MemberState,
        member_epoch: int,
        assigned: OwnedPartitions,
        pending_revocation: OwnedPartitions = NOTHING_OWNED,
    ) -> ConsumerMember:
        return replace(
            self,
            state=state,
            member_epoch=member_epoch,
            previous_member_epoch=self.member_epoch,
            assigned=assigned,
            pending_revocation=pending_revocation,
        )

    def assignment_epoch_of(self, topic_id: TopicId, partition: int) -> int | None:
        """Returns the assignment epoch of a partition; None when the member does not own it."""
        epoch = self.assigned.get(topic_id, {}).get(partition)
        if epoch is None:
            epoch = self.pending_revocation.get(topic_id, {}).get(partition)
        return epoch

    def to_metadata(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=list(self.subscribed_topic_names),
            subscribed_topic_regex=self.subscribed_topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def with_metadata(self, value: ConsumerGroupMemberMetadataValue) -> ConsumerMember:
        return replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            subscribed_topic_names=tuple(sorted(set(value.subscribed_topic_names))),
            subscribed_topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )

    def to_current_assignment(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.member_epoch,
            previous_member_epoch=self.previous_member_epoch,
            state=self.state,
            assigned_partitions=_to_record(self.assigned),
            partitions_pending_revocation=_to_record(self.pending_revocation),
        )

    def with_current_assignment(self, value: ConsumerGroupCurrentMemberAssignmentValue) -> ConsumerMember:
        return replace(
            self,
            member_epoch=value.member_epoch,
            previous_member_epoch=value.previous_member_epoch,
            state=_STATES.get(value.state, MemberState.UNKNOWN),
            assigned=_from_record(value.assigned_partitions, value.member_epoch),
            pending_revocation=_from_record(value.partitions_pending_revocation, value.member_epoch),
        )

    def without_assignment(self) -> ConsumerMember:
        """Returns the member as it was before its first current assignment record."""
        return replace(
            self,
            member_epoch=LEAVE_EPOCH,
            previous_member_epoch=LEAVE_EPOCH,
            state=MemberState.STABLE,
            assigned=NOTHING_OWNED,
            pending_revocation=NOTHING_OWNED,
        )


def _to_record(owned: OwnedPartitions) -> list[ConsumerGroupCurrentMemberAssignmentTopicPartitions]:
    records = []
    for topic_id, epochs in owned.items():
        partitions = sorted(epochs)
        records.append(
            ConsumerGroupCurrentMemberAssignmentTopicPartitions(
                topic_id=topic_id,
                partitions=partitions,
                assignment_epochs=[epochs[partition] for partition in partitions],
            )
        )
    return records


def _from_record(
    records: Iterable[ConsumerGroupCurrentMemberAssignmentTopicPartitions], member_epoch: int
) -> OwnedPartitions:
    owned: dict[TopicId, dict[int, int]] = {}
    for each in records:
        # Kafka before 4.3 kept no epochs. The member epoch is the largest possible value.
        epochs = each.assignment_epochs or [member_epoch] * len(each.partitions)
        owned[TopicId(each.topic_id)] = dict(zip(each.partitions, epochs, strict=True))
    return owned
