"""What the tests do at the cluster itself, behind the console's back."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, Producer

from tests.brokers import Broker
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster

# 2026-03-01 10:00:00 UTC; one order a minute from there on.
_BEGIN_MS = 1_772_359_200_000
_MINUTE_MS = 60_000
_LIMIT_S = 30.0


def make_topic(kafka: Broker, topic: str, partitions: int = 1) -> None:
    with Cluster(kafka.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, partition_count=partitions, replication_factor=1)


def write(kafka: Broker, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(_LIMIT_S) == 0


def write_orders(kafka: Broker, topic: str, count: int) -> None:
    """order-0, order-1, … as JSON, all in partition 0."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(count):
        value = {"order": number, "city": ("Kiel", "Emden", "Husum")[number % 3]}
        at_ms = _BEGIN_MS + number * _MINUTE_MS
        producer.produce(topic, json.dumps(value), key=f"order-{number}", partition=0, timestamp=at_ms)
    assert producer.flush(_LIMIT_S) == 0


@contextlib.contextmanager
def writing(kafka: Broker, topic: str) -> Iterator[None]:
    """Records arrive all the time while the block runs: a rate is seen however late the page asks for it."""
    is_over = threading.Event()

    def write_on() -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        while not is_over.wait(0.01):
            producer.produce(topic, b"one more", partition=0)
            producer.poll(0)
        producer.flush(_LIMIT_S)

    writer = threading.Thread(target=write_on, name="writer")
    writer.start()
    try:
        yield
    finally:
        is_over.set()
        writer.join()


def read(consumer: Consumer, wanted: int) -> None:
    """Reads and commits so many records."""
    deadline_s = time.monotonic() + _LIMIT_S
    done = 0
    while done < wanted:
        assert time.monotonic() < deadline_s, f"{done} of {wanted} records were read"
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            consumer.commit(message=message, asynchronous=False)
            done += 1
