"""Assigns producer ids: to idempotent producers directly, to transactional ones through their coordinator.

Apache Kafka 4.3 implements version 6 and does not advertise it.

Versions, and what each one changed:

    InitProducerId (22), from 0 (KIP-98)
       1  a throttled client waits by itself (KIP-219)
       2  flexible (KIP-482)
       3  producer id and epoch, to recover from an error (KIP-360)
       4  PRODUCER_FENCED instead of INVALID_PRODUCER_EPOCH (KIP-588)
       5  the error TRANSACTION_ABORTABLE (KIP-890)
       6  enable2_pc, keep_prepared_txn, and the ongoing transaction (KIP-939)
"""

from __future__ import annotations

from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.transactions import caller_of
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.protocol.coordinator_responses import error_response
from tidemill.protocol.schema import Response


@serves(InitProducerIdRequest, versions=(0, 6))
async def init_producer_id(broker: Broker, call: Call, request: InitProducerIdRequest) -> Response:
    if (request.producer_id == -1) != (request.producer_epoch == -1) or request.transactional_id == "":
        return error_response(request, call.version, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        await broker.transactions.until_complete(request.transactional_id)
        return await broker.transactions.answer(
            request.transactional_id, request, caller_of(call), may_take_id=True
        )
    # A producer without a transactional id that asks again gets a new id; bumping its epoch is its own affair.
    return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
