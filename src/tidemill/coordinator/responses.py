"""How each group API tells an error that concerns the whole request.

`protocol/error_responses.py` finds the place for it in the response; here is what is particular to groups. The shell uses
this for what it finds out itself (not the coordinator, not authorized) and for an `ApiError` that a shard answers with.
`in_version` is for what a response cannot say in the version of its request.
"""

from __future__ import annotations

from tidemill.errors import ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol import error_responses as generic
from tidemill.protocol.api.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from tidemill.protocol.api.transactions import TxnOffsetCommitRequest
from tidemill.protocol.schema import Request, Response

_JOIN_PROTOCOL_NULLABLE_SINCE = 7
LEAVE_BATCH_SINCE = 3
_TXN_COMMIT_KNOWS_LOADING_SINCE = 2


def error_response(request: Request, api_version: int, error: ErrorCode, text: str | None = None) -> Response:
    """The response to `request` that says nothing but `error`."""
    match request:
        case JoinGroupRequest():
            refused = JoinGroupResponse(error_code=error, member_id=request.member_id, protocol_name=None)
            return in_version(refused, api_version)
        case LeaveGroupRequest() if error is ErrorCode.UNKNOWN_MEMBER_ID:
            return _unknown_members(request, api_version)
    response = generic.error_response(request, api_version, _as_told(request, api_version, error), text)
    # A request that asks for nothing gets an answer about nothing.
    return apis.RESPONSES[request.api_key]() if response is None else response


def _as_told(request: Request, api_version: int, error: ErrorCode) -> ErrorCode:
    """What the clients of an API expect to hear instead."""
    match request, error:
        case HeartbeatRequest(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The member may be fine; whether it is shows as soon as the group is loaded.
            return ErrorCode.NONE
        case OffsetCommitRequest(), ErrorCode.UNKNOWN_SERVER_ERROR:
            # What a batch of offsets that is too large for the log becomes, and this API has a name for it.
            return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        case TxnOffsetCommitRequest(), ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # Producers of that age may give up on the other.
            if api_version < _TXN_COMMIT_KNOWS_LOADING_SINCE:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return error


def in_version(response: Response, api_version: int) -> Response:
    """A refused join has no protocol: null, or an empty name before there was a null for it."""
    if isinstance(response, JoinGroupResponse) and response.protocol_name is None:
        response.protocol_name = None if api_version >= _JOIN_PROTOCOL_NULLABLE_SINCE else ""
    return response


def _unknown_members(request: LeaveGroupRequest, version: int) -> Response:
    members = [
        MemberResponse(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            error_code=ErrorCode.UNKNOWN_MEMBER_ID,
        )
        for each in leaving_members(request, version)
    ]
    return leave_response(members, version)


def fetch_group_error(group: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)


def leaving_members(request: LeaveGroupRequest, api_version: int) -> list[MemberIdentity]:
    if api_version < LEAVE_BATCH_SINCE:
        return [MemberIdentity(member_id=request.member_id)]
    return request.members


def leave_response(members: list[MemberResponse], api_version: int) -> LeaveGroupResponse:
    if api_version < LEAVE_BATCH_SINCE:
        return LeaveGroupResponse(error_code=next((each.error_code for each in members), ErrorCode.NONE))
    return LeaveGroupResponse(members=members)
