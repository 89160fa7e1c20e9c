"""As `bench/transactions.py`, on three brokers: three partitions with three replicas each, led by all of them."""

from __future__ import annotations

from functools import partial

from bench.cases import KB, LiveCase, Scale
from bench.cluster.metadata import replicated_topic
from bench.cluster.nodes import Cluster, on_cluster
from bench.load import measure
from bench.processes import Metrics
from bench.transaction_loads import SingleRecords, Stream
from bench.transactions import (
    COMMIT_EVERY_MS,
    REQUESTS_PER_TRANSACTION,
    check_log_end,
    share,
    stream_name,
    transactional_id,
)

PARTITIONS = 3
FAMILY = "replicated-transactions"
# A replicated byte costs each of three brokers about as much as one broker alone.
SHARE = 2


def cases(scale: Scale) -> list[LiveCase]:
    payload_bytes = scale.throughput_bytes // SHARE
    streams = [
        LiveCase(
            FAMILY,
            f"{stream_name(value)}, {PARTITIONS} partitions",
            on_cluster(partial(_share, payload // value, value)),
            written_bytes=9 * payload,
        )
        for value, payload in ((KB, payload_bytes), (100, payload_bytes // 4))
    ]
    singles = LiveCase(
        FAMILY,
        "begin, one record, commit",
        on_cluster(partial(_singles, scale.small_requests // REQUESTS_PER_TRANSACTION)),
    )
    return [*streams, singles]


def _share(messages: int, value_bytes: int, cluster: Cluster) -> Metrics:
    addresses = [node.address for node in cluster.nodes]

    def stream(transactional_id: str | None) -> Metrics:
        with replicated_topic(addresses, PARTITIONS) as name:
            metrics = measure(
                Stream(
                    cluster.bootstrap,
                    cluster.pids,
                    topic=name,
                    partitions=PARTITIONS,
                    messages=messages,
                    value_bytes=value_bytes,
                    transactional_id=transactional_id,
                    commit_every_ms=COMMIT_EVERY_MS,
                )
            )
            check_log_end(addresses[0], name, messages + int(metrics.get("markers", 0)))
        return metrics

    return share(stream)


def _singles(transactions: int, cluster: Cluster) -> Metrics:
    addresses = [node.address for node in cluster.nodes]
    with replicated_topic(addresses, 1) as name:
        metrics = measure(
            SingleRecords(
                cluster.bootstrap,
                cluster.pids,
                topic=name,
                transactions=transactions,
                value_bytes=100,
                transactional_id=transactional_id(),
            )
        )
        check_log_end(addresses[0], name, 2 * transactions)
    return metrics
