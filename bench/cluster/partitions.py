"""Three brokers with 2,000 partitions of three replicas: create, idle, start cold, lose a broker, restart one by one."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from pathlib import Path

from bench.cases import FreshCase, Scale
from bench.cluster.metadata import (
    PartitionState,
    await_partitions,
    create_replicated,
    describe,
    is_fully_in_sync,
    is_led,
)
from bench.cluster.nodes import Cluster, ClusterTarget, with_cluster_target
from bench.processes import Meter, Metrics, rss_mb

PARTITIONS_PER_TOPIC = 100
TOPICS, QUICK_TOPICS = 20, 3
IDLE_S, QUICK_IDLE_S = 30.0, 10.0
SETTLE_S = 5.0


def cases(scale: Scale) -> list[FreshCase]:
    topics = QUICK_TOPICS if scale.is_quick else TOPICS
    names = tuple(f"wide-{number}" for number in range(topics))
    idle_s = QUICK_IDLE_S if scale.is_quick else IDLE_S
    return [
        FreshCase(
            "cluster-partitions",
            f"{topics * PARTITIONS_PER_TOPIC:,} partitions, 3 replicas each",
            with_cluster_target(partial(_partitions, names, idle_s)),
        )
    ]


def _partitions(topics: tuple[str, ...], idle_s: float, target: ClusterTarget, data_dir: Path) -> Metrics:
    cluster = target.start_with(data_dir, {})
    wide = _Wide(cluster, topics)
    with cluster:
        started_s = time.monotonic()
        create_replicated([node.address for node in cluster.nodes], topics, PARTITIONS_PER_TOPIC)
        metrics = {"create_s": time.monotonic() - started_s}
        time.sleep(SETTLE_S)
        with Meter(cluster.pids) as meter:
            time.sleep(idle_s)
        metrics["idle_cpu_percent"] = meter.broker_cpu_s / meter.wall_s * 100
        metrics["rss_mb"] = sum(map(rss_mb, cluster.pids))
    started_s = time.monotonic()
    with cluster:
        wide.await_led()
        metrics["cold_start_s"] = time.monotonic() - started_s
        wide.await_in_sync()
        metrics["failover_s"] = wide.failover_s()
        metrics["rolling_restart_s"] = wide.rolling_restart_s()
    return metrics


class _Wide:
    """The partitions of a cluster, and what becomes of them."""

    def __init__(self, cluster: Cluster, topics: tuple[str, ...]) -> None:
        self._cluster, self._topics = cluster, topics
        self._count = len(topics) * PARTITIONS_PER_TOPIC

    def await_led(self) -> None:
        await_partitions(self._addresses, self._topics, self._count, is_led)

    def await_in_sync(self) -> None:
        await_partitions(self._addresses, self._topics, self._count, is_fully_in_sync)

    def failover_s(self) -> float:
        """From the kill of the broker that leads most until others lead it all; then it is brought back."""
        leaders = Counter(p.leader for p in describe(self._addresses()[0], self._topics).partitions)
        lost = self._cluster.node(leaders.most_common(1)[0][0])

        def is_led_elsewhere(partition: PartitionState) -> bool:
            return is_led(partition) and partition.leader != lost.node_id

        killed_s = time.monotonic()
        self._cluster.kill_node(lost)
        await_partitions(self._addresses, self._topics, self._count, is_led_elsewhere)
        took_s = time.monotonic() - killed_s
        self._bring_back(lost.node_id)
        return took_s

    def rolling_restart_s(self) -> float:
        """Each broker in turn: a clean stop, a start, and all replicas in sync again."""
        started_s = time.monotonic()
        for node in self._cluster.nodes:
            self._cluster.stop_node(node)
            self._bring_back(node.node_id)
        return time.monotonic() - started_s

    def _bring_back(self, node_id: int) -> None:
        node = self._cluster.node(node_id)
        self._cluster.start_node(node)
        self._cluster.await_node(node)
        self.await_in_sync()

    def _addresses(self) -> list[str]:
        return [node.address for node in self._cluster.running]
