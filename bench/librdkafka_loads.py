"""Loads from librdkafka, the C client under confluent-kafka, as applications use it.

Throughput loads run a tight loop without per-message callbacks. Reports of failed deliveries are still collected, and
the log end offset is compared with the number of messages afterwards. So a loss cannot pass as speed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from bench.connection import Connection, RequestFailedError, log_end_offsets
from bench.endpoints import librdkafka_settings
from bench.load import Load
from bench.processes import Meter, Metrics

# All settings that are not librdkafka's defaults; the README lists them.
PRODUCER_SETTINGS = {
    "linger.ms": 50,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 262_144,
    "message.max.bytes": 1_100_000,
    "delivery.report.only.error": True,
    "compression.type": "none",
}
CONSUMER_SETTINGS = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "max.partition.fetch.bytes": 4_194_304,
    "queued.min.messages": 1_000_000,
    "queued.max.messages.kbytes": 65_536,
}
DELIVERY_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Produce(Load):
    """A fixed number of bytes to one partition, as fast as one producer can."""

    topic: str
    payload_bytes: int
    value_bytes: int
    batch_bytes: int
    acks: int

    def run(self) -> Metrics:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        settings = {
            **librdkafka_settings(self.bootstrap),
            "batch.size": self.batch_bytes,
            "acks": self.acks,
            "on_delivery": delivered,
        }
        producer = Producer(PRODUCER_SETTINGS | settings)
        producer.list_topics(self.topic, timeout=30)
        messages = self.payload_bytes // self.value_bytes
        with Connection(self.bootstrap) as connection, Meter(self.broker_pids) as meter:
            _produce_all(producer, self.topic, bytes(self.value_bytes), messages)
            remaining = producer.flush(DELIVERY_TIMEOUT_S)
            if not failures and not remaining:
                _await_log_end(connection, self.topic, messages)
        if failures or remaining:
            raise RequestFailedError(
                f"{remaining} messages not delivered, {len(failures)} failed: {failures[:1]}"
            )
        return meter.throughput(messages, messages * self.value_bytes)


def _produce_all(producer: Producer, topic: str, value: bytes, messages: int) -> None:
    produce, left = producer.produce, messages
    while left:
        try:
            while left:
                produce(topic, value, None, 0)  # value, no key, partition
                left -= 1
        except BufferError:
            producer.poll(0.01)


def _await_log_end(connection: Connection, topic: str, messages: int) -> None:
    """Without acks the client knows only what it sent; the log end offset shows what arrived."""
    deadline_s = time.monotonic() + DELIVERY_TIMEOUT_S
    while (end := log_end_offsets(connection, topic, 1)[0]) != (0, messages):
        if time.monotonic() > deadline_s or end[1] > messages:
            raise RequestFailedError(
                f"{messages} messages sent, log end offset {end[1]}, error code {end[0]}"
            )
        time.sleep(0.001)


@dataclass(frozen=True)
class Fetch(Load):
    """Everything in partition 0 from offset 0, without a group."""

    topic: str
    value_bytes: int
    messages: int

    def run(self) -> Metrics:
        consumer = Consumer(CONSUMER_SETTINGS | librdkafka_settings(self.bootstrap))
        try:
            consumer.list_topics(self.topic, timeout=30)
            with Meter(self.broker_pids) as meter:
                consumer.assign([TopicPartition(self.topic, 0, 0)])
                left = self.messages
                while left > 0:
                    batch = consumer.consume(num_messages=min(10_000, left), timeout=10)
                    if not batch:
                        raise RequestFailedError(f"nothing for 10 s, {left} messages missing")
                    if batch[0].error():
                        raise RequestFailedError(str(batch[0].error()))
                    left -= len(batch)
            return meter.throughput(self.messages, self.messages * self.value_bytes)
        finally:
            consumer.close()
