"""Every group API can return every error in every version, and the bytes can be decoded."""

from __future__ import annotations

import pytest

from tidemill.errors import ErrorCode
from tidemill.protocol.api.groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupHeartbeatRequest,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeaveGroupResponse,
    ListGroupsRequest,
    MemberIdentity,
    SyncGroupRequest,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
)
from tidemill.protocol.api.transactions import TxnOffsetCommitRequest
from tidemill.protocol.coordinator_responses import error_response
from tidemill.protocol.schema import Request, encode

REQUESTS: list[type[Request]] = [
    JoinGroupRequest,
    SyncGroupRequest,
    HeartbeatRequest,
    LeaveGroupRequest,
    DescribeGroupsRequest,
    ListGroupsRequest,
    DeleteGroupsRequest,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupDescribeRequest,
    OffsetCommitRequest,
    TxnOffsetCommitRequest,
    OffsetFetchRequest,
    OffsetDeleteRequest,
]


@pytest.mark.parametrize("request_type", REQUESTS)
def test_every_version_can_be_encoded(request_type: type[Request]) -> None:
    for version in range(request_type.versions.min, request_type.versions.max + 1):
        response = error_response(request_type(), version, ErrorCode.NOT_COORDINATOR, "text")
        assert response.api_key == request_type.api_key
        encode(response, version)


def test_a_heartbeat_to_a_group_that_is_being_loaded_is_fine() -> None:
    response = error_response(HeartbeatRequest(), 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert getattr(response, "error_code") == ErrorCode.NONE  # noqa: B009
    response = error_response(JoinGroupRequest(), 4, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert getattr(response, "error_code") == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS  # noqa: B009


def test_unknown_member_is_an_error_per_member_in_versions_that_have_one() -> None:
    request = LeaveGroupRequest(member_id="m", members=[MemberIdentity(member_id="m", group_instance_id="i")])
    old = error_response(request, 2, ErrorCode.UNKNOWN_MEMBER_ID)
    new = error_response(request, 3, ErrorCode.UNKNOWN_MEMBER_ID)
    assert isinstance(old, LeaveGroupResponse)
    assert isinstance(new, LeaveGroupResponse)
    assert (old.error_code, old.members) == (ErrorCode.UNKNOWN_MEMBER_ID, [])
    assert new.error_code == ErrorCode.NONE
    assert [(each.member_id, each.error_code) for each in new.members] == [("m", ErrorCode.UNKNOWN_MEMBER_ID)]


def test_offset_errors_go_where_the_version_has_room() -> None:
    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    groups = [OffsetFetchRequestGroup(group_id="g")]
    request = OffsetFetchRequest(group_id="g", topics=topics, groups=groups)
    error = ErrorCode.NOT_COORDINATOR
    first, second, batched = (error_response(request, version, error) for version in (1, 2, 8))
    assert [each.error_code for each in first.topics[0].partitions] == [error, error]  # type: ignore[attr-defined]
    assert second.error_code == error  # type: ignore[attr-defined]
    assert [each.error_code for each in batched.groups] == [error]  # type: ignore[attr-defined]


def test_a_commit_that_is_too_large_has_an_error_of_its_own() -> None:
    partitions = [OffsetCommitRequestPartition(partition_index=3)]
    request = OffsetCommitRequest(topics=[OffsetCommitRequestTopic(name="t", partitions=partitions)])
    response = error_response(request, 8, ErrorCode.UNKNOWN_SERVER_ERROR)
    (partition,) = response.topics[0].partitions  # type: ignore[attr-defined]
    assert (partition.partition_index, partition.error_code) == (3, ErrorCode.INVALID_COMMIT_OFFSET_SIZE)
