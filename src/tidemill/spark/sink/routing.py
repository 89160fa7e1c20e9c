"""Chooses the partition of each row, and gives the rows of each partition in their order.

The column `partition` decides where it is not null; then the key, by the hash that the Java client uses. Rows without
either share one partition for each batch of rows, the next one each time. So batches of records stay large and
partitions fill evenly. A partition's count is looked up once: a task lives as long as its rows.

A topic that is not there is asked for once in the manner that lets a broker create it, as a producer does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.retry import UnknownTopic
from tidemill.errors import TidemillError
from tidemill.protocol.api.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from tidemill.spark.arrow import array_of
from tidemill.spark.sink.murmur2 import partitions_of

Partitions = npt.NDArray[np.int32]

CREATION_TIMEOUT_S = 15.0
_MESSAGE_BYTES_MAX = 1048588
_INT16_MAX = 0x7FFF


class UnroutableRow(TidemillError):
    """A row that names no place, or one that does not exist."""


class Routed(NamedTuple):
    """Rows of one topic, partition after partition."""

    topic: str
    records: pa.RecordBatch
    partitions: list[int]
    # The first row of each of the partitions.
    starts: list[int]


class Router:
    def __init__(self, cluster: Cluster, topic: str | None, first: int) -> None:
        """`topic` stands above the column; `first` is where rows without a key begin."""
        self._cluster = cluster
        self._topic = topic
        self._next = first
        self._partition_counts: dict[str, int] = {}
        self._bytes_max: dict[str, int] = {}

    def route(self, rows: pa.RecordBatch) -> Iterator[Routed]:
        """The rows by topic and partition; only the columns of a record are left."""
        for topic, of_topic in self._by_topic(rows):
            places = self._partitions_of(topic, of_topic)
            records = _records(of_topic)
            if isinstance(places, int):
                yield Routed(topic, records, [places], [0])
                continue
            # A stable sort keeps the order of each partition's rows; on 16 bits it is a radix sort.
            is_small = self._partition_counts[topic] <= _INT16_MAX
            order = np.argsort(places.astype(np.int16) if is_small else places, kind="stable")
            counts = np.bincount(places)
            present = np.flatnonzero(counts)
            starts = np.cumsum(counts[present]) - counts[present]
            yield Routed(topic, records.take(array_of(order)), present.tolist(), starts.tolist())

    def bytes_max(self, topic: str) -> int:
        """The largest batch that the topic takes."""
        known = self._bytes_max.get(topic)
        if known is None:
            value = Admin(self._cluster).topic_values([topic], "max.message.bytes").get(topic)
            # A principal that may write need not be allowed to read configurations.
            known = self._bytes_max[topic] = int(value) if value else _MESSAGE_BYTES_MAX
        return known

    def _by_topic(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        if self._topic is not None:
            yield self._topic, rows
            return
        topics = rows.column("topic")
        if topics.null_count:
            raise UnroutableRow("a row has null as its topic; set the option topic, or filter such rows out")
        names = pc.unique(topics).to_pylist()
        for name in names:
            yield name, rows if len(names) == 1 else rows.filter(pc.equal(topics, name))

    def _partitions_of(self, topic: str, rows: pa.RecordBatch) -> Partitions | int:
        """One partition for each row, or the one of all."""
        count = self._partition_count(topic)
        has_key = _has_values(rows, "key")
        is_told = _has_values(rows, "partition")
        self._next = (self._next + 1) % count
        if not has_key and not is_told:
            return self._next
        places: Partitions = np.full(len(rows), -1, dtype=np.int32)
        if has_key:
            places = np.array(partitions_of(_as_bytes(rows.column("key")), count))
        places[places < 0] = self._next
        if is_told:
            told = rows.column("partition")
            wanted = told.fill_null(-1).to_numpy(zero_copy_only=False)
            is_set = told.is_valid().to_numpy(zero_copy_only=False)
            wrong = wanted[is_set & ((wanted < 0) | (wanted >= count))]
            if len(wrong):
                raise UnroutableRow(
                    f"a row asks for partition {wrong[0]} of topic {topic}, which has 0 to {count - 1}"
                )
            places[is_set] = wanted[is_set]
        return places

    def _partition_count(self, topic: str) -> int:
        known = self._partition_counts.get(topic)
        if known is None:
            try:
                known = len(self._cluster.partitions_of(topic))
            except UnknownTopic:
                known = self._create(topic)
            self._partition_counts[topic] = known
        return known

    def _create(self, topic: str) -> int:
        message = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
        retries = self._cluster.retries(CREATION_TIMEOUT_S)
        while True:
            self._cluster.retrying(lambda: self._cluster.any_broker().request(message, MetadataResponse))
            try:
                return len(self._cluster.partitions_of(topic))
            except UnknownTopic:
                if not retries.wait():
                    raise UnknownTopic(f"there is no topic {topic}; create it before writing to it") from None


def _has_values(rows: pa.RecordBatch, name: str) -> bool:
    return name in rows.schema.names and rows.column(name).null_count < len(rows)


def _as_bytes(column: pa.Array) -> pa.Array:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _records(rows: pa.RecordBatch) -> pa.RecordBatch:
    has_key = "key" in rows.schema.names
    parts = {
        "key": _as_bytes(rows.column("key")) if has_key else pa.nulls(len(rows), pa.binary()),
        "value": _as_bytes(rows.column("value")),
    }
    # All null would cost as much to encode as headers that are there.
    for name in ("headers", "timestamp"):
        if _has_values(rows, name):
            parts[name] = rows.column(name)
    return pa.RecordBatch.from_pydict(parts)
