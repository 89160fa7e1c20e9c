"""How each transaction API tells an error, in the version of its request.

The machine answers with `ApiError`, the shell turns it into a response here, as it does with what it finds
out itself (not the coordinator, not authorized). That is the response which any API would give (`error_responses`), but for:

* older clients know no PRODUCER_FENCED; they get INVALID_PRODUCER_EPOCH;
* AddPartitionsToTxn has one error for all transactions of a request, and here the error is of one of them;
* InitProducerId names no producer, epoch included, where Kafka's schema would say 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.errors import ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol import error_responses
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
    if isinstance(request, AddPartitionsToTxnRequest):
        return _add_partitions(request, api_version, error)
    response = error_responses.error_response(request, api_version, error, None)
    if isinstance(response, InitProducerIdResponse):
        response.producer_epoch = -1
    # A request that names nothing gets an answer about nothing.
    return response or apis.RESPONSES[request.api_key]()


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


def _add_partitions(request: AddPartitionsToTxnRequest, version: int, error: ErrorCode) -> Response:
    wanted = added_transaction(request, version)
    if wanted.verify_only:
        return verified_response(wanted, version, dict.fromkeys(added_partitions(wanted), error))
    return added_response(wanted, version, error)
