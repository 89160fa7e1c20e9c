"""How each group API tells an error that concerns the whole request.

Some have a field for it, some only one per member, group or partition, and older versions fewer than newer ones. The
shell uses this for what it finds out itself (not the coordinator, not authorized) and for an `ApiError` that a shard
answers with. `in_version` is for what a response cannot say in the version of its request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.coordinator.classic_protocol import leave_response, leaving_members
from tidemill.errors import ErrorCode
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeDescribedGroup,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DescribeGroupsDescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from tidemill.protocol.api.transactions import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from tidemill.protocol.schema import Request, Response

_FETCH_BATCH_SINCE = 8
_FETCH_TOP_LEVEL_ERROR_SINCE = 2
_JOIN_PROTOCOL_NULLABLE_SINCE = 7
_TXN_COMMIT_KNOWS_LOADING_SINCE = 2


def error_response(request: Request, api_version: int, error: ErrorCode, text: str | None = None) -> Response:
    """The response to `request` that says nothing but `error`."""
    return _ERROR_RESPONSES[type(request)](request, api_version, error, text)


def in_version(response: Response, api_version: int) -> Response:
    """A refused join has no protocol: null, or an empty name before there was a null for it."""
    if isinstance(response, JoinGroupResponse) and response.protocol_name is None:
        response.protocol_name = None if api_version >= _JOIN_PROTOCOL_NULLABLE_SINCE else ""
    return response


def _join(request: JoinGroupRequest, version: int, error: ErrorCode, _text: str | None) -> Response:
    refused = JoinGroupResponse(error_code=error, member_id=request.member_id, protocol_name=None)
    return in_version(refused, version)


def _sync(_request: SyncGroupRequest, _version: int, error: ErrorCode, _text: str | None) -> Response:
    return SyncGroupResponse(error_code=error)


def _heartbeat(_request: HeartbeatRequest, _version: int, error: ErrorCode, _text: str | None) -> Response:
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
        # The member may be fine; whether it is shows as soon as the group is loaded.
        error = ErrorCode.NONE
    return HeartbeatResponse(error_code=error)


def _leave(request: LeaveGroupRequest, version: int, error: ErrorCode, _text: str | None) -> Response:
    if error is not ErrorCode.UNKNOWN_MEMBER_ID:
        return LeaveGroupResponse(error_code=error)
    members = [
        MemberResponse(member_id=each.member_id, group_instance_id=each.group_instance_id, error_code=error)
        for each in leaving_members(request, version)
    ]
    return leave_response(members, version)


def _describe(request: DescribeGroupsRequest, _version: int, error: ErrorCode, text: str | None) -> Response:
    return DescribeGroupsResponse(
        groups=[
            DescribeGroupsDescribedGroup(group_id=group_id, error_code=error, error_message=text)
            for group_id in request.groups
        ]
    )


def _list(_request: ListGroupsRequest, _version: int, error: ErrorCode, _text: str | None) -> Response:
    return ListGroupsResponse(error_code=error)


def _delete(request: DeleteGroupsRequest, _version: int, error: ErrorCode, text: str | None) -> Response:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=error, error_message=text)
            for group_id in request.groups_names
        ]
    )


def _consumer_heartbeat(
    _request: ConsumerGroupHeartbeatRequest, _version: int, error: ErrorCode, text: str | None
) -> Response:
    return ConsumerGroupHeartbeatResponse(error_code=error, error_message=text)


def _consumer_describe(
    request: ConsumerGroupDescribeRequest, _version: int, error: ErrorCode, text: str | None
) -> Response:
    return ConsumerGroupDescribeResponse(
        groups=[
            ConsumerGroupDescribeDescribedGroup(group_id=group_id, error_code=error, error_message=text)
            for group_id in request.group_ids
        ]
    )


def _offset_commit(
    request: OffsetCommitRequest, _version: int, error: ErrorCode, _text: str | None
) -> Response:
    if error is ErrorCode.UNKNOWN_SERVER_ERROR:
        # What a batch of offsets that is too large for the log becomes, and this API has a name for it.
        error = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _txn_offset_commit(
    request: TxnOffsetCommitRequest, version: int, error: ErrorCode, _text: str | None
) -> Response:
    if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < _TXN_COMMIT_KNOWS_LOADING_SINCE:
        # Producers of that age may give up on the other.
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=error)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _offset_fetch(request: OffsetFetchRequest, version: int, error: ErrorCode, _text: str | None) -> Response:
    if version >= _FETCH_BATCH_SINCE:
        return OffsetFetchResponse(groups=[fetch_group_error(group, error) for group in request.groups])
    if version >= _FETCH_TOP_LEVEL_ERROR_SINCE:
        return OffsetFetchResponse(error_code=error)
    return OffsetFetchResponse(
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index, committed_offset=-1, metadata="", error_code=error
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or []
        ]
    )


def fetch_group_error(group: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)


def _offset_delete(
    _request: OffsetDeleteRequest, _version: int, error: ErrorCode, _text: str | None
) -> Response:
    return OffsetDeleteResponse(error_code=error)


_ERROR_RESPONSES: dict[type[Request], Callable[[Any, int, ErrorCode, str | None], Response]] = {
    JoinGroupRequest: _join,
    SyncGroupRequest: _sync,
    HeartbeatRequest: _heartbeat,
    LeaveGroupRequest: _leave,
    DescribeGroupsRequest: _describe,
    ListGroupsRequest: _list,
    DeleteGroupsRequest: _delete,
    ConsumerGroupHeartbeatRequest: _consumer_heartbeat,
    ConsumerGroupDescribeRequest: _consumer_describe,
    OffsetCommitRequest: _offset_commit,
    TxnOffsetCommitRequest: _txn_offset_commit,
    OffsetFetchRequest: _offset_fetch,
    OffsetDeleteRequest: _offset_delete,
}
