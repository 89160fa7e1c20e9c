"""What the sink's tests write, and how they read it back: with confluent-kafka, so that reader and writer share no code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from tests.brokers import eventually
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.transactions import TransactionAdmin
from tidemill.client.cluster import Cluster
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.sink.two_phase import commit_batch
from tidemill.spark.sink.writers import Task, Written, write_rows

READ_LIMIT_S = 30.0


class Seen(NamedTuple):
    partition: int
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: tuple[tuple[str, str | bytes | None], ...]


def create(bootstrap: str, topic: str, partition_count: int = 1, **configs: str) -> None:
    with Cluster(bootstrap) as cluster:
        settings = {name.replace("_", "."): value for name, value in configs.items()}
        Admin(cluster).create_topic(topic, partition_count=partition_count, configs=settings)


def read(bootstrap: str, topic: str, *, isolation: str = "read_committed") -> list[Seen]:
    """Everything that is there now, partition by partition, when every transaction has ended."""
    end_offsets(bootstrap, topic)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    try:
        partitions = consumer.list_topics(topic, READ_LIMIT_S).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
        return sorted(_until_ends(consumer, len(partitions)), key=lambda seen: seen.partition)
    finally:
        consumer.close()


def _until_ends(consumer: Consumer, partition_count: int) -> Iterator[Seen]:
    ended = 0
    while ended < partition_count:
        message = consumer.poll(READ_LIMIT_S)
        assert message is not None, "the end of a partition was not reached"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
            continue
        partition, headers = message.partition(), message.headers() or []
        assert partition is not None
        assert isinstance(headers, list)
        yield Seen(partition, message.key(), message.value(), message.timestamp()[1], tuple(headers))


def end_offsets(bootstrap: str, topic: str) -> list[int]:
    """Returns the ends of the partitions when every transaction has ended. Equal ends mean that nothing was written."""
    with Cluster(bootstrap) as cluster:
        admin, partitions = Admin(cluster), cluster.partitions_of(topic)

        def ends_if_stable() -> list[int] | None:
            """Markers follow the answer to a commit."""
            stable = admin.end_offsets(partitions, READ_COMMITTED)
            ends = admin.end_offsets(partitions)
            return [ends[partition] for partition in partitions] if ends == stable else None

        return eventually(ends_if_stable, "the end of every transaction")


def assert_nothing_is_open(bootstrap: str, topic: str) -> None:
    with Cluster(bootstrap) as cluster:
        admin = TransactionAdmin(cluster)
        partitions = cluster.partitions_of(topic)
        eventually(lambda: not admin.open_transactions(partitions), "the end of every transaction")


def values(seen: Iterable[Seen]) -> list[str]:
    return sorted((each.value or b"").decode() for each in seen)


def options(bootstrap: str, topic: str, **others: str) -> SinkOptions:
    return SinkOptions.parse({"kafka.bootstrap.servers": bootstrap, "topic": topic} | others)


def rows(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(texts, pa.string())})


def write_batch(sink: SinkOptions, task: Task, batches: Iterable[pa.RecordBatch], *others: Written) -> None:
    """A whole batch: one task here, others before, and the driver's commit."""
    told = [write_rows(sink, task, batches), *others]
    with sink.access.cluster() as cluster:
        written = [each.transaction for each in told if each.transaction is not None]
        commit_batch(cluster, task.query_id, task.batch_id, written)
