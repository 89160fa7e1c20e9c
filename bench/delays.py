"""Delayed records: how late they become visible, and what millions of pending ones cost a broker.

Latency is from the time a record is due to its arrival at a consumer on the same machine. In one case all records are
produced before, so that only their delivery is measured. In another one they are produced a second before they are due, as
fast as others are delivered. A restart begins when the process starts, and ends when a record that is due
has arrived: then the broker has the state of all pending records.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from crc32c import crc32c

from bench.brokers import Broker, Target
from bench.cases import FreshCase, LiveCase, Scale, topic
from bench.connection import Connection, RequestFailedError, await_topics, create_topics_only
from bench.frames import produce_request, varint
from bench.librdkafka_loads import CONSUMER_SETTINGS
from bench.load import Load, measure
from bench.processes import Meter, Metrics, rss_mb
from bench.raw_loads import send_pipelined
from bench.stats import percentile

RATE_PER_S = 20_000
# In and out at the same time.
SUSTAINED_PER_S = 10_000
SUSTAINED_BATCH_RECORDS = 100
SUSTAINED_DELAY_MS = 1_000
VALUE_BYTES = 100
BATCH_RECORDS = 500
CONFIGS = {"tidemill.delays.enable": "true"}
HEADER = b"tidemill-deliver-at"
# Pending records are due within thirty days.
PENDING_S = 30 * 86_400
PENDING = 5_000_000
PENDING_QUICK = 200_000
# Until the first record is due, all have to be produced.
PRODUCE_PER_S_MIN = 5_000
ARRIVAL_LIMIT_S = 600.0


def cases(scale: Scale) -> list[LiveCase]:
    return [
        LiveCase(
            "delays", f"due to visible, {RATE_PER_S:,} msgs/s", partial(_latency, scale, RATE_PER_S, False)
        ),
        LiveCase(
            "delays",
            f"due to visible while {SUSTAINED_PER_S:,} msgs/s are produced",
            partial(_latency, scale, SUSTAINED_PER_S, True),
        ),
    ]


def pending_cases(scale: Scale) -> list[FreshCase]:
    count = PENDING_QUICK if scale.is_quick else PENDING
    return [FreshCase("delays-pending", f"{count:,} pending, restart", partial(_restart, count))]


def _latency(scale: Scale, rate_per_s: int, is_sustained: bool, broker: Broker) -> Metrics:
    with topic(broker, configs=CONFIGS) as name:
        load = DueToVisible(
            broker.bootstrap,
            broker.pids,
            topic=name,
            messages=int((scale.latency_s + scale.latency_warm_up_s) * rate_per_s),
            warm_up=int(scale.latency_warm_up_s * rate_per_s),
            rate_per_s=rate_per_s,
            is_sustained=is_sustained,
        )
        return measure(load, ARRIVAL_LIMIT_S)


def _restart(count: int, target: Target, data_dir: Path) -> Metrics:
    with target.start(data_dir) as broker:
        empty_mb = rss_mb(broker.pid)
        create_topics_only(broker.bootstrap, ["pending"], 1, CONFIGS)
        await_topics(broker.bootstrap, ["pending"], 1)
        filled = measure(
            FillPending(broker.bootstrap, broker.pids, topic="pending", count=count), ARRIVAL_LIMIT_S
        )
        measure(OneArrival(broker.bootstrap, broker.pids, topic="pending", seen=0), ARRIVAL_LIMIT_S)
        pending_mb = rss_mb(broker.pid)
    started_s = time.monotonic()
    with target.start(data_dir) as broker:
        ready_s = time.monotonic() - started_s
        measure(OneArrival(broker.bootstrap, broker.pids, topic="pending", seen=1), ARRIVAL_LIMIT_S)
        arrived_s = time.monotonic() - started_s
        return {
            "messages_per_s": filled["messages_per_s"],
            "rss_mb": pending_mb,
            "pending_mb": pending_mb - empty_mb,
            "start_s": ready_s,
            "restart_s": arrived_s,
        }


def delayed_batch(due_times_ms: range | list[int]) -> bytes:
    """One batch of records, each with its time of delivery."""
    records = bytearray()
    value = bytes(VALUE_BYTES)
    for delta, due_ms in enumerate(due_times_ms):
        due = b"%d" % due_ms
        header = varint(1) + varint(len(HEADER)) + HEADER + varint(len(due)) + due
        body = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + header
        records += varint(len(body)) + body
    wall_ms, count = time.time_ns() // 1_000_000, len(due_times_ms)
    checked = struct.pack(">hiqqqhii", 0, count - 1, wall_ms, wall_ms, -1, -1, -1, count) + records
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


@dataclass(frozen=True)
class DueToVisible(Load):
    """Produces delayed records, then or meanwhile reads them as they become visible."""

    topic: str
    messages: int
    warm_up: int
    rate_per_s: int
    is_sustained: bool

    def run(self) -> Metrics:
        begin_ms = time.time_ns() // 1_000_000
        if self.is_sustained:
            first_ms = begin_ms + SUSTAINED_DELAY_MS
            with ThreadPoolExecutor(1) as executor, Meter(self.broker_pids) as meter:
                produced = executor.submit(self._produce, self._as_time_passes(first_ms))
                late_ms = self._read(first_ms)
                produced.result()
        else:
            first_ms = begin_ms + 2_000 + self.messages * 1_000 // PRODUCE_PER_S_MIN
            self._produce(self._requests(first_ms, BATCH_RECORDS))
            if time.time_ns() // 1_000_000 > first_ms:
                raise RequestFailedError("the first records were due before the last ones were produced")
            with Meter(self.broker_pids) as meter:
                late_ms = self._read(first_ms)
        if min(late_ms) < 0:
            raise RequestFailedError(f"a record came {-min(late_ms):.1f} ms early")
        measured = sorted(late_ms[self.warm_up :])
        took_s = (time.time_ns() / 1e6 - first_ms) / 1_000
        return {
            "p50_ms": percentile(measured, 50),
            "p99_ms": percentile(measured, 99),
            "p999_ms": percentile(measured, 99.9),
            "achieved_per_s": self.messages / took_s,
            "broker_us_per_message": meter.broker_cpu_s / self.messages * 1e6,
        }

    def _produce(self, requests: Iterator[bytearray]) -> None:
        with Connection(self.bootstrap) as connection:
            send_pipelined(connection, requests, in_flight_max=5)

    def _read(self, first_ms: int) -> list[float]:
        """How late each record came, in milliseconds."""
        consumer = Consumer(
            CONSUMER_SETTINGS | {"bootstrap.servers": self.bootstrap, "fetch.wait.max.ms": 100}
        )
        late_ms: list[float] = []
        try:
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            while len(late_ms) < self.messages:
                found = consumer.consume(num_messages=500, timeout=0.005)
                wall_ms = time.time_ns() / 1e6
                # The timestamp of what is delivered is the time it was due.
                late_ms += (wall_ms - message.timestamp()[1] for message in found)
                if wall_ms > first_ms + 1_000 * ARRIVAL_LIMIT_S:
                    raise RequestFailedError(f"{len(late_ms)} of {self.messages} messages in time")
        finally:
            consumer.close()
        return late_ms

    def _as_time_passes(self, first_ms: int) -> Iterator[bytearray]:
        """Each batch a second before its first record is due."""
        for number, request in enumerate(self._requests(first_ms, SUSTAINED_BATCH_RECORDS)):
            sent_ms = (
                first_ms - SUSTAINED_DELAY_MS + number * SUSTAINED_BATCH_RECORDS * 1_000 / self.rate_per_s
            )
            time.sleep(max(0.0, sent_ms / 1_000 - time.time()))
            yield request

    def _requests(self, first_ms: int, batch_records: int) -> Iterator[bytearray]:
        for first in range(0, self.messages, batch_records):
            numbers = range(first, min(first + batch_records, self.messages))
            due_times_ms = [first_ms + number * 1_000 // self.rate_per_s for number in numbers]
            yield produce_request(self.topic, {0: delayed_batch(due_times_ms)}, acks=1)


@dataclass(frozen=True)
class FillPending(Load):
    """Produces records that wait for days."""

    topic: str
    count: int

    def run(self) -> Metrics:
        with Connection(self.bootstrap) as connection, Meter(self.broker_pids) as meter:
            send_pipelined(connection, self._requests(), in_flight_max=5)
        return meter.throughput(self.count, self.count * VALUE_BYTES)

    def _requests(self) -> Iterator[bytearray]:
        begin_ms = time.time_ns() // 1_000_000 + 86_400_000
        for first in range(0, self.count, BATCH_RECORDS):
            numbers = range(first, min(first + BATCH_RECORDS, self.count))
            # Neighbours are due at different times, as messages of different customers are.
            due_times_ms = [begin_ms + number * 7_919_000_003 % (PENDING_S * 1_000) for number in numbers]
            yield produce_request(self.topic, {0: delayed_batch(due_times_ms)}, acks=1)


@dataclass(frozen=True)
class OneArrival(Load):
    """Produces a record that is due, and waits until it has arrived. `seen` such ones are there already."""

    topic: str
    seen: int

    def run(self) -> Metrics:
        with Connection(self.bootstrap) as connection:
            send_pipelined(
                connection, [produce_request(self.topic, {0: delayed_batch([1])}, acks=1)], in_flight_max=1
            )
        consumer = Consumer(CONSUMER_SETTINGS | {"bootstrap.servers": self.bootstrap})
        try:
            consumer.assign([TopicPartition(self.topic, 0, 0)])
            left = self.seen + 1
            while left:
                left -= len(consumer.consume(num_messages=left, timeout=1))
        finally:
            consumer.close()
        return {}
