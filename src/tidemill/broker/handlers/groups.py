"""The group APIs.

FindCoordinator (10), JoinGroup (11), Heartbeat (12), LeaveGroup (13), SyncGroup (14), DescribeGroups (15), ListGroups (16),
OffsetCommit (8), OffsetFetch (9), DeleteGroups (42), OffsetDelete (47), ConsumerGroupHeartbeat (68), ConsumerGroupDescribe
(69).

The coordinator decides; this finds it. A request about several groups is split by group and its answers merged in order.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING, TypeVar, cast

from tidemill.broker.dispatch import Call, serves
from tidemill.coordinator.group import Caller
from tidemill.coordinator.responses import error_response, in_version
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.cluster import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsDescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    ListGroupsRequest,
    ListGroupsResponse,
    SyncGroupRequest,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tidemill.protocol.schema import Request, Response, replace
from tidemill.types import BrokerId

if TYPE_CHECKING:
    from tidemill.broker.context import Broker

_GROUP, _TRANSACTION, _SHARE = 0, 1, 2
_BATCHED_FIND_SINCE = 4
_SHARE_FIND_SINCE = 6
# A share coordinator is one of a group's partition: group, topic id, partition.
_SHARE_KEY = re.compile(r".+:[A-Za-z0-9_-]{22}:[0-9]+", re.DOTALL)
_BATCHED_FETCH_SINCE = 8
# READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS and ALTER_CONFIGS, as bits.
_ALL_GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))

ResponseT = TypeVar("ResponseT", bound=Response)


@serves(
    FindCoordinatorRequest,
    gaps=(
        "Only groups (key type 0) have a coordinator; transactions and share groups: COORDINATOR_NOT_AVAILABLE.",
    ),
)
async def find_coordinator(
    broker: Broker, call: Call, request: FindCoordinatorRequest
) -> FindCoordinatorResponse:
    keys = request.coordinator_keys if call.version >= _BATCHED_FIND_SINCE else [request.key]
    found = [await _coordinator(broker, call, request.key_type, key) for key in keys]
    if call.version >= _BATCHED_FIND_SINCE:
        return FindCoordinatorResponse(coordinators=found)
    only = found[0]
    return FindCoordinatorResponse(
        error_code=only.error_code,
        # Kafka says that nothing is wrong, too.
        error_message=only.error_message or ErrorCode.NONE.name,
        node_id=only.node_id,
        host=only.host,
        port=only.port,
    )


async def _coordinator(broker: Broker, call: Call, key_type: int, key: str) -> Coordinator:
    error = ErrorCode.NONE
    try:
        if key_type == _TRANSACTION or (key_type == _SHARE and _is_share_key(key, call.version)):
            raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if key_type != _GROUP:
            raise ApiError(ErrorCode.INVALID_REQUEST)
        member = broker.image.brokers[BrokerId(await broker.groups.leader_of(key))]
        host, port = broker.address_of(member, call.connection)
        return Coordinator(key=key, node_id=member.id, host=host, port=port, error_message="")
    except ApiError as refused:
        error = refused.code
    return Coordinator(key=key, node_id=-1, host="", port=-1, error_code=error, error_message=error.message)


def _is_share_key(key: str, api_version: int) -> bool:
    return api_version >= _SHARE_FIND_SINCE and _SHARE_KEY.fullmatch(key) is not None


def _caller(call: Call) -> Caller:
    # Kafka shows a client's address with a slash before it, and no port.
    host = call.connection.peer.rpartition(":")[0]
    return Caller(call.client_id or "", f"/{host}", call.version)


def _ask(broker: Broker, call: Call, group_id: str, request: Request) -> Response | Awaitable[Response]:
    """The coordinator's answer, errors included; a coroutine only when it has to be waited for."""
    try:
        answer = broker.groups.ask(group_id, request, _caller(call))
    except ApiError as error:
        return error_response(request, call.version, error.code, error.message)
    if isinstance(answer, Response):
        return in_version(answer, call.version)
    return _answer_later(call, request, answer)


async def _answer_later(call: Call, request: Request, answer: Awaitable[Response]) -> Response:
    try:
        return in_version(await answer, call.version)
    except ApiError as error:
        return error_response(request, call.version, error.code, error.message)


async def _asked(broker: Broker, call: Call, group_id: str, request: Request) -> Response:
    answer = _ask(broker, call, group_id, request)
    return answer if isinstance(answer, Response) else await answer


@serves(JoinGroupRequest)
@serves(HeartbeatRequest)
@serves(LeaveGroupRequest)
@serves(SyncGroupRequest)
@serves(OffsetCommitRequest)
@serves(OffsetDeleteRequest)
@serves(ConsumerGroupHeartbeatRequest)
def ask_of_group(
    broker: Broker,
    call: Call,
    request: JoinGroupRequest
    | HeartbeatRequest
    | LeaveGroupRequest
    | SyncGroupRequest
    | OffsetCommitRequest
    | OffsetDeleteRequest
    | ConsumerGroupHeartbeatRequest,
) -> Response | Awaitable[Response]:
    return _ask(broker, call, request.group_id, request)


@serves(OffsetFetchRequest)
async def offset_fetch(broker: Broker, call: Call, request: OffsetFetchRequest) -> Response:
    if call.version < _BATCHED_FETCH_SINCE:
        return await _asked(broker, call, request.group_id, request)
    merged = OffsetFetchResponse()
    for group in request.groups:
        answer = await _asked(broker, call, group.group_id, replace(request, groups=[group]))
        merged.groups += cast(OffsetFetchResponse, answer).groups
    return merged


@serves(DescribeGroupsRequest)
async def describe_groups(
    broker: Broker, call: Call, request: DescribeGroupsRequest
) -> DescribeGroupsResponse:
    merged = DescribeGroupsResponse()
    for group_id in request.groups:
        answer = await _asked(broker, call, group_id, replace(request, groups=[group_id]))
        merged.groups += cast(DescribeGroupsResponse, answer).groups
    if request.include_authorized_operations:
        _show_operations(merged.groups)
    return merged


@serves(ConsumerGroupDescribeRequest)
async def consumer_group_describe(
    broker: Broker, call: Call, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    merged = ConsumerGroupDescribeResponse()
    for group_id in request.group_ids:
        answer = await _asked(broker, call, group_id, replace(request, group_ids=[group_id]))
        merged.groups += cast(ConsumerGroupDescribeResponse, answer).groups
    if request.include_authorized_operations:
        _show_operations(merged.groups)
    return merged


def _show_operations(
    groups: Iterable[DescribeGroupsDescribedGroup | ConsumerGroupDescribeDescribedGroup],
) -> None:
    for group in groups:
        if not group.error_code:
            group.authorized_operations = _ALL_GROUP_OPERATIONS


@serves(DeleteGroupsRequest)
async def delete_groups(broker: Broker, call: Call, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    merged = DeleteGroupsResponse()
    for group_id in dict.fromkeys(request.groups_names):
        answer = await _asked(broker, call, group_id, replace(request, groups_names=[group_id]))
        merged.results += cast(DeleteGroupsResponse, answer).results
    return merged


@serves(ListGroupsRequest)
async def list_groups(broker: Broker, call: Call, request: ListGroupsRequest) -> ListGroupsResponse:
    merged = ListGroupsResponse()
    try:
        answers = await broker.groups.ask_all(request, _caller(call))
    except ApiError as error:
        return ListGroupsResponse(error_code=error.code)
    for answer in answers:
        merged.groups += cast(ListGroupsResponse, answer).groups
    return merged
