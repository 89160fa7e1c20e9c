"""What every supported version of Spark does: `make spark-versions` runs this file in an environment of each."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from tests.brokers import RunningBroker
from tests.spark.conftest import Fed, Feed
from tests.spark.sinks import create, read, values
from tests.spark.test_sink_stream import forget_commit, run
from tidemill.spark import versions
from tidemill.spark.pipelines import dead_letters
from tidemill.spark.versions import ReadAllAvailable, ReadLimit, ReadMaxRows, SparkTooOld

LIMIT_S = 300.0
HAS_LIMITS = versions.VERSION >= (4, 2)


class Topics:
    """Both ends of a query, with as little said about them as there is to say."""

    def __init__(self, spark: SparkSession, bootstrap: str, source: str, checkpoint: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self._source = source
        self._checkpoint = checkpoint

    def batch(self) -> DataFrame:
        reader = self._spark.read.format("tidemill").option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", self._source).option("includeHeaders", "true").load()

    def shout(self, topic: str, **options: str) -> str:
        """The values in upper case to another topic, as a stream; the query's id."""
        reader = self._spark.readStream.format("tidemill").option("kafka.bootstrap.servers", self._bootstrap)
        reader = reader.option("subscribe", self._source).option("startingOffsets", "earliest")
        loud = f.upper(f.col("value").cast("string")).alias("value")
        writer = reader.options(**options).load().select("key", loud, "timestamp").writeStream
        writer = writer.format("tidemill").option("kafka.bootstrap.servers", self._bootstrap)
        writer = writer.option("topic", topic).option("checkpointLocation", str(self._checkpoint))
        return run(writer.trigger(availableNow=True))


@pytest.fixture
def topics(spark: SparkSession, target: RunningBroker, topic: str, tmp_path: Path) -> Topics:
    create(target.bootstrap, topic, 2)
    create(target.bootstrap, f"{topic}-out", 2)
    return Topics(spark, target.bootstrap, topic, tmp_path / "checkpoint")


@pytest.mark.long
def test_a_batch_is_read_and_written(topics: Topics, target: RunningBroker, feed: Feed, topic: str) -> None:
    headers: list[tuple[str, str | bytes | None]] = [("trace", b"\x00\xff")]
    feed(topic, [Fed(b"v%d" % number, b"k%d" % number, headers=headers) for number in range(100)])
    found = topics.batch()
    assert found.count() == 100
    writer = found.select("key", "value", "headers", "timestamp").write.format("tidemill").mode("append")
    writer.option("kafka.bootstrap.servers", target.bootstrap).option("topic", f"{topic}-out").save()
    # The producer of the test chooses other partitions for the keys.
    before, after = (read(target.bootstrap, each) for each in (topic, f"{topic}-out"))
    assert sorted(each[1:] for each in after) == sorted(each[1:] for each in before)


@pytest.mark.long
def test_a_stream_goes_on_exactly_once(
    topics: Topics, target: RunningBroker, feed: Feed, topic: str, tmp_path: Path
) -> None:
    out = f"{topic}-out"
    feed(topic, [Fed(b"a%d" % number) for number in range(50)])
    query_id = topics.shout(out)
    assert values(read(target.bootstrap, out)) == sorted(f"A{number}" for number in range(50))

    # As if the driver had died between its decision and Spark's note of it.
    forget_commit(tmp_path / "checkpoint", 0)
    feed(topic, [Fed(b"b%d" % number) for number in range(30)])
    # Before Spark 4.2, AvailableNow is one batch: here the one that is repeated.
    for _ in range(1 if HAS_LIMITS else 2):
        assert topics.shout(out) == query_id
    expected = sorted([f"A{number}" for number in range(50)] + [f"B{number}" for number in range(30)])
    assert values(read(target.bootstrap, out)) == expected


@pytest.mark.long
def test_limits_of_a_trigger_hold_or_are_refused(
    topics: Topics, target: RunningBroker, feed: Feed, topic: str
) -> None:
    out = f"{topic}-out"
    feed(topic, [Fed(b"a%d" % number) for number in range(50)])
    if HAS_LIMITS:
        topics.shout(out, maxOffsetsPerTrigger="20")
        assert len(read(target.bootstrap, out)) == 50
    else:
        with pytest.raises(
            PySparkException, match=r"maxOffsetsPerTrigger.* needs Spark 4\.2, and this is 4\."
        ):
            topics.shout(out, maxOffsetsPerTrigger="20")


CONNECT = """
import sys
from pyspark.sql import SparkSession

bootstrap, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
kafka = {"kafka.bootstrap.servers": bootstrap}
rows = spark.read.format("tidemill").options(**kafka).option("subscribe", source).load().select("value")
rows.write.format("tidemill").mode("append").options(**kafka).option("topic", target).save()
reader = spark.readStream.format("tidemill").options(**kafka).option("subscribe", source)
loud = reader.option("startingOffsets", "earliest").load().selectExpr("upper(string(value)) AS value")
writer = loud.writeStream.format("tidemill").options(**kafka).option("topic", target)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
spark.stop()
"""


@pytest.mark.long
@pytest.mark.usefixtures("topics")
def test_spark_connect_reads_and_writes(
    target: RunningBroker, feed: Feed, topic: str, tmp_path: Path
) -> None:
    if importlib.util.find_spec("grpc") is None:
        pytest.skip(
            "Spark Connect needs 'pyspark[connect]'; `make spark-versions` runs this in environments that have it"
        )
    feed(topic, [Fed(b"a%d" % number) for number in range(50)])
    arguments = [target.bootstrap, topic, f"{topic}-out", str(tmp_path / "checkpoint")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, *arguments],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = sorted(f"{letter}{number}" for letter in "aA" for number in range(50))
    assert values(read(target.bootstrap, f"{topic}-out")) == expected


# --- without a session ---


class Recorder(DataSourceStreamReader):
    """A reader of Spark 4.2 that notes where batches start."""

    def __init__(self, limit: ReadLimit) -> None:
        self.limit = limit
        self.starts: list[Any] = []

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"t": {"0": 3}}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return self.limit

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        assert isinstance(limit, ReadAllAvailable)
        self.starts.append(start)
        return {"t": {"0": 10}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def old_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "VERSION", (4, 1))
    monkeypatch.setattr(versions, "_HAS_READ_LIMITS", False)


@pytest.mark.usefixtures("old_spark")
def test_start_of_a_batch_is_known_with_an_old_spark() -> None:
    recorder = Recorder(ReadAllAvailable())
    old: Any = versions.stream_reader(recorder)
    assert old.latestOffset() == {"t": {"0": 10}}
    old.partitions({"t": {"0": 3}}, {"t": {"0": 10}})
    old.latestOffset()
    # Started again: Spark plans nothing at the end of the last batch.
    again = Recorder(ReadAllAvailable())
    restarted: Any = versions.stream_reader(again)
    restarted.partitions({"t": {"0": 10}}, {"t": {"0": 10}})
    restarted.latestOffset()
    assert (recorder.starts, again.starts) == ([{"t": {"0": 3}}, {"t": {"0": 10}}], [{"t": {"0": 10}}])


@pytest.mark.usefixtures("old_spark")
def test_an_old_spark_has_no_limits() -> None:
    with pytest.raises(SparkTooOld, match=r"maxOffsetsPerTrigger.*needs Spark 4\.2"):
        versions.stream_reader(Recorder(ReadMaxRows(5)))


def test_dead_letters_name_the_version_that_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "VERSION", (4, 0))
    with pytest.raises(SparkTooOld, match=r"dead-letters needs Spark 4\.1"):
        dead_letters._decided(None, None, is_strict=False)  # type: ignore[arg-type]
