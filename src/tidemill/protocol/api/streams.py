"""Streams groups (KIP-1071): membership and topologies of Kafka Streams applications."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Request,
    Response,
    Since,
    String,
    Struct,
    UInt16,
    Until,
    field,
)


class KeyValue(Struct):
    key: String = ""
    value: String = ""


class TopicInfo(Struct):
    name: String = ""
    partitions: Int32 = 0
    replication_factor: Int16 = 0
    topic_configs: list[KeyValue] = field(default_factory=list)


class CopartitionGroup(Struct):
    source_topics: list[Int16] = field(default_factory=list)
    source_topic_regex: list[Int16] = field(default_factory=list)
    repartition_source_topics: list[Int16] = field(default_factory=list)


class StreamsGroupHeartbeatSubtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = field(default_factory=list)
    source_topic_regex: list[String] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_sink_topics: list[String] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)
    copartition_groups: list[CopartitionGroup] = field(default_factory=list)


class StreamsGroupHeartbeatTopology(Struct):
    epoch: Int32 = 0
    subtopologies: list[StreamsGroupHeartbeatSubtopology] = field(default_factory=list)


class TaskIds(Struct):
    subtopology_id: String = ""
    partitions: list[Int32] = field(default_factory=list)


class Endpoint(Struct):
    host: String = ""
    port: UInt16 = 0


class TaskOffset(Struct):
    subtopology_id: String = ""
    partition: Int32 = 0
    offset: Int64 = 0


class StreamsGroupHeartbeatRequest(Request, api_key=88, versions=(0, 1), flexible=0):
    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    endpoint_information_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    topology: StreamsGroupHeartbeatTopology | None = None
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    process_id: String | None = None
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] | None = None
    task_offsets: list[TaskOffset] | None = None
    task_end_offsets: list[TaskOffset] | None = None
    shutdown_application: Bool = False


class Status(Struct):
    status_code: Int8 = 0
    status_detail: String = ""


class TopicPartition(Struct):
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


class EndpointToPartitions(Struct):
    user_endpoint: Endpoint = field(default_factory=Endpoint)
    active_partitions: list[TopicPartition] = field(default_factory=list)
    standby_partitions: list[TopicPartition] = field(default_factory=list)


class StreamsGroupHeartbeatResponse(Response, api_key=88, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String = ""
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    acceptable_recovery_lag_legacy: Annotated[Int32, Until(0)] = 0
    task_offset_interval_ms: Int32 = 0
    acceptable_recovery_lag: Annotated[Int64, Since(1)] = -1
    status: list[Status] | None = field(default_factory=list)
    active_tasks: list[TaskIds] | None = None
    standby_tasks: list[TaskIds] | None = None
    warmup_tasks: list[TaskIds] | None = None
    topology_description_required: Annotated[Bool, Since(1)] = False
    endpoint_information_epoch: Int32 = 0
    partitions_by_user_endpoint: list[EndpointToPartitions] | None = None


class StreamsGroupDescribeRequest(Request, api_key=89, versions=(0, 1), flexible=0):
    group_ids: list[String] = field(default_factory=list)
    include_authorized_operations: Bool = False
    include_topology_description: Annotated[Bool, Since(1)] = False


class StreamsGroupDescribeSubtopology(Struct):
    subtopology_id: String = ""
    source_topics: list[String] = field(default_factory=list)
    repartition_sink_topics: list[String] = field(default_factory=list)
    state_changelog_topics: list[TopicInfo] = field(default_factory=list)
    repartition_source_topics: list[TopicInfo] = field(default_factory=list)


class StreamsGroupDescribeTopology(Struct):
    epoch: Int32 = 0
    subtopologies: list[StreamsGroupDescribeSubtopology] | None = None


class Assignment(Struct):
    active_tasks: list[TaskIds] = field(default_factory=list)
    standby_tasks: list[TaskIds] = field(default_factory=list)
    warmup_tasks: list[TaskIds] = field(default_factory=list)


class Member(Struct):
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    topology_epoch: Int32 = 0
    process_id: String = ""
    user_endpoint: Endpoint | None = None
    client_tags: list[KeyValue] = field(default_factory=list)
    task_offsets: list[TaskOffset] = field(default_factory=list)
    task_end_offsets: list[TaskOffset] = field(default_factory=list)
    assignment: Assignment = field(default_factory=Assignment)
    target_assignment: Assignment = field(default_factory=Assignment)
    is_classic: Bool = False


class TopologyDescriptionNode(Struct):
    name: Annotated[String, Since(1)] = ""
    node_type: Annotated[Int8, Since(1)] = 0
    source_topics: Annotated[list[String], Since(1)] = field(default_factory=list)
    sink_topic: Annotated[String | None, Since(1)] = None
    stores: Annotated[list[String], Since(1)] = field(default_factory=list)
    successors: Annotated[list[String], Since(1)] = field(default_factory=list)


class TopologyDescriptionSubtopology(Struct):
    subtopology_id: Annotated[String, Since(1)] = ""
    nodes: Annotated[list[TopologyDescriptionNode], Since(1)] = field(default_factory=list)


class TopologyDescriptionGlobalStore(Struct):
    source: Annotated[TopologyDescriptionNode, Since(1)] = field(default_factory=TopologyDescriptionNode)
    processor: Annotated[TopologyDescriptionNode, Since(1)] = field(default_factory=TopologyDescriptionNode)


class TopologyDescription(Struct):
    subtopologies: Annotated[list[TopologyDescriptionSubtopology], Since(1)] = field(default_factory=list)
    global_stores: Annotated[list[TopologyDescriptionGlobalStore], Since(1)] = field(default_factory=list)


class DescribedGroup(Struct):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String = ""
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    topology: StreamsGroupDescribeTopology | None = None
    members: list[Member] = field(default_factory=list)
    authorized_operations: Int32 = -0x80000000
    topology_description: Annotated[TopologyDescription | None, Since(1)] = None
    topology_description_status: Annotated[Int8, Since(1)] = 0
    assignor_name: Annotated[String | None, Since(1)] = None


class StreamsGroupDescribeResponse(Response, api_key=89, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = field(default_factory=list)


class UpdateTopologyDescriptionNode(Struct):
    name: String = ""
    node_type: Int8 = 0
    source_topics: list[String] = field(default_factory=list)
    sink_topic: String | None = None
    stores: list[String] = field(default_factory=list)
    successors: list[String] = field(default_factory=list)


class UpdateTopologyDescriptionSubtopology(Struct):
    subtopology_id: String = ""
    nodes: list[UpdateTopologyDescriptionNode] = field(default_factory=list)


class UpdateTopologyDescriptionGlobalStore(Struct):
    source: UpdateTopologyDescriptionNode = field(default_factory=UpdateTopologyDescriptionNode)
    processor: UpdateTopologyDescriptionNode = field(default_factory=UpdateTopologyDescriptionNode)


class UpdateTopologyDescription(Struct):
    subtopologies: list[UpdateTopologyDescriptionSubtopology] = field(default_factory=list)
    global_stores: list[UpdateTopologyDescriptionGlobalStore] = field(default_factory=list)


class StreamsGroupTopologyDescriptionUpdateRequest(Request, api_key=93, versions=(0, 0), flexible=0):
    group_id: String = ""
    member_id: String = ""
    topology_epoch: Int32 = 0
    topology_description: UpdateTopologyDescription = field(default_factory=UpdateTopologyDescription)


class StreamsGroupTopologyDescriptionUpdateResponse(Response, api_key=93, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
