"""Topics that confluent-kafka fills, and the plain list of what a reader should find in them."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

# Every sealed segment is synced, and told so, at once.
QUICK_CHECKPOINTS = {
    "log.flush.offset.checkpoint.interval.ms": "100",
    "log.flush.scheduler.interval.ms": "100",
    "log.flush.start.offset.checkpoint.interval.ms": "100",
}


# With timestamps as `FilledTopic` gives them.
SMALL_SEGMENTS = {"segment.ms": "3000", "index.interval.bytes": "500"}


class Row(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...]


class FilledTopic:
    """The written records, by partition and offset; `committed` leaves out aborted ones."""

    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        partition_count: int = 2,
        configs: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.bootstrap = bootstrap
        self.name = name
        self.partition_count = partition_count
        admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic(name, num_partitions=partition_count, replication_factor=-1, config=dict(configs))
        admin.create_topics([new])[name].result(30)
        self.committed: list[Row] = []
        self.aborted: list[Row] = []
        self._number = 0
        self._is_compacted = configs.get("cleanup.policy") == "compact"
        # A tenth of a second for each record: segments that roll by time are small then. Markers have the broker's time.
        self._base_ms = int(time.time() * 1000)
        self._rng = random.Random(name)

    def write(
        self,
        count: int,
        *,
        value_bytes: int = 60,
        timestamps_ms: Sequence[int] | None = None,
        settings: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        with _producer(self.bootstrap, settings) as producer:
            self.committed += self._produce(producer, count, value_bytes, timestamps_ms)

    def write_transaction(self, count: int, *, is_commit: bool, value_bytes: int = 60) -> None:
        with self.transaction(count, is_commit=is_commit, value_bytes=value_bytes):
            pass

    @contextmanager
    def transaction(self, count: int, *, is_commit: bool, value_bytes: int = 60) -> Iterator[None]:
        """Open while the context is."""
        with _producer(self.bootstrap, {"transactional.id": f"{self.name}-writer"}) as producer:
            producer.init_transactions(30)
            producer.begin_transaction()
            rows = self._produce(producer, count, value_bytes, None)
            yield
            if is_commit:
                producer.commit_transaction(30)
                self.committed += rows
            else:
                producer.abort_transaction(30)
                self.aborted += rows

    def _produce(
        self, producer: Producer, count: int, value_bytes: int, timestamps_ms: Sequence[int] | None
    ) -> list[Row]:
        rows: list[Row] = []
        rng = self._rng
        for index in range(count):
            self._number += 1
            number = self._number
            headers = (("n", b"%d" % number), ("empty", None)) if number % 5 == 0 else ()
            producer.produce(
                self.name,
                key=None if number % 7 == 0 and not self._is_compacted else b"k%d" % (number % 50),
                value=None
                if number % 11 == 0
                else b"%d:" % number + rng.randbytes(rng.randrange(value_bytes)),
                partition=rng.randrange(self.partition_count),
                headers=list(headers),
                timestamp=timestamps_ms[index] if timestamps_ms else self._base_ms + number * 100,
                on_delivery=partial(_note, rows, headers),
            )
            if number % 40 == 0:
                producer.flush(30)
        producer.flush(30)
        assert len(rows) == count
        return rows

    def rows(self, *, is_committed: bool = True) -> list[Row]:
        return sorted(self.committed if is_committed else self.committed + self.aborted)


def _note(rows: list[Row], headers: Any, error: Any, message: Any) -> None:
    assert error is None, error
    placed = (message.partition(), message.offset(), message.key(), message.value())
    rows.append(Row(*placed, message.timestamp()[1], headers))


@contextmanager
def _producer(bootstrap: str, settings: Mapping[str, str]) -> Iterator[Producer]:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 1, **settings})
    yield producer
    producer.flush(30)
