"""Latency at a steady rate: of the ack, and end to end from producer to consumer."""

from __future__ import annotations

from functools import partial

from bench.brokers import Broker
from bench.cases import KB, LiveCase, Scale, topic
from bench.latency_loads import LatencyLoad, LibrdkafkaLatency, RawLatency
from bench.load import measure
from bench.processes import Metrics

RATES_PER_S = (5_000, 20_000)
VALUE_BYTES = KB


def cases(scale: Scale) -> list[LiveCase]:
    return [
        LiveCase(
            "latency",
            f"{what}, {rate:,} msgs/s, {client}",
            partial(_latency, scale, load_type, rate, what == "end to end"),
        )
        for what in ("ack", "end to end")
        for rate in RATES_PER_S
        for client, load_type in (("raw socket", RawLatency), ("librdkafka", LibrdkafkaLatency))
    ]


def _latency(
    scale: Scale, load_type: type[LatencyLoad], rate_per_s: int, is_end_to_end: bool, broker: Broker
) -> Metrics:
    with topic(broker) as name:
        return measure(
            load_type(
                broker.bootstrap,
                broker.pids,
                topic=name,
                rate_per_s=rate_per_s,
                messages=int(scale.latency_s * rate_per_s),
                warm_up_messages=int(scale.latency_warm_up_s * rate_per_s),
                value_bytes=VALUE_BYTES,
                is_end_to_end=is_end_to_end,
            )
        )
