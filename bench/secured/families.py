"""The families of a secured broker. Produce, fetch and latency are the same cases as without TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bench import fetch, latency, produce
from bench.brokers import Broker
from bench.cases import KB, Case, LiveCase, Scale, topic
from bench.connection import RequestFailedError
from bench.diff.messages import decode, encode
from bench.endpoints import Endpoint
from bench.load import measure
from bench.processes import Metrics
from bench.secured.loads import Handshakes, ProduceOverQuota

HANDSHAKES_AT_ONCE = (1, 8)
RATES_BYTES_PER_S = (1_000_000, 10_000_000)
# Rates are averages over eleven samples of a second.
WINDOW_S = 11.0
SETTLING_S = 2 * WINDOW_S
COUNTED_S, COUNTED_QUICK_S = 3 * WINDOW_S, WINDOW_S


def _over_tls(cases: Callable[[Scale], Sequence[LiveCase]]) -> Callable[[Scale], Sequence[Case]]:
    return lambda scale: [replace(case, family=f"tls-{case.family}") for case in cases(scale)]


def _handshake_cases(scale: Scale) -> list[LiveCase]:
    count = 500 if scale.is_quick else 3_000
    return [
        LiveCase("handshakes", f"{at_once} at once", partial(_handshakes, count, at_once))
        for at_once in HANDSHAKES_AT_ONCE
    ]


def _handshakes(count: int, at_once: int, broker: Broker) -> Metrics:
    return measure(Handshakes(broker.bootstrap, broker.pids, connections=count, at_once=at_once))


def _quota_cases(scale: Scale) -> list[LiveCase]:
    counted_s = COUNTED_QUICK_S if scale.is_quick else COUNTED_S
    return [
        LiveCase("quotas", f"produce at {rate / 1e6:.0f} MB/s", partial(_quota, rate, counted_s))
        for rate in RATES_BYTES_PER_S
    ]


def _quota(rate_bytes_per_s: int, counted_s: float, broker: Broker) -> Metrics:
    set_quota(broker.bootstrap, rate_bytes_per_s)
    try:
        with topic(broker) as name:
            return measure(
                ProduceOverQuota(
                    broker.bootstrap,
                    broker.pids,
                    topic=name,
                    rate_bytes_per_s=rate_bytes_per_s,
                    batch_bytes=64 * KB,
                    settling_s=SETTLING_S,
                    counted_s=counted_s,
                )
            )
    finally:
        set_quota(broker.bootstrap, None)


def set_quota(bootstrap: str, rate_bytes_per_s: int | None) -> None:
    """The default of all users; None takes it away."""
    value = {
        "key": "producer_byte_rate",
        "value": float(rate_bytes_per_s or 0),
        "remove": rate_bytes_per_s is None,
    }
    entry = {"entity": [{"entity_type": "user", "entity_name": None}], "ops": [value]}
    request = {"entries": [entry], "validate_only": False}
    connected = Endpoint.parse(bootstrap).connect(30.0)
    with connected:
        body = encode("alter_client_quotas", 1, request, 1, "bench")
        connected.sendall(len(body).to_bytes(4) + body)
        size = int.from_bytes(_exactly(connected, 4))
        answer = decode("alter_client_quotas", 1, _exactly(connected, size))
    if answer["entries"][0]["error_code"] != "NONE(0)":
        raise RequestFailedError(f"AlterClientQuotas: {answer}")


def _exactly(connected: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connected.recv(count - len(data))
        if not chunk:
            raise ConnectionError("the broker closed the connection")
        data += chunk
    return data


SECURED_FAMILIES: dict[str, Callable[[Scale], Sequence[Case]]] = {
    "tls-produce": _over_tls(produce.cases),
    "tls-fetch": _over_tls(fetch.cases),
    "tls-latency": _over_tls(latency.cases),
    "handshakes": _handshake_cases,
    "quotas": _quota_cases,
}
