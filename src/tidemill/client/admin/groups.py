"""Administration of consumer groups: their members, their committed offsets, their lag.

Both kinds of group (classic, and the server-side protocol of KIP-848) come out as the same `GroupDescription`. Offsets are
asked for by topic name, so requests stop at the last version before topic ids: a committed offset outlives its topic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidemill.client.admin.lag import lag_of, partitions_to_read
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster, check, known_code
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol import wire
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerProtocolAssignment,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsDescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from tidemill.protocol.schema import decode
from tidemill.types import TopicPartition

LAST_VERSION_WITH_NAMES = 9
_CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


class GroupDescription(NamedTuple):
    group_id: str
    type: str
    state: str
    # The assignor, once the members have agreed on one.
    assignor: str
    members: tuple[GroupMember, ...]


class PartitionLag(NamedTuple):
    """Offsets are None where there is no commit, or no such partition any more."""

    partition: TopicPartition
    committed_offset: int | None
    start_offset: int | None
    end_offset: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        return lag_of(self.committed_offset, self.start_offset, self.end_offset)


class GroupAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def groups(self) -> list[ListedGroup]:
        """The groups of every broker, by name."""

        def of_broker(broker_id: int) -> list[ListedGroup]:
            response = self.cluster.broker(broker_id).request(ListGroupsRequest(), ListGroupsResponse)
            check(response.error_code)
            return response.groups

        def attempt() -> list[ListedGroup]:
            return [group for broker_id in self.cluster.broker_ids() for group in of_broker(broker_id)]

        return sorted(self.cluster.retrying(attempt), key=lambda group: group.group_id)

    def describe(self, group_id: str) -> GroupDescription:
        """GROUP_ID_NOT_FOUND when there is no such group of either kind."""

        def attempt() -> GroupDescription:
            self._check_groups_exist(group_id)
            return self._describe_consumer_group(group_id) or self._describe_classic_group(group_id)

        return self.cluster.retrying(attempt)

    def _check_groups_exist(self, group_id: str) -> None:
        """Keeps requests about what is there from creating the topic of groups."""
        if not self.cluster.has_groups():
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")

    def _describe_consumer_group(self, group_id: str) -> GroupDescription | None:
        message = ConsumerGroupDescribeRequest(group_ids=[group_id])
        try:
            connection = self.cluster.coordinator(group_id)
            (group,) = connection.request(message, ConsumerGroupDescribeResponse).groups
            check(group.error_code, group.error_message)
        except ApiError as error:
            # Brokers before Kafka 4 know classic groups only.
            if error.code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
                return None
            raise
        return consumer_description(group)

    def _describe_classic_group(self, group_id: str) -> GroupDescription:
        message = DescribeGroupsRequest(groups=[group_id])
        connection = self.cluster.coordinator(group_id)
        (group,) = connection.request(message, DescribeGroupsResponse).groups
        check(group.error_code, group.error_message)
        # Before version 6 a group that does not exist is a dead one.
        if group.group_state == "Dead":
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")
        return classic_description(group)

    def delete(self, group_id: str) -> None:
        def attempt() -> None:
            self._check_groups_exist(group_id)
            message = DeleteGroupsRequest(groups_names=[group_id])
            (result,) = self.cluster.coordinator(group_id).request(message, DeleteGroupsResponse).results
            check(result.error_code, result.error_message)

        self.cluster.retrying(attempt, is_repeatable=False)

    # --- offsets ---

    def committed(self, group_id: str) -> dict[TopicPartition, int]:
        """Everything that the group has committed; nothing for a group that does not exist."""
        message = OffsetFetchRequest(
            group_id=group_id,
            topics=None,
            groups=[OffsetFetchRequestGroup(group_id=group_id, topics=None)],
        )

        def attempt() -> dict[TopicPartition, int]:
            if not self.cluster.has_groups():
                return {}
            response = self.cluster.coordinator(group_id).request(
                message, OffsetFetchResponse, max_version=LAST_VERSION_WITH_NAMES
            )
            # Up to version 7 the answer has the fields of the one group itself.
            answered = response.groups[0] if response.groups else response
            check(answered.error_code)
            offsets = {}
            for topic in answered.topics:
                for each in topic.partitions:
                    check(each.error_code)
                    if each.committed_offset >= 0:
                        offsets[TopicPartition(topic.name, each.partition_index)] = each.committed_offset
            return offsets

        return self.cluster.retrying(attempt)

    def commit(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits without being a member, which a coordinator allows while the group has none."""
        topics: dict[str, OffsetCommitRequestTopic] = {}
        for partition, offset in offsets.items():
            topics.setdefault(
                partition.topic, OffsetCommitRequestTopic(name=partition.topic)
            ).partitions.append(
                OffsetCommitRequestPartition(partition_index=partition.partition, committed_offset=offset)
            )
        message = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))

        def attempt() -> None:
            response = self.cluster.coordinator(group_id).request(
                message, OffsetCommitResponse, max_version=LAST_VERSION_WITH_NAMES
            )
            for topic in response.topics:
                for each in topic.partitions:
                    check(
                        each.error_code, _partition_message(topic.name, each.partition_index, each.error_code)
                    )

        self.cluster.retrying(attempt)

    def delete_offsets(self, group_id: str, partitions: Sequence[TopicPartition]) -> None:
        topics: dict[str, OffsetDeleteRequestTopic] = {}
        for topic, index in partitions:
            topics.setdefault(topic, OffsetDeleteRequestTopic(name=topic)).partitions.append(
                OffsetDeleteRequestPartition(partition_index=index)
            )
        message = OffsetDeleteRequest(group_id=group_id, topics=list(topics.values()))

        def attempt() -> None:
            self._check_groups_exist(group_id)
            response = self.cluster.coordinator(group_id).request(message, OffsetDeleteResponse)
            check(response.error_code)
            for topic in response.topics:
                for each in topic.partitions:
                    check(
                        each.error_code, _partition_message(topic.name, each.partition_index, each.error_code)
                    )

        self.cluster.retrying(attempt)

    def lags(self, group: GroupDescription) -> list[PartitionLag]:
        """Every partition of the topics that the group has committed or is assigned something of."""
        committed = self.committed(group.group_id)
        owners = {partition: member for member in group.members for partition in member.assignment}
        admin = Admin(self.cluster)
        topics = admin.existing_topics(sorted({tp.topic for tp in (*committed, *owners)}))
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        partitions = partitions_to_read((*committed, *owners), counts)
        existing = [each for each in partitions if each.partition < counts.get(each.topic, 0)]
        starts = admin.start_offsets([each for each in existing if each not in committed])
        ends = admin.end_offsets(existing)
        return [
            PartitionLag(each, committed.get(each), starts.get(each), ends.get(each), owners.get(each))
            for each in partitions
        ]


def _partition_message(topic: str, index: int, error_code: int) -> str:
    return f"{TopicPartition(topic, index)}: {known_code(error_code).message}"


def consumer_description(group: ConsumerGroupDescribeDescribedGroup) -> GroupDescription:
    members = tuple(
        GroupMember(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host.lstrip("/"),
            _partitions(member.assignment),
        )
        for member in group.members
    )
    return GroupDescription(group.group_id, "consumer", group.group_state, group.assignor_name, members)


def _partitions(assignment: ConsumerGroupDescribeAssignment) -> tuple[TopicPartition, ...]:
    return tuple(
        TopicPartition(topic.topic_name, index)
        for topic in assignment.topic_partitions
        for index in topic.partitions
    )


def classic_description(group: DescribeGroupsDescribedGroup) -> GroupDescription:
    is_of_consumers = group.protocol_type == _CONSUMER_PROTOCOL_TYPE
    members = tuple(
        GroupMember(
            member.member_id,
            member.group_instance_id,
            member.client_id,
            member.client_host.lstrip("/"),
            _embedded_assignment(member.member_assignment) if is_of_consumers else (),
        )
        for member in group.members
    )
    return GroupDescription(group.group_id, "classic", group.group_state, group.protocol_data, members)


def _embedded_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """Two bytes of version, then the message; later versions only add to its end."""
    if not data:
        return ()
    version, position = wire.read_int16(data, 0)
    known = max(
        ConsumerProtocolAssignment.versions.min, min(version, ConsumerProtocolAssignment.versions.max)
    )
    assignment = decode(ConsumerProtocolAssignment, known, data, position)
    return tuple(
        TopicPartition(topic.topic, index)
        for topic in assignment.assigned_partitions
        for index in topic.partitions
    )
