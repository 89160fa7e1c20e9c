"""The common part of pipelines from topics to a topic: a streaming query whose source and sink are
`format("tidemill")`.

The query reads what there is and ends (Trigger.AvailableNow), or goes on until Ctrl-C with --continuous. Its checkpoint
decides where the next run goes on, and the sink commits each task's records in a transaction. So readers with
`read_committed` see every result exactly once, however often the run is killed. The consumer group only shows the lag.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tidemill.spark.pipelines import PipelineError, Summary
from tidemill.spark.pipelines.connecting import (
    FORMAT,
    add_checkpoint_argument,
    checkpoint_dir,
    connection_options,
    ensure_topic,
    open_cluster,
    require_topics,
)
from tidemill.spark.pipelines.reporting import Progress, Totals

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
DEFAULT_INTERVAL = "1s"
_INTERVAL = re.compile(r"(\d+) *(ms|s|m|h|d|(?:millisecond|second|minute|hour|day|week)s?)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
Transform = Callable[["DataFrame"], "DataFrame"]


def add_flow_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from-topic",
        metavar="TOPIC",
        required=True,
        type=_names,
        help="what to read, or several with commas",
    )
    parser.add_argument(
        "--to-topic",
        metavar="TOPIC",
        required=True,
        help="where the results go; created when it does not exist, with as many partitions",
    )
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument(
        "--once", action="store_true", help="read what there is, then end (this is the default)"
    )
    how_long.add_argument("--continuous", action="store_true", help="go on until Ctrl-C")
    parser.add_argument(
        "--interval",
        metavar="TIME",
        type=interval,
        default=DEFAULT_INTERVAL,
        help=f"with --continuous, the time from one batch to the next (default {DEFAULT_INTERVAL})",
    )
    parser.add_argument(
        "--starting-offsets",
        metavar="OFFSETS",
        default="earliest",
        help="where the first run begins: earliest, latest or JSON (default earliest); later runs go on",
    )
    parser.add_argument(
        "--max-offsets-per-trigger", metavar="N", type=int, help="how many records one batch reads at most"
    )
    parser.add_argument(
        "--group",
        metavar="ID",
        help="the consumer group that shows the lag (default: named after the pipeline)",
    )
    add_checkpoint_argument(parser)


def check_flow(options: argparse.Namespace) -> None:
    """Refuses wrong options before a session starts."""
    if options.to_topic in options.from_topic:
        raise PipelineError(f"topic {options.to_topic} cannot be read and written by the same pipeline")
    with open_cluster(options) as cluster:
        require_topics(cluster, options.from_topic)


def run_flow(
    spark: SparkSession,
    options: argparse.Namespace,
    report: Progress,
    *,
    name: str,
    transform: Transform,
    output_mode: str = "append",
    columns: Sequence[str] = COLUMNS,
) -> tuple[Summary, Totals]:
    """Runs the query to its end. `transform` returns the columns that the sink takes, of `columns` of the source."""
    from pyspark.sql import functions as f

    with open_cluster(options) as cluster:
        counts = require_topics(cluster, options.from_topic)
        if ensure_topic(cluster, options.to_topic, partition_count=max(counts.values())):
            report.note(f"created topic {options.to_topic}")
        checkpoint = checkpoint_dir(options, cluster, name, [*options.from_topic, options.to_topic])
    group = options.group or f"tidemill-{name}-{'-'.join([*options.from_topic, options.to_topic])}"
    report.note(f"checkpoint {checkpoint}")
    source = spark.readStream.format(FORMAT).options(**_source_options(options, group, columns)).load()
    results = transform(source).observe("results", f.count(f.lit(1)).alias("written"))
    writer = (
        results.writeStream.format(FORMAT)
        .options(**connection_options(options), topic=options.to_topic, checkpointLocation=checkpoint)
        .queryName(f"{name}: {','.join(options.from_topic)} to {options.to_topic}")
        .outputMode(output_mode)
    )
    totals = report.follow(_triggered(writer, options).start, name)
    return _summary(options, totals, checkpoint, group), totals


def _source_options(options: argparse.Namespace, group: str, columns: Sequence[str]) -> dict[str, str]:
    chosen = {
        **connection_options(options),
        "subscribe": ",".join(options.from_topic),
        "startingOffsets": options.starting_offsets,
        "groupId": group,
        "columns": ",".join(columns),
        "kafka.isolation.level": "read_committed",
    }
    if options.max_offsets_per_trigger:
        chosen["maxOffsetsPerTrigger"] = str(options.max_offsets_per_trigger)
    return chosen


def _triggered(writer: DataStreamWriter, options: argparse.Namespace) -> DataStreamWriter:
    if options.continuous:
        return writer.trigger(processingTime=options.interval)
    return writer.trigger(availableNow=True)


def _summary(options: argparse.Namespace, totals: Totals, checkpoint: str, group: str) -> Summary:
    summary = Summary()
    summary.add("from", ",".join(options.from_topic))
    summary.add("to", options.to_topic)
    summary.add("records read", totals.rows)
    summary.add("records written", totals.observed.get("written", 0))
    summary.add("batches", totals.batches)
    summary.add("seconds", round(totals.seconds, 1))
    summary.add("consumer group", group)
    summary.add("checkpoint", checkpoint)
    return summary


def interval(text: str) -> str:
    """`5m` or `5 minutes`, as Spark writes it."""
    found = _INTERVAL.fullmatch(text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: it should be like 500ms, 30s, 5m, 2h or 1d"
        )
    return f"{found[1]} {_UNITS.get(found[2], found[2])}"


def _names(text: str) -> list[str]:
    names = list(dict.fromkeys(filter(None, (name.strip() for name in text.split(",")))))
    if not names:
        raise argparse.ArgumentTypeError("it names no topic")
    return names
