"""Group membership: the classic protocol and the consumer protocol of KIP-848.

In the classic protocol the broker passes subscriptions and assignments through as opaque bytes; consumers
agree on `ConsumerProtocolSubscription` and `ConsumerProtocolAssignment`, each prefixed with its version
as an int16.
"""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    Bytes,
    DataMessage,
    Int8,
    Int16,
    Int32,
    NullableSince,
    Request,
    Response,
    Since,
    String,
    Struct,
    Until,
    Uuid,
    field,
)


class JoinGroupRequestProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class JoinGroupRequest(Request, api_key=11, versions=(0, 9), flexible=6):
    group_id: String = ""
    session_timeout_ms: Int32 = 0
    # -1: the session timeout, which is all that version 0 has.
    rebalance_timeout_ms: Annotated[Int32, Since(1)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(5)] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = field(default_factory=list)
    reason: Annotated[String | None, Since(8)] = None


class JoinGroupResponseMember(Struct):
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(5)] = None
    metadata: Bytes = b""


class JoinGroupResponse(Response, api_key=11, versions=(0, 9), flexible=6):
    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Since(7)] = None
    protocol_name: Annotated[String | None, NullableSince(7)] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, Since(9)] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = field(default_factory=list)


class SyncGroupRequestAssignment(Struct):
    member_id: String = ""
    assignment: Bytes = b""


class SyncGroupRequest(Request, api_key=14, versions=(0, 5), flexible=4):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(3)] = None
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignments: list[SyncGroupRequestAssignment] = field(default_factory=list)


class SyncGroupResponse(Response, api_key=14, versions=(0, 5), flexible=4):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, Since(5)] = None
    protocol_name: Annotated[String | None, Since(5)] = None
    assignment: Bytes = b""


class HeartbeatRequest(Request, api_key=12, versions=(0, 4), flexible=4):
    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(3)] = None


class HeartbeatResponse(Response, api_key=12, versions=(0, 4), flexible=4):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0


class MemberIdentity(Struct):
    member_id: String = ""
    group_instance_id: String | None = None
    reason: Annotated[String | None, Since(5)] = None


class LeaveGroupRequest(Request, api_key=13, versions=(0, 5), flexible=4):
    group_id: String = ""
    member_id: Annotated[String, Until(2)] = ""
    members: Annotated[list[MemberIdentity], Since(3)] = field(default_factory=list)


class MemberResponse(Struct):
    member_id: String = ""
    group_instance_id: String | None = None
    error_code: Int16 = 0


class LeaveGroupResponse(Response, api_key=13, versions=(0, 5), flexible=4):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], Since(3)] = field(default_factory=list)


class DescribeGroupsRequest(Request, api_key=15, versions=(0, 6), flexible=5):
    groups: list[String] = field(default_factory=list)
    include_authorized_operations: Annotated[Bool, Since(3)] = False


class DescribedGroupMember(Struct):
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(4)] = None
    client_id: String = ""
    client_host: String = ""
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribeGroupsDescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: Annotated[String | None, Since(6)] = None
    group_id: String = ""
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: list[DescribedGroupMember] = field(default_factory=list)
    authorized_operations: Annotated[Int32, Since(3)] = -0x80000000


class DescribeGroupsResponse(Response, api_key=15, versions=(0, 6), flexible=5):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    groups: list[DescribeGroupsDescribedGroup] = field(default_factory=list)


class ListGroupsRequest(Request, api_key=16, versions=(0, 5), flexible=3):
    states_filter: Annotated[list[String], Since(4)] = field(default_factory=list)
    types_filter: Annotated[list[String], Since(5)] = field(default_factory=list)


class ListedGroup(Struct):
    group_id: String = ""
    protocol_type: String = ""
    group_state: Annotated[String, Since(4)] = ""
    group_type: Annotated[String, Since(5)] = ""


class ListGroupsResponse(Response, api_key=16, versions=(0, 5), flexible=3):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = field(default_factory=list)


class DeleteGroupsRequest(Request, api_key=42, versions=(0, 3), flexible=2):
    groups_names: list[String] = field(default_factory=list)


class DeletableGroupResult(Struct):
    group_id: String = ""
    error_code: Int16 = 0
    error_message: Annotated[String | None, Since(3)] = None


class DeleteGroupsResponse(Response, api_key=42, versions=(0, 3), flexible=2):
    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = field(default_factory=list)


class ConsumerGroupHeartbeatTopicPartitions(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = field(default_factory=list)


class ConsumerGroupHeartbeatRequest(Request, api_key=68, versions=(0, 1), flexible=0):
    group_id: String = ""
    member_id: String = ""
    # 0 joins, -1 leaves, -2 leaves for a static member's return.
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, Since(1)] = None
    server_assignor: String | None = None
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] | None = None


class ConsumerGroupHeartbeatAssignment(Struct):
    topic_partitions: list[ConsumerGroupHeartbeatTopicPartitions] = field(default_factory=list)


class ConsumerGroupHeartbeatResponse(Response, api_key=68, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ConsumerGroupHeartbeatAssignment | None = None


class ConsumerGroupDescribeRequest(Request, api_key=69, versions=(0, 1), flexible=0):
    group_ids: list[String] = field(default_factory=list)
    include_authorized_operations: Bool = False


class ConsumerGroupDescribeTopicPartitions(Struct):
    topic_id: Uuid = NO_UUID
    topic_name: String = ""
    partitions: list[Int32] = field(default_factory=list)


class ConsumerGroupDescribeAssignment(Struct):
    topic_partitions: list[ConsumerGroupDescribeTopicPartitions] = field(default_factory=list)


class Member(Struct):
    member_id: String = ""
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field(default_factory=list)
    subscribed_topic_regex: String | None = None
    assignment: ConsumerGroupDescribeAssignment = field(default_factory=ConsumerGroupDescribeAssignment)
    target_assignment: ConsumerGroupDescribeAssignment = field(
        default_factory=ConsumerGroupDescribeAssignment
    )
    member_type: Annotated[Int8, Since(1)] = -1


class ConsumerGroupDescribeDescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = field(default_factory=list)
    authorized_operations: Int32 = -0x80000000


class ConsumerGroupDescribeResponse(Response, api_key=69, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    groups: list[ConsumerGroupDescribeDescribedGroup] = field(default_factory=list)


class TopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


class ConsumerProtocolSubscription(DataMessage, versions=(0, 3)):
    topics: list[String] = field(default_factory=list)
    user_data: Bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], Since(1)] = field(default_factory=list)
    generation_id: Annotated[Int32, Since(2)] = -1
    rack_id: Annotated[String | None, Since(3)] = None


class ConsumerProtocolAssignment(DataMessage, versions=(0, 3)):
    assigned_partitions: list[TopicPartition] = field(default_factory=list)
    user_data: Bytes | None = None
