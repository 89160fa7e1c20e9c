"""Streaming writes: exactly once over restarts, repeated batches and tasks that fail, by what a reader finds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructField, StructType

from tests.brokers import RunningBroker, eventually
from tests.spark.sinks import create, end_offsets, options, read, rows, values
from tidemill.client.cluster import Cluster
from tidemill.spark.markers import Marker, group_of, read_marker
from tidemill.spark.sink import MovedRows, StreamWriter, Task, Written, write_rows

LIMIT_S = 120


def lines(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))


def sink(frame: DataFrame, target: RunningBroker, topic: str, checkpoint: Path) -> DataStreamWriter:
    writer = frame.writeStream.format("tidemill").option("kafka.bootstrap.servers", target.bootstrap)
    return (
        writer.option("topic", topic).option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    )


def run(writer: DataStreamWriter) -> str:
    """To the end of what there is; the query's id."""
    query = writer.start()
    try:
        assert query.awaitTermination(LIMIT_S), "the query did not end"
    finally:
        query.stop()
    return str(query.id)


def forget_commit(checkpoint: Path, batch_id: int) -> None:
    """As if the driver had died before it noted that the batch is done."""
    for name in (f"{batch_id}", f".{batch_id}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def marker_of(target: RunningBroker, query_id: str, partition_id: int | None = None) -> Marker:
    with Cluster(target.bootstrap) as cluster:
        return read_marker(cluster, group_of(query_id, partition_id))


def test_a_batch_that_is_repeated_after_a_restart_is_not_written_again(
    spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    create(target.bootstrap, topic, 2)
    files, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    files.mkdir()
    for number in range(2):
        (files / f"{number}.txt").write_text("".join(f"{number}-{line}\n" for line in range(50)))
    expected = sorted(f"{number}-{line}" for number in range(2) for line in range(50))

    query_id = run(sink(lines(spark, files), target, topic, checkpoint))
    ends = end_offsets(target.bootstrap, topic)
    assert values(read(target.bootstrap, topic)) == expected
    assert marker_of(target, query_id).next_batch_id == 2
    assert marker_of(target, query_id, 0).next_batch_id == 2

    forget_commit(checkpoint, 1)
    (files / "2.txt").write_text("new\n")
    assert run(sink(lines(spark, files), target, topic, checkpoint)) == query_id
    assert values(read(target.bootstrap, topic)) == sorted([*expected, "new"])
    # One record and one marker of a transaction: the repeated batch wrote nothing that was aborted either.
    assert sum(end_offsets(target.bootstrap, topic)) == sum(ends) + 2


def test_a_batch_that_was_written_in_part_is_completed(
    spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    create(target.bootstrap, topic, 2)
    files, checkpoint, poison = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "poison"
    files.mkdir()
    expected = sorted(f"{line}" for line in range(60))
    (files / "0.txt").write_text("\n".join(expected))
    poison.touch()
    bootstrap, flag = target.bootstrap, str(poison)

    def stumble(value: str) -> str:
        """Task 1 fails when task 0 is done."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and Path(flag).exists():
            group = group_of(str(context.getLocalProperty("sql.streaming.queryId")), 0)
            with Cluster(bootstrap) as cluster:
                eventually(lambda: read_marker(cluster, group).next_batch_id == 1, "task 0", LIMIT_S)
            raise RuntimeError("stumbled on purpose")
        return value

    def frame() -> DataFrame:
        return lines(spark, files).repartition(2).select(udf(stumble, useArrow=False)("value").alias("value"))

    with pytest.raises(PySparkException, match="stumbled on purpose"):
        run(sink(frame(), target, topic, checkpoint))
    first = read(target.bootstrap, topic)
    assert 0 < len(first) < 60

    poison.unlink()
    query_id = run(sink(frame(), target, topic, checkpoint))
    assert values(read(target.bootstrap, topic)) == expected
    whole, tasks = marker_of(target, query_id), [marker_of(target, query_id, each) for each in (0, 1)]
    assert (whole.next_batch_id, whole.partitions) == (1, -1)
    assert [each.rows for each in tasks] == [len(first), 60 - len(first)]


def test_what_a_stream_cannot_write_is_told_in_a_line(
    spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a\n")
    frame = lines(spark, tmp_path / "in").selectExpr("value as wrong")
    with pytest.raises(PySparkException) as refused:
        run(sink(frame, target, topic, tmp_path / "checkpoint"))
    expected = "there is no column value, only wrong; select one as value"
    assert any(expected in line for line in str(refused.value).splitlines())


class TestDriver:
    """What the driver notes of a batch, and what later attempts make of it."""

    @pytest.fixture
    def writer(self, target: RunningBroker, topic: str) -> StreamWriter:
        create(target.bootstrap, topic)
        schema = StructType([StructField("value", StringType())])
        return StreamWriter(schema, {"kafka.bootstrap.servers": target.bootstrap, "topic": topic})

    @pytest.fixture
    def query_id(self, topic: str) -> str:
        return f"driver-{topic}"

    def test_a_batch_that_is_complete_is_not_cut_anew(
        self, target: RunningBroker, topic: str, writer: StreamWriter, query_id: str
    ) -> None:
        writer.commit([Written(query_id, 0, 5, topic), Written(query_id, 1)], 3)
        assert marker_of(target, query_id) == Marker(4, rows=5, topic=topic)
        repeated = write_rows(options(target.bootstrap, topic), Task(query_id, 3, 7), [rows("a")])
        assert repeated.is_repeated
        assert read(target.bootstrap, topic) == []

    def test_the_next_batch_is_cut_as_it_likes(
        self, target: RunningBroker, topic: str, writer: StreamWriter, query_id: str
    ) -> None:
        writer.commit([Written(query_id, 0, 5, topic)], 3)
        assert not write_rows(options(target.bootstrap, topic), Task(query_id, 4, 7), [rows("a")]).is_repeated
        writer.commit([Written(query_id, 0), Written(query_id, 7, 1, topic)], 4)
        assert marker_of(target, query_id).next_batch_id == 5

    def test_more_tasks_than_when_it_failed(
        self, target: RunningBroker, topic: str, writer: StreamWriter, query_id: str
    ) -> None:
        writer.commit([Written(query_id, 0, 5, topic)], 2)
        writer.abort([Written(query_id, 0, 5, topic), None], 3)
        writer.abort([Written(query_id, 0, 5, topic), None, None, None], 3)
        sink_options = options(target.bootstrap, topic)
        with pytest.raises(MovedRows, match=r"task 2 of batch 3 .* cut into 2 tasks"):
            write_rows(sink_options, Task(query_id, 3, 2), [rows("a")])
        assert not write_rows(sink_options, Task(query_id, 3, 1), [rows("a")]).is_repeated
        assert values(read(target.bootstrap, topic)) == ["a"]

    def test_fewer_tasks_than_when_it_failed(
        self, target: RunningBroker, topic: str, writer: StreamWriter, query_id: str
    ) -> None:
        writer.abort([Written(query_id, 0, 5, topic), None, None], 3)
        with pytest.raises(MovedRows, match=r"was cut into 3 tasks .*, and into 2 now"):
            writer.commit([Written(query_id, 0, 0, topic, is_repeated=True), Written(query_id, 1)], 3)
        assert marker_of(target, query_id).next_batch_id == 3

    def test_markers_that_are_gone_are_told(
        self, topic: str, writer: StreamWriter, query_id: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        writer.commit([Written(query_id, 0, 5, topic)], 3)
        assert "had no marker before batch 3" in caplog.text
        caplog.clear()
        writer.commit([Written(query_id, 0, 5, topic)], 4)
        assert caplog.text == ""
