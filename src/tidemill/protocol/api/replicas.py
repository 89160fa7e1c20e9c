"""The administration of replicas and leaders: log directories, reassignments, elections."""

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
    field,
)


class DescribableLogDirTopic(Struct):
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


class DescribeLogDirsRequest(Request, api_key=35, versions=(1, 5), flexible=2):
    topics: list[DescribableLogDirTopic] | None = field(default_factory=list)


class DescribeLogDirsPartition(Struct):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Struct):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = field(default_factory=list)


class DescribeLogDirsResult(Struct):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = field(default_factory=list)
    total_bytes: Annotated[Int64, Since(4)] = -1
    usable_bytes: Annotated[Int64, Since(4)] = -1
    is_cordoned: Annotated[Bool, Since(5)] = False


class DescribeLogDirsResponse(Response, api_key=35, versions=(1, 5), flexible=2):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(3)] = 0
    results: list[DescribeLogDirsResult] = field(default_factory=list)


class AlterReplicaLogDirTopic(Struct):
    name: String = ""
    partitions: list[Int32] = field(default_factory=list)


class AlterReplicaLogDir(Struct):
    path: String = ""
    topics: list[AlterReplicaLogDirTopic] = field(default_factory=list)


class AlterReplicaLogDirsRequest(Request, api_key=34, versions=(1, 2), flexible=2):
    dirs: list[AlterReplicaLogDir] = field(default_factory=list)


class AlterReplicaLogDirPartitionResult(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class AlterReplicaLogDirTopicResult(Struct):
    topic_name: String = ""
    partitions: list[AlterReplicaLogDirPartitionResult] = field(default_factory=list)


class AlterReplicaLogDirsResponse(Response, api_key=34, versions=(1, 2), flexible=2):
    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = field(default_factory=list)


class TopicPartitions(Struct):
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


class ElectLeadersRequest(Request, api_key=43, versions=(0, 2), flexible=2):
    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: list[TopicPartitions] | None = field(default_factory=list)
    timeout_ms: Int32 = 60000


class PartitionResult(Struct):
    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class ReplicaElectionResult(Struct):
    topic: String = ""
    partition_result: list[PartitionResult] = field(default_factory=list)


class ElectLeadersResponse(Response, api_key=43, versions=(0, 2), flexible=2):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(1)] = 0
    replica_election_results: list[ReplicaElectionResult] = field(default_factory=list)


class ReassignablePartition(Struct):
    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Struct):
    name: String = ""
    partitions: list[ReassignablePartition] = field(default_factory=list)


class AlterPartitionReassignmentsRequest(Request, api_key=45, versions=(0, 1), flexible=0):
    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, Since(1)] = True
    topics: list[ReassignableTopic] = field(default_factory=list)


class ReassignablePartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class ReassignableTopicResponse(Struct):
    name: String = ""
    partitions: list[ReassignablePartitionResponse] = field(default_factory=list)


class AlterPartitionReassignmentsResponse(Response, api_key=45, versions=(0, 1), flexible=0):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Since(1)] = True
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[ReassignableTopicResponse] = field(default_factory=list)


class ListPartitionReassignmentsTopics(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field(default_factory=list)


class ListPartitionReassignmentsRequest(Request, api_key=46, versions=(0, 0), flexible=0):
    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Struct):
    partition_index: Int32 = 0
    replicas: list[Int32] = field(default_factory=list)
    adding_replicas: list[Int32] = field(default_factory=list)
    removing_replicas: list[Int32] = field(default_factory=list)


class OngoingTopicReassignment(Struct):
    name: String = ""
    partitions: list[OngoingPartitionReassignment] = field(default_factory=list)


class ListPartitionReassignmentsResponse(Response, api_key=46, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: list[OngoingTopicReassignment] = field(default_factory=list)


class UnregisterBrokerRequest(Request, api_key=64, versions=(0, 0), flexible=0):
    broker_id: Int32 = 0


class UnregisterBrokerResponse(Response, api_key=64, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
