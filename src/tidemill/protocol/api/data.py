"""The messages of the data path: Produce, Fetch, and the search for offsets."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    NO_UUID,
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
    Until,
    Uuid,
    field,
)


class PartitionProduceData(Struct):
    index: Int32 = 0
    records: Records | None = None


class TopicProduceData(Struct):
    name: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partition_data: list[PartitionProduceData] = field(default_factory=list)


class ProduceRequest(Request, api_key=0, versions=(3, 13), flexible=9):
    transactional_id: String | None = None
    # 0 gets no response at all.
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = field(default_factory=list)


class BatchIndexAndErrorMessage(Struct):
    batch_index: Int32 = 0
    batch_index_error_message: String | None = None


class LeaderIdAndEpoch(Struct):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class PartitionProduceResponse(Struct):
    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], Since(8)] = field(default_factory=list)
    error_message: Annotated[String | None, Since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, Since(10), Tag(0)] = field(default_factory=LeaderIdAndEpoch)


class TopicProduceResponse(Struct):
    name: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partition_responses: list[PartitionProduceResponse] = field(default_factory=list)


class NodeEndpoint(Struct):
    node_id: Int32 = 0
    host: String = ""
    port: Int32 = 0
    rack: String | None = None


class ProduceResponse(Response, api_key=0, versions=(3, 13), flexible=9):
    responses: list[TopicProduceResponse] = field(default_factory=list)
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], Since(10), Tag(0)] = field(default_factory=list)


class ReplicaState(Struct):
    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, Since(9)] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, Since(17), Tag(0)] = NO_UUID
    # The follower's; the largest number when it does not say (KIP-1166).
    high_watermark: Annotated[Int64, Since(18), Tag(1)] = 0x7FFFFFFFFFFFFFFF


class FetchTopic(Struct):
    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partitions: list[FetchPartition] = field(default_factory=list)


class ForgottenTopic(Struct):
    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partitions: list[Int32] = field(default_factory=list)


class FetchRequest(Request, api_key=1, versions=(4, 18), flexible=12):
    cluster_id: Annotated[String | None, Since(12), Tag(0)] = None
    # Brokers moved into `replica_state` with KIP-903.
    replica_id: Annotated[Int32, Until(14)] = -1
    replica_state: Annotated[ReplicaState, Since(15), Tag(1)] = field(default_factory=ReplicaState)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Since(7)] = 0
    session_epoch: Annotated[Int32, Since(7)] = -1
    topics: list[FetchTopic] = field(default_factory=list)
    forgotten_topics_data: Annotated[list[ForgottenTopic], Since(7)] = field(default_factory=list)
    rack_id: Annotated[String, Since(11)] = ""


class FetchEpochEndOffset(Struct):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(Struct):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Struct):
    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5)] = -1
    diverging_epoch: Annotated[FetchEpochEndOffset, Since(12), Tag(0)] = field(
        default_factory=FetchEpochEndOffset
    )
    current_leader: Annotated[LeaderIdAndEpoch, Since(12), Tag(1)] = field(default_factory=LeaderIdAndEpoch)
    snapshot_id: Annotated[SnapshotId, Since(12), Tag(2)] = field(default_factory=SnapshotId)
    aborted_transactions: list[AbortedTransaction] | None = field(default_factory=list)
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    # Null and empty both mean nothing new.
    records: Records | None = None


class FetchableTopicResponse(Struct):
    topic: Annotated[String, Until(12)] = ""
    topic_id: Annotated[Uuid, Since(13)] = NO_UUID
    partitions: list[PartitionData] = field(default_factory=list)


class FetchResponse(Response, api_key=1, versions=(4, 18), flexible=12):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(7)] = 0
    session_id: Annotated[Int32, Since(7)] = 0
    responses: list[FetchableTopicResponse] = field(default_factory=list)
    node_endpoints: Annotated[list[NodeEndpoint], Since(16), Tag(0)] = field(default_factory=list)


class ListOffsetsPartition(Struct):
    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Since(4)] = -1
    # -1 latest, -2 earliest, -3 max timestamp, -4 earliest local, -5 latest tiered.
    timestamp: Int64 = 0


class ListOffsetsTopic(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartition] = field(default_factory=list)


class ListOffsetsRequest(Request, api_key=2, versions=(1, 11), flexible=6):
    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: list[ListOffsetsTopic] = field(default_factory=list)
    timeout_ms: Annotated[Int32, Since(10)] = 0


class ListOffsetsPartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


class ListOffsetsTopicResponse(Struct):
    name: String = ""
    partitions: list[ListOffsetsPartitionResponse] = field(default_factory=list)


class ListOffsetsResponse(Response, api_key=2, versions=(1, 11), flexible=6):
    throttle_time_ms: Annotated[Int32, Since(2)] = 0
    topics: list[ListOffsetsTopicResponse] = field(default_factory=list)


class DeleteRecordsPartition(Struct):
    partition_index: Int32 = 0
    offset: Int64 = 0


class DeleteRecordsTopic(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartition] = field(default_factory=list)


class DeleteRecordsRequest(Request, api_key=21, versions=(0, 2), flexible=2):
    topics: list[DeleteRecordsTopic] = field(default_factory=list)
    timeout_ms: Int32 = 0


class DeleteRecordsPartitionResult(Struct):
    partition_index: Int32 = 0
    low_watermark: Int64 = 0
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Struct):
    name: String = ""
    partitions: list[DeleteRecordsPartitionResult] = field(default_factory=list)


class DeleteRecordsResponse(Response, api_key=21, versions=(0, 2), flexible=2):
    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = field(default_factory=list)


class OffsetForLeaderPartition(Struct):
    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Struct):
    topic: String = ""
    partitions: list[OffsetForLeaderPartition] = field(default_factory=list)


class OffsetForLeaderEpochRequest(Request, api_key=23, versions=(2, 4), flexible=4):
    # -2 is a debugging consumer, -1 a consumer, others a follower.
    replica_id: Annotated[Int32, Since(3)] = -2
    topics: list[OffsetForLeaderTopic] = field(default_factory=list)


class EpochEndOffset(Struct):
    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Struct):
    topic: String = ""
    partitions: list[EpochEndOffset] = field(default_factory=list)


class OffsetForLeaderEpochResponse(Response, api_key=23, versions=(2, 4), flexible=4):
    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = field(default_factory=list)
