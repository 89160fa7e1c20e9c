"""Responses of the group and transaction APIs that say nothing but an error, and shapes that depend on the version.

`error_responses.py` finds the place for an error in any response. Here is what clients of coordinators expect instead: the
broker uses it for its own findings (not the coordinator, not authorized) and for an `ApiError` of a machine.

* `_TRANSLATED`: an error that an API, or its older versions, calls by another name;
* JoinGroup names the member and no protocol; LeaveGroup lists the members that are unknown;
* AddPartitionsToTxn has one error for all transactions of a request, and here the error is of one of them;
* InitProducerId names no producer, epoch included, where Kafka's schema would say 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol import error_responses
from tidemill.protocol.api.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponseGroup,
)
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
)
from tidemill.protocol.schema import Request, Response
from tidemill.types import TopicPartition

LEAVE_BATCH_SINCE = 3
ADD_PARTITIONS_BATCHED_SINCE = 4
_JOIN_PROTOCOL_NULLABLE_SINCE = 7
_EVERY_VERSION = 1 << 15

# The error that an API returns instead, in versions before the given one.
_TRANSLATED: dict[tuple[type[Request], ErrorCode], tuple[int, ErrorCode]] = {
    # The member may be fine; the next heartbeat finds out, when the group is loaded.
    (HeartbeatRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): (_EVERY_VERSION, ErrorCode.NONE),
    # A batch of offsets that is too large for the log: this API has a name for it.
    (OffsetCommitRequest, ErrorCode.UNKNOWN_SERVER_ERROR): (
        _EVERY_VERSION,
        ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ),
    # Older producers may give up on the other error.
    (TxnOffsetCommitRequest, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS): (
        2,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ),
    # Older clients do not know PRODUCER_FENCED.
    (InitProducerIdRequest, ErrorCode.PRODUCER_FENCED): (4, ErrorCode.INVALID_PRODUCER_EPOCH),
    (AddPartitionsToTxnRequest, ErrorCode.PRODUCER_FENCED): (2, ErrorCode.INVALID_PRODUCER_EPOCH),
    (AddOffsetsToTxnRequest, ErrorCode.PRODUCER_FENCED): (2, ErrorCode.INVALID_PRODUCER_EPOCH),
    (EndTxnRequest, ErrorCode.PRODUCER_FENCED): (2, ErrorCode.INVALID_PRODUCER_EPOCH),
}


def error_response(request: Request, api_version: int, error: ErrorCode, text: str | None = None) -> Response:
    """Returns the response to `request` that says nothing but `error`."""
    before, translated = _TRANSLATED.get((type(request), error), (0, error))
    if api_version < before:
        error = translated
    match request:
        case JoinGroupRequest():
            refused = JoinGroupResponse(error_code=error, member_id=request.member_id, protocol_name=None)
            return in_version(refused, api_version)
        case LeaveGroupRequest() if error is ErrorCode.UNKNOWN_MEMBER_ID:
            return _unknown_members(request, api_version)
        case AddPartitionsToTxnRequest():
            return _add_partitions_error(request, api_version, error)
    response = error_responses.error_response(request, api_version, error, text)
    if isinstance(response, InitProducerIdResponse):
        response.producer_epoch = -1
    # A request that names nothing gets an answer about nothing.
    return apis.RESPONSES[request.api_key]() if response is None else response


def in_version(response: Response, api_version: int) -> Response:
    """A refused join has no protocol: null, or an empty name before there was a null for it."""
    if isinstance(response, JoinGroupResponse) and response.protocol_name is None:
        response.protocol_name = None if api_version >= _JOIN_PROTOCOL_NULLABLE_SINCE else ""
    return response


def _unknown_members(request: LeaveGroupRequest, version: int) -> Response:
    members = [
        MemberResponse(
            member_id=each.member_id,
            group_instance_id=each.group_instance_id,
            error_code=ErrorCode.UNKNOWN_MEMBER_ID,
        )
        for each in leaving_members(request, version)
    ]
    return leave_response(members, version)


def fetch_group_error(group: OffsetFetchRequestGroup, error: ErrorCode) -> OffsetFetchResponseGroup:
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error)


def leaving_members(request: LeaveGroupRequest, api_version: int) -> list[MemberIdentity]:
    if api_version < LEAVE_BATCH_SINCE:
        return [MemberIdentity(member_id=request.member_id)]
    return request.members


def leave_response(members: list[MemberResponse], api_version: int) -> LeaveGroupResponse:
    if api_version < LEAVE_BATCH_SINCE:
        return LeaveGroupResponse(error_code=next((each.error_code for each in members), ErrorCode.NONE))
    return LeaveGroupResponse(members=members)


def added_transaction(request: AddPartitionsToTxnRequest, api_version: int) -> AddPartitionsToTxnTransaction:
    """The one transaction of a request that was split, in every version in the newer form."""
    if api_version >= ADD_PARTITIONS_BATCHED_SINCE:
        (transaction,) = request.transactions
        return transaction
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        topics=request.v3_and_below_topics,
    )


def added_partitions(transaction: AddPartitionsToTxnTransaction) -> dict[TopicPartition, None]:
    """An ordered set."""
    return {
        TopicPartition(topic.name, partition): None
        for topic in transaction.topics
        for partition in topic.partitions
    }


def added_response(
    wanted: AddPartitionsToTxnTransaction, api_version: int, error: ErrorCode
) -> AddPartitionsToTxnResponse:
    """All partitions or none: every one that the request names has the same error, or none."""
    topics = [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[_result(partition, error) for partition in topic.partitions],
        )
        for topic in wanted.topics
    ]
    return _added(wanted.transactional_id, api_version, topics)


def verified_response(
    wanted: AddPartitionsToTxnTransaction, api_version: int, errors: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (name, partition), error in errors.items():
        topic = topics.setdefault(name, AddPartitionsToTxnTopicResult(name=name))
        topic.results_by_partition.append(_result(partition, error))
    return _added(wanted.transactional_id, api_version, list(topics.values()))


def _result(partition: int, error: ErrorCode) -> AddPartitionsToTxnPartitionResult:
    return AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=error)


def _added(
    transactional_id: str, api_version: int, topics: list[AddPartitionsToTxnTopicResult]
) -> AddPartitionsToTxnResponse:
    if api_version < ADD_PARTITIONS_BATCHED_SINCE:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    result = AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topics)
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


def _add_partitions_error(request: AddPartitionsToTxnRequest, version: int, error: ErrorCode) -> Response:
    wanted = added_transaction(request, version)
    if wanted.verify_only:
        return verified_response(wanted, version, dict.fromkeys(added_partitions(wanted), error))
    return added_response(wanted, version, error)
