"""Receives the metrics that clients push (KIP-714).

A thread decompresses and parses them; the broker exports them with its own metrics.

Versions, and what each one changed:

    GetTelemetrySubscriptions (71), from 0 (KIP-714)
    PushTelemetry (72), from 0 (KIP-714)
"""

from __future__ import annotations

import asyncio
import logging

from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.client_metrics import ACCEPTED_COMPRESSIONS, SERIES_PER_CLIENT_MAX, is_reserved
from tidemill.broker.requests.context import Broker
from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol.api.telemetry import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
    PushTelemetryRequest,
    PushTelemetryResponse,
)
from tidemill.protocol.compression import decompress
from tidemill.protocol.otlp import Point, read_points
from tidemill.protocol.schema import NO_UUID

logger = logging.getLogger(__name__)


@serves(GetTelemetrySubscriptionsRequest)
def get_telemetry_subscriptions(
    broker: Broker, call: Call, request: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    metrics = broker.client_metrics
    instance_id = request.client_instance_id
    if instance_id == NO_UUID:
        instance_id = broker.new_uuid()
    client = metrics.instance(instance_id, metrics.facts_of(call.connection, call.client_id, instance_id))
    metrics.check_get(client)
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=client.subscription_id,
        accepted_compression_types=[int(each) for each in ACCEPTED_COMPRESSIONS],
        push_interval_ms=client.interval_ms,
        telemetry_max_bytes=metrics.max_bytes,
        delta_temporality=True,
        requested_metrics=list(client.metrics),
    )


@serves(PushTelemetryRequest)
async def push_telemetry(broker: Broker, call: Call, request: PushTelemetryRequest) -> PushTelemetryResponse:
    metrics, instance_id, data = broker.client_metrics, request.client_instance_id, bytes(request.metrics)
    if is_reserved(instance_id):
        return PushTelemetryResponse(error_code=ErrorCode.INVALID_REQUEST)
    client = metrics.instance(instance_id, metrics.facts_of(call.connection, call.client_id, instance_id))
    codec = request.compression_type
    metrics.check_push(client, request.subscription_id, request.terminating, codec, len(data))
    if data:
        try:
            async with metrics.expanding(client, len(data)):
                points = await asyncio.to_thread(_read, codec, data, metrics.expanded_bytes_max)
        except ProtocolError as error:
            logger.info("telemetry of %s cannot be read: %s", call.connection.peer, error)
            client.last_error = ErrorCode.INVALID_RECORD
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
        metrics.keep(client, points)
    return PushTelemetryResponse()


def _read(codec: int, data: bytes, limit: int) -> list[Point]:
    return read_points(decompress(codec, data, limit), SERIES_PER_CLIENT_MAX)
