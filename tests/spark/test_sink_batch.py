"""Batch writes: columns, places, transactions and what is refused. A task's own doings are tested without a session."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from tests.brokers import RunningBroker
from tests.spark.sinks import Seen, create, options, read, rows, values, write_batch
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.producing.transaction_coordinator import TransactionCoordinator
from tidemill.client.producing.transactional import Fenced, RecordTooLarge
from tidemill.protocol.isolation import READ_COMMITTED
from tidemill.spark.sink.routing import UnroutableRow
from tidemill.spark.sink.writers import CHUNK_BYTES, Task, Written, write_rows

FULL = (
    "key string, value binary, topic string, partition int, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>, offset bigint"
)
WHEN = datetime(2024, 5, 17, 8, 30, 0, 123000, tzinfo=UTC)
WHEN_MS = 1715934600123


def spark_groups(bootstrap: str) -> list[str]:
    with Cluster(bootstrap) as cluster:
        return [group.group_id for group in GroupAdmin(cluster).groups() if "spark" in group.group_id]


class TestSession:
    def test_every_column_arrives(self, spark: SparkSession, target: RunningBroker, topic: str) -> None:
        other = f"{topic}-other"
        create(target.bootstrap, topic, 3)
        create(target.bootstrap, other, 3)
        headers = [Row(key="h", value=b"1"), Row(key="h", value=None)]
        frame = spark.createDataFrame(
            [
                ("k", b"full", topic, 2, WHEN, headers, 17),
                (None, b"bare", topic, 1, WHEN, None, 17),
                ("k", None, other, 0, WHEN, [], 17),
            ],
            FULL,
        )
        writer = frame.write.format("tidemill").option("kafka.bootstrap.servers", target.bootstrap)
        writer.mode("append").save()
        assert read(target.bootstrap, topic) == [
            Seen(1, None, b"bare", WHEN_MS, ()),
            Seen(2, b"k", b"full", WHEN_MS, (("h", b"1"), ("h", None))),
        ]
        assert read(target.bootstrap, other) == [Seen(0, b"k", None, WHEN_MS, ())]
        assert spark_groups(target.bootstrap) == []

    def test_keys_land_where_other_clients_put_them(
        self, spark: SparkSession, target: RunningBroker, topic: str
    ) -> None:
        ours, theirs = f"{topic}-ours", f"{topic}-theirs"
        keys = [f"customer-{number}" * (number % 4 + 1) for number in range(300)]
        producer = Producer({"bootstrap.servers": target.bootstrap, "partitioner": "murmur2_random"})
        for name in (ours, theirs):
            create(target.bootstrap, name, 7)
        for key in keys:
            producer.produce(theirs, key=key, value=key)
        assert producer.flush(30) == 0
        frame = spark.createDataFrame([(key, key) for key in keys], "key string, value string")
        writer = frame.write.format("tidemill").option("kafka.bootstrap.servers", target.bootstrap)
        writer.options(topic=ours, exactlyOnce="false", **{"kafka.compression.type": "zstd"}).mode(
            "append"
        ).save()
        places = [
            {(seen.partition, seen.key) for seen in read(target.bootstrap, name)} for name in (ours, theirs)
        ]
        assert places[0] == places[1]
        assert len(places[0]) == 300

    @pytest.mark.parametrize(
        ("ddl", "settings", "line"),
        [
            ("value int", {}, "the column value is int; it should be string or binary: cast it"),
            ("value string", {"kafka.acks": "2"}, "kafka.acks=2 is not understood"),
        ],
    )
    def test_rows_that_cannot_be_written_are_refused_in_a_line(
        self,
        spark: SparkSession,
        target: RunningBroker,
        topic: str,
        ddl: str,
        settings: dict[str, str],
        line: str,
    ) -> None:
        frame = spark.createDataFrame([], ddl)
        writer = frame.write.format("tidemill").option("kafka.bootstrap.servers", target.bootstrap)
        with pytest.raises(PySparkException) as refused:
            writer.options(topic=topic, **settings).mode("append").save()
        assert any(line in each for each in str(refused.value).splitlines())


@pytest.mark.parametrize("is_new", [False, True], ids=["old", "new"])
class TestTask:
    """Runs `write_rows`, the whole work of a task, with transaction.version below 2 (old) and with 2 (new)."""

    @pytest.fixture(autouse=True)
    def _manner(self, monkeypatch: pytest.MonkeyPatch, is_new: bool) -> None:
        monkeypatch.setattr(TransactionCoordinator, "is_new", is_new)

    @pytest.fixture
    def task(self, topic: str) -> Task:
        return Task(f"test-{topic}", 4, 1)

    @pytest.fixture(autouse=True)
    def _topic(self, target: RunningBroker, topic: str) -> None:
        create(target.bootstrap, topic, 2, max_message_bytes="100000")

    def test_nothing_is_seen_before_the_driver_commits(
        self, target: RunningBroker, topic: str, task: Task
    ) -> None:
        sink = options(target.bootstrap, topic)
        written = write_rows(sink, task, [rows("a"), rows("b")])
        assert written.rows == 2
        with Cluster(target.bootstrap) as cluster:
            partitions = cluster.partitions_of(topic)
            stable = Admin(cluster).end_offsets(partitions, READ_COMMITTED)
        assert set(stable.values()) == {0}
        write_batch(sink, task._replace(partition_id=2), [rows("c")], written)
        assert values(read(target.bootstrap, topic)) == ["a", "b", "c"]

    def test_a_failed_attempt_leaves_nothing_to_see(
        self, target: RunningBroker, topic: str, task: Task
    ) -> None:
        def failing() -> Iterator[pa.RecordBatch]:
            yield rows("a" * CHUNK_BYTES)
            raise ZeroDivisionError

        sink = options(target.bootstrap, topic, **{"kafka.compression.type": "gzip"})
        with pytest.raises(ZeroDivisionError):
            write_rows(sink, task, failing())
        assert read(target.bootstrap, topic) == []
        assert len(read(target.bootstrap, topic, isolation="read_uncommitted")) == 1
        write_batch(sink, task, [rows("a")])
        assert values(read(target.bootstrap, topic)) == ["a"]

    def test_a_zombie_is_fenced_by_the_next_attempt(
        self, target: RunningBroker, topic: str, task: Task
    ) -> None:
        sink = options(target.bootstrap, topic, **{"kafka.compression.type": "gzip"})
        newer: list[Written] = []

        def overtaken() -> Iterator[pa.RecordBatch]:
            yield rows("z" * CHUNK_BYTES)
            newer.append(write_rows(sink, task, [rows("a")]))
            yield rows("zombie again")

        with pytest.raises(Fenced, match=r"spark-test-.*/1-0.0 was fenced"):
            write_rows(sink, task, overtaken())
        assert newer[0].rows == 1
        write_batch(sink, task._replace(partition_id=2), [], newer[0])
        assert values(read(target.bootstrap, topic)) == ["a"]

    def test_a_record_that_is_too_large_is_named(self, target: RunningBroker, topic: str, task: Task) -> None:
        with pytest.raises(
            RecordTooLarge, match=rf"{topic}-\d: .* 100,000 are allowed .*max\.message\.bytes"
        ):
            write_rows(options(target.bootstrap, topic), task, [rows("a", "b" * 100_000)])
        assert read(target.bootstrap, topic) == []

    def test_record_larger_than_the_batch_size_has_a_batch_of_its_own(
        self, target: RunningBroker, topic: str, task: Task
    ) -> None:
        texts = ["a", "b" * 5_000, "c"]
        write_batch(options(target.bootstrap, topic, **{"kafka.batch.size": "1000"}), task, [rows(*texts)])
        assert values(read(target.bootstrap, topic)) == texts

    def test_large_batches_of_rows_are_cut_to_what_the_topic_takes(
        self, target: RunningBroker, topic: str, task: Task
    ) -> None:
        texts = [f"{number:06}" * 100 for number in range(1000)]
        write_batch(options(target.bootstrap, topic), task, [rows(*texts)])
        assert values(read(target.bootstrap, topic)) == texts

    @pytest.mark.parametrize("partition", [-1, 2])
    def test_a_partition_that_is_not_there_is_named(
        self, target: RunningBroker, topic: str, task: Task, partition: int
    ) -> None:
        batch = pa.RecordBatch.from_pydict(
            {"value": pa.array(["a", "b"]), "partition": pa.array([None, partition], pa.int32())}
        )
        line = f"a row asks for partition {partition} of topic {topic}, which has 0 to 1"
        with pytest.raises(UnroutableRow, match=line):
            write_rows(options(target.bootstrap, topic), task, [batch])

    def test_rows_without_a_key_take_turns(self, target: RunningBroker, topic: str, task: Task) -> None:
        sink = options(target.bootstrap, topic)
        for batch_id in range(4):
            write_batch(sink, task._replace(batch_id=batch_id, partition_id=batch_id), [rows("a", "b")])
        assert [seen.partition for seen in read(target.bootstrap, topic)] == [0, 0, 0, 0, 1, 1, 1, 1]

    def test_a_topic_is_created_where_brokers_allow_it(
        self, target: RunningBroker, topic: str, task: Task
    ) -> None:
        write_batch(options(target.bootstrap, f"{topic}-new"), task, [rows("a")])
        assert values(read(target.bootstrap, f"{topic}-new")) == ["a"]
