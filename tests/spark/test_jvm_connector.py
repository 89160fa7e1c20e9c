"""Spark's own Kafka connector against this broker: jobs with `format("kafka")` keep working.

The connector is the specification of our source and sink, so what fails here is a fault of the broker. Its jars come
from Maven Central: `make spark-jvm` fetches them; where they are not, the tests are skipped and the reason says so.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from bench.spark import jvm_connector
from pyspark.sql import DataFrame, SparkSession

from tests.brokers import RunningBroker
from tests.wire.connection import Connection

ck: Any = confluent_kafka
LIMIT_S = 30.0
PARTITIONS = 3


@pytest.fixture(scope="module")
def kafka(spark: SparkSession) -> SparkSession:
    if (reason := jvm_connector.missing()) is not None:
        pytest.skip(reason)
    for path in jvm_connector.paths():
        spark.sql(f"ADD JAR '{path}'")
    return spark


@pytest.fixture
def numbered(target: RunningBroker, topic: str) -> Callable[[int, int], None]:
    """Writes records `first` to `end` - 1 to the test's topic: number n in partition n % 3, with the key `k<n>`."""
    create(target, topic)

    def write(first: int, end: int) -> None:
        producer = ck.Producer({"bootstrap.servers": target.bootstrap, "enable.idempotence": True})
        for number in range(first, end):
            producer.produce(topic, f"{number}".encode(), f"k{number}".encode(), number % PARTITIONS)
        assert producer.flush(LIMIT_S) == 0

    return write


def create(target: RunningBroker, name: str, settings: dict[str, str] | None = None) -> None:
    configs = [{"name": key, "value": value} for key, value in (settings or {}).items()]
    new = {"name": name, "num_partitions": PARTITIONS, "replication_factor": 1, "configs": configs}
    with Connection(target) as connection:
        (answer,) = connection.request("create_topics", 7, topics=[new], timeout=10_000).topics
    assert answer.error_code == 0


def read(session: SparkSession, target: RunningBroker, topic: str, **options: str) -> DataFrame:
    reader = session.read.format("kafka").option("kafka.bootstrap.servers", target.bootstrap)
    return reader.option("subscribe", topic).options(**options).load()


def numbers(rows: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in rows.select("value").collect())


def test_a_batch_is_written_and_read_back_with_its_columns(
    kafka: SparkSession, target: RunningBroker, topic: str
) -> None:
    create(target, topic)
    rows = kafka.range(300).selectExpr(
        "concat('k', id) key",
        "cast(id as string) value",
        "cast(id % 3 as int) partition",
        "array(named_struct('key', 'origin', 'value', cast(concat('h', id) as binary))) headers",
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", target.bootstrap)
    writer.option("topic", topic).option("includeHeaders", "true").save()
    found = read(kafka, target, topic, includeHeaders="true").orderBy("partition", "offset").collect()
    assert sorted(int(row.value) for row in found) == list(range(300))
    for row in found:
        number = int(row.value)
        assert row.key == f"k{number}".encode()
        assert (row.topic, row.partition, row.timestampType) == (topic, number % PARTITIONS, 0)
        assert [tuple(header) for header in row.headers] == [("origin", f"h{number}".encode())]
    for partition in range(PARTITIONS):
        assert [row.offset for row in found if row.partition == partition] == list(range(100))


def test_a_stock_consumer_reads_what_it_wrote(kafka: SparkSession, target: RunningBroker, topic: str) -> None:
    """Without a partition column: the connector's producer spreads the keys as every Java client does."""
    create(target, topic)
    rows = kafka.range(60).selectExpr("cast(id as string) key", "cast(id as string) value")
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        writer = rows.write.format("kafka").option("kafka.bootstrap.servers", target.bootstrap)
        writer.option("topic", topic).option("kafka.compression.type", codec).save()
    consumer = ck.Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    )
    places: dict[bytes, set[int]] = {}
    try:
        consumer.subscribe([topic])
        for _ in range(4 * 60):
            record = consumer.poll(LIMIT_S)
            assert record is not None, f"only {places} can be read"
            assert record.error() is None
            assert record.key() == record.value()
            places.setdefault(record.key(), set()).add(record.partition())
    finally:
        consumer.close()
    assert places.keys() == {f"{number}".encode() for number in range(60)}
    assert all(len(partitions) == 1 for partitions in places.values())


def test_batch_reads_the_given_range_of_offsets(
    kafka: SparkSession, target: RunningBroker, topic: str, numbered: Callable[[int, int], None]
) -> None:
    numbered(0, 30)
    starts = {topic: {"0": 4, "1": -2, "2": 10}}
    ends = {topic: {"0": 6, "1": 1, "2": -1}}
    rows = read(kafka, target, topic, startingOffsets=json.dumps(starts), endingOffsets=json.dumps(ends))
    # Offsets 4 and 5 of partition 0, offset 0 of partition 1, nothing of partition 2.
    assert numbers(rows) == [1, 12, 15]
    many = read(kafka, target, topic, minPartitions="6")
    assert many.rdd.getNumPartitions() == 6
    assert numbers(many) == list(range(30))


def test_a_batch_starts_at_a_timestamp(kafka: SparkSession, target: RunningBroker, topic: str) -> None:
    create(target, topic)
    producer = ck.Producer({"bootstrap.servers": target.bootstrap})
    for number in range(30):
        producer.produce(topic, f"{number}".encode(), partition=number % PARTITIONS, timestamp=1000 + number)
    assert producer.flush(LIMIT_S) == 0
    assert numbers(read(kafka, target, topic, startingTimestamp="1012")) == list(range(12, 30))


def test_read_committed_leaves_out_what_was_aborted(
    kafka: SparkSession, target: RunningBroker, topic: str
) -> None:
    create(target, topic)
    settings = {"bootstrap.servers": target.bootstrap, "transactional.id": topic, "linger.ms": 0}
    producer = ck.Producer(settings)
    producer.init_transactions(LIMIT_S)
    for transaction in range(4):
        producer.begin_transaction()
        for number in range(transaction * 30, transaction * 30 + 30):
            producer.produce(topic, f"{number}".encode(), partition=number % PARTITIONS)
        assert producer.flush(LIMIT_S) == 0
        if transaction % 2:
            producer.abort_transaction(LIMIT_S)
        else:
            producer.commit_transaction(LIMIT_S)
    committed = [*range(30), *range(60, 90)]
    assert numbers(read(kafka, target, topic, **{"kafka.isolation.level": "read_committed"})) == committed
    assert numbers(read(kafka, target, topic)) == list(range(120))


def test_a_stream_goes_on_from_its_checkpoint(
    kafka: SparkSession,
    target: RunningBroker,
    topic: str,
    numbered: Callable[[int, int], None],
    tmp_path: Path,
) -> None:
    output = f"{topic}-out"
    create(target, output)

    def run_to_the_end() -> list[Any]:
        stream = kafka.readStream.format("kafka").option("kafka.bootstrap.servers", target.bootstrap)
        rows = stream.options(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="60").load()
        writer = rows.selectExpr("key", "value").writeStream.format("kafka")
        query = (
            writer.option("kafka.bootstrap.servers", target.bootstrap)
            .option("topic", output)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        assert query.exception() is None
        return [progress for progress in query.recentProgress if progress.numInputRows]

    numbered(0, 150)
    assert [progress.numInputRows for progress in run_to_the_end()] == [60, 60, 30]
    assert numbers(read(kafka, target, output)) == list(range(150))
    numbered(150, 180)
    (progress,) = run_to_the_end()
    assert json.loads(progress.sources[0].endOffset) == {topic: {"0": 60, "1": 60, "2": 60}}
    # Nothing of the first run is there again.
    assert numbers(read(kafka, target, output)) == list(range(180))
    assert run_to_the_end() == []


def test_a_stream_that_runs_on_sees_new_records(
    kafka: SparkSession,
    target: RunningBroker,
    topic: str,
    numbered: Callable[[int, int], None],
    tmp_path: Path,
) -> None:
    numbered(0, 30)
    stream = kafka.readStream.format("kafka").option("kafka.bootstrap.servers", target.bootstrap)
    rows = stream.options(subscribe=topic, startingOffsets="latest").load()
    seen: list[int] = []
    query = (
        rows.writeStream.foreachBatch(lambda batch, _: seen.extend(numbers(batch)))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        numbered(30, 60)
        query.processAllAvailable()
        numbered(60, 90)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(seen) == list(range(30, 90))
