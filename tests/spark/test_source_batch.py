"""Batch reads: which records come, with which columns, from which offsets, in how many tasks.

What Spark has a part in runs in a session. What only the source decides is asked of the source itself, as Spark's planner
and tasks ask it: that is the same code without the seconds that a query takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tests.brokers import Broker, RunningBroker, eventually
from tests.spark.conftest import Fed, Feed, Read
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.errors import TidemillError
from tidemill.spark.source.options import COLUMNS, Query, SourceOptions
from tidemill.spark.source.readers import BatchReader
from tidemill.spark.source.work import Work

CREATED_MS = 1_700_000_000_000


def offsets_of(frame: DataFrame) -> list[tuple[str, int, int]]:
    rows = frame.select("topic", "partition", "offset").collect()
    return sorted((row.topic, row.partition, row.offset) for row in rows)


class Source:
    """The source's own reader, without Spark."""

    def __init__(self, bootstrap: str, options: Mapping[str, str]) -> None:
        told = {"kafka.bootstrap.servers": bootstrap, **options}
        self._options = SourceOptions.parse(told, Query.BATCH)
        self._reader = BatchReader(self._options)

    def tasks(self) -> list[Work]:
        return [each for each in self._reader.partitions() if isinstance(each, Work)]

    def ranges(self) -> list[tuple[int, int, int]]:
        return [(task.partition.partition, task.start_offset, task.end_offset) for task in self.tasks()]

    def table(self) -> pa.Table:
        batches = [batch for task in self.tasks() for batch in self._reader.read(task)]
        return pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in COLUMNS})


def test_columns_types_and_values_are_those_of_sparks_kafka_source(
    read: Read, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(
        topic,
        [
            Fed(b"v0", b"k0", 0, CREATED_MS, [("a", b"1"), ("a", None), ("ü", b"")]),
            Fed(None, b"k1", 0, CREATED_MS + 1, []),
            Fed(b"", None, 0, CREATED_MS + 1999),
        ],
    )
    frame = read({"subscribe": topic, "INCLUDEheaders": "true"})
    header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    assert frame.schema == StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", ArrayType(header)),
        ]
    )
    rows = frame.selectExpr("*", "unix_millis(timestamp) AS ms").orderBy("offset").collect()
    assert [
        (row.key, row.value, row.topic, row.partition, row.offset, row.timestampType) for row in rows
    ] == [
        (b"k0", b"v0", topic, 0, 0, 0),
        (b"k1", None, topic, 0, 1, 0),
        (None, b"", topic, 0, 2, 0),
    ]
    assert [row.ms - CREATED_MS for row in rows] == [0, 1, 1999]
    assert rows[0].timestamp.replace(tzinfo=UTC) == datetime.fromtimestamp(CREATED_MS / 1000, UTC)
    assert [tuple(each) for each in rows[0].headers] == [("a", b"1"), ("a", None), ("ü", b"")]
    assert not rows[1].headers
    assert "headers" not in read({"subscribe": topic}).columns


def test_topics_are_chosen_by_name_pattern_and_partition(
    read: Read, feed: Feed, admin: Admin, topic: str
) -> None:
    first, second, other = f"{topic}.1", f"{topic}.2", f"{topic}.2x"
    for name in (first, second, other):
        admin.create_topic(name, partition_count=2)
        feed(name, [Fed(b"a", partition=0), Fed(b"b", partition=1)])
    everything = {(name, index, 0) for name in (first, second, other) for index in (0, 1)}
    assert set(offsets_of(read({"subscribe": f"{first}, {other}"}))) == {
        each for each in everything if each[0] != second
    }
    # As in Spark's own source, a pattern need only be found in the name.
    assert set(offsets_of(read({"subscribePattern": rf"{topic}\.\p{{Digit}}"}))) == everything
    assert set(offsets_of(read({"subscribePattern": rf"^{topic}\.\p{{Digit}}$"}))) == {
        each for each in everything if each[0] != other
    }
    assigned = json.dumps({first: [1], second: [0]})
    assert offsets_of(read({"assign": assigned})) == [(first, 1, 0), (second, 0, 0)]
    assert offsets_of(read({"subscribePattern": f"{topic}-none"})) == []


def test_only_requested_columns_are_read(read: Read, feed: Feed, admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"v", b"k")])
    frame = read({"subscribe": topic, "columns": "offset, VALUE"})
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.collect()] == [(0, b"v")]


def test_a_bounded_read_in_several_tasks_gives_each_record_once(
    spark: SparkSession, read: Read, feed: Feed, admin: Admin, topic: str
) -> None:
    """Compressed batches of some hundred records, cut in their midst by tasks and by the bounds of the read."""
    admin.create_topic(topic, partition_count=2)
    records = [Fed(b"%d" % number, b"key", number % 2) for number in range(20_000)]
    feed(topic, records, {"compression.type": "lz4", "batch.num.messages": 700})
    frame = read(
        {
            "subscribe": topic,
            "startingOffsets": json.dumps({topic: {"0": 123, "1": -2}}),
            "endingOffsets": json.dumps({topic: {"0": -1, "1": 9_001}}),
            "minPartitions": "5",
        }
    )
    assert frame.rdd.getNumPartitions() == 5
    rows = frame.selectExpr("partition", "offset", "CAST(CAST(value AS STRING) AS INT) AS number").collect()
    expected = [(0, offset) for offset in range(123, 10_000)] + [(1, offset) for offset in range(9_001)]
    assert sorted((row.partition, row.offset) for row in rows) == expected
    assert all(row.number == 2 * row.offset + row.partition for row in rows)


def test_minpartitions_and_maxrecordsperpartition_cut_partitions_in_proportion(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=3)
    feed(topic, [Fed(b"x", partition=0) for _ in range(90)] + [Fed(b"x", partition=1) for _ in range(10)])

    def ranges(**options: str) -> list[tuple[int, int, int]]:
        return Source(target.bootstrap, {"subscribe": topic, **options}).ranges()

    assert ranges() == [(0, 0, 90), (1, 0, 10)]
    assert ranges(minPartitions="4") == [(0, 0, 30), (0, 30, 60), (0, 60, 90), (1, 0, 10)]
    assert ranges(maxRecordsPerPartition="50") == [(0, 0, 45), (0, 45, 90), (1, 0, 10)]


_ALL = range(10)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        pytest.param({}, (_ALL, _ALL), id="all"),
        pytest.param(
            {"startingOffsets": "earliest", "endingOffsets": "LATEST"}, (_ALL, _ALL), id="earliest-latest"
        ),
        pytest.param(
            {"startingOffsets": {"0": 7, "1": -2}, "endingOffsets": {"0": -1, "1": 3}},
            (range(7, 10), range(3)),
            id="by-offset",
        ),
        pytest.param(
            {"startingOffsets": {"0": 10, "1": 4}, "endingOffsets": {"0": 10, "1": 4}}, ((), ()), id="empty"
        ),
        pytest.param({"startingTimestamp": 5}, (range(5, 10), range(5, 10)), id="starting-timestamp"),
        pytest.param(
            {"startingTimestamp": 2, "endingTimestamp": 4}, (range(2, 4), range(2, 4)), id="timestamps"
        ),
        pytest.param(
            {"startingOffsetsByTimestamp": {"0": 8, "1": 1}, "endingOffsetsByTimestamp": {"0": 99, "1": 2}},
            (range(8, 10), range(1, 2)),
            id="by-timestamp",
        ),
        pytest.param(
            {"startingTimestamp": 99, "startingOffsetsByTimestampStrategy": "latest"},
            ((), ()),
            id="no-match-latest",
        ),
        # The first of Spark's three ways to say it counts.
        pytest.param(
            {"startingTimestamp": 9, "startingOffsets": "earliest"}, (range(9, 10), range(9, 10)), id="both"
        ),
    ],
)
def test_offsets_and_timestamps_bound_the_read(
    target: RunningBroker,
    feed: Feed,
    admin: Admin,
    topic: str,
    options: dict[str, object],
    expected: tuple[range, range],
) -> None:
    admin.create_topic(topic, partition_count=2)
    feed(topic, [Fed(b"x", None, index, CREATED_MS + age) for age in range(10) for index in (0, 1)])
    told = {name: _told(topic, name, value) for name, value in options.items()}
    table = Source(target.bootstrap, {"subscribe": topic, **told}).table()
    for index in (0, 1):
        rows = table.filter(pa.compute.equal(table["partition"], index)) if table.num_rows else table
        assert rows["offset"].to_pylist() == list(expected[index])


def _told(topic: str, name: str, value: object) -> str:
    """The option as a user writes it; timestamps count from the first record's."""
    base = CREATED_MS if "Timestamp" in name else 0
    if isinstance(value, dict):
        return json.dumps({topic: {index: base + number for index, number in value.items()}})
    return str(base + value) if isinstance(value, int) else str(value)


@pytest.mark.parametrize(
    "codec",
    ["none", "zstd", *(pytest.param(each, marks=pytest.mark.long) for each in ("gzip", "snappy", "lz4"))],
)
def test_every_codec_is_read(target: RunningBroker, feed: Feed, admin: Admin, topic: str, codec: str) -> None:
    admin.create_topic(topic, partition_count=1)
    values = [b"value %d " % number * 20 for number in range(500)]
    feed(topic, [Fed(value) for value in values], {"compression.type": codec})
    table = Source(target.bootstrap, {"subscribe": topic}).table()
    assert table["value"].to_pylist() == values
    assert table["offset"].to_pylist() == list(range(500))


def test_a_compacted_topic_is_read_over_its_holes(start: Callable[..., Broker], topic: str) -> None:
    broker = start({"log.cleaner.backoff.ms": "50"})
    configs = {"cleanup.policy": "compact", "segment.bytes": "1048576", "min.cleanable.dirty.ratio": "0.01"}
    with Cluster(broker.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, partition_count=1, configs=configs)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "batch.num.messages": 100})
    for number in range(3_000):
        producer.produce(topic, b"%04d" % number * 250, b"key %d" % (number % 7))
    assert producer.flush(30) == 0
    source = Source(broker.bootstrap, {"subscribe": topic, "minPartitions": "3"})

    def compacted() -> pa.Table | None:
        table = source.table()
        return table if table.num_rows < 2_900 else None

    table = eventually(compacted, "the topic is compacted", 60)
    offsets = table["offset"].to_pylist()
    assert offsets == sorted(set(offsets))
    assert table["value"].to_pylist() == [b"%04d" % offset * 250 for offset in offsets]
    assert offsets[-7:] == list(range(2_993, 3_000))


def test_isolation_decides_whether_open_and_aborted_transactions_are_read(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=1)
    producer = Producer({"bootstrap.servers": target.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for value, ends in (
        (b"committed", producer.commit_transaction),
        (b"aborted", producer.abort_transaction),
    ):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(30)
        ends(30)
    feed(topic, [Fed(b"plain")])
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(30)
    feed(topic, [Fed(b"behind the open one")])

    def values(level: str) -> list[bytes]:
        options = {"subscribe": topic, "kafka.isolation.level": level}
        return [each.as_py() for each in Source(target.bootstrap, options).table()["value"]]

    everything = [b"committed", b"aborted", b"plain", b"open", b"behind the open one"]
    assert values("read_uncommitted") == everything
    assert values("read_committed") == [b"committed", b"plain"]
    producer.commit_transaction(30)
    assert values("read_committed") == [b"committed", b"plain", b"open", b"behind the open one"]


def test_offsets_that_retention_took_are_named_or_passed_over(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"%d" % number) for number in range(10)])
    options = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 2}})}
    planned = Source(target.bootstrap, options)
    (task,) = planned.tasks()
    (tolerant,) = Source(target.bootstrap, {**options, "failOnDataLoss": "false"}).tasks()
    (partition,) = admin.cluster.partitions_of(topic)
    admin.delete_records({partition: 6})

    lost = rf"{topic}-0: offsets 2 to 5 were deleted .* begins at offset 6 .* failOnDataLoss=false goes on"
    with pytest.raises(TidemillError, match=lost):
        planned.tasks()
    with pytest.raises(TidemillError, match=lost):
        list(task.read(["offset"]))
    caplog.clear()
    assert pa.Table.from_batches(tolerant.read(["offset"]))["offset"].to_pylist() == [6, 7, 8, 9]
    assert f"{topic}-0: offsets 2 to 5 were deleted" in caplog.text
    again = Source(target.bootstrap, {**options, "failOnDataLoss": "false"})
    assert again.ranges() == [(0, 6, 10)]


def test_a_filter_of_one_query_does_not_stay_for_the_next(
    spark: SparkSession, read: Read, feed: Feed, admin: Admin, topic: str
) -> None:
    """Spark would keep what was planned under a filter, for all queries of a DataFrame."""
    admin.create_topic(topic, partition_count=3)
    feed(topic, [Fed(b"x", None, number % 3) for number in range(30)])
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read({"subscribe": topic})
        counts = [
            frame.where(each).count() for each in ("partition = 1 AND offset > 6", "true", "offset = 2")
        ]
        assert counts == [3, 30, 3]
        assert frame.where("partition = 1").alias("a").join(frame.alias("b"), "offset").count() == 30
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
