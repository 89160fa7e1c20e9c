"""A streaming query in a process of its own, to be struck at a certain point: numbered lines through a shuffle to a topic.

It takes what there is in one batch and ends. `--rows` says what every row passes before it reaches the sink.
`faulty_source` kills it at the points of its commit.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.functions import udf

from tests.spark.chaos_query import start_session
from tests.spark.faulty_source import FORMAT, FaultySource, announce_driver
from tests.spark.gates import Gate

TASKS = 2
ROWS: dict[str, Callable[[Gate], Callable[[str], str]]] = {
    "wait": Gate.waits,
    "wait-in-first-attempt": functools.partial(Gate.waits, first_attempt_only=True),
    "wait-in-second-attempt": Gate.waits_unless_first,
    "hold-tasks": Gate.holds_tasks,
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    for name in ("bootstrap", "topic", "files", "checkpoint", "master", "scratch", "gate", "faults"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--rows", required=True, choices=ROWS)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    announce_driver(Path(options.faults))
    settings = {
        # A task gets its rows in several Arrow batches, and the shuffle comes from several tasks.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
        "spark.sql.files.maxPartitionBytes": str(4 << 20),
        "spark.sql.files.openCostInBytes": "0",
    }
    settings |= dict(each.split("=", 1) for each in options.set)
    session = start_session(options.master, Path(options.scratch), settings)
    session.dataSource.register(FaultySource)
    function = udf(ROWS[options.rows](Gate(Path(options.gate))), useArrow=False)
    rows = session.readStream.format("text").load(options.files).repartition(TASKS, "value")
    query = (
        rows.select(function("value").alias("value"))
        .writeStream.format(FORMAT)
        .options(**{"kafka.bootstrap.servers": options.bootstrap, "topic": options.topic})
        .option("checkpointLocation", options.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    session.stop()


if __name__ == "__main__":
    main()
