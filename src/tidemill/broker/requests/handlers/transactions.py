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

from typing import TYPE_CHECKING, cast

from tidemill.broker.requests.dispatch import Call, serves
from tidemill.coordinator.shard import Caller
from tidemill.coordinator.transactions.listing import check_pattern
from tidemill.coordinator.transactions.transaction import STATES_BY_LABEL
from tidemill.errors import ApiError
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
)
from tidemill.protocol.schema import Response, replace

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker


def caller_of(call: Call) -> Caller:
    return Caller(call.client_id or "", call.connection.peer, call.version)


@serves(AddPartitionsToTxnRequest, independent_since=ADD_PARTITIONS_BATCHED_SINCE)
async def add_partitions_to_txn(
    broker: Broker, call: Call, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    return await broker.transactions.add_partitions(request, caller_of(call))


@serves(AddOffsetsToTxnRequest)
async def add_offsets_to_txn(broker: Broker, call: Call, request: AddOffsetsToTxnRequest) -> Response:
    await broker.transactions.until_complete(request.transactional_id)
    return await broker.transactions.answer(request.transactional_id, request, caller_of(call))


@serves(EndTxnRequest)
async def end_txn(broker: Broker, call: Call, request: EndTxnRequest) -> Response:
    return await broker.transactions.answer(
        request.transactional_id, request, caller_of(call), may_take_id=True
    )


@serves(DescribeTransactionsRequest)
async def describe_transactions(
    broker: Broker, call: Call, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    merged = DescribeTransactionsResponse()
    for transactional_id in dict.fromkeys(request.transactional_ids):
        one = replace(request, transactional_ids=[transactional_id])
        answer = await broker.transactions.answer(transactional_id, one, caller_of(call))
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
