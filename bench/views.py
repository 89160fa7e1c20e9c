"""Reading a part of a topic: through a view, and by a client that reads the source and filters for itself.

The source has segments of 16 MB and batches of 16 KB. Matching records are spread evenly, or stand together at the
beginning. The case waits until the broker has built the indexes, and reports what they cost.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random

from confluent_kafka import Consumer, TopicPartition

from bench.brokers import Broker
from bench.cases import KB, MB, LiveCase, Scale, size_text, topic
from bench.compaction_frames import alter_error, alter_topic_configs, keyed_batch
from bench.connection import (
    Connection,
    RequestFailedError,
    await_topics,
    create_topics_only,
    delete_topics,
    log_end_offsets,
)
from bench.frames import produce_request
from bench.librdkafka_loads import CONSUMER_SETTINGS
from bench.load import Load, measure
from bench.processes import Meter, Metrics, children, cpu_seconds
from bench.raw_loads import send_pipelined

BATCH_BYTES = 16 * KB
SEGMENT_BYTES = 16 * MB
VALUE_POOL_BYTES = MB
FILTER = "key = 'y'"
# The broker looks for work every two seconds.
IDLE_S = 5.0
IDLE_CPU_S = 0.5
IDLE_LIMIT_S = 120.0


def cases(scale: Scale) -> list[LiveCase]:
    return [
        LiveCase(
            "views",
            f"{size_text(value_bytes)}, {reader}",
            partial(_read, scale.payload_bytes(value_bytes), value_bytes, one_in, is_together, reader),
            scale.payload_bytes(value_bytes),
        )
        for value_bytes in (KB, 100)
        for reader, one_in, is_together in (
            ("a client filters", 100, False),
            ("view of 1 %", 100, False),
            ("view of 10 %", 10, False),
            ("view of 50 %", 2, False),
            ("view of 1 %, together", 100, True),
        )
    ]


def _read(
    size: int, value_bytes: int, one_in: int, is_together: bool, reader: str, broker: Broker
) -> Metrics:
    with topic(broker) as name:
        view = f"{name}-view"
        fill = Fill(
            broker.bootstrap,
            broker.pids,
            topic=name,
            view=view,
            messages=size // value_bytes,
            value_bytes=value_bytes,
            one_in=one_in,
            is_together=is_together,
        )
        try:
            filled = measure(fill)
            is_view = reader.startswith("view")
            read = ReadMatches(
                broker.bootstrap,
                broker.pids,
                topic=view if is_view else name,
                messages=int(filled["shown" if is_view else "messages"]),
                matching=int(filled["shown"]),
                source_bytes=size,
            )
            return measure(read) | {"index_cpu_s_per_gb": filled["index_cpu_s_per_gb"]}
        finally:
            delete_topics(broker.bootstrap, [view])


@dataclass(frozen=True)
class Fill(Load):
    """Fills a topic, makes a view of it, and waits until the broker rests."""

    topic: str
    view: str
    messages: int
    value_bytes: int
    one_in: int
    is_together: bool

    def run(self) -> Metrics:
        with Connection(self.bootstrap) as connection:
            configs = {"segment.bytes": str(SEGMENT_BYTES)}
            if error := alter_error(connection.call(alter_topic_configs(self.topic, configs))):
                raise RequestFailedError(f"AlterConfigs: error code {error}")
            send_pipelined(connection, self._requests(), in_flight_max=5)
            ((error, end_offset),) = log_end_offsets(connection, self.topic, 1)
            if error or end_offset != self.messages:
                raise RequestFailedError(f"log end offset {end_offset}, error code {error}")
        with Meter(self.broker_pids) as meter:
            configs = {"tidemill.view.source": self.topic, "tidemill.view.filter": FILTER}
            create_topics_only(self.bootstrap, [self.view], -1, configs, replication_factor=-1)
            await_topics(self.bootstrap, [self.view], 1)
            self._await_rest()
        return {
            "messages": self.messages,
            "shown": sum(map(self._is_shown, range(self.messages))),
            "index_cpu_s_per_gb": meter.broker_cpu_s / (self.messages * self.value_bytes) * 1e9,
        }

    def _is_shown(self, number: int) -> bool:
        # The last one ends the reading.
        if number == self.messages - 1:
            return True
        return number * self.one_in < self.messages if self.is_together else number % self.one_in == 0

    def _requests(self) -> Iterator[bytearray]:
        per_batch = max(1, BATCH_BYTES // self.value_bytes)
        # Random bytes: runs of zeros are the beginning of nearly every string that a filter searches for.
        values = Random(1).randbytes(VALUE_POOL_BYTES + self.value_bytes)
        for first in range(0, self.messages, per_batch):
            numbers = range(first, min(first + per_batch, self.messages))
            starts = [number * 37 % VALUE_POOL_BYTES for number in numbers]
            pairs = [
                (b"y" if self._is_shown(number) else b"n", values[start : start + self.value_bytes])
                for number, start in zip(numbers, starts, strict=True)
            ]
            yield produce_request(self.topic, {0: keyed_batch(pairs)}, acks=1)

    def _await_rest(self) -> None:
        deadline_s = time.monotonic() + IDLE_LIMIT_S
        used_s = sum(map(cpu_seconds, self.broker_pids))
        while time.monotonic() < deadline_s:
            time.sleep(IDLE_S)
            before_s, used_s = used_s, sum(map(cpu_seconds, self.broker_pids))
            # On a busy machine a process that builds indexes may use little time.
            if used_s - before_s < IDLE_CPU_S and not any(map(children, self.broker_pids)):
                return
        raise RequestFailedError(f"the broker still works after {IDLE_LIMIT_S:.0f} s")


@dataclass(frozen=True)
class ReadMatches(Load):
    """Reads a topic from offset 0 with librdkafka, without a group, and keeps what matches."""

    topic: str
    messages: int
    matching: int
    source_bytes: int

    def run(self) -> Metrics:
        received = [0]

        def note(statistics: str) -> None:
            received[0] = int(json.loads(statistics)["rx_bytes"])

        settings = {"bootstrap.servers": self.bootstrap, "stats_cb": note, "statistics.interval.ms": 100}
        consumer = Consumer(CONSUMER_SETTINGS | settings)
        try:
            consumer.list_topics(self.topic, timeout=30)
            with Meter(self.broker_pids) as meter:
                consumer.assign([TopicPartition(self.topic, 0, 0)])
                matching = self._read(consumer)
            consumer.poll(0.5)
        finally:
            consumer.close()
        if matching != self.matching:
            raise RequestFailedError(f"{matching} messages match instead of {self.matching}")
        gigabytes = self.source_bytes / 1e9
        return {
            "mb_per_s": self.source_bytes / 1e6 / meter.wall_s,
            "broker_cpu_s_per_gb": meter.broker_cpu_s / gigabytes,
            "client_cpu_s_per_gb": meter.client_cpu_s / gigabytes,
            "network_mb": received[0] / 1e6,
        }

    def _read(self, consumer: Consumer) -> int:
        left, matching = self.messages, 0
        while left > 0:
            batch = consumer.consume(num_messages=min(10_000, left), timeout=10)
            if not batch:
                raise RequestFailedError(f"nothing for 10 s, {left} messages missing")
            if batch[0].error():
                raise RequestFailedError(str(batch[0].error()))
            matching += sum(message.key() == b"y" for message in batch)
            left -= len(batch)
        return matching
