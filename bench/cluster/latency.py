"""The latency of an ack of all replicas at a gentle, steady rate, one record a request."""

from __future__ import annotations

from functools import partial

from bench.cases import KB, LiveCase, Scale, size_text
from bench.cluster.metadata import leader_address, replicated_topic
from bench.cluster.nodes import Cluster, on_cluster
from bench.latency_loads import LatencyLoad, LibrdkafkaLatency, RawLatency
from bench.load import measure
from bench.processes import Metrics

# (rate a second, bytes of a message)
LOADS = ((500, 100), (500, KB), (2_000, 100), (2_000, KB))
_QUICK = {(500, 100), (2_000, KB)}


def cases(scale: Scale) -> list[LiveCase]:
    return [
        LiveCase(
            "replicated-latency",
            f"ack, {rate:,} msgs/s of {size_text(value)}, {client}",
            on_cluster(partial(_latency, scale, load_type, rate, value)),
        )
        for rate, value in LOADS
        if not scale.is_quick or (rate, value) in _QUICK
        for client, load_type in (("raw socket", RawLatency), ("librdkafka", LibrdkafkaLatency))
    ]


def _latency(
    scale: Scale, load_type: type[LatencyLoad], rate_per_s: int, value_bytes: int, cluster: Cluster
) -> Metrics:
    addresses = [node.address for node in cluster.nodes]
    with replicated_topic(addresses, 1) as topic:
        return measure(
            load_type(
                # A raw socket has to find the leader; librdkafka does it itself.
                leader_address(addresses[0], topic),
                cluster.pids,
                topic=topic,
                rate_per_s=rate_per_s,
                messages=int(scale.latency_s * rate_per_s),
                warm_up_messages=int(scale.latency_warm_up_s * rate_per_s),
                value_bytes=value_bytes,
                is_end_to_end=False,
                acks=-1,
            )
        )
