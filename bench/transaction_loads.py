"""A transactional producer from librdkafka beside an idempotent one that differs in nothing else.

The transactional one sends as fast as it can and commits whenever `commit_every_ms` have passed since it began. What it
loses is the wait for its queue to drain and for the coordinator, once a transaction. One record per transaction shows
the rest: what a transaction costs when it holds almost nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, Message, Producer

from bench.connection import RequestFailedError
from bench.load import Load
from bench.processes import Meter, Metrics
from bench.stats import percentile

# All settings that are not librdkafka's defaults; the README lists them.
PRODUCER_SETTINGS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 16_384,
    "compression.type": "none",
    "delivery.report.only.error": True,
}
TIMEOUT_S = 120.0
# The clock is read once in so many messages.
STRIDE = 100


@dataclass
class _Commits:
    """The duration of each commit, and the number of markers in the log afterwards."""

    seconds: list[float] = field(default_factory=list)
    markers: int = 0


@dataclass(frozen=True)
class Stream(Load):
    """A fixed number of messages to some partitions in turn; without a transactional id, idempotent only."""

    topic: str
    partitions: int
    messages: int
    value_bytes: int
    transactional_id: str | None
    commit_every_ms: int

    def run(self) -> Metrics:
        failures: list[KafkaError] = []
        producer = _producer(self.bootstrap, self.topic, self.transactional_id, failures)
        commits = _Commits()
        with Meter(self.broker_pids) as meter:
            if self.transactional_id is None:
                self._send(producer, 0, self.messages)
                remaining = producer.flush(TIMEOUT_S)
            else:
                self._send_in_transactions(producer, commits)
                remaining = 0
        if remaining or failures:
            raise RequestFailedError(f"{remaining} messages not delivered, errors {failures[:1]}")
        metrics = meter.throughput(self.messages, self.messages * self.value_bytes)
        if not commits.seconds:
            return metrics
        times = sorted(seconds * 1e3 for seconds in commits.seconds)
        return metrics | {
            "commit_p50_ms": percentile(times, 50),
            "commit_p99_ms": percentile(times, 99),
            "markers": float(commits.markers),
        }

    def _send_in_transactions(self, producer: Producer, commits: _Commits) -> None:
        sent = 0
        while sent < self.messages:
            producer.begin_transaction()
            first, end_s = sent, time.monotonic() + self.commit_every_ms / 1e3
            while sent < self.messages and time.monotonic() < end_s:
                count = min(STRIDE, self.messages - sent)
                self._send(producer, sent, count)
                sent += count
            started_s = time.monotonic()
            producer.commit_transaction(TIMEOUT_S)
            commits.seconds.append(time.monotonic() - started_s)
            commits.markers += min(self.partitions, sent - first)

    def _send(self, producer: Producer, first: int, count: int) -> None:
        value, index, end = bytes(self.value_bytes), first, first + count
        while index < end:
            try:
                while index < end:
                    producer.produce(self.topic, value, None, index % self.partitions)
                    index += 1
            except BufferError:
                producer.poll(0.001)


@dataclass(frozen=True)
class SingleRecords(Load):
    """Begin, one record, commit, again and again."""

    topic: str
    transactions: int
    value_bytes: int
    transactional_id: str

    def run(self) -> Metrics:
        failures: list[KafkaError] = []
        producer = _producer(self.bootstrap, self.topic, self.transactional_id, failures)
        value, seconds = bytes(self.value_bytes), []
        with Meter(self.broker_pids) as meter:
            for _ in range(self.transactions):
                started_s = time.monotonic()
                producer.begin_transaction()
                producer.produce(self.topic, value, None, 0)
                producer.commit_transaction(TIMEOUT_S)
                seconds.append(time.monotonic() - started_s)
        if failures:
            raise RequestFailedError(f"errors {failures[:1]}")
        times = sorted(value * 1e3 for value in seconds)
        return {
            "transactions_per_s": self.transactions / meter.wall_s,
            "p50_ms": percentile(times, 50),
            "p99_ms": percentile(times, 99),
            "broker_us_per_transaction": meter.broker_cpu_s * 1e6 / self.transactions,
        }


def _producer(
    bootstrap: str, topic: str, transactional_id: str | None, failures: list[KafkaError]
) -> Producer:
    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    settings: dict[str, object] = {"bootstrap.servers": bootstrap, "on_delivery": delivered}
    if transactional_id is not None:
        settings["transactional.id"] = transactional_id
    producer = Producer(PRODUCER_SETTINGS | settings)
    producer.list_topics(topic, timeout=30)
    if transactional_id is not None:
        producer.init_transactions(TIMEOUT_S)
    return producer
