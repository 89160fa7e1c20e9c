"""Produce loads with acks=all that also time acks: from librdkafka as applications send, and from canned frames.

From librdkafka one message in `SAMPLE` is timed, from `produce()` to its delivery report, so that the client does not
spend its time on reports. Its queue is short, because under full load a message waits for as long as the queue takes. A
canned frame is timed from its sending to its answer, with a fixed number in flight.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread

from confluent_kafka import KafkaError, Message, Producer

from bench import frames
from bench.connection import Connection, RequestFailedError
from bench.load import Load
from bench.processes import Meter, Metrics
from bench.stats import percentile

# What the README states: everything that is not librdkafka's default.
PRODUCER_SETTINGS = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": 5,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 16_384,
    "compression.type": "none",
}
DELIVERY_TIMEOUT_S = 150.0
SAMPLE = 64


def ack_times(seconds: list[float]) -> Metrics:
    milliseconds = sorted(value * 1e3 for value in seconds)
    return {"p50_ms": percentile(milliseconds, 50), "p99_ms": percentile(milliseconds, 99)}


@dataclass(frozen=True)
class ReplicatedProduce(Load):
    """A fixed number of bytes to some partitions in turn, as fast as one idempotent producer can."""

    topic: str
    partitions: int
    messages: int
    value_bytes: int

    def run(self) -> Metrics:
        run = _LibrdkafkaRun(self)
        with Meter(self.broker_pids) as meter:
            run.to_the_end()
        return meter.throughput(self.messages, self.messages * self.value_bytes) | ack_times(run.seconds)


class _LibrdkafkaRun:
    def __init__(self, load: ReplicatedProduce) -> None:
        self.seconds: list[float] = []
        self._load = load
        self._errors: list[KafkaError] = []
        self._is_done = Event()
        settings = {"bootstrap.servers": load.bootstrap, "error_cb": lambda _: None}
        self._producer = Producer(PRODUCER_SETTINGS | settings)
        self._producer.list_topics(load.topic, timeout=30)

    def to_the_end(self) -> None:
        # Reports are taken by a thread of their own: the sending loop would see them late.
        reports = Thread(target=self._take_reports)
        reports.start()
        try:
            for index in range(self._load.messages):
                self._send(index)
            remaining = self._producer.flush(DELIVERY_TIMEOUT_S)
        finally:
            self._is_done.set()
            reports.join()
        if remaining or self._errors:
            raise RequestFailedError(f"{remaining} messages not delivered, errors {self._errors[:1]}")

    def _send(self, index: int) -> None:
        partition, value = index % self._load.partitions, bytes(self._load.value_bytes)
        while True:
            try:
                if index % SAMPLE:
                    self._producer.produce(self._load.topic, value, None, partition)
                else:
                    report = partial(self._acked, time.monotonic())
                    self._producer.produce(self._load.topic, value, None, partition, on_delivery=report)
                return
            except BufferError:
                time.sleep(0.001)

    def _acked(self, sent_s: float, error: KafkaError | None, _: Message) -> None:
        self.seconds.append(time.monotonic() - sent_s)
        if error is not None:
            self._errors.append(error)

    def _take_reports(self) -> None:
        while not self._is_done.is_set():
            self._producer.poll(0.05)


@dataclass(frozen=True)
class CannedReplicatedProduce(Load):
    """The same full batch again and again to partition 0; `bootstrap` is its leader."""

    topic: str
    requests: int
    value_bytes: int
    batch_bytes: int
    in_flight_max: int = 5

    def run(self) -> Metrics:
        batch, count = frames.full_batch(self.batch_bytes, bytes(self.value_bytes))
        request = frames.produce_request(self.topic, {0: batch}, acks=-1)
        sent_s: deque[float] = deque()
        seconds: list[float] = []
        with Connection(self.bootstrap) as connection, Meter(self.broker_pids) as meter:
            for frame in itertools.repeat(request, self.requests):
                if len(sent_s) == self.in_flight_max:
                    seconds.append(_take_answer(connection) - sent_s.popleft())
                sent_s.append(time.monotonic())
                connection.send(frame)
            while sent_s:
                seconds.append(_take_answer(connection) - sent_s.popleft())
        messages = self.requests * count
        return meter.throughput(messages, messages * self.value_bytes) | ack_times(seconds)


def _take_answer(connection: Connection) -> float:
    errors = frames.produce_errors(connection.receive())
    if errors:
        raise RequestFailedError(f"Produce: error codes by partition {errors}")
    return time.monotonic()
