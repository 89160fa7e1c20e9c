"""What a ConsumerGroupHeartbeat must look like, and which epoch a member may come with."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemill.coordinator.consumer_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from tidemill.coordinator.consumer_reconciliation import Reported
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.groups import ConsumerGroupHeartbeatRequest
from tidemill.types import TopicId

_MEMBER_ID_REQUIRED_SINCE = 1


def check_request(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]
) -> None:
    epoch = request.member_epoch
    needs_id = api_version >= _MEMBER_ID_REQUIRED_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    if needs_id and not request.member_id:
        raise _invalid("MemberId can't be empty.")
    if not request.group_id:
        raise _invalid("GroupId can't be empty.")
    if request.instance_id == "":
        raise _invalid("InstanceId can't be empty.")
    if request.rack_id == "":
        raise _invalid("RackId can't be empty.")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("InstanceId can't be null.")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.server_assignor} is not supported. "
            f"Supported assignors: {', '.join(assignors)}.",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid(
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
        )


def _invalid(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text)


def reported_partitions(request: ConsumerGroupHeartbeatRequest) -> Reported:
    if request.topic_partitions is None:
        return None
    reported: dict[TopicId, list[int]] = {}
    for each in request.topic_partitions:
        reported.setdefault(TopicId(each.topic_id), []).extend(each.partitions)
    return reported


def check_member_epoch(member: ConsumerMember, received: int, reported: Reported) -> None:
    """The previous epoch will do when the member holds nothing but what it was given: it missed the last answer."""
    if received in (JOIN_EPOCH, member.member_epoch):
        return
    is_retry = (
        received < member.member_epoch
        and received == member.previous_member_epoch
        and reported is not None
        and _is_subset(reported, member.assigned)
    )
    if not is_retry:
        how = "greater" if received > member.member_epoch else "smaller"
        raise ApiError(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The consumer group member has a {how} member epoch ({received}) than the one known by the group "
            f"coordinator ({member.member_epoch}). The member must abandon all its partitions and rejoin.",
        )


def _is_subset(
    reported: Mapping[TopicId, Collection[int]], assigned: Mapping[TopicId, Mapping[int, int]]
) -> bool:
    return all(
        partition in assigned.get(topic_id, {})
        for topic_id, indexes in reported.items()
        for partition in indexes
    ) and all(topic_id in assigned for topic_id in reported)
