"""Share groups (KIP-932): membership, fetching with per-record acknowledgement, and their offsets."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    FIRST_OWN_TAG,
    NO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    Request,
    Response,
    Since,
    String,
    Struct,
    Tag,
    Uuid,
    field,
)


class ShareGroupHeartbeatRequest(Request, api_key=76, versions=(1, 1), flexible=0):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    rack_id: String | None = None
    subscribed_topic_names: list[String] | None = None


class ShareGroupHeartbeatTopicPartitions(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = field(default_factory=list)


class ShareGroupHeartbeatAssignment(Struct):
    topic_partitions: list[ShareGroupHeartbeatTopicPartitions] = field(default_factory=list)


class ShareGroupHeartbeatResponse(Response, api_key=76, versions=(1, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: ShareGroupHeartbeatAssignment | None = None


class ShareGroupDescribeRequest(Request, api_key=77, versions=(1, 1), flexible=0):
    group_ids: list[String] = field(default_factory=list)
    include_authorized_operations: Bool = False


class ShareGroupDescribeTopicPartitions(Struct):
    topic_id: Uuid = NO_UUID
    topic_name: String = ""
    partitions: list[Int32] = field(default_factory=list)


class ShareGroupDescribeAssignment(Struct):
    topic_partitions: list[ShareGroupDescribeTopicPartitions] = field(default_factory=list)


class Member(Struct):
    member_id: String = ""
    rack_id: String | None = None
    member_epoch: Int32 = 0
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field(default_factory=list)
    assignment: ShareGroupDescribeAssignment = field(default_factory=ShareGroupDescribeAssignment)


class DescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: list[Member] = field(default_factory=list)
    authorized_operations: Int32 = -0x80000000


class ShareGroupDescribeResponse(Response, api_key=77, versions=(1, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = field(default_factory=list)


class AcknowledgementBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    acknowledge_types: list[Int8] = field(default_factory=list)


class FetchPartition(Struct):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)


class FetchTopic(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[FetchPartition] = field(default_factory=list)


class ForgottenTopic(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = field(default_factory=list)


class ShareFetchRequest(Request, api_key=78, versions=(1, 2), flexible=0):
    group_id: String | None = None
    member_id: String | None = None
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, Since(2)] = 0
    is_renew_ack: Annotated[Bool, Since(2)] = False
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: list[ForgottenTopic] = field(default_factory=list)


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0


class AcquiredRecords(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_count: Int16 = 0


class ShareFetchPartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acknowledge_error_code: Int16 = 0
    acknowledge_error_message: String | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)
    records: Records = b""
    acquired_records: list[AcquiredRecords] = field(default_factory=list)


class ShareFetchableTopicResponse(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[ShareFetchPartitionData] = field(default_factory=list)


class NodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ShareFetchResponse(Response, api_key=78, versions=(1, 2), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


class AcknowledgePartition(Struct):
    partition_index: Int32 = 0
    acknowledgement_batches: list[AcknowledgementBatch] = field(default_factory=list)


class AcknowledgeTopic(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[AcknowledgePartition] = field(default_factory=list)


class ShareAcknowledgeRequest(Request, api_key=79, versions=(1, 2), flexible=0):
    group_id: String | None = None
    member_id: String | None = None
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[Bool, Since(2)] = False
    topics: list[AcknowledgeTopic] = field(default_factory=list)


class ShareAcknowledgePartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    current_leader: LeaderIdAndEpoch = field(default_factory=LeaderIdAndEpoch)


class ShareAcknowledgeTopicResponse(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[ShareAcknowledgePartitionData] = field(default_factory=list)


class ShareAcknowledgeResponse(Response, api_key=79, versions=(1, 2), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, Since(2)] = 0
    responses: list[ShareAcknowledgeTopicResponse] = field(default_factory=list)
    node_endpoints: list[NodeEndpoint] = field(default_factory=list)


class DescribeShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = ""
    partitions: list[Int32] = field(default_factory=list)


class DescribeShareGroupOffsetsRequestGroup(Struct):
    group_id: String = ""
    topics: list[DescribeShareGroupOffsetsRequestTopic] | None = field(default_factory=list)


class DescribeShareGroupOffsetsRequest(Request, api_key=90, versions=(0, 1), flexible=0):
    groups: list[DescribeShareGroupOffsetsRequestGroup] = field(default_factory=list)
    # Instead of offsets, what is in flight in the partitions that the broker leads.
    wants_in_flight: Annotated[Bool, Tag(FIRST_OWN_TAG)] = False
    # Between brokers: the groups owe dead letters in these partitions, which their leader writes.
    owes_letters: Annotated[Bool, Tag(FIRST_OWN_TAG + 1)] = False


class ShareInFlight(Struct):
    """Records of a share partition at its leader; -1 where the leader has not read its state."""

    acquired: Int64 = 0
    waiting: Int64 = -1
    owed: Int64 = -1
    # How many of those that are acquired or wait were delivered once, twice, and so on.
    by_deliveries: list[Int64] = field(default_factory=list)


class DescribeShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = 0
    start_offset: Int64 = 0
    leader_epoch: Int32 = 0
    lag: Annotated[Int64, Since(1)] = -1
    error_code: Int16 = 0
    error_message: String | None = None
    in_flight: Annotated[ShareInFlight | None, Tag(FIRST_OWN_TAG)] = None


class DescribeShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = ""
    topic_id: Uuid = NO_UUID
    partitions: list[DescribeShareGroupOffsetsResponsePartition] = field(default_factory=list)


class DescribeShareGroupOffsetsResponseGroup(Struct):
    group_id: String = ""
    topics: list[DescribeShareGroupOffsetsResponseTopic] = field(default_factory=list)
    error_code: Int16 = 0
    error_message: String | None = None


class DescribeShareGroupOffsetsResponse(Response, api_key=90, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = field(default_factory=list)


class AlterShareGroupOffsetsRequestPartition(Struct):
    partition_index: Int32 = 0
    start_offset: Int64 = 0


class AlterShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = ""
    partitions: list[AlterShareGroupOffsetsRequestPartition] = field(default_factory=list)


class AlterShareGroupOffsetsRequest(Request, api_key=91, versions=(0, 0), flexible=0):
    group_id: String = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = field(default_factory=list)


class AlterShareGroupOffsetsResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class AlterShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = ""
    topic_id: Uuid = NO_UUID
    partitions: list[AlterShareGroupOffsetsResponsePartition] = field(default_factory=list)


class AlterShareGroupOffsetsResponse(Response, api_key=91, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = field(default_factory=list)


class DeleteShareGroupOffsetsRequestTopic(Struct):
    topic_name: String = ""


class DeleteShareGroupOffsetsRequest(Request, api_key=92, versions=(0, 0), flexible=0):
    group_id: String = ""
    topics: list[DeleteShareGroupOffsetsRequestTopic] = field(default_factory=list)


class DeleteShareGroupOffsetsResponseTopic(Struct):
    topic_name: String = ""
    topic_id: Uuid = NO_UUID
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteShareGroupOffsetsResponse(Response, api_key=92, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[DeleteShareGroupOffsetsResponseTopic] = field(default_factory=list)
