"""Routes transaction requests to the transaction coordinator.

A request about several transactions is split, and the responses are merged in order. Clients send AddPartitionsToTxn up to
version 3, with one transaction; brokers send later versions for their clients. Handlers check that partitions exist:
an unknown one fails every other partition of its transaction. InitProducerId is in `producer_ids.py`.

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

import asyncio
from typing import TYPE_CHECKING, cast

from tidemill.broker.requests.dispatch import Call, serves
from tidemill.coordinator.groups.group import Caller
from tidemill.coordinator.transactions.listing import check_pattern
from tidemill.coordinator.transactions.responses import (
    ADD_PARTITIONS_BATCHED_SINCE,
    added_partitions,
    added_transaction,
    error_response,
    verified_response,
)
from tidemill.coordinator.transactions.transaction import STATES_BY_LABEL
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import INTERNAL_TOPICS
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
from tidemill.protocol.schema import Request, Response, replace
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker


def caller_of(call: Call) -> Caller:
    return Caller(call.client_id or "", call.connection.peer, call.version)


async def asked(
    broker: Broker, caller: Caller, transactional_id: str, request: Request, *, may_take_id: bool = False
) -> Response:
    """The coordinator's answer, errors included."""
    try:
        if may_take_id:
            return await broker.transactions.ask_for_producer(transactional_id, request, caller)
        answer = broker.transactions.ask(transactional_id, request, caller)
        return answer if isinstance(answer, Response) else await answer
    except ApiError as error:
        return error_response(request, caller.api_version, error.code)


@serves(AddPartitionsToTxnRequest, independent_since=ADD_PARTITIONS_BATCHED_SINCE)
async def add_partitions_to_txn(
    broker: Broker, call: Call, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    return await add_partitions(broker, caller_of(call), request)


async def add_partitions(
    broker: Broker, caller: Caller, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """What this broker coordinates; it asks itself, too."""
    if caller.api_version < ADD_PARTITIONS_BATCHED_SINCE:
        return await _add_partitions(broker, caller, request)
    merged = AddPartitionsToTxnResponse()
    answers = [
        _add_partitions(broker, caller, replace(request, transactions=[transaction]))
        for transaction in request.transactions
    ]
    for answer in await asyncio.gather(*answers):
        merged.results_by_transaction += answer.results_by_transaction
    return merged


async def _add_partitions(
    broker: Broker, caller: Caller, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    transaction = added_transaction(request, caller.api_version)
    errors = {tp: _addable(broker, caller, tp) for tp in added_partitions(transaction)}
    if any(code is not ErrorCode.OPERATION_NOT_ATTEMPTED for code in errors.values()):
        return verified_response(transaction, caller.api_version, errors)
    if not transaction.verify_only:
        await broker.transactions.until_complete(transaction.transactional_id)
    answer = await asked(broker, caller, transaction.transactional_id, request)
    return cast(AddPartitionsToTxnResponse, answer)


def _addable(broker: Broker, caller: Caller, tp: TopicPartition) -> ErrorCode:
    """OPERATION_NOT_ATTEMPTED if nothing speaks against it. Internal topics are for brokers, whose requests are batched."""
    if caller.api_version < ADD_PARTITIONS_BATCHED_SINCE and tp.topic in INTERNAL_TOPICS:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if broker.image.partition(tp.topic, tp.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.OPERATION_NOT_ATTEMPTED


@serves(AddOffsetsToTxnRequest)
async def add_offsets_to_txn(broker: Broker, call: Call, request: AddOffsetsToTxnRequest) -> Response:
    await broker.transactions.until_complete(request.transactional_id)
    return await asked(broker, caller_of(call), request.transactional_id, request)


@serves(EndTxnRequest)
async def end_txn(broker: Broker, call: Call, request: EndTxnRequest) -> Response:
    return await asked(broker, caller_of(call), request.transactional_id, request, may_take_id=True)


@serves(DescribeTransactionsRequest)
async def describe_transactions(
    broker: Broker, call: Call, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    merged = DescribeTransactionsResponse()
    for transactional_id in dict.fromkeys(request.transactional_ids):
        one = replace(request, transactional_ids=[transactional_id])
        answer = await asked(broker, caller_of(call), transactional_id, one)
        merged.transaction_states += cast(DescribeTransactionsResponse, answer).transaction_states
    return merged


@serves(ListTransactionsRequest)
async def list_transactions(
    broker: Broker, call: Call, request: ListTransactionsRequest
) -> ListTransactionsResponse:
    try:
        check_pattern(request.transactional_id_pattern)
        answers = await broker.transactions.ask_all(request, caller_of(call))
    except ApiError as error:
        return ListTransactionsResponse(error_code=error.code)
    # Also when no transactional id is coordinated here.
    unknown = [name for name in dict.fromkeys(request.state_filters) if name not in STATES_BY_LABEL]
    merged = ListTransactionsResponse(unknown_state_filters=unknown)
    for answer in answers:
        merged.transaction_states += cast(ListTransactionsResponse, answer).transaction_states
    return merged
