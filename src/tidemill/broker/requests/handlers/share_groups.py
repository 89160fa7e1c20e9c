"""Descriptions and offsets of share groups (KIP-932). The heartbeat is with the other groups' in groups.py.

Offsets of a share group are the start offsets that share coordinators keep. The group coordinator knows which
partitions have any; it alters and deletes them, for groups without members. A description is read from the share
coordinators, and needs no group: what has no state is shown with the offset -1.

What is in flight is known to the leader of each partition alone. Kafka has no API for it. `wants_in_flight`, a tagged field
of ours in DescribeShareGroupOffsets, asks any broker for the partitions that it leads; other brokers skip the field.
`owes_letters`, another one, is for brokers alone: a share coordinator sends it to the leader of partitions in which a group
owes dead letters.

Versions, and what each one changed:

    ShareGroupDescribe (77), from 1
    DescribeShareGroupOffsets (90), from 0
       1  lag (KIP-1226)
    AlterShareGroupOffsets (91), from 0
    DeleteShareGroupOffsets (92), from 0
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.groups import asked, caller_of, show_operations
from tidemill.broker.requests.pieces import Entries
from tidemill.broker.requests.security.access import Access, access_of
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequest,
    DescribedGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
    ShareInFlight,
)
from tidemill.protocol.coordinator_responses import error_response
from tidemill.protocol.schema import Response, replace
from tidemill.protocol.share_state import (
    NO_DELIVERY_COMPLETE_COUNT,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareStateSummary,
)
from tidemill.security.acls import Operation
from tidemill.types import TopicId, TopicPartition

_UNSEEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."


@serves(ShareGroupDescribeRequest, entries=Entries("group_ids", "groups"))
async def share_group_describe(
    broker: Broker, call: Call, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    described: dict[str, list[DescribedGroup]] = {}
    for group_id in dict.fromkeys(request.group_ids):
        answer = await asked(broker, call, group_id, replace(request, group_ids=[group_id]))
        described[group_id] = cast(ShareGroupDescribeResponse, answer).groups
    # As Kafka: a group is described as often as it is named.
    merged = ShareGroupDescribeResponse(
        groups=[group for group_id in request.group_ids for group in described[group_id]]
    )
    access = access_of(broker, call.connection)
    if access is not None:
        merged.groups = [_with_visible_topics(access, group) for group in merged.groups]
    if request.include_authorized_operations:
        show_operations(broker, call, merged.groups)
    return merged


def _with_visible_topics(access: Access, group: DescribedGroup) -> DescribedGroup:
    """The group, or an error in its place when it has a topic that the client may not describe, as in Kafka."""
    topics = {
        topic.topic_name for member in group.members for topic in member.assignment.topic_partitions
    } | {name for member in group.members for name in member.subscribed_topic_names}
    if all(access.topic(Operation.DESCRIBE, name) for name in sorted(topics)):
        return group
    return DescribedGroup(
        group_id=group.group_id,
        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        error_message=_UNSEEN_TOPICS,
    )


@serves(AlterShareGroupOffsetsRequest)
async def alter_share_group_offsets(
    broker: Broker, call: Call, request: AlterShareGroupOffsetsRequest
) -> Response:
    try:
        return await broker.groups.alter_share_offsets(request, caller_of(broker, call))
    except ApiError as error:
        return error_response(request, call.version, error.code, error.message)


@serves(DeleteShareGroupOffsetsRequest)
async def delete_share_group_offsets(
    broker: Broker, call: Call, request: DeleteShareGroupOffsetsRequest
) -> Response:
    try:
        return await broker.groups.delete_share_offsets(request, caller_of(broker, call))
    except ApiError as error:
        return error_response(request, call.version, error.code, error.message)


@serves(
    DescribeShareGroupOffsetsRequest, entries=Entries("groups", "groups", key=lambda group: group.group_id)
)
async def describe_share_group_offsets(
    broker: Broker, call: Call, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    access = access_of(broker, call.connection)
    response = DescribeShareGroupOffsetsResponse()
    for group in request.groups:
        if access is not None and not access.group(Operation.DESCRIBE, group.group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            response.groups.append(_refused(group.group_id, code, code.message))
            continue
        if request.owes_letters:
            response.groups.append(_reminded(broker, access, group))
            continue
        if request.wants_in_flight:
            response.groups.append(_in_flight(broker, access, group))
            continue
        try:
            response.groups.append(await _described(broker, access, group))
        except ApiError as error:
            response.groups.append(_refused(group.group_id, error.code, error.message))
    return response


def _refused(group_id: str, code: ErrorCode, text: str | None) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(group_id=group_id, error_code=code, error_message=text)


async def _described(
    broker: Broker, access: Access | None, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    wanted: dict[TopicId, list[int]] | None = None
    others: list[DescribeShareGroupOffsetsResponseTopic] = []
    if group.topics is not None:
        wanted = {}
        for topic in group.topics:
            image = broker.image.topics_by_name.get(topic.topic_name)
            if access is not None and not access.topic(Operation.DESCRIBE, topic.topic_name):
                others.append(_without_state(topic.topic_name, topic.partitions, denied=True))
            elif image is None:
                others.append(_without_state(topic.topic_name, topic.partitions))
            else:
                wanted.setdefault(image.id, []).extend(topic.partitions)
    states = await broker.groups.share_offsets(group.group_id, wanted)
    topics = await _with_lag(broker, access, states, asks_all=group.topics is None)
    return DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, topics=[*topics, *others])


def _reminded(
    broker: Broker, access: Access | None, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    if access is not None and not access.cluster(Operation.CLUSTER_ACTION):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return _refused(group.group_id, code, code.message)
    for topic in group.topics or ():
        image = broker.image.topics_by_name.get(topic.topic_name)
        for index in topic.partitions if image is not None else ():
            assert image is not None
            broker.share.write_letters(SharePartitionKey(group.group_id, image.id, index))
    return DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id)


def _in_flight(
    broker: Broker, access: Access | None, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    answer = DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id)
    for topic in group.topics or ():
        image = broker.image.topics_by_name.get(topic.topic_name)
        if access is not None and not access.topic(Operation.DESCRIBE, topic.topic_name):
            answer.topics.append(_without_state(topic.topic_name, topic.partitions, denied=True))
        elif image is None:
            answer.topics.append(_without_state(topic.topic_name, topic.partitions))
        else:
            shown = [_in_flight_of(broker, group.group_id, image.id, each) for each in topic.partitions]
            answer.topics.append(
                DescribeShareGroupOffsetsResponseTopic(
                    topic_name=image.name, topic_id=image.id, partitions=shown
                )
            )
    return answer


def _in_flight_of(
    broker: Broker, group_id: str, topic_id: TopicId, index: int
) -> DescribeShareGroupOffsetsResponsePartition:
    shown = DescribeShareGroupOffsetsResponsePartition(
        partition_index=index, start_offset=NO_START_OFFSET, lag=-1
    )
    led = broker.share.find(group_id, topic_id, index)
    if led is not None and led.machine is not None:
        found = led.machine.in_flight_counts()
        shown.start_offset = led.machine.start_offset
        shown.in_flight = ShareInFlight(
            acquired=found.acquired,
            waiting=found.waiting,
            owed=found.owed,
            by_deliveries=list(found.by_deliveries),
        )
        return shown
    partition, _, _ = broker.replicas.find_readable((topic_id, index))
    if partition is None or not partition.is_leader:
        code = ErrorCode.NOT_LEADER_OR_FOLLOWER
        shown.error_code, shown.error_message = code, code.message
    else:
        # No member fetches here, so nothing is locked.
        shown.in_flight = ShareInFlight()
    return shown


def _without_state(
    name: str, partitions: list[int], *, denied: bool = False
) -> DescribeShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED if denied else ErrorCode.NONE
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=partition,
                start_offset=NO_START_OFFSET,
                error_code=code,
                error_message=code.message if denied else None,
            )
            for partition in partitions
        ],
    )


async def _with_lag(
    broker: Broker,
    access: Access | None,
    states: Mapping[tuple[TopicId, int], ShareStateSummary | None],
    *,
    asks_all: bool,
) -> list[DescribeShareGroupOffsetsResponseTopic]:
    """Lag is the records between the start offset and the end that are neither acknowledged nor archived."""
    topics: dict[TopicId, DescribeShareGroupOffsetsResponseTopic] = {}
    for topic_id, _ in states:
        image = broker.image.topics_by_id.get(topic_id)
        is_shown = (
            not asks_all
            or access is None
            or (image is not None and access.topic(Operation.DESCRIBE, image.name, quiet=True))
        )
        if image is not None and is_shown:
            topics[topic_id] = DescribeShareGroupOffsetsResponseTopic(
                topic_name=image.name, topic_id=topic_id
            )
    counted = {
        (topic_id, partition): TopicPartition(topics[topic_id].topic_name, partition)
        for (topic_id, partition), state in states.items()
        if topic_id in topics and state is not None and _has_lag(state)
    }
    ends = await broker.latest_offsets.of(counted.values())
    for (topic_id, partition), state in states.items():
        if topic_id not in topics:
            continue
        shown = DescribeShareGroupOffsetsResponsePartition(
            partition_index=partition, start_offset=NO_START_OFFSET, lag=-1
        )
        if state is not None:
            shown.start_offset, shown.leader_epoch = state.start_offset, max(0, state.leader_epoch)
        if state is not None and (topic_id, partition) in counted:
            end = ends[counted[topic_id, partition]]
            if isinstance(end, ErrorCode):
                shown = DescribeShareGroupOffsetsResponsePartition(
                    partition_index=partition, error_code=end, error_message=end.message
                )
            else:
                # AlterShareGroupOffsets takes any start offset; no record lies before 0.
                shown.lag = end - max(0, state.start_offset) - state.delivery_complete_count
        topics[topic_id].partitions.append(shown)
    return list(topics.values())


def _has_lag(state: ShareStateSummary) -> bool:
    return (
        state.start_offset != NO_START_OFFSET and state.delivery_complete_count != NO_DELIVERY_COMPLETE_COUNT
    )
