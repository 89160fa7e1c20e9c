"""Loads at a steady rate that time every message, from the moment it was due to its ack or its arrival.

The rate is open loop: what is due is sent whether or not earlier messages were acknowledged. At most five requests are
in flight (the limit of Kafka's own producer); what becomes due meanwhile shares the next request. Nothing lingers. With
`is_end_to_end` a consumer reads the topic at the same time, in the same process, so that one clock times both ends.
"""

from __future__ import annotations

import ctypes
import select
import time
from collections import deque
from dataclasses import dataclass
from threading import Event, Thread

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench import frames
from bench.connection import Connection, RequestFailedError
from bench.endpoints import has_buffered, librdkafka_settings
from bench.load import Load
from bench.processes import Meter, Metrics
from bench.stats import Schedule, percentile

IN_FLIGHT_MAX = 5
FETCH_BYTES_MAX = 1 << 20
# After a stall one request takes at most this many messages, well below `max.message.bytes`.
MESSAGES_PER_REQUEST_MAX = 500
# How long after its last message is due a load may still wait for it.
DRAIN_S = 30.0
_PR_SET_TIMERSLACK = 29


@dataclass(frozen=True)
class LatencyLoad(Load):
    topic: str
    rate_per_s: int
    messages: int
    warm_up_messages: int
    value_bytes: int
    is_end_to_end: bool
    acks: int = 1

    def _schedule(self) -> Schedule:
        # By default the kernel may wake a thread 50 µs late, as much as a whole interval at 20,000 a second.
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
        return Schedule(time.monotonic() + 0.05, self.rate_per_s, self.messages + self.warm_up_messages)

    def _metrics(self, schedule: Schedule, done_s: list[float], meter: Meter) -> Metrics:
        first = self.warm_up_messages
        milliseconds = sorted((done_s[i] - schedule.due_s(i)) * 1e3 for i in range(first, schedule.count))
        return {
            "p50_ms": percentile(milliseconds, 50),
            "p99_ms": percentile(milliseconds, 99),
            "p999_ms": percentile(milliseconds, 99.9),
            "achieved_per_s": len(milliseconds) / (max(done_s) - schedule.due_s(first)),
            "broker_us_per_message": meter.broker_cpu_s / schedule.count * 1e6,
        }


@dataclass(frozen=True)
class RawLatency(LatencyLoad):
    """One thread, one plain socket to produce and, end to end, one to fetch."""

    def run(self) -> Metrics:
        with Connection(self.bootstrap) as producer, Connection(self.bootstrap) as consumer:
            for each in (producer, consumer):
                # Over TLS, tickets for later sessions come before the first response: `select` would take them for one.
                each.call(frames.api_versions_request())
            schedule = self._schedule()
            run = _RawRun(self, schedule, producer, consumer)
            with Meter(self.broker_pids) as meter:
                run.to_the_end()
        return self._metrics(schedule, run.arrived_s if self.is_end_to_end else run.acked_s, meter)


class _RawRun:
    def __init__(
        self, load: RawLatency, schedule: Schedule, producer: Connection, consumer: Connection
    ) -> None:
        self.acked_s: list[float] = []
        self.arrived_s: list[float] = []
        self._load, self._schedule = load, schedule
        self._producer, self._consumer = producer, consumer
        self._value = bytes(load.value_bytes)
        self._sent = 0
        self._in_flight: deque[int] = deque()
        self._request_of: dict[int, bytearray] = {}

    def to_the_end(self) -> None:
        sockets = [self._producer.socket]
        done_s = self.acked_s
        if self._load.is_end_to_end:
            sockets.append(self._consumer.socket)
            done_s = self.arrived_s
            self._consumer.send(frames.fetch_request(self._load.topic, 0, FETCH_BYTES_MAX))
        deadline_s = self._schedule.due_s(self._schedule.count) + DRAIN_S
        while len(done_s) < self._schedule.count:
            if time.monotonic() > deadline_s:
                raise RequestFailedError(f"{len(done_s)} of {self._schedule.count} messages in time")
            self._send_due()
            readable = [each for each in sockets if has_buffered(each)]
            if not readable:
                readable, _, _ = select.select(sockets, [], [], self._pause_s())
            if self._producer.socket in readable:
                self._take_ack()
            if self._consumer.socket in readable:
                self._take_records()

    def _pause_s(self) -> float:
        if self._sent == self._schedule.count or len(self._in_flight) == IN_FLIGHT_MAX:
            return 1.0
        return max(0.0, self._schedule.due_s(self._sent) - time.monotonic())

    def _send_due(self) -> None:
        due = min(self._schedule.due_count(time.monotonic()) - self._sent, MESSAGES_PER_REQUEST_MAX)
        if due > 0 and len(self._in_flight) < IN_FLIGHT_MAX:
            self._producer.send(self._request(due))
            self._in_flight.append(due)
            self._sent += due

    def _request(self, messages: int) -> bytearray:
        if messages not in self._request_of:
            batch = frames.record_batch([self._value] * messages)
            self._request_of[messages] = frames.produce_request(self._load.topic, {0: batch}, self._load.acks)
        return self._request_of[messages]

    def _take_ack(self) -> None:
        errors = frames.produce_errors(self._producer.receive())
        if errors:
            raise RequestFailedError(f"Produce: error codes by partition {errors}")
        self.acked_s += [time.monotonic()] * self._in_flight.popleft()

    def _take_records(self) -> None:
        error, records = frames.fetched(self._consumer.receive())
        now_s, offset = time.monotonic(), len(self.arrived_s)
        if error:
            raise RequestFailedError(f"Fetch at offset {offset}: error code {error}")
        self.arrived_s += [now_s] * (frames.end_of_batches(records, offset) - offset)
        self._consumer.send(frames.fetch_request(self._load.topic, len(self.arrived_s), FETCH_BYTES_MAX))


@dataclass(frozen=True)
class LibrdkafkaLatency(LatencyLoad):
    """librdkafka with linger.ms=0; end to end, its consumer in the same process.

    The main thread keeps the schedule; a thread each waits for acks and for records, because librdkafka waits
    in whole milliseconds, too coarse to share a loop with the schedule.
    """

    def run(self) -> Metrics:
        run = _LibrdkafkaRun(self)
        try:
            schedule = self._schedule()
            with Meter(self.broker_pids) as meter:
                run.to_the_end(schedule)
        finally:
            run.close()
        return self._metrics(schedule, run.arrived_s if self.is_end_to_end else run.acked_s, meter)


class _LibrdkafkaRun:
    def __init__(self, load: LibrdkafkaLatency) -> None:
        self.acked_s: list[float] = []
        self.arrived_s: list[float] = []
        self._errors: list[KafkaError] = []
        self._load = load
        self._is_closing = Event()
        common = librdkafka_settings(load.bootstrap)
        settings = {"linger.ms": 0, "acks": load.acks, "max.in.flight": IN_FLIGHT_MAX}
        self._producer = Producer(common | settings)
        self._producer.list_topics(load.topic, timeout=30)
        self._threads = [Thread(target=self._await_acks)]
        self._consumer = None
        if load.is_end_to_end:
            self._consumer = Consumer(common | {"group.id": "bench", "enable.auto.commit": False})
            self._consumer.assign([TopicPartition(load.topic, 0, 0)])
            self._consumer.poll(0.5)  # the topic is empty; this lets the consumer connect and send its fetch
            self._threads.append(Thread(target=self._await_records))

    def to_the_end(self, schedule: Schedule) -> None:
        for thread in self._threads:
            thread.start()
        sent, value = 0, bytes(self._load.value_bytes)
        while sent < schedule.count:
            for _ in range(schedule.due_count(time.monotonic()) - sent):
                self._producer.produce(self._load.topic, value, partition=0, on_delivery=self._acked)
                sent += 1
            time.sleep(max(0.0, schedule.due_s(sent) - time.monotonic()))
        done_s = self.arrived_s if self._load.is_end_to_end else self.acked_s
        deadline_s = time.monotonic() + DRAIN_S
        while len(done_s) < schedule.count:
            if self._errors or time.monotonic() > deadline_s:
                raise RequestFailedError(
                    f"{len(done_s)} of {schedule.count} in time, errors: {self._errors[:1]}"
                )
            time.sleep(0.001)

    def close(self) -> None:
        self._is_closing.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        if self._consumer is not None:
            self._consumer.close()

    def _acked(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self._errors.append(error)
        else:
            self.acked_s.append(time.monotonic())

    def _await_acks(self) -> None:
        while not self._is_closing.is_set():
            self._producer.poll(0.1)

    def _await_records(self) -> None:
        assert self._consumer is not None
        while not self._is_closing.is_set():
            message = self._consumer.poll(0.1)
            if message is None:
                continue
            if (error := message.error()) is not None:
                self._errors.append(error)
            else:
                self.arrived_s.append(time.monotonic())
