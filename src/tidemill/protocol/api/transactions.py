"""The messages of idempotent and transactional producers, and their administration."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    FIRST_OWN_TAG,
    NO_UUID,
    Bool,
    DataMessage,
    Int8,
    Int16,
    Int32,
    Int64,
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


class InitProducerIdRequest(Request, api_key=22, versions=(0, 6), flexible=2, latest_version_unstable=True):
    transactional_id: String | None = None
    transaction_timeout_ms: Int32 = 0
    # Set to bump the epoch of a known id (KIP-360).
    producer_id: Annotated[Int64, Since(3)] = -1
    producer_epoch: Annotated[Int16, Since(3)] = -1
    enable2_pc: Annotated[Bool, Since(6)] = False
    keep_prepared_txn: Annotated[Bool, Since(6)] = False


class InitProducerIdResponse(Response, api_key=22, versions=(0, 6), flexible=2, latest_version_unstable=True):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, Since(6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, Since(6)] = -1


class AddPartitionsToTxnTopic(Struct):
    name: String = ""
    partitions: list[Int32] = field(default_factory=list)


class AddPartitionsToTxnTransaction(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    verify_only: Bool = False
    topics: list[AddPartitionsToTxnTopic] = field(default_factory=list)


class AddPartitionsToTxnRequest(Request, api_key=24, versions=(0, 5), flexible=3):
    transactions: Annotated[list[AddPartitionsToTxnTransaction], Since(4)] = field(default_factory=list)
    v3_and_below_transactional_id: Annotated[String, Until(3)] = ""
    v3_and_below_producer_id: Annotated[Int64, Until(3)] = 0
    v3_and_below_producer_epoch: Annotated[Int16, Until(3)] = 0
    v3_and_below_topics: Annotated[list[AddPartitionsToTxnTopic], Until(3)] = field(default_factory=list)


class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: Int32 = 0
    partition_error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Struct):
    name: String = ""
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(default_factory=list)


class AddPartitionsToTxnResult(Struct):
    transactional_id: String = ""
    topic_results: list[AddPartitionsToTxnTopicResult] = field(default_factory=list)


class AddPartitionsToTxnResponse(Response, api_key=24, versions=(0, 5), flexible=3):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(4)] = 0
    results_by_transaction: Annotated[list[AddPartitionsToTxnResult], Since(4)] = field(default_factory=list)
    results_by_topic_v3_and_below: Annotated[list[AddPartitionsToTxnTopicResult], Until(3)] = field(
        default_factory=list
    )


class AddOffsetsToTxnRequest(Request, api_key=25, versions=(0, 4), flexible=3):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(Response, api_key=25, versions=(0, 4), flexible=3):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


class EndTxnRequest(Request, api_key=26, versions=(0, 5), flexible=3):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(Response, api_key=26, versions=(0, 5), flexible=3):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, Since(5)] = -1
    producer_epoch: Annotated[Int16, Since(5)] = -1


class WritableTxnMarkerTopic(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field(default_factory=list)
    # Tidemill's own: the leader epoch that each marker is addressed to.
    leader_epochs: Annotated[list[Int32], Tag(FIRST_OWN_TAG)] = field(default_factory=list)


class WritableTxnMarker(Struct):
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    transaction_result: Bool = False
    topics: list[WritableTxnMarkerTopic] = field(default_factory=list)
    coordinator_epoch: Int32 = 0
    transaction_version: Annotated[Int8, Since(2)] = 0
    # Tidemill's own: rises with each end that a coordinator orders. A repetition has the number of the first attempt.
    ordinal: Annotated[Int64, Tag(FIRST_OWN_TAG)] = -1


class WriteTxnMarkersRequest(Request, api_key=27, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarker] = field(default_factory=list)


class WritableTxnMarkerPartitionResult(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class WritableTxnMarkerTopicResult(Struct):
    name: String = ""
    partitions: list[WritableTxnMarkerPartitionResult] = field(default_factory=list)


class WritableTxnMarkerResult(Struct):
    producer_id: Int64 = 0
    topics: list[WritableTxnMarkerTopicResult] = field(default_factory=list)


class WriteTxnMarkersResponse(Response, api_key=27, versions=(1, 2), flexible=1):
    markers: list[WritableTxnMarkerResult] = field(default_factory=list)


class TxnOffsetCommitRequestPartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Since(2)] = -1
    committed_metadata: String | None = None


class TxnOffsetCommitRequestTopic(Struct):
    name: Annotated[String, Until(5)] = ""
    topic_id: Annotated[Uuid, Since(6)] = NO_UUID
    partitions: list[TxnOffsetCommitRequestPartition] = field(default_factory=list)


class TxnOffsetCommitRequest(Request, api_key=28, versions=(0, 6), flexible=3):
    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id_or_member_epoch: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[String, Since(3)] = ""
    group_instance_id: Annotated[String | None, Since(3)] = None
    topics: list[TxnOffsetCommitRequestTopic] = field(default_factory=list)


class TxnOffsetCommitResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Struct):
    name: Annotated[String, Until(5)] = ""
    topic_id: Annotated[Uuid, Since(6)] = NO_UUID
    partitions: list[TxnOffsetCommitResponsePartition] = field(default_factory=list)


class TxnOffsetCommitResponse(Response, api_key=28, versions=(0, 6), flexible=3):
    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = field(default_factory=list)


class TopicRequest(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field(default_factory=list)


class DescribeProducersRequest(Request, api_key=61, versions=(0, 0), flexible=0):
    topics: list[TopicRequest] = field(default_factory=list)


class ProducerState(Struct):
    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: list[ProducerState] = field(default_factory=list)


class TopicResponse(Struct):
    name: String = ""
    partitions: list[PartitionResponse] = field(default_factory=list)


class DescribeProducersResponse(Response, api_key=61, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = field(default_factory=list)


class DescribeTransactionsRequest(Request, api_key=65, versions=(0, 0), flexible=0):
    transactional_ids: list[String] = field(default_factory=list)


class TopicData(Struct):
    topic: String = ""
    partitions: list[Int32] = field(default_factory=list)


class DescribeTransactionsTransactionState(Struct):
    error_code: Int16 = 0
    transactional_id: String = ""
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = 0
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    topics: list[TopicData] = field(default_factory=list)


class DescribeTransactionsResponse(Response, api_key=65, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    transaction_states: list[DescribeTransactionsTransactionState] = field(default_factory=list)


class ListTransactionsRequest(Request, api_key=66, versions=(0, 2), flexible=0):
    state_filters: list[String] = field(default_factory=list)
    producer_id_filters: list[Int64] = field(default_factory=list)
    duration_filter: Annotated[Int64, Since(1)] = -1
    transactional_id_pattern: Annotated[String | None, Since(2)] = None


class ListTransactionsTransactionState(Struct):
    transactional_id: String = ""
    producer_id: Int64 = 0
    transaction_state: String = ""


class ListTransactionsResponse(Response, api_key=66, versions=(0, 2), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: list[String] = field(default_factory=list)
    transaction_states: list[ListTransactionsTransactionState] = field(default_factory=list)


class EndTxnMarker(DataMessage, versions=(0, 0)):
    coordinator_epoch: Int32 = 0


class ControlRecordTypeSchema(DataMessage, versions=(0, 0)):
    type: Int16 = 0


class AbortedTxn(DataMessage, versions=(0, 0)):
    producer_id: Int64 = 0
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    last_stable_offset: Int64 = 0
