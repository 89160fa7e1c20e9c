"""One broker with 4,000 partitions: creating them, writing to all of them, doing nothing, starting again."""

from __future__ import annotations

import time
from pathlib import Path

from bench.brokers import Target
from bench.cases import FreshCase, Scale
from bench.connection import await_topics, create_topics
from bench.load import measure
from bench.processes import Meter, Metrics, rss_mb
from bench.raw_loads import SmallRequests

TOPICS = tuple(f"wide-{number}" for number in range(40))
PARTITIONS_PER_TOPIC = 100
REQUESTS = 10 * len(TOPICS)
VALUE_BYTES = 100
SETTLE_S = 2.0


def cases(scale: Scale) -> list[FreshCase]:
    def run(target: Target, data_dir: Path) -> Metrics:
        return _partitions(target, data_dir, scale.idle_s)

    return [FreshCase("partitions", f"{len(TOPICS) * PARTITIONS_PER_TOPIC:,} partitions", run)]


def _partitions(target: Target, data_dir: Path, idle_s: float) -> Metrics:
    one_broker = target.start(data_dir)
    with one_broker as broker:
        started_s = time.monotonic()
        create_topics(broker.bootstrap, TOPICS, PARTITIONS_PER_TOPIC)
        metrics = {"create_s": time.monotonic() - started_s}
        written = measure(
            SmallRequests(
                broker.bootstrap,
                broker.pids,
                topics=TOPICS,
                requests=REQUESTS,
                partitions=PARTITIONS_PER_TOPIC,
                value_bytes=VALUE_BYTES,
                in_flight_max=5,
            )
        )
        metrics["broker_us_per_record"] = written["broker_us_per_record"]
        time.sleep(SETTLE_S)
        with Meter(broker.pids) as meter:
            time.sleep(idle_s)
        metrics["idle_cpu_percent"] = meter.broker_cpu_s / meter.wall_s * 100
        metrics["rss_mb"] = rss_mb(broker.pid)
    with one_broker as broker:
        started_s = time.monotonic()
        await_topics(broker.bootstrap, TOPICS, PARTITIONS_PER_TOPIC)
        metrics["restart_s"] = broker.started_seconds + time.monotonic() - started_s
    return metrics
