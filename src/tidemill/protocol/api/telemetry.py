"""Client metrics that clients push to the broker (KIP-714)."""

from __future__ import annotations

from tidemill.protocol.schema import (
    NO_UUID,
    Bool,
    Bytes,
    Int8,
    Int16,
    Int32,
    Request,
    Response,
    String,
    Uuid,
    field,
)


class GetTelemetrySubscriptionsRequest(Request, api_key=71, versions=(0, 0), flexible=0):
    client_instance_id: Uuid = NO_UUID


class GetTelemetrySubscriptionsResponse(Response, api_key=71, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    client_instance_id: Uuid = NO_UUID
    subscription_id: Int32 = 0
    accepted_compression_types: list[Int8] = field(default_factory=list)
    push_interval_ms: Int32 = 0
    telemetry_max_bytes: Int32 = 0
    delta_temporality: Bool = False
    requested_metrics: list[String] = field(default_factory=list)


class PushTelemetryRequest(Request, api_key=72, versions=(0, 0), flexible=0):
    client_instance_id: Uuid = NO_UUID
    subscription_id: Int32 = 0
    terminating: Bool = False
    compression_type: Int8 = 0
    metrics: Bytes = b""


class PushTelemetryResponse(Response, api_key=72, versions=(0, 0), flexible=0):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
