"""A consumer group as ConsumerGroupDescribe shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.coordinator.consumer_groups.change import preferred_assignor
from tidemill.coordinator.consumer_groups.machine import ConsumerGroup
from tidemill.coordinator.groups.group import Topics
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeAssignment,
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeTopicPartitions,
    Member,
)
from tidemill.types import TopicId

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def describe_group(
    group: ConsumerGroup, topics: Topics, default_assignor: str
) -> ConsumerGroupDescribeDescribedGroup:
    described = ConsumerGroupDescribeDescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=preferred_assignor(group.members.values()) or default_assignor,
    )
    for member in group.members.values():
        described.members.append(
            Member(
                member_id=member.member_id,
                instance_id=member.instance_id,
                rack_id=member.rack_id,
                member_epoch=member.member_epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                subscribed_topic_names=list(member.subscribed_topic_names),
                subscribed_topic_regex=member.subscribed_topic_regex,
                assignment=_assignment(member.assigned, topics),
                target_assignment=_assignment(group.target_of(member), topics),
                member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
            )
        )
    return described


def _assignment(
    partitions: Mapping[TopicId, Iterable[int]], topics: Topics
) -> ConsumerGroupDescribeAssignment:
    """Returns an assignment with topic names. Topics that have been deleted have none and are left out."""
    assignment = ConsumerGroupDescribeAssignment()
    for topic_id, indexes in partitions.items():
        name = topics.name_of(topic_id)
        if name is not None:
            assignment.topic_partitions.append(
                ConsumerGroupDescribeTopicPartitions(
                    topic_id=topic_id, topic_name=name, partitions=sorted(indexes)
                )
            )
    return assignment
