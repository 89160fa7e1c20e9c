"""Topics to read: written once for both connectors by librdkafka, as applications write them.

Keys of 8 bytes, values of which a good half are digits that no codec can shorten, batches of up to 64 KB, several
partitions, and segments so small that nearly all of them are sealed. A segment scan trusts only what the broker says it
has synced, which it writes down once a minute: `await_synced`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from bench.connection import Connection, RequestFailedError, create_topics, log_end_offsets
from bench.librdkafka_loads import PRODUCER_SETTINGS

PARTITIONS = 4
SEGMENTS_PER_PARTITION = 16
SEGMENT_BYTES_MIN = 1 << 20
BATCH_BYTES = 64 << 10
DISTINCT_VALUES = 5_000
DELIVERY_TIMEOUT_S = 120.0
# The broker writes recovery points every minute.
SYNCED_TIMEOUT_S = 150.0
_WORDS = b'{"order": "created", "customer": "", "amount": }'


@dataclass(frozen=True)
class Filled:
    name: str
    rows: int
    value_bytes: int

    @property
    def payload_bytes(self) -> int:
        return self.rows * self.value_bytes


def fill(bootstrap: str, name: str, *, rows: int, value_bytes: int, codec: str) -> Filled:
    """Returns when everything is in the log; the log end offsets are the proof."""
    segment_bytes = max(SEGMENT_BYTES_MIN, rows * value_bytes // PARTITIONS // SEGMENTS_PER_PARTITION)
    create_topics(bootstrap, [name], PARTITIONS, {"segment.bytes": str(segment_bytes)})
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    settings = {
        "bootstrap.servers": bootstrap,
        "batch.size": BATCH_BYTES,
        "compression.type": codec,
        "on_delivery": delivered,
        "enable.idempotence": True,
    }
    producer = Producer(PRODUCER_SETTINGS | settings)
    values = distinct_values(value_bytes)
    for number in range(rows):
        value, key = values[number % DISTINCT_VALUES], b"%08d" % (number % 1_000_003)
        # A run of records for one partition, then the next, so that batches fill.
        _produce(producer, name, value, key, number // 500 % PARTITIONS)
    remaining = producer.flush(DELIVERY_TIMEOUT_S)
    if failures or remaining:
        raise RequestFailedError(
            f"{name}: {remaining} messages not delivered, {len(failures)} failed: {failures[:1]}"
        )
    if (found := log_end(bootstrap, name)) != rows:
        raise RequestFailedError(f"{name}: {rows} rows sent, {found} in the log")
    return Filled(name, rows, value_bytes)


def await_synced(log_dir: Path, topics: Sequence[Filled]) -> None:
    """Until the broker has written down that at least half of each partition is safe on disk."""
    path = log_dir / "recovery-point-offset-checkpoint"
    wanted = {
        f"{topic.name} {at}": topic.rows // PARTITIONS // 2 for topic in topics for at in range(PARTITIONS)
    }
    deadline_s = time.monotonic() + SYNCED_TIMEOUT_S
    while True:
        lines = path.read_text().splitlines() if path.exists() else []
        found = {place: int(offset) for place, _, offset in (line.rpartition(" ") for line in lines)}
        if all(found.get(place, 0) >= offset for place, offset in wanted.items()):
            return
        if time.monotonic() > deadline_s:
            raise RequestFailedError(f"{path} does not reach half of every partition: {found}")
        time.sleep(0.1)


def distinct_values(value_bytes: int) -> list[bytes]:
    rng = random.Random(value_bytes)
    filler = _WORDS * (value_bytes // len(_WORDS) + 1)
    noise_bytes = value_bytes // 2
    return [rng.randbytes(noise_bytes) + filler[: value_bytes - noise_bytes] for _ in range(DISTINCT_VALUES)]


def log_end(bootstrap: str, topic: str) -> int:
    with Connection(bootstrap) as connection:
        return sum(end for _, end in log_end_offsets(connection, topic, PARTITIONS))


def _produce(producer: Producer, topic: str, value: bytes, key: bytes, partition: int) -> None:
    while True:
        try:
            producer.produce(topic, value, key, partition)
            return
        except BufferError:
            producer.poll(0.01)
