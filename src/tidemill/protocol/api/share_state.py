"""The messages between the group coordinator and the share coordinator, which keeps the delivery state of share
groups.

`creation_offset` is a tagged field of our own, in responses to requests that want it. It tells a state from an earlier
one that was deleted.
"""

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
    Request,
    Response,
    Since,
    String,
    Struct,
    Tag,
    Uuid,
    field,
)


class InitializeShareGroupStatePartitionData(Struct):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    start_offset: Int64 = 0


class InitializeStateData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[InitializeShareGroupStatePartitionData] = field(default_factory=list)


class InitializeShareGroupStateRequest(Request, api_key=83, versions=(0, 0), flexible=0):
    group_id: String = ""
    topics: list[InitializeStateData] = field(default_factory=list)


class InitializeShareGroupStatePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class InitializeStateResult(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[InitializeShareGroupStatePartitionResult] = field(default_factory=list)


class InitializeShareGroupStateResponse(Response, api_key=83, versions=(0, 0), flexible=0):
    results: list[InitializeStateResult] = field(default_factory=list)


class ReadShareGroupStatePartitionData(Struct):
    partition: Int32 = 0
    leader_epoch: Int32 = 0
    wants_creation_offset: Annotated[Bool, Tag(FIRST_OWN_TAG)] = False


class ReadStateData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[ReadShareGroupStatePartitionData] = field(default_factory=list)


class ReadShareGroupStateRequest(Request, api_key=84, versions=(0, 0), flexible=0):
    group_id: String = ""
    topics: list[ReadStateData] = field(default_factory=list)


class StateBatch(Struct):
    first_offset: Int64 = 0
    last_offset: Int64 = 0
    delivery_state: Int8 = 0
    delivery_count: Int16 = 0


class ReadShareGroupStatePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    start_offset: Int64 = 0
    state_batches: list[StateBatch] = field(default_factory=list)
    creation_offset: Annotated[Int64, Tag(FIRST_OWN_TAG)] = -1


class ReadStateResult(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[ReadShareGroupStatePartitionResult] = field(default_factory=list)


class ReadShareGroupStateResponse(Response, api_key=84, versions=(0, 0), flexible=0):
    results: list[ReadStateResult] = field(default_factory=list)


class WriteShareGroupStatePartitionData(Struct):
    partition: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Since(1)] = -1
    state_batches: list[StateBatch] = field(default_factory=list)
    creation_offset: Annotated[Int64, Tag(FIRST_OWN_TAG)] = -1


class WriteStateData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[WriteShareGroupStatePartitionData] = field(default_factory=list)


class WriteShareGroupStateRequest(Request, api_key=85, versions=(0, 1), flexible=0):
    group_id: String = ""
    topics: list[WriteStateData] = field(default_factory=list)


class WriteShareGroupStatePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class WriteStateResult(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[WriteShareGroupStatePartitionResult] = field(default_factory=list)


class WriteShareGroupStateResponse(Response, api_key=85, versions=(0, 1), flexible=0):
    results: list[WriteStateResult] = field(default_factory=list)


class DeleteShareGroupStatePartitionData(Struct):
    partition: Int32 = 0


class DeleteStateData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[DeleteShareGroupStatePartitionData] = field(default_factory=list)


class DeleteShareGroupStateRequest(Request, api_key=86, versions=(0, 0), flexible=0):
    group_id: String = ""
    topics: list[DeleteStateData] = field(default_factory=list)


class DeleteShareGroupStatePartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None


class DeleteStateResult(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[DeleteShareGroupStatePartitionResult] = field(default_factory=list)


class DeleteShareGroupStateResponse(Response, api_key=86, versions=(0, 0), flexible=0):
    results: list[DeleteStateResult] = field(default_factory=list)


class ReadShareGroupStateSummaryPartitionData(Struct):
    partition: Int32 = 0
    leader_epoch: Int32 = 0
    wants_creation_offset: Annotated[Bool, Tag(FIRST_OWN_TAG)] = False


class ReadStateSummaryData(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[ReadShareGroupStateSummaryPartitionData] = field(default_factory=list)


class ReadShareGroupStateSummaryRequest(Request, api_key=87, versions=(0, 1), flexible=0):
    group_id: String = ""
    topics: list[ReadStateSummaryData] = field(default_factory=list)


class ReadShareGroupStateSummaryPartitionResult(Struct):
    partition: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, Since(1)] = -1
    creation_offset: Annotated[Int64, Tag(FIRST_OWN_TAG)] = -1


class ReadStateSummaryResult(Struct):
    topic_id: Uuid = NO_UUID
    partitions: list[ReadShareGroupStateSummaryPartitionResult] = field(default_factory=list)


class ReadShareGroupStateSummaryResponse(Response, api_key=87, versions=(0, 1), flexible=0):
    results: list[ReadStateSummaryResult] = field(default_factory=list)
