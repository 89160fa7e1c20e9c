"""The records of `__consumer_offsets`, `__transaction_state` and `__share_group_state`, in Kafka's formats."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from tidemill.errors import ProtocolError
from tidemill.protocol.schema import (
    FIRST_OWN_TAG,
    NO_UUID,
    Bytes,
    DataMessage,
    Int8,
    Int16,
    Int32,
    Int64,
    Since,
    String,
    Struct,
    Tag,
    Until,
    Uuid,
    decode_exact,
    encode_into,
    field,
)
from tidemill.protocol.wire import INT16, Buffer, read_int16


class LegacyOffsetCommitKey(DataMessage, api_key=0, versions=(0, 0)):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class LegacyOffsetCommitValue(DataMessage, api_key=0, versions=(0, 0)):
    offset: Int64 = 0
    metadata: String = ""
    commit_timestamp: Int64 = 0


class OffsetCommitKey(DataMessage, api_key=1, versions=(0, 0)):
    group: String = ""
    topic: String = ""
    partition: Int32 = 0


class OffsetCommitValue(DataMessage, api_key=1, versions=(0, 4), flexible=4):
    offset: Int64 = 0
    leader_epoch: Annotated[Int32, Since(3)] = -1
    metadata: String = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, Since(1), Until(1)] = -1
    topic_id: Annotated[Uuid, Since(4), Tag(0)] = NO_UUID


class GroupMetadataKey(DataMessage, api_key=2, versions=(0, 0)):
    group: String = ""


class MemberMetadata(Struct):
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(3)] = None
    client_id: String = ""
    client_host: String = ""
    rebalance_timeout: Annotated[Int32, Since(1)] = -1
    session_timeout: Int32 = 0
    subscription: Bytes = b""
    assignment: Bytes = b""


class GroupMetadataValue(DataMessage, api_key=2, versions=(0, 4), flexible=4):
    protocol_type: String = ""
    generation: Int32 = 0
    protocol: String | None = None
    leader: String | None = None
    current_state_timestamp: Annotated[Int64, Since(2)] = -1
    members: list[MemberMetadata] = field(default_factory=list)


class ConsumerGroupMetadataKey(DataMessage, api_key=3, versions=(0, 0)):
    group_id: String = ""


class ConsumerGroupMetadataValue(DataMessage, api_key=3, versions=(0, 0), flexible=0):
    epoch: Int32 = 0
    metadata_hash: Annotated[Int64, Tag(0)] = 0


class ConsumerGroupPartitionMetadataKey(DataMessage, api_key=4, versions=(0, 0)):
    group_id: String = ""


class PartitionMetadata(Struct):
    partition: Int32 = 0
    racks: list[String] = field(default_factory=list)


class TopicMetadata(Struct):
    topic_id: Uuid = NO_UUID
    topic_name: String = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = field(default_factory=list)


class ConsumerGroupPartitionMetadataValue(DataMessage, api_key=4, versions=(0, 0), flexible=0):
    topics: list[TopicMetadata] = field(default_factory=list)


class ConsumerGroupMemberMetadataKey(DataMessage, api_key=5, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class ClassicProtocol(Struct):
    name: String = ""
    metadata: Bytes = b""


class ClassicMemberMetadata(Struct):
    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = field(default_factory=list)


class ConsumerGroupMemberMetadataValue(DataMessage, api_key=5, versions=(0, 0), flexible=0):
    instance_id: String | None = None
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field(default_factory=list)
    subscribed_topic_regex: String | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Tag(0)] = None


class ConsumerGroupTargetAssignmentMetadataKey(DataMessage, api_key=6, versions=(0, 0)):
    group_id: String = ""


class ConsumerGroupTargetAssignmentMetadataValue(DataMessage, api_key=6, versions=(0, 0), flexible=0):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, Tag(0)] = 0


class ConsumerGroupTargetAssignmentMemberKey(DataMessage, api_key=7, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class TopicPartition(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = field(default_factory=list)


class ConsumerGroupTargetAssignmentMemberValue(DataMessage, api_key=7, versions=(0, 0), flexible=0):
    topic_partitions: list[TopicPartition] = field(default_factory=list)


class ConsumerGroupCurrentMemberAssignmentKey(DataMessage, api_key=8, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class ConsumerGroupCurrentMemberAssignmentTopicPartitions(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = field(default_factory=list)
    assignment_epochs: Annotated[list[Int32] | None, Tag(0)] = field(default_factory=list)


class ConsumerGroupCurrentMemberAssignmentValue(DataMessage, api_key=8, versions=(0, 0), flexible=0):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentTopicPartitions] = field(
        default_factory=list
    )
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentTopicPartitions] = field(
        default_factory=list
    )


class ConsumerGroupRegularExpressionKey(DataMessage, api_key=16, versions=(0, 0)):
    group_id: String = ""
    regular_expression: String = ""


class ConsumerGroupRegularExpressionValue(DataMessage, api_key=16, versions=(0, 0), flexible=0):
    topics: list[String] = field(default_factory=list)
    version: Int64 = 0
    timestamp: Int64 = 0


class ShareGroupMetadataKey(DataMessage, api_key=11, versions=(0, 0)):
    group_id: String = ""


class ShareGroupMetadataValue(DataMessage, api_key=11, versions=(0, 0), flexible=0):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0


class ShareGroupMemberMetadataKey(DataMessage, api_key=10, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class ShareGroupMemberMetadataValue(DataMessage, api_key=10, versions=(0, 0), flexible=0):
    rack_id: String | None = None
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = field(default_factory=list)


class ShareGroupTargetAssignmentMetadataKey(DataMessage, api_key=12, versions=(0, 0)):
    group_id: String = ""


class ShareGroupTargetAssignmentMetadataValue(DataMessage, api_key=12, versions=(0, 0), flexible=0):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, Tag(0)] = 0


class ShareGroupTargetAssignmentMemberKey(DataMessage, api_key=13, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class ShareGroupTargetAssignmentMemberValue(DataMessage, api_key=13, versions=(0, 0), flexible=0):
    topic_partitions: list[TopicPartition] = field(default_factory=list)


class ShareGroupCurrentMemberAssignmentKey(DataMessage, api_key=14, versions=(0, 0)):
    group_id: String = ""
    member_id: String = ""


class ShareGroupCurrentMemberAssignmentTopicPartitions(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[Int32] = field(default_factory=list)


class ShareGroupCurrentMemberAssignmentValue(DataMessage, api_key=14, versions=(0, 0), flexible=0):
    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[ShareGroupCurrentMemberAssignmentTopicPartitions] = field(default_factory=list)


class ShareGroupStatePartitionMetadataKey(DataMessage, api_key=15, versions=(0, 0)):
    group_id: String = ""


class TopicPartitionsInfo(Struct):
    topic_id: Uuid = NO_UUID
    topic_name: String = ""
    partitions: list[Int32] = field(default_factory=list)


class TopicInfo(Struct):
    topic_id: Uuid = NO_UUID
    topic_name: String = ""


class ShareGroupStatePartitionMetadataValue(DataMessage, api_key=15, versions=(0, 0), flexible=0):
    initializing_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    initialized_topics: list[TopicPartitionsInfo] = field(default_factory=list)
    deleting_topics: list[TopicInfo] = field(default_factory=list)


class TransactionLogKey(DataMessage, api_key=0, versions=(0, 0)):
    transactional_id: String = ""


class PartitionsSchema(Struct):
    topic: String = ""
    partition_ids: list[Int32] = field(default_factory=list)


class TransactionLogValue(DataMessage, api_key=0, versions=(0, 1), flexible=1):
    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, Since(1), Tag(0)] = -1
    next_producer_id: Annotated[Int64, Since(1), Tag(1)] = -1
    producer_epoch: Int16 = 0
    next_producer_epoch: Annotated[Int16, Since(1), Tag(3)] = -1
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = field(default_factory=list)
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, Since(1), Tag(2)] = 0


class ShareSnapshotKey(DataMessage, api_key=0, versions=(0, 0)):
    group_id: String = ""
    topic_id: Uuid = NO_UUID
    partition: Int32 = 0


class StateBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ShareSnapshotValue(DataMessage, api_key=0, versions=(0, 0), flexible=0):
    snapshot_epoch: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: list[StateBatch] = field(default_factory=list)
    # Leaders with a smaller epoch are fenced, where that is not `leader_epoch` itself.
    fencing_leader_epoch: Annotated[Int32, Tag(FIRST_OWN_TAG)] = 0
    # Where the record is that created the state: -1 when that is not known, -2 for this record.
    creation_offset: Annotated[Int64, Tag(FIRST_OWN_TAG + 1)] = -1


class ShareUpdateKey(DataMessage, api_key=1, versions=(0, 0)):
    group_id: String = ""
    topic_id: Uuid = NO_UUID
    partition: Int32 = 0


class ShareUpdateValue(DataMessage, api_key=1, versions=(0, 0), flexible=0):
    snapshot_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1
    state_batches: list[StateBatch] = field(default_factory=list)


class RecordTypes(NamedTuple):
    key: type[DataMessage]
    value: type[DataMessage]


def _by_key(*types: RecordTypes) -> dict[int, RecordTypes]:
    return {pair.key.api_key: pair for pair in types}


# `__consumer_offsets`
GROUP_RECORDS: dict[int, RecordTypes] = _by_key(
    RecordTypes(LegacyOffsetCommitKey, LegacyOffsetCommitValue),
    RecordTypes(OffsetCommitKey, OffsetCommitValue),
    RecordTypes(GroupMetadataKey, GroupMetadataValue),
    RecordTypes(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
    RecordTypes(ConsumerGroupPartitionMetadataKey, ConsumerGroupPartitionMetadataValue),
    RecordTypes(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
    RecordTypes(ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
    RecordTypes(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
    RecordTypes(ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    RecordTypes(ConsumerGroupRegularExpressionKey, ConsumerGroupRegularExpressionValue),
    RecordTypes(ShareGroupMetadataKey, ShareGroupMetadataValue),
    RecordTypes(ShareGroupMemberMetadataKey, ShareGroupMemberMetadataValue),
    RecordTypes(ShareGroupTargetAssignmentMetadataKey, ShareGroupTargetAssignmentMetadataValue),
    RecordTypes(ShareGroupTargetAssignmentMemberKey, ShareGroupTargetAssignmentMemberValue),
    RecordTypes(ShareGroupCurrentMemberAssignmentKey, ShareGroupCurrentMemberAssignmentValue),
    RecordTypes(ShareGroupStatePartitionMetadataKey, ShareGroupStatePartitionMetadataValue),
)
# `__transaction_state`
TRANSACTION_RECORDS: dict[int, RecordTypes] = _by_key(
    RecordTypes(TransactionLogKey, TransactionLogValue),
)
# `__share_group_state`
SHARE_RECORDS: dict[int, RecordTypes] = _by_key(
    RecordTypes(ShareSnapshotKey, ShareSnapshotValue),
    RecordTypes(ShareUpdateKey, ShareUpdateValue),
)


def encode_key(key: DataMessage) -> bytes:
    out = bytearray(INT16.pack(key.api_key))
    encode_into(key, 0, out)
    return bytes(out)


def encode_value(value: DataMessage, version: int | None = None) -> bytes:
    """Encodes a value, in the newest version by default."""
    if version is None:
        version = value.versions.max
    out = bytearray(INT16.pack(version))
    encode_into(value, version, out)
    return bytes(out)


def decode_key(records: dict[int, RecordTypes], raw: Buffer) -> DataMessage:
    """`records` is the table of the topic that the record was read from."""
    api_key, position = read_int16(raw, 0)
    types = records.get(api_key)
    if types is None:
        raise ProtocolError(f"coordinator record of unknown type {api_key}")
    return decode_exact(types.key, 0, raw, position)


def decode_value(records: dict[int, RecordTypes], key: DataMessage, raw: Buffer | None) -> DataMessage | None:
    """The value that belongs to `key`; None for a tombstone."""
    if raw is None:
        return None
    version, position = read_int16(raw, 0)
    return decode_exact(records[key.api_key].value, version, raw, position)
