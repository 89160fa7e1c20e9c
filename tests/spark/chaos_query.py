"""A streaming query in a process of its own, to be killed: one topic through `format("tidemill")` into another.

Keys stay, values become upper case, the group shows the progress. It runs until SIGTERM, or until the query fails; then it
ends with the reason, and whoever started it starts it again on the same checkpoint. With `local-cluster[…]` the
executors are processes of their own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import pyspark
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

# These processes live for seconds: what a JVM compiles at leisure would be for nobody.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Small enough that a kill falls into a batch, large enough that a slow machine keeps up with the input.
ROWS_PER_TRIGGER_MAX = 20_000
STOP_POLL_S = 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("bootstrap", "input", "output", "group", "checkpoint", "master", "scratch"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args()


def start_session(master: str, scratch: Path) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The workers of a local cluster look for Spark where the driver found it.
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
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
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


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
    return (
        rows.selectExpr("key", "cast(upper(cast(value as string)) as binary) value")
        .writeStream.format("tidemill")
        .option("kafka.bootstrap.servers", options.bootstrap)
        .option("topic", options.output)
        .option("checkpointLocation", options.checkpoint)
        .start()
    )


def main() -> int:
    options = arguments()
    is_stopping = False

    def stop(*_: object) -> None:
        nonlocal is_stopping
        is_stopping = True

    signal.signal(signal.SIGTERM, stop)
    session = start_session(options.master, Path(options.scratch))
    query = start_query(session, options)
    try:
        while not is_stopping and not query.awaitTermination(STOP_POLL_S):
            pass
    except PySparkException as failure:
        print(f"the query failed: {failure}", file=sys.stderr, flush=True)
        return 1
    query.stop()
    session.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
