"""Runs `tidemill demo` on a broker: an order stream, two pipelines over it, and what both left behind.

The stream is the same for the same seed, up to its beginning: orders arrive in waves, most are paid within a minute, shipped
within some, a few refunded. Each event is a JSON record with the order's id as its key, so that the events of an order stay
in their order. Nothing here starts processes, prints or chooses directories: the command does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tidemill.client.admin.groups import GroupAdmin, PartitionLag
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.consumer import Consumer
from tidemill.client.producing.producer import Producer
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.spark import pipelines
from tidemill.spark.pipelines import Progress, Summary
from tidemill.spark.pipelines.connecting import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = "orders"
STATISTICS = "order-statistics"
GROUP = "demo-statistics"
STATUSES = ("created", "paid", "shipped", "refunded")
PARTITION_COUNT = 4
WINDOW_MINUTES = 5
STREAM_MINUTES = 40

_COUNTRIES = {"DE": 24, "FR": 18, "GB": 16, "NL": 9, "ES": 9, "IT": 8, "PL": 7, "SE": 5, "AT": 4}
# From one status to the next: how many get there, and after how many seconds on average.
_STEPS = {"paid": (0.93, 45.0), "shipped": (0.97, 240.0), "refunded": (0.05, 420.0)}
_WAVE_MINUTES = 20


class Event(NamedTuple):
    timestamp_ms: int
    order_id: str
    value: Mapping[str, object]


def order_stream(orders: int, *, start_ms: int, seed: int) -> list[Event]:
    """The events of so many orders by time, cut off at the end of the stream: the last orders are still under way."""
    chance = random.Random(seed)
    end_ms = start_ms + STREAM_MINUTES * 60_000
    events = [
        event
        for number in range(orders)
        for event in _order(chance, number, start_ms)
        if event.timestamp_ms < end_ms
    ]
    return sorted(events)


def _order(chance: random.Random, number: int, start_ms: int) -> Iterator[Event]:
    minute = _arrival_minute(chance)
    order_id = f"order-{number:06d}"
    order = {
        "order_id": order_id,
        "customer": f"customer-{int(chance.paretovariate(1.2)) % 5000:04d}",
        "country": chance.choices(list(_COUNTRIES), list(_COUNTRIES.values()))[0],
        "amount": round(chance.lognormvariate(3.6, 0.8), 2),
    }
    timestamp_ms = start_ms + int(minute * 60_000)
    yield Event(timestamp_ms, order_id, order | {"status": "created"})
    for status, (share, delay_s) in _STEPS.items():
        if chance.random() >= share:
            return
        timestamp_ms += int(chance.expovariate(1 / delay_s) * 1000) + 1
        yield Event(timestamp_ms, order_id, order | {"status": status})


def _arrival_minute(chance: random.Random) -> float:
    """By rejection: the rate rises and falls between one third and all of its maximum."""
    while True:
        minute = chance.uniform(0, STREAM_MINUTES)
        if chance.random() < 2 / 3 + math.sin(2 * math.pi * minute / _WAVE_MINUTES) / 3:
            return minute


def produce(cluster: Cluster, events: list[Event]) -> None:
    Admin(cluster).create_topic(ORDERS, partition_count=PARTITION_COUNT)
    producer = Producer(cluster)
    for event in events:
        value = json.dumps(event.value, separators=(",", ":")).encode()
        producer.add(ORDERS, value, key=event.order_id.encode(), timestamp_ms=event.timestamp_ms)
    producer.flush()


def aggregate(spark: SparkSession, bootstrap: str, home: Path, report: Progress) -> Summary:
    words = [
        "--from-topic",
        ORDERS,
        "--to-topic",
        STATISTICS,
        "--window",
        f"{WINDOW_MINUTES}m",
        "--watermark",
        "30s",
    ]
    words += ["--by", "status", "--sum", "amount", "--group", GROUP, "--checkpoint", str(home / "checkpoint")]
    return _run("aggregate", spark, words, bootstrap, report)


def archive(spark: SparkSession, bootstrap: str, home: Path, report: Progress) -> Summary:
    return _run("archive", spark, ["--topic", ORDERS, "--archive", str(home / "archive")], bootstrap, report)


def _run(name: str, spark: SparkSession, words: list[str], bootstrap: str, report: Progress) -> Summary:
    pipeline = pipelines.load(name)
    options: argparse.Namespace = options_of(pipeline, words, bootstrap=bootstrap)
    return pipeline.run(spark, options, report)


# --- what is there afterwards ---


class Window(NamedTuple):
    start: str
    counts: Mapping[str, int]
    paid_amount: float


def windows(cluster: Cluster) -> list[Window]:
    """Returns the statistics that a consumer with read_committed reads, by window."""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    for value in _committed_values(cluster, STATISTICS):
        result = json.loads(value)
        found.setdefault(result["window_start"], {})[result["status"]] = result
    return [
        Window(
            start,
            {status: int(result["count"]) for status, result in by_status.items()},
            float(by_status.get("paid", {}).get("amount_sum", 0.0)),
        )
        for start, by_status in sorted(found.items())
    ]


def _committed_values(cluster: Cluster, topic: str) -> Iterator[bytes]:
    ends = Admin(cluster).end_offsets(cluster.partitions_of(topic))
    consumer = Consumer(cluster, dict.fromkeys(ends, 0), isolation_level=READ_COMMITTED)
    while consumer.positions:
        for consumed in consumer.poll():
            if consumed.record.value is not None:
                yield bytes(consumed.record.value)
        for partition, position in list(consumer.positions.items()):
            if position >= ends[partition]:
                del consumer.positions[partition]


def lags(cluster: Cluster) -> list[PartitionLag]:
    admin = GroupAdmin(cluster)
    return admin.lags(admin.describe(GROUP))


def archive_files(home: Path) -> list[tuple[str, int]]:
    """The Parquet files, by path below the archive, with their sizes."""
    root = home / "archive"
    return [(str(path.relative_to(root)), path.stat().st_size) for path in sorted(root.rglob("*.parquet"))]
