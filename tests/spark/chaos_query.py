"""A streaming query in a process of its own, to be killed: one topic through `format("tidemill")` into another.

Keys stay, values become upper case, the group shows the progress. It runs until SIGTERM, or until the query fails; then it
ends with the reason, and whoever started it starts it again on the same checkpoint. With `local-cluster[…]` the
executors are processes of their own. What it is to suffer it finds in the folder of `--faults`, as files that it takes away:

    row       the next row raises
    stop      the query is stopped in the middle of a batch, and started again
    cancel    all jobs are cancelled until the query fails of it; it is started again

and the points of `faulty_source`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.faulty_source import FORMAT, FaultySource, announce_driver
from tidemill.spark.session import lean_spark_home

# These processes live for seconds: what a JVM compiles at leisure would not be used.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Small enough that a kill falls into a batch, large enough that a slow machine keeps up with the input.
ROWS_PER_TRIGGER_MAX = 20_000
STOP_POLL_S = 0.2


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("bootstrap", "input", "output", "group", "checkpoint", "master", "scratch", "faults"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


def start_session(master: str, scratch: Path, others: Mapping[str, str]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_SCALA_VERSION"] = "2.13"
    os.environ["SPARK_WORKER_DIR"] = str(scratch / "work")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": JAVA_OPTIONS,
        # Killed executors come back, however often.
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    builder = SparkSession.builder.master(master).appName("tidemill-chaos")
    for name, value in (settings | dict(others)).items():
        builder = builder.config(name, value)
    scratch.mkdir(parents=True, exist_ok=True)
    # The workers of a local cluster look for Spark where the driver found it, as long as they run.
    with lean_spark_home(Path(tempfile.mkdtemp(dir=scratch))):
        return builder.getOrCreate()


def raising(flag: str) -> Callable[[str], str]:
    """A function of a row that fails once, in whichever task is the first."""

    def pass_on(value: str) -> str:
        if os.path.exists(flag):
            try:
                os.unlink(flag)
            except FileNotFoundError:
                return value
            raise ValueError("a row that fails once")
        return value

    return pass_on


def start_query(session: SparkSession, options: argparse.Namespace) -> StreamingQuery:
    rows = (
        session.readStream.format("tidemill")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("subscribe", options.input)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(ROWS_PER_TRIGGER_MAX))
        .option("groupId", options.group)
        .load()
    )
    values = rows.selectExpr("key", "upper(cast(value as string)) value")
    checked = udf(raising(str(Path(options.faults) / "row")), useArrow=False)("value")
    return (
        values.select("key", checked.alias("value"))
        .writeStream.format(FORMAT)
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("topic", options.output)
        .option("checkpointLocation", options.checkpoint)
        .start()
    )


def obey(session: SparkSession, query: StreamingQuery, options: argparse.Namespace) -> StreamingQuery:
    """Does what it finds in the folder, when it falls into a batch; returns the query that runs then."""
    context, faults = session.sparkContext, Path(options.faults)
    if not context.statusTracker().getActiveJobsIds():
        return query
    if (faults / "stop").exists():
        query.stop()
        (faults / "stop").unlink()
        return start_query(session, options)
    if (faults / "cancel").exists():
        context.cancelAllJobs()
    return query


def has_ended(query: StreamingQuery, cancel: Path) -> bool:
    """False when it is cancelled; any other failure raises."""
    try:
        # The annotation says int; a part of a second is understood.
        return bool(query.awaitTermination(STOP_POLL_S))  # type: ignore[arg-type]
    except PySparkException:
        if not cancel.exists():
            raise
        return False


def main() -> int:
    options = arguments()
    announce_driver(Path(options.faults))
    is_stopping = False

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    session = start_session(options.master, Path(options.scratch), {})
    session.dataSource.register(FaultySource)
    query = start_query(session, options)
    cancel = Path(options.faults) / "cancel"
    try:
        while not is_stopping and not has_ended(query, cancel):
            if not query.isActive and cancel.exists():
                cancel.unlink()
                query = start_query(session, options)
            query = obey(session, query, options)
    except PySparkException as failure:
        print(f"the query failed: {failure}", file=sys.stderr, flush=True)
        return 1
    query.stop()
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
