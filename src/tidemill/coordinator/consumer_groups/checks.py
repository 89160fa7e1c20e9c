"""The checks of a ConsumerGroupHeartbeat: its fields, and the member epoch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidemill.coordinator.consumer_groups.member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    STATIC_LEAVE_EPOCH,
    ConsumerMember,
)
from tidemill.coordinator.consumer_groups.reconciliation import Reported
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.groups import ConsumerGroupHeartbeatRequest
from tidemill.types import TopicId

_MEMBER_ID_REQUIRED_SINCE = 1


def check_request(
    request: ConsumerGroupHeartbeatRequest, api_version: int, assignors: Collection[str]
) -> None:
    epoch = request.member_epoch
    needs_id = api_version >= _MEMBER_ID_REQUIRED_SINCE or epoch > 0 or epoch == LEAVE_EPOCH
    if needs_id and not request.member_id.strip():
        raise _invalid("a member id is needed")
    if not request.group_id.strip():
        raise _invalid("a group id is needed")
    if request.instance_id is not None and not request.instance_id.strip():
        raise _invalid("an instance id must be null or have characters")
    if request.rack_id is not None and not request.rack_id.strip():
        raise _invalid("a rack id must be null or have characters")
    if epoch == JOIN_EPOCH:
        _check_join(request)
    elif epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise _invalid("only a member with an instance id can be away for a while")
    elif epoch < STATIC_LEAVE_EPOCH:
        raise _invalid("no member epoch is below -2")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise ApiError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"there is no assignor {request.server_assignor} here, only {', '.join(assignors)}",
        )


def _check_join(request: ConsumerGroupHeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise _invalid("a join needs a rebalance timeout")
    if request.topic_partitions is None or request.topic_partitions:
        raise _invalid("a member that joins holds no partitions, and must say so")
    if request.subscribed_topic_names is None and request.subscribed_topic_regex is None:
        raise _invalid("a join needs topic names or a regular expression, even if empty")


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
    """The previous epoch is accepted when the member owns nothing beyond its assignment: it missed the last response."""
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
            f"epoch {received} is {how} than the member's epoch here, {member.member_epoch}: "
            "drop all partitions and join again",
        )


def _is_subset(
    reported: Mapping[TopicId, Collection[int]], assigned: Mapping[TopicId, Mapping[int, int]]
) -> bool:
    return all(
        partition in assigned.get(topic_id, {})
        for topic_id, indexes in reported.items()
        for partition in indexes
    ) and all(topic_id in assigned for topic_id in reported)
