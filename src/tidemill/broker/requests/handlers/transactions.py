"""Routes transaction requests to the transaction coordinator.

A request about several transactions is split, and the responses are merged in order. Clients send AddPartitionsToTxn up to
version 3, with one transaction; brokers send later versions for their clients. InitProducerId is in `producer_ids.py`.

Versions, and what each one changed:

    AddPartitionsToTxn (24), from 0 (KIP-98)
       1  a throttled client waits by itself (KIP-219)
       2  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH (KIP-588)
       3  flexible (KIP-482)
       4  several transactions, for brokers (KIP-890)
       5  the error TRANSACTION_ABORTABLE (KIP-890)
    AddOffsetsToTxn (25), from 0 (KIP-98)
       1  a throttled client waits by itself (KIP-219)
       2  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH (KIP-588)
       3  flexible (KIP-482)
       4  the error TRANSACTION_ABORTABLE (KIP-890)
    EndTxn (26), from 0 (KIP-98)
       1  a throttled client waits by itself (KIP-219)
       2  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH (KIP-588)
       3  flexible (KIP-482)
       4  the error TRANSACTION_ABORTABLE (KIP-890)
       5  the response has the producer's next epoch (KIP-890)
    DescribeTransactions (65), from 0 (KIP-664)
    ListTransactions (66), from 0 (KIP-664)
       1  filter by duration (KIP-994)
       2  filter by pattern of the transactional id (KIP-1152)
"""

from __future__ import annotations

from typing import cast

from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries
from tidemill.broker.requests.security.access import access_of
from tidemill.coordinator.shard import Caller
from tidemill.coordinator.transactions.listing import check_pattern
from tidemill.coordinator.transactions.transaction import STATES_BY_LABEL
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndTxnRequest,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tidemill.protocol.coordinator_responses import (
    ADD_PARTITIONS_BATCHED_SINCE,
    added_partitions,
    added_transaction,
    verified_response,
)
from tidemill.protocol.schema import Response, replace
from tidemill.security.acls import Operation
from tidemill.types import TopicPartition


def caller_of(call: Call) -> Caller:
    return Caller(call.client_id or "", call.connection.peer, call.version)


@serves(AddPartitionsToTxnRequest, independent_since=ADD_PARTITIONS_BATCHED_SINCE)
async def add_partitions_to_txn(
    broker: Broker, call: Call, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    refused = _denied_topics(broker, call, request)
    return (
        refused if refused is not None else await broker.transactions.add_partitions(request, caller_of(call))
    )


def _denied_topics(
    broker: Broker, call: Call, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse | None:
    """Refuses all topics when a client may not write to one of them. Brokers have checked their clients."""
    access = access_of(broker, call.connection)
    if access is None or call.version >= ADD_PARTITIONS_BATCHED_SINCE:
        return None
    transaction = added_transaction(request, call.version)
    names = dict.fromkeys(tp.topic for tp in added_partitions(transaction))
    denied = {name for name in names if not access.topic(Operation.WRITE, name)}
    if not denied:
        return None

    def error_of(tp: TopicPartition) -> ErrorCode:
        if tp.topic in denied:
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED
        is_known = broker.image.partition(*tp) is not None
        return ErrorCode.OPERATION_NOT_ATTEMPTED if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    errors = {tp: error_of(tp) for tp in added_partitions(transaction)}
    return verified_response(transaction, call.version, errors)


@serves(AddOffsetsToTxnRequest)
async def add_offsets_to_txn(broker: Broker, call: Call, request: AddOffsetsToTxnRequest) -> Response:
    await broker.transactions.until_complete(request.transactional_id)
    return await broker.transactions.answer(request.transactional_id, request, caller_of(call))


@serves(EndTxnRequest)
async def end_txn(broker: Broker, call: Call, request: EndTxnRequest) -> Response:
    return await broker.transactions.answer(
        request.transactional_id, request, caller_of(call), may_take_id=True
    )


@serves(DescribeTransactionsRequest, entries=Entries("transactional_ids", "transaction_states"))
async def describe_transactions(
    broker: Broker, call: Call, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    merged = DescribeTransactionsResponse()
    for transactional_id in dict.fromkeys(request.transactional_ids):
        one = replace(request, transactional_ids=[transactional_id])
        answer = await broker.transactions.answer(transactional_id, one, caller_of(call))
        merged.transaction_states += cast(DescribeTransactionsResponse, answer).transaction_states
    access = access_of(broker, call.connection)
    if access is not None:
        for state in merged.transaction_states:
            state.topics = [
                each for each in state.topics if access.topic(Operation.DESCRIBE, each.topic, quiet=True)
            ]
    return merged


@serves(ListTransactionsRequest)
async def list_transactions(
    broker: Broker, call: Call, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    try:
        check_pattern(request.transactional_id_pattern)
        answers = await broker.transactions.ask_all(request, caller_of(call), is_large=call.is_large)
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    # Also when no transactional id is coordinated here.
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES_BY_LABEL]
    merged = ListTransactionsResponse(unknown_state_filters=unknown)
    for answer in answers:
        merged.transaction_states += cast(ListTransactionsResponse, answer).transaction_states
    access = access_of(broker, call.connection)
    if access is not None:
        merged.transaction_states = [
            each
            for each in merged.transaction_states
            if access.transactional_id(Operation.DESCRIBE, each.transactional_id, quiet=True)
        ]
    return merged
