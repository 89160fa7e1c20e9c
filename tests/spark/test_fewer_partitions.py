"""A streaming query of a real session, while its topic gets fewer partitions and more again (decision 18)."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.brokers import RunningBroker, eventually
from tests.conftest import BOOTSTRAP
from tests.spark.conftest import Fed, Feed
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.types import TopicPartition

pytestmark = [
    pytest.mark.skipif(bool(BOOTSTRAP), reason="Apache Kafka cannot take partitions away"),
    pytest.mark.long,
]
BEFORE, AFTER = 4, 2
LIMIT_S = 120.0


class Query:
    """Writes the values of a topic to Parquet files. Its checkpoint outlives its runs."""

    def __init__(self, spark: SparkSession, bootstrap: str, topic: str, home: Path) -> None:
        self._spark, self._bootstrap, self._topic, self._home = spark, bootstrap, topic, home
        self._running: StreamingQuery | None = None

    def start(self) -> None:
        options = {
            "kafka.bootstrap.servers": self._bootstrap,
            "subscribe": self._topic,
            "startingOffsets": "earliest",
        }
        writer = self._spark.readStream.format("tidemill").options(**options).load().select("value")
        self._running = (
            writer.writeStream.format("parquet")
            .option("checkpointLocation", str(self._home / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start(str(self._home / "output"))
        )

    def stop(self) -> None:
        assert self._running is not None
        failure = self._running.exception()
        self._running.stop()
        assert failure is None, failure

    def values(self) -> Counter[bytes]:
        """Those of finished batches, by the sink's own log."""
        logs = (self._home / "output" / "_spark_metadata").glob("[0-9]*")
        lines = {line for log in logs for line in log.read_text().splitlines()[1:]}
        paths = {json.loads(line)["path"].removeprefix("file://") for line in lines}
        tables = [pq.read_table(path) for path in paths]
        return Counter(row["value"] for table in tables for row in table.to_pylist())

    def await_values(self, wanted: set[bytes]) -> None:
        eventually(
            lambda: self._is_alive() and wanted <= self.values().keys(), "the query reads all", LIMIT_S
        )

    def await_partitions(self, count: int) -> None:
        """Waits until the query's own offsets name so many partitions."""

        def are_known() -> bool:
            assert self._running is not None
            progress = self._running.lastProgress
            told = json.loads(progress["sources"][0]["endOffset"] or "{}") if progress else {}
            return self._is_alive() and len(told.get(self._topic, ())) == count

        eventually(are_known, f"the query knows {count} partitions", LIMIT_S)

    def _is_alive(self) -> bool:
        assert self._running is not None
        failure = self._running.exception()
        assert failure is None, failure
        return True


@pytest.mark.parametrize("is_away", [False, True], ids=["running", "stopped meanwhile"])
def test_a_query_ends_partitions_that_disappear_and_reads_those_that_come(
    spark: SparkSession,
    target: RunningBroker,
    feed: Feed,
    admin: Admin,
    topic: str,
    tmp_path: Path,
    *,
    is_away: bool,
) -> None:
    admin.create_topic(topic, partition_count=BEFORE, configs={"tidemill.partitions.kept.ms": "1000"})
    numbers = itertools.count()
    sent: set[bytes] = set()

    def write(partitions: int) -> None:
        values = [b"%d" % next(numbers) for _ in range(5 * partitions)]
        feed(topic, [Fed(value, partition=index % partitions) for index, value in enumerate(values)])
        sent.update(values)

    query = Query(spark, target.bootstrap, topic, tmp_path)
    query.start()
    write(BEFORE)
    query.await_values(sent)
    admin.alter_configs(ResourceType.TOPIC, topic, changes={"tidemill.partitions.active": str(AFTER)})
    # Producers name the old partitions still.
    write(BEFORE)
    query.await_values(sent)
    if is_away:
        query.stop()
    ends = admin.end_offsets([TopicPartition(topic, index) for index in range(AFTER, BEFORE)], 0)
    admin.delete_records(ends)
    eventually(lambda: len(admin.topic(topic).partitions) == AFTER, "the end of the partitions", LIMIT_S)
    if is_away:
        query.start()
    write(AFTER)
    query.await_values(sent)
    query.await_partitions(AFTER)
    admin.create_partitions(topic, BEFORE)
    write(BEFORE)
    query.await_values(sent)
    query.await_partitions(BEFORE)
    query.stop()
    assert query.values() == Counter(sent)
