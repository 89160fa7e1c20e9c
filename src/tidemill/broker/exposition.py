"""A node's counts and gauges under the names that public Kafka dashboards expect, in Prometheus' text format.

Three families of names, as those dashboards know them: `kafka_server_*`, `kafka_network_*` and `kafka_controller_*` are what
the JMX exporter makes of a Kafka broker's beans, `kafka_topic_*` and `kafka_consumergroup_*` are those of the widespread
exporter of offsets and lag, and what no Kafka has begins with `tidemill_`. The tables below are the whole list; the
reference in the docs is made from them.

`snapshot` runs in the node's loop and takes turns with it, because a node may have thousands of partitions; `render` is
slow and runs in a thread, on what the snapshot holds and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from tidemill import __version__
from tidemill.broker.context import Broker
from tidemill.broker.lag import PartitionLag, lags
from tidemill.broker.metrics import LATENCY_BOUNDS_S
from tidemill.broker.partition import Partition
from tidemill.protocol import api as apis
from tidemill.types import NO_BROKER

# Partitions looked at in one turn of the loop: about a millisecond.
_TURN_PARTITIONS = 200


class MetricName(NamedTuple):
    name: str
    # The attribute of the counts or of the snapshot that it shows.
    source: str
    help: str


TOPIC_COUNTERS = (
    MetricName("kafka_server_brokertopicmetrics_messagesin", "messages_in", "Records that producers wrote."),
    MetricName("kafka_server_brokertopicmetrics_bytesin", "bytes_in", "Bytes that producers wrote."),
    MetricName("kafka_server_brokertopicmetrics_bytesout", "bytes_out", "Bytes that consumers read."),
    MetricName(
        "kafka_server_brokertopicmetrics_totalproducerequests",
        "produce_requests",
        "Writes to a partition, a request counting once for each.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_failedproducerequests",
        "failed_produce_requests",
        "Writes to a partition that were refused or failed.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_totalfetchrequests",
        "fetch_requests",
        "Reads of a partition by consumers, a request counting once for each.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_failedfetchrequests",
        "failed_fetch_requests",
        "Reads of a partition by consumers that failed.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_replicationbytesin",
        "replication_bytes_in",
        "Bytes that replicas here copied from their leaders.",
    ),
    MetricName(
        "kafka_server_brokertopicmetrics_replicationbytesout",
        "replication_bytes_out",
        "Bytes that replicas elsewhere copied from leaders here.",
    ),
)

NODE_GAUGES = (
    MetricName(
        "kafka_server_replicamanager_partitioncount", "partition_count", "Replicas that this broker hosts."
    ),
    MetricName(
        "kafka_server_replicamanager_leadercount", "leader_count", "Partitions that this broker leads."
    ),
    MetricName(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "under_replicated",
        "Partitions led here with a replica out of sync.",
    ),
    MetricName(
        "kafka_server_replicamanager_underminisrpartitioncount",
        "under_min_isr",
        "Partitions led here with fewer replicas in sync than min.insync.replicas.",
    ),
    MetricName(
        "kafka_server_replicamanager_offlinereplicacount",
        "offline_replicas",
        "Replicas here whose log cannot be used.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "is_active_controller",
        "1 on the node that is the active controller.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_activebrokercount",
        "active_brokers",
        "Brokers of the cluster that are up, as this node knows.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_fencedbrokercount",
        "fenced_brokers",
        "Registered brokers of the cluster that are not up.",
    ),
    MetricName("kafka_controller_kafkacontroller_globaltopiccount", "topic_count", "Topics of the cluster."),
    MetricName(
        "kafka_controller_kafkacontroller_globalpartitioncount",
        "global_partition_count",
        "Partitions of the cluster.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "offline_partitions",
        "Partitions of the cluster without a leader.",
    ),
    MetricName(
        "kafka_controller_kafkacontroller_preferredreplicaimbalancecount",
        "not_preferred",
        "Partitions of the cluster that are not led by their preferred replica.",
    ),
    MetricName("kafka_brokers", "active_brokers", "Brokers of the cluster that are up."),
)

NODE_COUNTERS = (
    MetricName("kafka_server_replicamanager_isrshrinks", "isr_shrinks", "Times that a replica fell behind."),
    MetricName(
        "kafka_server_replicamanager_isrexpands", "isr_expands", "Times that a replica came back in sync."
    ),
)

PARTITION_GAUGES = (
    MetricName("kafka_topic_partition_current_offset", "end_offset", "The offset that comes next."),
    MetricName("kafka_topic_partition_oldest_offset", "start_offset", "The oldest offset that is kept."),
    MetricName("kafka_topic_partition_leader", "leader", "Id of the leading broker, -1 without one."),
    MetricName(
        "kafka_topic_partition_leader_is_preferred", "is_preferred", "1 when the first replica leads."
    ),
    MetricName("kafka_topic_partition_replicas", "replicas", "Replicas of the partition."),
    MetricName("kafka_topic_partition_in_sync_replica", "in_sync", "Replicas that are in sync."),
    MetricName(
        "kafka_topic_partition_under_replicated_partition",
        "is_under_replicated",
        "1 when a replica is out of sync.",
    ),
    MetricName("kafka_log_log_size", "size_bytes", "Bytes of the log on this broker's disk."),
)

GROUP_GAUGES = (
    MetricName(
        "kafka_consumergroup_current_offset", "committed_offset", "The offset that a group committed."
    ),
    MetricName("kafka_consumergroup_lag", "lag", "Records that a group has not come to yet."),
)

REQUESTS = MetricName("kafka_network_requestmetrics_requests", "requests", "Requests that were answered.")
REQUEST_SECONDS = MetricName(
    "tidemill_request_duration_seconds",
    "requests",
    "From the arrival of a request to its answer; a fetch includes the time that it waits for data.",
)
LOOP_LAG = MetricName(
    "tidemill_event_loop_lag_seconds", "loop_lag", "How late the event loop comes to what is due."
)
INFO = MetricName("tidemill_info", "", "Always 1; says which version and node this is.")


class PartitionRow(NamedTuple):
    topic: str
    partition: int
    end_offset: int
    start_offset: int
    leader: int
    is_preferred: bool
    replicas: int
    in_sync: int
    is_under_replicated: bool
    size_bytes: int


@dataclass(slots=True)
class Snapshot:
    """Everything that a page of metrics shows, as it was."""

    node_id: int
    cluster_id: str
    is_active_controller: bool
    active_brokers: int
    fenced_brokers: int
    topic_count: int
    isr_shrinks: int
    isr_expands: int
    topics: list[tuple[str, tuple[int, ...]]]
    requests: list[tuple[str, list[int], float]]
    loop_lag: tuple[list[int], float]
    partitions: list[PartitionRow] = field(default_factory=list)
    lags: list[PartitionLag] = field(default_factory=list)
    partition_count: int = 0
    leader_count: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    offline_replicas: int = 0
    global_partition_count: int = 0
    offline_partitions: int = 0
    not_preferred: int = 0


async def snapshot(broker: Broker) -> Snapshot:
    image, metrics = broker.image, broker.metrics
    active = sum(1 for each in image.brokers.values() if not each.is_fenced)
    taken = Snapshot(
        broker.config.node_id,
        image.cluster_id,
        broker.quorum.is_active,
        active,
        len(image.brokers) - active,
        len(image.topics_by_name),
        metrics.isr_shrinks,
        metrics.isr_expands,
        [
            (name, tuple(getattr(counts, each.source) for each in TOPIC_COUNTERS))
            for name, counts in metrics.topics.items()
        ],
        [
            (apis.API_NAMES[key], list(histogram.counts), histogram.sum_s)
            for key, histogram in metrics.requests.items()
            if any(histogram.counts)
        ],
        (list(metrics.loop_lag.counts), metrics.loop_lag.sum_s),
    )
    for number, topic in enumerate(list(image.topics_by_name.values())):
        for state in topic.partitions:
            taken.global_partition_count += 1
            taken.offline_partitions += state.leader == NO_BROKER
            taken.not_preferred += state.leader != state.replicas[0]
        if number % _TURN_PARTITIONS == _TURN_PARTITIONS - 1:
            await asyncio.sleep(0)
    for number, partition in enumerate(list(broker.replicas.partitions())):
        _add_partition(taken, partition)
        if number % _TURN_PARTITIONS == _TURN_PARTITIONS - 1:
            await asyncio.sleep(0)
    taken.lags = list(lags(broker.groups, broker.replicas))
    return taken


def _add_partition(taken: Snapshot, partition: Partition) -> None:
    taken.partition_count += 1
    log, image = partition.log, partition.image
    if log is None:
        taken.offline_replicas += 1
        return
    if not partition.is_leader or image is None:
        return
    taken.leader_count += 1
    is_under = len(image.isr) < len(image.replicas)
    taken.under_replicated += is_under
    taken.under_min_isr += len(image.isr) < partition.config.min_insync_replicas
    taken.partitions.append(
        PartitionRow(
            partition.name.topic,
            partition.index,
            partition.high_watermark,
            log.log_start_offset,
            image.leader,
            image.leader == image.replicas[0],
            len(image.replicas),
            len(image.isr),
            is_under,
            log.size,
        )
    )


def render(taken: Snapshot) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(taken))
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, taken: Snapshot) -> None:
        self._taken = taken

    def collect(self) -> Iterator[Metric]:
        taken = self._taken
        info = GaugeMetricFamily(INFO.name, INFO.help, labels=("version", "node_id", "cluster_id"))
        info.add_metric((__version__, str(taken.node_id), taken.cluster_id), 1)
        yield info
        for each in NODE_GAUGES:
            yield GaugeMetricFamily(each.name, each.help, value=int(getattr(taken, each.source)))
        for each in NODE_COUNTERS:
            yield CounterMetricFamily(each.name, each.help, value=getattr(taken, each.source))
        yield from self._topics()
        yield from self._requests()
        yield _histogram(LOOP_LAG, (), [((), *taken.loop_lag)])
        for each in PARTITION_GAUGES:
            gauge = GaugeMetricFamily(each.name, each.help, labels=("topic", "partition"))
            for row in taken.partitions:
                gauge.add_metric((row.topic, str(row.partition)), int(getattr(row, each.source)))
            yield gauge
        yield from self._groups()

    def _topics(self) -> Iterator[Metric]:
        for index, each in enumerate(TOPIC_COUNTERS):
            counter = CounterMetricFamily(each.name, each.help, labels=("topic",))
            for name, counts in self._taken.topics:
                counter.add_metric((name,), counts[index])
            yield counter

    def _requests(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(REQUESTS.name, REQUESTS.help, labels=("request",))
        for name, counts, _ in self._taken.requests:
            counter.add_metric((name,), sum(counts))
        yield counter
        rows = [((name,), counts, sum_s) for name, counts, sum_s in self._taken.requests]
        yield _histogram(REQUEST_SECONDS, ("request",), rows)

    def _groups(self) -> Iterator[Metric]:
        for each in GROUP_GAUGES:
            gauge = GaugeMetricFamily(each.name, each.help, labels=("consumergroup", "topic", "partition"))
            for row in self._taken.lags:
                value = getattr(row, each.source)
                if value is not None:
                    gauge.add_metric((row.group_id, row.topic, str(row.partition)), value)
            yield gauge


def _histogram(
    metric: MetricName, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], list[int], float]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    bounds = [*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf"]
    for values, counts, sum_s in rows:
        buckets, below = [], 0
        for bound, count in zip(bounds, counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(values, buckets=buckets, sum_value=sum_s)
    return family
