"""How each transaction API tells an error, in the version of its request.

The machine answers with `ApiError`, the shell turns it into a response here, as it does with what it finds
out itself (not the coordinator, not authorized). Older clients know no PRODUCER_FENCED; they hear
INVALID_PRODUCER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsTransactionState,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tidemill.protocol.schema import Request, Response
from tidemill.types import TopicPartition

ADD_PARTITIONS_BATCHED_SINCE = 4
_FENCED_SINCE: dict[type[Request], int] = {
    InitProducerIdRequest: 4,
    AddPartitionsToTxnRequest: 2,
    AddOffsetsToTxnRequest: 2,
    EndTxnRequest: 2,
}


def error_response(request: Request, api_version: int, error: ErrorCode) -> Response:
    """The response to `request` that says nothing but `error`."""
    if error is ErrorCode.PRODUCER_FENCED and api_version < _FENCED_SINCE.get(type(request), 0):
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return _ERROR_RESPONSES[type(request)](request, api_version, error)


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
    return _response(wanted.transactional_id, api_version, topics)


def verified_response(
    wanted: AddPartitionsToTxnTransaction, api_version: int, errors: Mapping[TopicPartition, ErrorCode]
) -> AddPartitionsToTxnResponse:
    topics: dict[str, AddPartitionsToTxnTopicResult] = {}
    for (name, partition), error in errors.items():
        topic = topics.setdefault(name, AddPartitionsToTxnTopicResult(name=name))
        topic.results_by_partition.append(_result(partition, error))
    return _response(wanted.transactional_id, api_version, list(topics.values()))


def _result(partition: int, error: ErrorCode) -> AddPartitionsToTxnPartitionResult:
    return AddPartitionsToTxnPartitionResult(partition_index=partition, partition_error_code=error)


def _response(
    transactional_id: str, api_version: int, topics: list[AddPartitionsToTxnTopicResult]
) -> AddPartitionsToTxnResponse:
    if api_version < ADD_PARTITIONS_BATCHED_SINCE:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    result = AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topics)
    return AddPartitionsToTxnResponse(results_by_transaction=[result])


def _init(_request: InitProducerIdRequest, _version: int, error: ErrorCode) -> Response:
    return InitProducerIdResponse(error_code=error, producer_id=-1, producer_epoch=-1)


def _add_partitions(request: AddPartitionsToTxnRequest, version: int, error: ErrorCode) -> Response:
    wanted = added_transaction(request, version)
    if wanted.verify_only:
        return verified_response(wanted, version, dict.fromkeys(added_partitions(wanted), error))
    return added_response(wanted, version, error)


def _add_offsets(_request: AddOffsetsToTxnRequest, _version: int, error: ErrorCode) -> Response:
    return AddOffsetsToTxnResponse(error_code=error)


def _end(_request: EndTxnRequest, _version: int, error: ErrorCode) -> Response:
    return EndTxnResponse(error_code=error)


def _describe(request: DescribeTransactionsRequest, _version: int, error: ErrorCode) -> Response:
    return DescribeTransactionsResponse(
        transaction_states=[
            DescribeTransactionsTransactionState(transactional_id=transactional_id, error_code=error)
            for transactional_id in request.transactional_ids
        ]
    )


def _list(_request: ListTransactionsRequest, _version: int, error: ErrorCode) -> Response:
    return ListTransactionsResponse(error_code=error)


_ERROR_RESPONSES: dict[type[Request], Callable[[Any, int, ErrorCode], Response]] = {
    InitProducerIdRequest: _init,
    AddPartitionsToTxnRequest: _add_partitions,
    AddOffsetsToTxnRequest: _add_offsets,
    EndTxnRequest: _end,
    DescribeTransactionsRequest: _describe,
    ListTransactionsRequest: _list,
}
