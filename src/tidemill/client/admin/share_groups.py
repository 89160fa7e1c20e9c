"""Administration of share groups: their members, their start offsets, their lag.

A share group has no committed offsets. It has a start offset for each partition, before which every record is done, and
the share coordinator counts the records behind it that are done as well. The lag is what is neither.

What is in flight is known to the leaders of the partitions. Only Tidemill's brokers say it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from tidemill.client.admin.groups import GroupAdmin, GroupMember
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster, check
from tidemill.errors import ApiError, ErrorCode, TidemillError
from tidemill.protocol.api.groups import ListedGroup
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
    DescribedGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareInFlight,
)
from tidemill.types import TopicPartition

SHARE = "share"
_RESET = "share.auto.offset.reset"
_DELIVERY_LIMIT = "share.delivery.count.limit"
# The source of a setting that was made for the group itself.
_SET_FOR_GROUP = 8


class ShareGroupDescription(NamedTuple):
    group_id: str
    state: str
    assignor: str
    epoch: int
    members: tuple[GroupMember, ...]


class SharePosition(NamedTuple):
    """The start offset and lag of a share group in a partition; None where the first read has not decided it yet."""

    partition: TopicPartition
    start_offset: int | None
    lag: int | None


class InFlight(NamedTuple):
    """Records of a partition that are in flight; None where no member of the group fetches from the leader."""

    # Locked by members, waiting for another delivery, and given up with a dead letter that is not written yet.
    acquired: int
    waiting: int | None
    owed: int | None
    # Of those that are locked or wait: how many were delivered once, twice, and so on.
    by_deliveries: tuple[int, ...]


def deliveries_text(by_deliveries: Sequence[int]) -> str:
    """Such as `1×40 3×2`: forty records in their first delivery, two in their third."""
    found = (f"{count}×{records}" for count, records in enumerate(by_deliveries, 1) if records)
    return " ".join(found)


class ShareGroupAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def groups(self) -> list[ListedGroup]:
        return [each for each in GroupAdmin(self.cluster).groups() if each.group_type.lower() == SHARE]

    def describe(self, group_id: str) -> ShareGroupDescription:
        """GROUP_ID_NOT_FOUND when there is no such share group."""

        def attempt() -> ShareGroupDescription:
            self._check_groups_exist(group_id)
            message = ShareGroupDescribeRequest(group_ids=[group_id])
            (group,) = self.cluster.coordinator(group_id).request(message, ShareGroupDescribeResponse).groups
            check(group.error_code, group.error_message)
            return share_description(group)

        return self.cluster.retrying(attempt)

    def _check_groups_exist(self, group_id: str) -> None:
        """Keeps requests about what is there from creating the topic of groups."""
        if not self.cluster.has_groups():
            raise ApiError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {group_id}")

    def positions(self, group_id: str) -> list[SharePosition]:
        """Every partition that the group has state of, sorted; none for a group that does not exist."""
        message = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=None)]
        )

        def attempt() -> list[SharePosition]:
            if not self.cluster.has_groups():
                return []
            coordinator = self.cluster.coordinator(group_id)
            (group,) = coordinator.request(message, DescribeShareGroupOffsetsResponse).groups
            check(group.error_code, group.error_message)
            for topic in group.topics:
                for each in topic.partitions:
                    check(each.error_code, each.error_message)
            return share_positions(group)

        return self.cluster.retrying(attempt)

    def prepare(self, group_id: str, start: str) -> int | None:
        """Says where a new group begins, `earliest` or `latest`, unless its settings do.

        Returns after how many deliveries a record is given up, where the broker says it.
        """
        admin = Admin(self.cluster)
        found = {each.name: each for each in admin.describe_configs(ResourceType.GROUP, group_id)}
        reset = found.get(_RESET)
        if reset is not None and reset.config_source != _SET_FOR_GROUP:
            admin.alter_configs(ResourceType.GROUP, group_id, changes={_RESET: start})
        limit = found.get(_DELIVERY_LIMIT)
        return int(limit.value) if limit is not None and limit.value else None

    def in_flight(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, InFlight]:
        """Returns the records in flight; not for partitions whose leader is away, is not known, or does not report them."""
        return self.in_flight_of({group_id: partitions}).get(group_id, {})

    def in_flight_of(
        self, groups: Mapping[str, Sequence[TopicPartition]]
    ) -> dict[str, dict[TopicPartition, InFlight]]:
        """As `in_flight`, of many groups, with one request to each leader."""
        by_leader: dict[int, dict[str, list[TopicPartition]]] = {}
        for group_id, partitions in groups.items():
            for partition in partitions:
                with suppress(TidemillError):
                    (leader_id,) = self.cluster.leaders([partition])
                    by_leader.setdefault(leader_id, {}).setdefault(group_id, []).append(partition)
        found: dict[str, dict[TopicPartition, InFlight]] = {}
        for leader_id, led in by_leader.items():
            with suppress(TidemillError):
                for group_id, partition, in_flight in self._in_flight_at(leader_id, led):
                    found.setdefault(group_id, {})[partition] = in_flight
        return found

    def _in_flight_at(
        self, leader_id: int, groups: Mapping[str, Sequence[TopicPartition]]
    ) -> Iterator[tuple[str, TopicPartition, InFlight]]:
        message = DescribeShareGroupOffsetsRequest(wants_in_flight=True)
        for group_id, partitions in groups.items():
            topics: dict[str, DescribeShareGroupOffsetsRequestTopic] = {}
            for topic, index in partitions:
                topics.setdefault(
                    topic, DescribeShareGroupOffsetsRequestTopic(topic_name=topic)
                ).partitions.append(index)
            message.groups.append(
                DescribeShareGroupOffsetsRequestGroup(group_id=group_id, topics=list(topics.values()))
            )
        response = self.cluster.broker(leader_id).request(message, DescribeShareGroupOffsetsResponse)
        for group in response.groups:
            for answered in group.topics:
                for each in answered.partitions:
                    if each.in_flight is not None:
                        partition = TopicPartition(answered.topic_name, each.partition_index)
                        yield group.group_id, partition, _in_flight(each.in_flight)

    def alter_offsets(self, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Moves a group without members to other start offsets. NON_EMPTY_GROUP when it has members."""
        topics: dict[str, AlterShareGroupOffsetsRequestTopic] = {}
        for (topic, index), offset in offsets.items():
            topics.setdefault(topic, AlterShareGroupOffsetsRequestTopic(topic_name=topic)).partitions.append(
                AlterShareGroupOffsetsRequestPartition(partition_index=index, start_offset=offset)
            )
        message = AlterShareGroupOffsetsRequest(group_id=group_id, topics=list(topics.values()))

        def attempt() -> None:
            coordinator = self.cluster.coordinator(group_id)
            response = coordinator.request(message, AlterShareGroupOffsetsResponse)
            check(response.error_code, response.error_message)
            for topic in response.responses:
                for each in topic.partitions:
                    check(each.error_code, each.error_message)

        self.cluster.retrying(attempt)

    def delete_offsets(self, group_id: str, topics: Sequence[str]) -> None:
        """Forgets what a group without members has done in the topics."""
        message = DeleteShareGroupOffsetsRequest(
            group_id=group_id,
            topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=topic) for topic in topics],
        )

        def attempt() -> None:
            self._check_groups_exist(group_id)
            coordinator = self.cluster.coordinator(group_id)
            response = coordinator.request(message, DeleteShareGroupOffsetsResponse)
            check(response.error_code, response.error_message)
            for topic in response.responses:
                check(topic.error_code, f"{topic.topic_name}: {topic.error_message}")

        self.cluster.retrying(attempt)


def share_description(group: DescribedGroup) -> ShareGroupDescription:
    members = tuple(
        GroupMember(
            member.member_id,
            None,
            member.client_id,
            member.client_host.lstrip("/"),
            tuple(
                TopicPartition(topic.topic_name, index)
                for topic in member.assignment.topic_partitions
                for index in topic.partitions
            ),
        )
        for member in group.members
    )
    return ShareGroupDescription(
        group.group_id, group.group_state, group.assignor_name, group.group_epoch, members
    )


def share_positions(group: DescribeShareGroupOffsetsResponseGroup) -> list[SharePosition]:
    """Sorted; without partitions whose answer is an error."""
    return sorted(
        SharePosition(
            TopicPartition(topic.topic_name, each.partition_index),
            each.start_offset if each.start_offset >= 0 else None,
            each.lag if each.lag >= 0 else None,
        )
        for topic in group.topics
        for each in topic.partitions
        if not each.error_code
    )


def _in_flight(answered: ShareInFlight) -> InFlight:
    return InFlight(
        answered.acquired,
        answered.waiting if answered.waiting >= 0 else None,
        answered.owed if answered.owed >= 0 else None,
        tuple(answered.by_deliveries),
    )
