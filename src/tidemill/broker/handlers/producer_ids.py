"""InitProducerId (22) for idempotent producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.dispatch import Call, serves
from tidemill.errors import ErrorCode
from tidemill.protocol.api.transactions import InitProducerIdRequest, InitProducerIdResponse

if TYPE_CHECKING:
    from tidemill.broker.context import Broker


@serves(InitProducerIdRequest, gaps=("Transactional ids are answered with UNSUPPORTED_VERSION.",))
async def init_producer_id(
    broker: Broker, call: Call, request: InitProducerIdRequest
) -> InitProducerIdResponse:
    refused = InitProducerIdResponse(producer_id=-1, producer_epoch=-1)
    if request.transactional_id is not None:
        is_empty = not request.transactional_id
        refused.error_code = ErrorCode.INVALID_REQUEST if is_empty else ErrorCode.UNSUPPORTED_VERSION
        return refused
    if (request.producer_id == -1) != (request.producer_epoch == -1):
        refused.error_code = ErrorCode.INVALID_REQUEST
        return refused
    # A producer without a transactional id that asks again gets a new id; bumping its epoch is its own affair.
    return InitProducerIdResponse(producer_id=await broker.producer_ids.next(), producer_epoch=0)
