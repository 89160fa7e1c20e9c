"""Streams: real queries with a checkpoint, and the reader driven call by call, in the order in which Spark calls it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.brokers import RunningBroker, eventually
from tests.spark.conftest import Fed, Feed
from tests.spark.streams import ended
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.errors import TidemillError
from tidemill.spark.behind import offsets_behind_latest
from tidemill.spark.source.options import Query, SourceOptions
from tidemill.spark.source.readers import StreamReader
from tidemill.spark.source.work import Work
from tidemill.spark.versions import ReadAllAvailable, ReadMaxRows, ReadMinRows
from tidemill.types import TopicPartition


class Job:
    """A query from one topic to Parquet files, with a checkpoint that outlives its runs."""

    def __init__(self, spark: SparkSession, home: Path, options: Mapping[str, str]) -> None:
        self._spark = spark
        self._options = dict(options)
        self.checkpoint = home / "checkpoint"
        self.output = home / "output"

    def start(self, more: Mapping[str, str] | None = None, **trigger: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("tidemill").options(**{**self._options, **(more or {})}).load()
        writer = frame.select("partition", "offset").writeStream.format("parquet")
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return writer.trigger(**(trigger or {"processingTime": "0 seconds"})).start(str(self.output))

    def run_available(self, more: Mapping[str, str] | None = None) -> StreamingQuery:
        return ended(lambda: self.start(more, availableNow=True))

    def rows(self) -> list[tuple[int, int]]:
        """Duplicates included."""
        tables = [pq.read_table(path) for path in self.output.glob("*.parquet")]
        return sorted((row["partition"], row["offset"]) for table in tables for row in table.to_pylist())


def expected(counts: Mapping[int, int], first: int = 0) -> list[tuple[int, int]]:
    return [(index, offset) for index, count in counts.items() for offset in range(first, count)]


def test_a_query_reads_in_limited_batches_and_goes_on_from_its_checkpoint(
    spark: SparkSession, target: RunningBroker, feed: Feed, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, partition_count=2)
    feed(topic, [Fed(b"x", partition=0) for _ in range(300)] + [Fed(b"x", partition=1) for _ in range(100)])
    job = Job(
        spark,
        tmp_path,
        {
            "kafka.bootstrap.servers": target.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "200",
            "groupId": topic,
        },
    )
    groups = GroupAdmin(admin.cluster)

    query = job.start()
    query.processAllAvailable()
    feed(topic, [Fed(b"x", partition=0) for _ in range(50)])
    query.processAllAvailable()
    query.stop()

    assert job.rows() == expected({0: 350, 1: 100})
    batches = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in batches] == [200, 200, 50]
    # In proportion to what waits, while the progress shows all of it.
    first = batches[0]["sources"][0]
    assert json.loads(first["endOffset"]) == {topic: {"0": 150, "1": 50}}
    assert json.loads(first["latestOffset"]) == {topic: {"0": 300, "1": 100}}
    assert offsets_behind_latest(batches[0]) == [
        {"minOffsetsBehindLatest": 50, "avgOffsetsBehindLatest": 100.0, "maxOffsetsBehindLatest": 150}
    ]

    feed(topic, [Fed(b"x", partition=1) for _ in range(7)])
    (lag,) = [each for each in groups.lags(groups.describe(topic)) if each.lag]
    assert (lag.partition.partition, lag.lag) == (1, 7)

    query = job.run_available()
    assert sum(each["numInputRows"] for each in query.recentProgress) == 7
    assert job.rows() == expected({0: 350, 1: 107})
    assert [each.lag for each in groups.lags(groups.describe(topic))] == [0, 0]


def test_latest_loses_nothing_that_is_written_after_the_start(
    spark: SparkSession, target: RunningBroker, feed: Feed, admin: Admin, topic: str, tmp_path: Path
) -> None:
    """A first batch that was not finished is repeated, in another process that gets a later start for it.

    What is written between two questions of one run is tested call by call below: here it would take luck.
    """
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"old") for _ in range(5)])
    job = Job(spark, tmp_path, {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic})
    committed = job.checkpoint / "commits" / "0"

    query = job.start()
    eventually(committed.exists, "the first batch, with nothing in it, is done", 300)
    query.stop()
    # As if the driver had died in the first batch: planned, but neither the sink nor Spark has it as done. With an
    # entry of the sink left, Spark would pass over the batch, and nothing would be asked anew.
    shutil.rmtree(job.output / "_spark_metadata")
    committed.unlink()
    committed.with_name(".0.crc").unlink(missing_ok=True)
    feed(topic, [Fed(b"while nothing ran") for _ in range(3)])

    job.run_available()
    assert job.rows() == expected({0: 8}, first=5)


def test_retention_that_overtakes_a_query_is_named_or_passed_over(
    spark: SparkSession, target: RunningBroker, feed: Feed, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"x") for _ in range(10)])
    options = {
        "kafka.bootstrap.servers": target.bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
    }
    job = Job(spark, tmp_path, options)
    job.run_available()
    feed(topic, [Fed(b"x") for _ in range(10)])
    admin.delete_records({TopicPartition(topic, 0): 15})

    query = job.start(availableNow=True)
    with pytest.raises(
        Exception, match=rf"DataLost: {topic}-0: offsets 10 to 14 were deleted before they were"
    ):
        query.awaitTermination(120)

    job.run_available({"failOnDataLoss": "false"})
    assert job.rows() == [(0, offset) for offset in (*range(10), *range(15, 20))]


# --- the reader, call by call ---

ALL = ReadAllAvailable()


class Driven:
    """One run of a query, as Spark's driver calls it."""

    def __init__(self, bootstrap: str, **options: str) -> None:
        told = {"kafka.bootstrap.servers": bootstrap, **options}
        self.reader = StreamReader(SourceOptions.parse(told, Query.STREAM))

    def __enter__(self) -> Driven:
        return self

    def __exit__(self, *_: object) -> None:
        self.reader.stop()

    def ranges(self, start: dict[str, Any], end: dict[str, Any]) -> list[tuple[str, int, int]]:
        works = [each for each in self.reader.partitions(start, end) if isinstance(each, Work)]
        return [(str(each.partition), each.start_offset, each.end_offset) for each in works]


def test_the_initial_offsets_of_a_run_stay_although_latest_moves(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=1)
    with Driven(target.bootstrap, subscribe=topic) as run:
        assert repr(run.reader) == f"Tidemill[Subscribe[{topic}]]"
        start = run.reader.initialOffset()
        feed(topic, [Fed(b"x")])
        first_end = run.reader.latestOffset(start, ALL)
        assert run.reader.initialOffset() == start == first_end == {topic: {"0": 0}}
        assert run.ranges(start, first_end) == []
        second_end = run.reader.latestOffset(first_end, ALL)
        assert run.ranges(first_end, second_end) == [(f"{topic}-0", 0, 1)]
    # Another run that repeats the first batch gets a later start, and reads the same nothing.
    with Driven(target.bootstrap, subscribe=topic) as run:
        assert run.ranges(run.reader.initialOffset(), first_end) == []
        assert run.reader.latestOffset(first_end, ALL) == second_end


def test_only_partitions_that_start_at_latest_wait_for_the_second_batch(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=2)
    feed(topic, [Fed(b"x", partition=index) for index in (0, 1)])
    told = json.dumps({topic: {"0": -2, "1": -1}})
    with Driven(target.bootstrap, subscribe=topic, startingOffsets=told) as run:
        start = run.reader.initialOffset()
        feed(topic, [Fed(b"x", partition=1)])
        end = run.reader.latestOffset(start, ALL)
        assert run.ranges(start, end) == [(f"{topic}-0", 0, 1)]
        assert run.ranges(end, run.reader.latestOffset(end, ALL)) == [(f"{topic}-1", 1, 2)]


def test_partitions_and_topics_that_appear_are_read_from_their_beginning(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(f"{topic}-a", partition_count=1)
    with Driven(target.bootstrap, subscribePattern=f"^{topic}-.$") as run:
        start = run.reader.initialOffset()
        end = run.reader.latestOffset(start, ALL)
        assert run.ranges(start, end) == []
        admin.create_partitions(f"{topic}-a", 2)
        admin.create_topic(f"{topic}-b", partition_count=1)
        admin.create_topic(f"{topic}-bb", partition_count=1)
        feed(f"{topic}-bb", [Fed(b"x")])
        feed(f"{topic}-a", [Fed(b"x", partition=1), Fed(b"x", partition=1)])
        feed(f"{topic}-b", [Fed(b"x")])

        def news() -> dict[str, Any] | None:
            told = run.reader.latestOffset(end, ReadMaxRows(2))
            return told if told != end else None

        later = eventually(news, "the reader looks for new partitions again")
        assert run.ranges(end, later) == [(f"{topic}-a-1", 0, 1), (f"{topic}-b-0", 0, 1)]


def test_deleted_records_end_the_query_or_are_skipped(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    kept, gone = f"{topic}-kept", f"{topic}-gone"
    for name in (kept, gone):
        admin.create_topic(name, partition_count=1)
        feed(name, [Fed(b"x") for _ in range(4)])
    start = {kept: {"0": 1}, gone: {"0": 2}}
    with Driven(target.bootstrap, subscribe=f"{kept},{gone}") as run:
        assert run.reader.latestOffset(start, ALL) == {kept: {"0": 4}, gone: {"0": 4}}
        admin.delete_topic(gone)
        end = run.reader.latestOffset(start, ALL)
        assert end == {kept: {"0": 4}}
        with pytest.raises(TidemillError, match=f"{gone}-0 was deleted; what came after offset 1 is lost"):
            run.reader.partitions(start, end)
    with Driven(target.bootstrap, subscribe=f"{kept},{gone}", failOnDataLoss="false") as run:
        assert run.ranges(start, run.reader.latestOffset(start, ALL)) == [(f"{kept}-0", 1, 4)]
        assert f"{gone}-0 was deleted" in caplog.text
    # It is still subscribed to, and no offset tells any more that it was ever there.
    with Driven(target.bootstrap, subscribe=f"{kept},{gone}", failOnDataLoss="false") as run:
        assert run.reader.latestOffset({kept: {"0": 4}}, ALL) == {kept: {"0": 4}}
    # Made anew, it ends before what was read of it.
    admin.create_topic(gone, partition_count=1)
    options = {"subscribe": gone, "fetchOffset.numRetries": "1"}
    with Driven(target.bootstrap, **options) as run:
        end = run.reader.latestOffset({gone: {"0": 2}}, ALL)
        with pytest.raises(TidemillError, match=f"{gone}-0 was read up to offset 1 and now ends at -1"):
            run.reader.partitions({gone: {"0": 2}}, end)


def test_a_partition_that_goes_when_its_topic_gets_fewer_ends_cleanly(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=2)
    feed(topic, [Fed(b"x", partition=index) for index in (0, 0, 1, 1, 1)])
    unread, read = {topic: {"0": 2, "1": 1}}, {topic: {"0": 2, "1": 3}}
    with Driven(target.bootstrap, subscribe=topic) as run, Driven(target.bootstrap, subscribe=topic) as late:
        assert run.reader.latestOffset(unread, ALL) == late.reader.latestOffset(unread, ALL) == read
        admin.alter_configs(ResourceType.TOPIC, topic, changes={"tidemill.partitions.active": "1"})
        feed(topic, [Fed(b"x", partition=1)])
        end = run.reader.latestOffset(read, ALL)
        assert end == {topic: {"0": 3, "1": 3}}
        assert run.ranges(read, end) == [(f"{topic}-0", 2, 3)]
        admin.delete_records({TopicPartition(topic, 1): 3})
        eventually(lambda: len(admin.topic(topic).partitions) == 1, "the end of the partition", 60)
        after = eventually(
            lambda: found if "1" not in (found := run.reader.latestOffset(end, ALL))[topic] else None,
            "the reader looks for partitions again",
        )
        assert run.ranges(end, after) == []
        # Another query has seen records that it has not read.
        with pytest.raises(TidemillError, match=f"{topic}-1 was deleted; what came after offset 0 is lost"):
            late.reader.partitions(unread, after)
    # A run that begins after the partition has gone.
    with Driven(target.bootstrap, subscribe=topic) as run:
        assert run.ranges(end, run.reader.latestOffset(end, ALL)) == []
        admin.create_partitions(topic, 2)
        feed(topic, [Fed(b"x", partition=1)])
        grown = eventually(
            lambda: found if "1" in (found := run.reader.latestOffset(after, ALL))[topic] else None,
            "the new partition",
        )
        # It begins where the one before it ended, and nothing is lost between.
        assert run.ranges(after, grown) == [(f"{topic}-1", 3, 4)]
    # A run that was away while the partition was replaced goes on from its checkpoint.
    with Driven(target.bootstrap, subscribe=topic) as run:
        assert run.ranges(end, run.reader.latestOffset(end, ALL)) == [(f"{topic}-1", 3, 4)]
        admin.delete_records({TopicPartition(topic, 1): 4})
        # Records of the new one that were deleted before they were read are a loss.
        with pytest.raises(TidemillError, match=f"{topic}-1"):
            run.reader.partitions(after, grown)


def test_available_now_ends_where_the_topics_ended_at_its_start(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"x") for _ in range(5)])
    with Driven(target.bootstrap, subscribe=topic, startingOffsets="earliest") as run:
        run.reader.prepareForTriggerAvailableNow()
        offset = run.reader.initialOffset()
        ends = []
        for _ in range(4):
            offset = run.reader.latestOffset(offset, ReadMaxRows(2))
            ends.append(offset[topic]["0"])
            feed(topic, [Fed(b"x")])
        assert ends == [2, 4, 5, 5]
        assert run.reader.reportLatestOffset() == {topic: {"0": 5}}


def test_a_batch_waits_for_its_least_size_but_not_for_ever(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"x")])
    options = {"subscribe": topic, "startingOffsets": "earliest", "minOffsetsPerTrigger": "3"}
    with Driven(target.bootstrap, **options, maxOffsetsPerTrigger="4") as run:
        limit = run.reader.getDefaultReadLimit()
        assert limit == ReadMaxRows(4)
        # The first batch never waits.
        first = run.reader.latestOffset(run.reader.initialOffset(), limit)
        assert first == {topic: {"0": 1}}
        feed(topic, [Fed(b"x"), Fed(b"x")])
        assert run.reader.latestOffset(first, limit) == first
        feed(topic, [Fed(b"x") for _ in range(5)])
        assert run.reader.latestOffset(first, limit) == {topic: {"0": 5}}
    with Driven(target.bootstrap, **options, maxTriggerDelay="0s") as run:
        assert run.reader.getDefaultReadLimit() == ReadMinRows(3)
        assert run.reader.latestOffset({topic: {"0": 7}}, ReadMinRows(3)) == {topic: {"0": 8}}
        assert run.reader.latestOffset({topic: {"0": 7}}, ReadMinRows(3)) == {topic: {"0": 8}}


def test_group_that_cannot_be_written_to_is_logged_once_and_retried(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    from confluent_kafka import Consumer

    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"x") for _ in range(3)])
    groups = GroupAdmin(admin.cluster)
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": topic})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.1) is None and consumer.assignment(), "the consumer is in the group")
    with Driven(target.bootstrap, subscribe=topic, groupId=topic) as run:
        run.reader.commit({topic: {"0": 1}})
        run.reader.commit({topic: {"0": 2}})
        told = [each.getMessage() for each in caplog.records if each.name == "tidemill.spark"]
        assert told == [
            f"group {topic} does not show this query's progress: it has members; "
            "give groupId a name that no consumer uses"
        ]
        consumer.close()
        run.reader.commit({topic: {"0": 3}})
        assert groups.committed(topic) == {TopicPartition(topic, 0): 3}
