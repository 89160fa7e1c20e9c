"""The two load clients: confluent-kafka, which most users have, and Tidemill's own, which is always available.

Both produce for a while, consume what is there, and produce and consume at a given rate. A record counts only when it
was acknowledged or received.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from tidemill.cli.benchmark.measures import Latencies, Result, Stopwatch
from tidemill.client.cluster import Cluster
from tidemill.client.connections.security import SecurityOptions
from tidemill.client.consumer import Consumer
from tidemill.client.producing.producer import ACKS_ALL, Producer
from tidemill.errors import TidemillError
from tidemill.protocol.compression import CompressionType
from tidemill.types import TopicPartition

# Called with the share of the work that is done, and a text. Raises KeyboardInterrupt when the user wants to stop.
Report = Callable[[float, str], None]

_ACKS = {"all": ACKS_ALL, "1": 1, "0": 0}
_POLL_S = 0.2
# A run without a record for this long has failed.
_STALL_S = 30.0
_FLUSH_S = 60.0
_SENT_AT = struct.Struct(">d")


@dataclass(frozen=True)
class Plan:
    """The parameters of a load."""

    bootstrap: str
    security: SecurityOptions
    timeout_s: float
    topic: str
    partitions: int
    record_bytes: int
    seconds: float
    acks: str
    compression: str
    linger_ms: float
    rate: int


class LoadClient(Protocol):
    """A client that produces and consumes a load."""

    name: str

    def produce(self, report: Report) -> Result: ...

    def consume(self, total: int, report: Report) -> Result: ...

    def end_to_end(self, report: Report) -> Result: ...


def _value(plan: Plan) -> bytes:
    """A record value of which half compresses, like text."""
    noise = bytes((number * 7919 + 104729) >> 3 & 0xFF for number in range(plan.record_bytes // 2))
    return (noise + b"tidemill " * plan.record_bytes)[: plan.record_bytes]


class _Stalled(TidemillError):
    """No record arrived for too long."""


class ConfluentClient:
    """The load client on confluent-kafka."""

    name = "confluent-kafka"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def _options(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self._plan.bootstrap,
            "client.id": "tidemill-bench",
            "log_level": 0,
            **self._plan.security.librdkafka_options(),
        }

    def _producer(self, linger_ms: float) -> Any:
        from confluent_kafka import Producer as LibrdkafkaProducer

        plan = self._plan
        return LibrdkafkaProducer(
            {
                **self._options(),
                "acks": plan.acks,
                "compression.type": plan.compression,
                "linger.ms": linger_ms,
                "message.timeout.ms": int(plan.timeout_s * 1000),
            }
        )

    def _consumer(self) -> Any:
        from confluent_kafka import Consumer as LibrdkafkaConsumer
        from confluent_kafka import TopicPartition as Assigned

        # The group is never joined: partitions are assigned by hand, and nothing is committed.
        consumer = LibrdkafkaConsumer(
            {
                **self._options(),
                "group.id": self._plan.topic,
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 100,
            }
        )
        consumer.assign([Assigned(self._plan.topic, index, 0) for index in range(self._plan.partitions)])
        return consumer

    def produce(self, report: Report) -> Result:
        plan, result, latencies = self._plan, Result("produce"), Latencies()
        producer = self._producer(plan.linger_ms)
        value, topic = _value(plan), plan.topic

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                result.records += 1
                if plan.acks != "0":
                    latencies.add(message.latency())
            else:
                result.errors += 1
                result.error = str(error)

        def show() -> None:
            share = (time.perf_counter() - started_s) / plan.seconds
            report(share, f"{result.records:,} records acknowledged")

        watch, started_s = Stopwatch(), time.perf_counter()
        end_s = started_s + plan.seconds
        try:
            while time.perf_counter() < end_s and not result.errors:
                # The clock is read rarely: reading it costs as much as a record.
                for _ in range(200):
                    try:
                        producer.produce(topic, value, on_delivery=delivered)
                    except BufferError:
                        result.queue_full += 1
                        producer.poll(0.01)
                producer.poll(0)
                show()
            left = _flush(producer, show)
        finally:
            producer.purge()
            # The traceback of an exception would keep it, and it would create the deleted topic anew.
            del producer
        watch.stop(result)
        if left and not result.errors:
            result.errors, result.error = left, f"{left} records were not acknowledged in time"
        result.bytes = result.records * plan.record_bytes
        result.latency_ms = latencies.percentiles_ms()
        return result

    def consume(self, total: int, report: Report) -> Result:
        result = Result("consume")
        consumer = self._consumer()
        watch, progressed_s = Stopwatch(), time.perf_counter()
        try:
            while result.records < total:
                messages = consumer.consume(10_000, _POLL_S)
                for message in messages:
                    _check_message(message)
                    result.bytes += len(message.value())
                result.records += len(messages)
                progressed_s = _progressed(progressed_s, bool(messages), result.records, total)
                report(result.records / total, f"{result.records:,} records read")
            watch.stop(result)
        finally:
            consumer.close()
        return result

    def end_to_end(self, report: Report) -> Result:
        plan = self._plan
        producer, consumer = self._producer(0), self._consumer()

        def send(value: bytes) -> None:
            producer.produce(plan.topic, value)
            producer.poll(0)

        def receive() -> list[bytes]:
            messages = consumer.consume(1000, 0.01)
            for message in messages:
                _check_message(message)
            return [message.value() for message in messages]

        try:
            return _end_to_end(plan, send, lambda: producer.flush(_FLUSH_S), receive, report)
        finally:
            consumer.close()
            producer.purge()
            producer = None


def _flush(producer: Any, show: Callable[[], None]) -> int:
    """Wait until all records are acknowledged, and return how many are not in time."""
    end_s = time.perf_counter() + _FLUSH_S
    while (left := int(producer.flush(_POLL_S))) and time.perf_counter() < end_s:
        show()
    return left


def _check_message(message: Any) -> None:
    if message.error() is not None:
        raise _Stalled(f"the topic cannot be read: {message.error()}")


class OwnClient:
    """The load client on Tidemill's own client."""

    name = "tidemill"

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def _cluster(self) -> Cluster:
        plan = self._plan
        return Cluster(
            plan.bootstrap, client_id="tidemill-bench", timeout_s=plan.timeout_s, security=plan.security
        )

    def _producer(self, cluster: Cluster) -> Producer:
        codec = CompressionType[self._plan.compression.upper()]
        return Producer(cluster, acks=_ACKS[self._plan.acks], codec=codec)

    def _positions(self) -> dict[TopicPartition, int]:
        return {TopicPartition(self._plan.topic, index): 0 for index in range(self._plan.partitions)}

    def produce(self, report: Report) -> Result:
        """Produce with one request at a time. The latency is that of a request with its batches."""
        plan, result, latencies = self._plan, Result("produce"), Latencies()
        result.notes.append("the tidemill client sends one request at a time; confluent-kafka sends several")
        value, topic = _value(plan), plan.topic
        per_request = max(1, (256 * 1024) // plan.record_bytes)
        with self._cluster() as cluster:
            producer = self._producer(cluster)
            watch, started_s = Stopwatch(), time.perf_counter()
            while (now_s := time.perf_counter()) < started_s + plan.seconds:
                for _ in range(per_request):
                    producer.add(topic, value)
                sent_s = time.perf_counter()
                producer.flush()
                latencies.add(time.perf_counter() - sent_s)
                result.records += per_request
                producer.appended.clear()
                report((now_s - started_s) / plan.seconds, f"{result.records:,} records acknowledged")
            watch.stop(result)
        result.bytes = result.records * plan.record_bytes
        result.latency_ms = latencies.percentiles_ms()
        return result

    def consume(self, total: int, report: Report) -> Result:
        result = Result("consume")
        with self._cluster() as cluster:
            consumer = Consumer(cluster, self._positions())
            watch, progressed_s = Stopwatch(), time.perf_counter()
            while result.records < total:
                before = result.records
                for consumed in consumer.poll(int(1000 * _POLL_S)):
                    result.records += 1
                    result.bytes += len(consumed.record.value or b"")
                progressed_s = _progressed(progressed_s, result.records > before, result.records, total)
                report(result.records / total, f"{result.records:,} records read")
            watch.stop(result)
        return result

    def end_to_end(self, report: Report) -> Result:
        plan = self._plan
        with self._cluster() as writing, self._cluster() as reading:
            producer, consumer = self._producer(writing), Consumer(reading, self._positions())

            def send(value: bytes) -> None:
                producer.add(plan.topic, value)
                producer.flush()
                producer.appended.clear()

            def receive() -> list[bytes]:
                return [consumed.record.value or b"" for consumed in consumer.poll(10)]

            return _end_to_end(plan, send, producer.flush, receive, report)


def _progressed(progressed_s: float, has_progress: bool, done: int, total: int) -> float:
    now_s = time.perf_counter()
    if has_progress:
        return now_s
    if now_s - progressed_s > _STALL_S:
        raise _Stalled(f"nothing came for {_STALL_S:g} s; {done:,} of {total:,} records were read")
    return progressed_s


def _end_to_end(
    plan: Plan,
    send: Callable[[bytes], None],
    flush: Callable[[], object],
    receive: Callable[[], list[bytes]],
    report: Report,
) -> Result:
    """Produce at the plan's rate in a thread, and consume here. The topic must be empty."""
    result, latencies = Result("end-to-end"), Latencies()
    total = max(1, int(plan.rate * plan.seconds))
    padding = b"x" * max(0, plan.record_bytes - _SENT_AT.size)
    failures: list[BaseException] = []
    is_over = threading.Event()

    def write() -> None:
        try:
            begin_s = time.perf_counter()
            for number in range(total):
                if is_over.wait(max(0.0, begin_s + number / plan.rate - time.perf_counter())):
                    return
                send(_SENT_AT.pack(time.perf_counter()) + padding)
            flush()
        except Exception as error:
            failures.append(error)

    writer = threading.Thread(target=write, name="bench-writer")
    watch, progressed_s = Stopwatch(), time.perf_counter()
    writer.start()
    try:
        while result.records < total and not failures:
            values = receive()
            now_s = time.perf_counter()
            for value in values:
                latencies.add(now_s - _SENT_AT.unpack_from(value)[0])
                result.bytes += len(value)
            result.records += len(values)
            progressed_s = _progressed(progressed_s, bool(values), result.records, total)
            report(result.records / total, f"{result.records:,} records there and back")
    finally:
        is_over.set()
        writer.join()
    if failures:
        raise _Stalled(f"writing failed: {failures[0]}") from failures[0]
    watch.stop(result)
    result.latency_ms = latencies.percentiles_ms()
    return result
