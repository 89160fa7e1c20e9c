"""What fails in the middle of a batch and is not the sink's own process: a row, a worker, a job that is cancelled or
stopped. What needs a driver of its own is in `test_driver_failures`.

Spark closes the input of a task whose upstream failed, which looks like its end. Nothing of such a task is ever seen;
when the query or the job comes to its end, every row is there once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

from tests.brokers import eventually
from tests.spark.gates import EXPECTED, PADDING, ROWS, Gate, seen
from tests.spark.processes import WORKER, descendants
from tests.spark.sinks import assert_nothing_is_open, create, read, values
from tests.spark.test_sink_stream import LIMIT_S, forget_commit
from tidemill.client.admin.transactions import TransactionAdmin
from tidemill.client.cluster import Cluster


@pytest.fixture
def name(bootstrap: str, topic: str) -> str:
    create(bootstrap, topic)
    return topic


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, bootstrap: str, name: str) -> Callable[..., StreamingQuery]:
    """Starts the query, on the same checkpoint each time: one batch, one task."""
    files = tmp_path / "in"
    files.mkdir()
    (files / "0.txt").write_text("".join(f"{number:06d}{PADDING}\n" for number in range(ROWS)))

    def start(function: Callable[[str], str], **options: str) -> StreamingQuery:
        rows = spark.readStream.format("text").load(str(files)).coalesce(1)
        return (
            rows.select(udf(function, useArrow=False)("value").alias("value"))
            .writeStream.format("tidemill")
            .options(
                **{"kafka.bootstrap.servers": bootstrap, "topic": name},
                checkpointLocation=str(tmp_path / "checkpoint"),
            )
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )

    return start


def ended(query: StreamingQuery) -> None:
    assert query.awaitTermination(LIMIT_S), "the query did not end"


class TestUpstream:
    def test_a_row_fails_once(
        self, bootstrap: str, name: str, stream: Callable[..., StreamingQuery], gate: Gate
    ) -> None:
        ended(stream(gate.fails(always=False)))
        assert seen(bootstrap, name) == EXPECTED

    def test_a_row_fails_always(
        self, bootstrap: str, name: str, stream: Callable[..., StreamingQuery], gate: Gate
    ) -> None:
        for _ in range(2):
            with pytest.raises(PySparkException, match="a malformed row"):
                ended(stream(gate.fails(always=True)))
            # Not after a timeout, but when the query has failed.
            assert_nothing_is_open(bootstrap, name)
            assert seen(bootstrap, name) == []
        gate.open()
        ended(stream(gate.fails(always=True)))
        assert seen(bootstrap, name) == EXPECTED

    @pytest.mark.long
    def test_a_query_is_stopped(
        self, bootstrap: str, name: str, stream: Callable[..., StreamingQuery], gate: Gate
    ) -> None:
        query = stream(gate.waits())
        gate.reached()
        query.stop()
        assert_nothing_is_open(bootstrap, name)
        gate.open()
        ended(stream(gate.waits()))
        assert seen(bootstrap, name) == EXPECTED

    @pytest.mark.long
    def test_all_jobs_are_cancelled(
        self,
        spark: SparkSession,
        bootstrap: str,
        name: str,
        stream: Callable[..., StreamingQuery],
        gate: Gate,
    ) -> None:
        query = stream(gate.waits())
        gate.reached()
        spark.sparkContext.cancelAllJobs()
        with pytest.raises(PySparkException, match="cancelled"):
            ended(query)
        assert_nothing_is_open(bootstrap, name)
        gate.open()
        ended(stream(gate.waits()))
        assert seen(bootstrap, name) == EXPECTED

    @pytest.mark.long
    def test_rows_are_others_when_the_batch_is_repeated(
        self, spark: SparkSession, tmp_path: Path, bootstrap: str, name: str
    ) -> None:
        """Fewer and other rows in other tasks: what counts is what was committed first."""
        files, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
        files.mkdir()
        (files / "0.txt").write_text("".join(f"{number}\n" for number in range(1000)))

        def run(task_count: int) -> None:
            rows = spark.readStream.format("text").load(str(files)).where("rand() < 0.5")
            query = (
                rows.repartition(task_count)
                .selectExpr("concat(value, '-', uuid()) value")
                .writeStream.format("tidemill")
                .options(**{"kafka.bootstrap.servers": bootstrap, "topic": name})
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            ended(query)

        run(2)
        first = values(read(bootstrap, name))
        assert 0 < len(first) < 1000
        for task_count in (3, 1):
            forget_commit(checkpoint, 0)
            run(task_count)
            assert values(read(bootstrap, name)) == first


class TestTask:
    def test_a_worker_is_killed_in_an_open_transaction(
        self, bootstrap: str, name: str, stream: Callable[..., StreamingQuery], gate: Gate
    ) -> None:
        query = stream(gate.waits(first_attempt_only=True))
        gate.reached()
        with Cluster(bootstrap) as cluster:
            admin, partitions = TransactionAdmin(cluster), cluster.partitions_of(name)
            eventually(lambda: admin.open_transactions(partitions), "an open transaction")
        daemons = [each for each in descendants(os.getpid()) if WORKER in each.command]
        # Spark forks a worker from the daemon, which is not a part of the task.
        workers = [each for daemon in daemons for each in descendants(daemon.pid)]
        assert workers
        for worker in workers:
            worker.kill()
        gate.open()
        ended(query)
        assert seen(bootstrap, name) == EXPECTED

    @pytest.mark.long
    def test_a_transaction_times_out_and_the_task_is_repeated(
        self, bootstrap: str, name: str, stream: Callable[..., StreamingQuery], gate: Gate
    ) -> None:
        query = stream(gate.waits(first_attempt_only=True), **{"kafka.transaction.timeout.ms": "8000"})
        gate.reached()
        with Cluster(bootstrap) as cluster:
            admin, partitions = TransactionAdmin(cluster), cluster.partitions_of(name)
            eventually(lambda: admin.open_transactions(partitions), "an open transaction")
            eventually(lambda: not admin.open_transactions(partitions), "its timeout", LIMIT_S)
        gate.open()
        ended(query)
        assert seen(bootstrap, name) == EXPECTED


class TestBatch:
    @pytest.fixture
    def write(self, spark: SparkSession, bootstrap: str, name: str) -> Callable[..., None]:
        def save(function: Callable[[str], str]) -> None:
            rows = spark.range(0, ROWS, 1, 1).selectExpr(f"concat(lpad(id, 6, '0'), '{PADDING}') value")
            frame: DataFrame = rows.select(udf(function, useArrow=False)("value").alias("value"))
            frame.write.format("tidemill").options(
                **{"kafka.bootstrap.servers": bootstrap, "topic": name}
            ).mode("append").save()

        return save

    def test_a_malformed_row_leaves_nothing(
        self, bootstrap: str, name: str, write: Callable[..., None], gate: Gate
    ) -> None:
        with pytest.raises(PySparkException, match="a malformed row"):
            write(gate.fails(always=True))
        assert_nothing_is_open(bootstrap, name)
        assert seen(bootstrap, name) == []
        gate.open()
        write(gate.fails(always=True))
        assert seen(bootstrap, name) == EXPECTED

    @pytest.mark.long
    def test_a_job_is_cancelled(
        self, spark: SparkSession, bootstrap: str, name: str, write: Callable[..., None], gate: Gate
    ) -> None:
        def cancel() -> None:
            gate.reached()
            spark.sparkContext.cancelAllJobs()

        # Spark finds a Python source in the session's own thread only, so that is where the job runs.
        canceller = threading.Thread(target=cancel)
        canceller.start()
        with pytest.raises((PySparkException, Py4JJavaError), match="cancelled"):
            write(gate.waits())
        canceller.join()
        gate.open()
        write(gate.waits())
        assert seen(bootstrap, name) == EXPECTED
