"""Committed offsets of groups."""

from __future__ import annotations

from typing import Annotated

from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    Int16,
    Int32,
    Int64,
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


class OffsetCommitRequestPartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Since(6)] = -1
    committed_metadata: String | None = None


class OffsetCommitRequestTopic(Struct):
    name: Annotated[String, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    partitions: list[OffsetCommitRequestPartition] = field(default_factory=list)


class OffsetCommitRequest(Request, api_key=8, versions=(2, 10), flexible=8):
    group_id: String = ""
    # -1 with an empty member id commits without a group membership.
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Since(7)] = None
    # -1 leaves it to the broker.
    retention_time_ms: Annotated[Int64, Until(4)] = -1
    topics: list[OffsetCommitRequestTopic] = field(default_factory=list)


class OffsetCommitResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Struct):
    name: Annotated[String, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    partitions: list[OffsetCommitResponsePartition] = field(default_factory=list)


class OffsetCommitResponse(Response, api_key=8, versions=(2, 10), flexible=8):
    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: list[OffsetCommitResponseTopic] = field(default_factory=list)


class OffsetFetchRequestTopic(Struct):
    name: String = ""
    partition_indexes: list[Int32] = field(default_factory=list)


class OffsetFetchRequestTopics(Struct):
    name: Annotated[String, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    partition_indexes: list[Int32] = field(default_factory=list)


class OffsetFetchRequestGroup(Struct):
    group_id: String = ""
    member_id: Annotated[String | None, Since(9)] = None
    member_epoch: Annotated[Int32, Since(9)] = -1
    topics: list[OffsetFetchRequestTopics] | None = field(default_factory=list)


class OffsetFetchRequest(Request, api_key=9, versions=(1, 10), flexible=6):
    group_id: Annotated[String, Until(7)] = ""
    # Null means every topic of the group.
    topics: Annotated[list[OffsetFetchRequestTopic] | None, Until(7), NullableSince(2)] = field(
        default_factory=list
    )
    groups: Annotated[list[OffsetFetchRequestGroup], Since(8)] = field(default_factory=list)
    require_stable: Annotated[Bool, Since(7)] = False


class OffsetFetchResponsePartition(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Since(5)] = -1
    metadata: String | None = None
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Struct):
    name: String = ""
    partitions: list[OffsetFetchResponsePartition] = field(default_factory=list)


class OffsetFetchResponsePartitions(Struct):
    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Int32 = -1
    metadata: String | None = None
    error_code: Int16 = 0


class OffsetFetchResponseTopics(Struct):
    name: Annotated[String, Until(9)] = ""
    topic_id: Annotated[Uuid, Since(10)] = NO_UUID
    partitions: list[OffsetFetchResponsePartitions] = field(default_factory=list)


class OffsetFetchResponseGroup(Struct):
    group_id: String = ""
    topics: list[OffsetFetchResponseTopics] = field(default_factory=list)
    error_code: Int16 = 0


class OffsetFetchResponse(Response, api_key=9, versions=(1, 10), flexible=6):
    throttle_time_ms: Annotated[Int32, Since(3)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], Until(7)] = field(default_factory=list)
    error_code: Annotated[Int16, Since(2), Until(7)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], Since(8)] = field(default_factory=list)


class OffsetDeleteRequestPartition(Struct):
    partition_index: Int32 = 0


class OffsetDeleteRequestTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteRequestPartition] = field(default_factory=list)


class OffsetDeleteRequest(Request, api_key=47, versions=(0, 0)):
    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = field(default_factory=list)


class OffsetDeleteResponsePartition(Struct):
    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Struct):
    name: String = ""
    partitions: list[OffsetDeleteResponsePartition] = field(default_factory=list)


class OffsetDeleteResponse(Response, api_key=47, versions=(0, 0)):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = field(default_factory=list)
