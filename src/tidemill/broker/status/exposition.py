"""A node's metrics page, in Prometheus' text format: what it counted, and what it is at this moment.

The names are in `metrics/names.py`. What grows with the cluster is written by `rows.py` in turns with the event loop.
The rest, a few hundred lines, is taken from the loop at once (`Snapshot`). `prometheus_client` writes its text in a
thread, which also reads how full the disk is and what the process uses.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter, thread_time

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from tidemill import __version__
from tidemill.broker.metrics import names
from tidemill.broker.metrics.registry import LATENCY_BOUNDS_S, Histogram, Recent, quantile
from tidemill.broker.requests.context import Broker
from tidemill.broker.status.rows import Totals, client_rows, write_rows
from tidemill.protocol import api as apis

_RUNNING, _STOPPING = 3, 6
_NO_LEADER = -1


@dataclass(slots=True)
class Snapshot:
    """The figures whose number does not grow with the cluster, at one moment."""

    node_id: int
    cluster_id: str
    data_dir: str
    broker_state: int
    is_active_controller: bool
    active_brokers: int
    fenced_brokers: int
    topic_count: int
    quorum_leader: int
    quorum_epoch: int
    quorum_high_watermark: int
    quorum_end_offset: int
    quorum_state: str
    share_sessions: int
    share_session_partitions: int
    isr_shrinks: int
    isr_expands: int
    loop_cpu_s: float
    idle_share: float
    brokers: list[tuple[str, str]]
    requests: list[tuple[str, Histogram]]
    recent: list[tuple[str, Histogram]]
    loop_lag: Histogram
    delay_lateness: Histogram


async def page(broker: Broker, recent: Recent, *, is_ready: bool) -> list[bytes]:
    """In parts, none of which is long enough to hold up the loop when it is sent."""
    taken = snapshot(broker, recent, is_ready=is_ready)
    totals = Totals()
    rows = await write_rows(broker, totals)
    clients = await asyncio.to_thread(client_rows, broker.client_metrics.rows())
    return [await asyncio.to_thread(render, taken, totals), *rows, clients]


def snapshot(broker: Broker, recent: Recent, *, is_ready: bool) -> Snapshot:
    """Runs in the thread of the event loop."""
    image, metrics, quorum = broker.image, broker.metrics, broker.quorum
    active = [each for each in image.brokers.values() if not each.is_fenced]
    machine = quorum.machine
    loop_cpu_s = thread_time()
    return Snapshot(
        node_id=broker.config.node_id,
        cluster_id=image.cluster_id,
        data_dir=broker.data_dir.path,
        broker_state=_RUNNING if is_ready else _STOPPING,
        is_active_controller=quorum.is_active,
        active_brokers=len(active),
        fenced_brokers=len(image.brokers) - len(active),
        topic_count=len(image.topics_by_name),
        quorum_leader=_NO_LEADER if quorum.leader_id is None else quorum.leader_id,
        quorum_epoch=quorum.epoch,
        quorum_high_watermark=quorum.high_watermark,
        quorum_end_offset=quorum.log_end_offset,
        quorum_state="unattached" if machine is None else type(machine.role).__name__.lower(),
        share_sessions=len(broker.share.sessions),
        share_session_partitions=broker.share.sessions.partition_count,
        isr_shrinks=metrics.isr_shrinks,
        isr_expands=metrics.isr_expands,
        loop_cpu_s=loop_cpu_s,
        idle_share=recent.idle_share(perf_counter(), loop_cpu_s),
        brokers=[
            (str(each.id), f"{endpoint.host}:{endpoint.port}")
            for each in active
            for endpoint in list(each.endpoints.values())[:1]
        ],
        requests=_named(metrics.requests),
        recent=_named(recent.requests()),
        loop_lag=metrics.loop_lag.copy(),
        delay_lateness=metrics.delay_lateness.copy(),
    )


def _named(histograms: dict[int, Histogram]) -> list[tuple[str, Histogram]]:
    return [(apis.API_NAMES[key], each.copy()) for key, each in histograms.items() if any(each.counts)]


def render(taken: Snapshot, totals: Totals) -> bytes:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Page(taken, totals))
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _Page(Collector):
    def __init__(self, taken: Snapshot, totals: Totals) -> None:
        self._taken = taken
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        taken = self._taken
        yield _gauge(
            names.INFO, names.INFO_LABELS, [((__version__, str(taken.node_id), taken.cluster_id), 1)]
        )
        yield from self._node()
        yield _gauge(names.RAFT_STATE, names.RAFT_STATE_LABELS, [((taken.quorum_state,), 1)])
        yield _gauge(names.BROKER_INFO, names.BROKER_INFO_LABELS, [(each, 1) for each in taken.brokers])
        states = [((state,), count) for state, count in sorted(self._totals.group_states.items())]
        yield _gauge(names.GROUP_STATES, names.GROUP_STATES_LABELS, states)
        types = [((type_,), count) for type_, count in sorted(self._totals.group_types.items())]
        yield _gauge(names.GROUP_TYPES, names.GROUP_TYPES_LABELS, types)
        for each in names.NODE_COUNTERS:
            yield CounterMetricFamily(each.name, each.help, value=getattr(taken, each.source))
        yield from self._requests()
        yield _histogram(names.LOOP_LAG, (), [((), taken.loop_lag)])
        yield _histogram(names.DELAY_LATENESS, (), [((), taken.delay_lateness)])

    def _node(self) -> Iterator[Metric]:
        disk = os.statvfs(self._taken.data_dir)
        measured = {
            "disk_size_bytes": disk.f_frsize * disk.f_blocks,
            "disk_free_bytes": disk.f_frsize * disk.f_bavail,
            "group_count": sum(self._totals.group_states.values()),
        }
        for each in names.NODE_GAUGES:
            if each.source in measured:
                value = measured[each.source]
            elif hasattr(self._totals, each.source):
                value = getattr(self._totals, each.source)
            else:
                value = getattr(self._taken, each.source)
            yield GaugeMetricFamily(each.name, each.help, value=float(value))

    def _requests(self) -> Iterator[Metric]:
        counter = CounterMetricFamily(names.REQUESTS.name, names.REQUESTS.help, labels=names.REQUEST_LABELS)
        for name, histogram in self._taken.requests:
            counter.add_metric((name,), histogram.count)
        yield counter
        quantiles = [
            ((name, share), quantile(histogram, float(share)) * 1000)
            for name, histogram in self._taken.recent
            for share in names.QUANTILES
        ]
        yield _gauge(names.REQUEST_QUANTILES_MS, names.REQUEST_QUANTILES_LABELS, quantiles)
        rows = [((name,), histogram) for name, histogram in self._taken.requests]
        yield _histogram(names.REQUEST_SECONDS, names.REQUEST_LABELS, rows)


def _gauge(
    metric: names.MetricName, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram(
    metric: names.MetricName, labels: tuple[str, ...], rows: Iterable[tuple[tuple[str, ...], Histogram]]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(metric.name, metric.help, labels=labels)
    bounds = [*(f"{bound:g}" for bound in LATENCY_BOUNDS_S), "+Inf"]
    for values, histogram in rows:
        buckets, below = [], 0
        for bound, count in zip(bounds, histogram.counts, strict=True):
            below += count
            buckets.append((bound, below))
        family.add_metric(values, buckets=buckets, sum_value=histogram.sum_s)
    return family
