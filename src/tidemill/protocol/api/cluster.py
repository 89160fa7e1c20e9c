"""The messages of discovery: API versions, brokers, topics, coordinators."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    NullableSince,
    Request,
    Response,
    Since,
    String,
    Struct,
    Tag,
    Until,
    Uuid,
    field,
)


class ApiVersionsRequest(Request, api_key=18, versions=(0, 5), flexible=3):
    client_software_name: Annotated[String, Since(3)] = ""
    client_software_version: Annotated[String, Since(3)] = ""
    cluster_id: Annotated[String | None, Since(5)] = None
    node_id: Annotated[Int32, Since(5)] = -1


class ApiVersion(Struct):
    api_key: Int16 = 0
    min_version: Int16 = 0
    max_version: Int16 = 0


class SupportedFeatureKey(Struct):
    name: String = ""
    min_version: Int16 = 0
    max_version: Int16 = 0


class FinalizedFeatureKey(Struct):
    name: String = ""
    max_version_level: Int16 = 0
    min_version_level: Int16 = 0


class ApiVersionsResponse(Response, api_key=18, versions=(0, 5), flexible=3):
    error_code: Int16 = 0
    api_keys: list[ApiVersion] = field(default_factory=list)
    # After the list, so that version 0 is a prefix of every version.
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], Since(3), Tag(0)] = field(default_factory=list)
    finalized_features_epoch: Annotated[Int64, Since(3), Tag(1)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], Since(3), Tag(2)] = field(default_factory=list)
    zk_migration_ready: Annotated[Bool, Since(3), Tag(3)] = False


class MetadataRequestTopic(Struct):
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    name: Annotated[String | None, NullableSince(10)] = ""


class MetadataRequest(Request, api_key=3, versions=(0, 13), flexible=9):
    # Null means every topic; in version 0 the empty list does.
    topics: Annotated[list[MetadataRequestTopic] | None, NullableSince(1)] = field(default_factory=list)
    allow_auto_topic_creation: Annotated[Bool, Since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, Since(8), Until(10)] = False
    include_topic_authorized_operations: Annotated[Bool, Since(8)] = False


class MetadataResponseBroker(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: Annotated[String | None, Since(1)] = None


class MetadataResponsePartition(Struct):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Annotated[Int32, Since(7)] = -1
    replica_nodes: list[Int32] = field(default_factory=list)
    isr_nodes: list[Int32] = field(default_factory=list)
    offline_replicas: Annotated[list[Int32], Since(5)] = field(default_factory=list)


class MetadataResponseTopic(Struct):
    error_code: Int16 = 0
    name: Annotated[String | None, NullableSince(12)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    is_internal: Annotated[Bool, Since(1)] = False
    partitions: list[MetadataResponsePartition] = field(default_factory=list)
    topic_authorized_operations: Annotated[Int32, Since(8)] = -0x80000000


class MetadataResponse(Response, api_key=3, versions=(0, 13), flexible=9):
    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    brokers: list[MetadataResponseBroker] = field(default_factory=list)
    cluster_id: Annotated[String | None, Since(2)] = None
    controller_id: Annotated[Int32, Since(1)] = -1
    topics: list[MetadataResponseTopic] = field(default_factory=list)
    cluster_authorized_operations: Annotated[Int32, Since(8), Until(10)] = -0x80000000
    error_code: Annotated[Int16, Since(13)] = 0


class DescribeClusterRequest(Request, api_key=60, versions=(0, 2), flexible=0):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, Since(1)] = 1
    include_fenced_brokers: Annotated[Bool, Since(2)] = False


class DescribeClusterBroker(Struct):
    broker_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None
    is_fenced: Annotated[Bool, Since(2)] = False


class DescribeClusterResponse(Response, api_key=60, versions=(0, 2), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, Since(1)] = 1
    cluster_id: String = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = field(default_factory=list)
    cluster_authorized_operations: Int32 = -0x80000000


class TopicRequest(Struct):
    name: String = ""


class Cursor(Struct):
    topic_name: String = ""
    partition_index: Int32 = 0


class DescribeTopicPartitionsRequest(Request, api_key=75, versions=(0, 0), flexible=0):
    topics: list[TopicRequest] = field(default_factory=list)
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Struct):
    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = field(default_factory=list)
    isr_nodes: list[Int32] = field(default_factory=list)
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = field(default_factory=list)


class DescribeTopicPartitionsResponseTopic(Struct):
    error_code: Int16 = 0
    name: String | None = None
    topic_id: Uuid = NO_UUID
    is_internal: Bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = field(default_factory=list)
    topic_authorized_operations: Int32 = -0x80000000


class DescribeTopicPartitionsResponse(Response, api_key=75, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = field(default_factory=list)
    next_cursor: Cursor | None = None


class FindCoordinatorRequest(Request, api_key=10, versions=(0, 6), flexible=3):
    key: Annotated[String, Until(3)] = ""
    key_type: Annotated[Int8, Since(1)] = 0
    coordinator_keys: Annotated[list[String], Since(4)] = field(default_factory=list)


class Coordinator(Struct):
    key: String = ""
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class FindCoordinatorResponse(Response, api_key=10, versions=(0, 6), flexible=3):
    throttle_time_ms: Annotated[Int32, Since(1)] = 0
    error_code: Annotated[Int16, Until(3)] = 0
    error_message: Annotated[String | None, Since(1), Until(3)] = None
    node_id: Annotated[Int32, Until(3)] = 0
    host: Annotated[String, Until(3)] = ""
    port: Annotated[Int32, Until(3)] = 0
    coordinators: Annotated[list[Coordinator], Since(4)] = field(default_factory=list)
