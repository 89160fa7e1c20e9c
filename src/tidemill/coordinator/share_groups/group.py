"""A share group (KIP-932): its members, the target assignment, and which partitions have state.

Three epochs drive it, as in a consumer group. The *group epoch* grows whenever the assignment must be computed again.
The *assignment epoch* is the group epoch of the target assignment. A *member epoch* is the assignment epoch that a
member has reached. A member moves there with its next heartbeat: partitions are shared, so nothing has to be given up
first. Hence there are two states only, Empty and Stable.

All state is replicated, one record per part, except state that is marked as soft. This module replays the records and
provides the queries; protocol.py decides what is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tidemill.coordinator.groups.assignors import NO_PARTITIONS, Partitions
from tidemill.coordinator.groups.group import Committer, Environment, GroupType
from tidemill.coordinator.groups.modern import ModernGroup, count_in
from tidemill.coordinator.records import Record
from tidemill.coordinator.share_groups.member import ShareMember
from tidemill.coordinator.share_groups.partition_states import PartitionStates
from tidemill.coordinator.share_groups.records import RECORDS, group_tombstones
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.coordinator_records import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
)
from tidemill.protocol.api.groups import DescribeGroupsDescribedGroup
from tidemill.protocol.api.share import (
    DescribedGroup,
    Member,
    ShareGroupDescribeAssignment,
    ShareGroupDescribeTopicPartitions,
)
from tidemill.types import TopicId

ASSIGNOR = "simple"


class ShareGroup(ModernGroup[ShareMember]):
    type = GroupType.SHARE
    records = RECORDS
    # It has no offsets whose retention could end, and an empty group keeps its state until it is deleted.
    may_expire = False

    def __init__(
        self,
        group_id: str,
        environment: Environment,
        start_timers: Callable[[ShareGroup, int], None] = lambda _group, _steady_ms: None,
    ) -> None:
        """`start_timers` is passed in: the caller knows what happens when a session ends."""
        super().__init__(group_id, environment, assignment_epoch=1)
        self._start_timers = start_timers
        self.states = PartitionStates()
        # Derived from the members.
        self._subscribers: dict[str, int] = {}
        # Soft: nothing has changed since all subscribed partitions were found initialised and assigned.
        self.is_settled = False

    # The replicated state.

    def replay(self, record: Record) -> None:
        key, value = record
        self.is_settled = False
        if isinstance(key, ShareGroupMemberMetadataKey):
            assert value is None or isinstance(value, ShareGroupMemberMetadataValue)
            self._replay_member(key.member_id, value)
        elif isinstance(key, ShareGroupCurrentMemberAssignmentKey):
            assert value is None or isinstance(value, ShareGroupCurrentMemberAssignmentValue)
            self._replay_current_assignment(key.member_id, value)
        elif isinstance(key, ShareGroupStatePartitionMetadataKey):
            assert value is None or isinstance(value, ShareGroupStatePartitionMetadataValue)
            self.states = PartitionStates() if value is None else PartitionStates.from_record(value)
        else:
            super().replay(record)

    def _replay_member(self, member_id: str, value: ShareGroupMemberMetadataValue | None) -> None:
        old = self.members.get(member_id)
        if old is not None:
            count_in(self._subscribers, old.subscribed_topic_names, -1)
        if value is None:
            self.members.pop(member_id, None)
            self.environment.timers.cancel(self.session_key(member_id))
            return
        new = self.members[member_id] = (old or ShareMember(member_id)).with_metadata(value)
        count_in(self._subscribers, new.subscribed_topic_names, 1)

    def _replay_current_assignment(
        self, member_id: str, value: ShareGroupCurrentMemberAssignmentValue | None
    ) -> None:
        old = self.members.get(member_id)
        if value is not None:
            self.members[member_id] = (old or ShareMember(member_id)).with_current_assignment(value)
        elif old is not None:
            self.members[member_id] = old.without_assignment()

    def replicated_state(self) -> object:
        return (
            self.epochs,
            self.members,
            self.target,
            self.states,
        )

    def deletion_records(self) -> list[Record]:
        return group_tombstones(self.group_id, self.members)

    # State.

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def protocol_type(self) -> str:
        return self.type.value

    def target_of(self, member_id: str) -> Partitions:
        return self.target.get(member_id, NO_PARTITIONS)

    def subscribed_topics(
        self, without: ShareMember | None = None, with_: ShareMember | None = None
    ) -> list[str]:
        """Returns all topics of the group, sorted, with one member in the place of another."""
        names = dict(self._subscribers)
        if without is not None and without.member_id in self.members:
            for name in without.subscribed_topic_names:
                names[name] -= 1
        topics = {name for name, count in names.items() if count}
        if with_ is not None:
            topics.update(with_.subscribed_topic_names)
        return sorted(topics)

    def subscribes_to(self, topic: str) -> bool:
        return topic in self._subscribers

    @property
    def has_unassigned_states(self) -> bool:
        """Whether a subscribed topic has initialised partitions that the target does not assign, or the reverse."""
        assigned: dict[TopicId, set[int]] = {}
        for target in self.target.values():
            for topic_id, partitions in target.items():
                assigned.setdefault(topic_id, set()).update(partitions)
        return any(
            assigned.get(topic_id, set()) != topic.partitions
            for topic_id, topic in self.states.initialized.items()
            if self.subscribes_to(topic.name) and self.environment.topics.id_of(topic.name) == topic_id
        )

    # Offsets of consumers: a share group has none.

    def _not_a_consumer_group(self) -> ApiError:
        return ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {self.group_id} is a share group")

    def check_offset_commit(self, committer: Committer) -> None:  # noqa: ARG002
        raise self._not_a_consumer_group()

    def check_offset_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """As Kafka: what a share group has committed may be fetched, and is nothing."""

    def check_offset_delete(self) -> None:
        raise self._not_a_consumer_group()

    def offset_expires_from_ms(self, commit_timestamp_ms: int) -> int | None:  # noqa: ARG002
        return None

    # Timers.

    def session_key(self, member_id: str) -> tuple[str, str, str]:
        return ("share session", self.group_id, member_id)

    def cancel_timers(self) -> None:
        for member_id in self.members:
            self.environment.timers.cancel(self.session_key(member_id))

    def start_timers(self, steady_ms: int) -> None:
        # It is not known which topics have changed in the meantime.
        self.changed_topics = None
        self.is_settled = False
        self._start_timers(self, steady_ms)

    def describe(self) -> DescribeGroupsDescribedGroup | None:
        return None

    def describe_share_group(self) -> DescribedGroup:
        """Returns the description for ShareGroupDescribe."""
        return DescribedGroup(
            group_id=self.group_id,
            group_state=self.state,
            group_epoch=self.group_epoch,
            assignment_epoch=self.assignment_epoch,
            assignor_name=ASSIGNOR,
            members=[
                Member(
                    member_id=member.member_id,
                    rack_id=member.rack_id,
                    member_epoch=member.member_epoch,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    subscribed_topic_names=list(member.subscribed_topic_names),
                    assignment=ShareGroupDescribeAssignment(
                        topic_partitions=list(self._named(member.assigned))
                    ),
                )
                for member in self.members.values()
            ],
        )

    def _named(self, partitions: Partitions) -> Iterator[ShareGroupDescribeTopicPartitions]:
        """Topics that have been deleted have no name and are left out."""
        for topic_id, indexes in partitions.items():
            name = self.environment.topics.name_of(topic_id)
            if name is not None:
                yield ShareGroupDescribeTopicPartitions(
                    topic_id=topic_id, topic_name=name, partitions=sorted(indexes)
                )

    def check_invariants(self) -> None:
        super().check_invariants()
        counts: dict[str, int] = {}
        for member in self.members.values():
            for name in member.subscribed_topic_names:
                counts[name] = counts.get(name, 0) + 1
        assert counts == self._subscribers, self.group_id
