"""InitProducerId (22): ids for idempotent producers, and for transactional ones from their coordinator.

Version 6 takes part in two-phase commits (KIP-939). Apache Kafka 4.3 has it and does not advertise it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.requests.dispatch import Call, serves
from tidemill.broker.requests.handlers.transactions import asked, caller_of
from tidemill.coordinator.transactions.responses import error_response
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse
from tidemill.protocol.schema import Response

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker


@serves(InitProducerIdRequest, versions=(0, 6))
async def init_producer_id(broker: Broker, call: Call, request: InitProducerIdRequest) -> Response:
    if (request.producer_id == -1) != (request.producer_epoch == -1) or request.transactional_id == "":
        return error_response(request, call.version, ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        await broker.transactions.until_complete(request.transactional_id)
        return await asked(broker, caller_of(call), request.transactional_id, request, may_take_id=True)
    # A producer without a transactional id that asks again gets a new id; bumping its epoch is its own affair.
    return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
