"""Replicated produce: acks=all, three replicas, two of them in sync at least; throughput, acks and CPU of all brokers."""

from __future__ import annotations

from functools import partial

from bench import frames
from bench.brokers import Broker
from bench.cases import KB, MB, LiveCase, Scale, size_text
from bench.cluster.loads import CannedReplicatedProduce, ReplicatedProduce
from bench.cluster.metadata import leader_address, log_end_offset_sum, replicated_topic
from bench.cluster.nodes import Cluster, on_cluster
from bench.connection import RequestFailedError
from bench.load import measure
from bench.processes import Metrics

PARTITIONS = 3
FAMILY = "replicated-produce"
# A replicated byte costs each of three brokers about as much as one broker alone.
SHARE = 2


def cases(scale: Scale) -> list[LiveCase]:
    payload_bytes = scale.throughput_bytes // SHARE
    librdkafka = [
        LiveCase(
            FAMILY,
            f"{size_text(value)} messages, librdkafka, {PARTITIONS} partitions",
            on_cluster(partial(_librdkafka, payload // value, value)),
            written_bytes=3 * payload,
        )
        for value, payload in ((KB, payload_bytes), (100, payload_bytes // 4))
    ]
    canned = [
        LiveCase(
            FAMILY,
            f"canned frames of {size_text(batch)}, 5 in flight",
            on_cluster(partial(_canned, payload_bytes, batch)),
            written_bytes=3 * payload_bytes,
        )
        for batch in (16 * KB, 64 * KB, MB)
    ]
    return librdkafka + canned


def warm_up(broker: Broker) -> None:
    """Both kinds of client, so that caches fill and a JIT works, on every broker."""
    on_cluster(partial(_librdkafka, 64 * MB // KB, KB))(broker)
    on_cluster(partial(_canned, 64 * MB, 64 * KB))(broker)


def _librdkafka(messages: int, value_bytes: int, cluster: Cluster) -> Metrics:
    addresses = [node.address for node in cluster.nodes]
    with replicated_topic(addresses, PARTITIONS) as topic:
        metrics = measure(
            ReplicatedProduce(
                cluster.bootstrap,
                cluster.pids,
                topic=topic,
                partitions=PARTITIONS,
                messages=messages,
                value_bytes=value_bytes,
            )
        )
        _check_log_end(addresses[0], topic, messages)
    return metrics


def _canned(payload_bytes: int, batch_bytes: int, cluster: Cluster) -> Metrics:
    addresses = [node.address for node in cluster.nodes]
    _, count = frames.full_batch(batch_bytes, bytes(KB))
    requests = -(-payload_bytes // (count * KB))
    with replicated_topic(addresses, 1) as topic:
        metrics = measure(
            CannedReplicatedProduce(
                leader_address(addresses[0], topic),
                cluster.pids,
                topic=topic,
                requests=requests,
                value_bytes=KB,
                batch_bytes=batch_bytes,
            )
        )
        _check_log_end(addresses[0], topic, requests * count)
    return metrics


def _check_log_end(address: str, topic: str, messages: int) -> None:
    end_offset = log_end_offset_sum(address, topic)
    if end_offset != messages:
        raise RequestFailedError(f"{messages} messages sent, {end_offset} in the log")
