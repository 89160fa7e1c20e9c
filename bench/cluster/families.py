"""The families that need a cluster, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.cases import Case, Scale
from bench.cluster import failover, latency, partitions, produce, transactions

CLUSTER_FAMILIES: dict[str, Callable[[Scale], Sequence[Case]]] = {
    "replicated-produce": produce.cases,
    "replicated-latency": latency.cases,
    "replicated-transactions": transactions.cases,
    "failover": failover.cases,
    "cluster-partitions": partitions.cases,
}
