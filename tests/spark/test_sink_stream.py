"""Streaming writes: exactly once over restarts, repeated batches and tasks that fail, by what a reader finds."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.brokers import RunningBroker
from tests.spark.sinks import create, read, values
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.cluster import Cluster
from tidemill.spark.sink.commits import Commits, Decision

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


def decision_of(target: RunningBroker, query_id: str) -> Decision | None:
    with Cluster(target.bootstrap) as cluster, Commits(cluster, query_id) as commits:
        return commits.fence()


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
    assert values(read(target.bootstrap, topic)) == expected
    decision = decision_of(target, query_id)
    assert decision is not None
    assert decision.batch_id == 1
    with Cluster(target.bootstrap) as cluster:
        assert not [each for each in GroupAdmin(cluster).groups() if query_id in each.group_id]

    forget_commit(checkpoint, 1)
    (files / "2.txt").write_text("new\n")
    assert run(sink(lines(spark, files), target, topic, checkpoint)) == query_id
    assert values(read(target.bootstrap, topic)) == sorted([*expected, "new"])


def test_checkpoint_that_is_older_than_the_last_decision_fails_the_query(
    spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """Its next batch has a number that was committed, with other rows."""
    create(target.bootstrap, topic, 1)
    files, checkpoint, copy = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "copy"
    files.mkdir()
    (files / "0.txt").write_text("0\n")
    run(sink(lines(spark, files), target, topic, checkpoint))
    shutil.copytree(checkpoint, copy)
    for number in (1, 2):
        (files / f"{number}.txt").write_text(f"{number}\n")
        run(sink(lines(spark, files), target, topic, checkpoint))
    shutil.rmtree(checkpoint)
    copy.rename(checkpoint)
    (files / "1.txt").write_text("other rows\n")
    with pytest.raises(PySparkException) as refused:
        run(sink(lines(spark, files), target, topic, checkpoint))
    assert "comes after batch 2, which the query has committed" in str(refused.value)
    assert values(read(target.bootstrap, topic)) == ["0", "1", "2"]


def test_row_that_a_stream_cannot_write_is_reported_in_one_line(
    spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.txt").write_text("a\n")
    frame = lines(spark, tmp_path / "in").selectExpr("value as wrong")
    with pytest.raises(PySparkException) as refused:
        run(sink(frame, target, topic, tmp_path / "checkpoint"))
    expected = "there is no column value, only wrong; select one as value"
    assert any(expected in line for line in str(refused.value).splitlines())
