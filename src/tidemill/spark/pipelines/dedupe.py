"""`dedupe`: a topic without its repetitions, in another topic.

Two records are the same when what --by names is equal: the key, the value, a header or a JSON field. The first wins.
A record that has none of it (a null key, no such header) is passed on: nothing says that it repeats another.

As a stream, a repetition is recognised while it comes within --within of the first, by the records' timestamps: that is
what bounds the memory. Records that are older than the newest by more than that are late, and Spark drops them: the
summary counts them. The first of records in different partitions is the one that Spark meets first.

With --whole, everything the topic holds now is compared, and the first is that with the lowest timestamp, partition and
offset. It keeps no progress: run again, it writes all of it again.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tidemill.spark.pipelines import PipelineError, Summary
from tidemill.spark.pipelines.connecting import (
    FORMAT,
    connection_options,
    ensure_topic,
    open_cluster,
    require_topics,
)
from tidemill.spark.pipelines.json_fields import field_text
from tidemill.spark.pipelines.reporting import Progress
from tidemill.spark.pipelines.topic_to_topic import add_flow_arguments, check_flow, interval, run_flow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME = "dedupe"
SUMMARY = "copy a topic without its repetitions, by key, value, header or JSON field"
EXAMPLES = """
tidemill pipeline run dedupe --from-topic orders --to-topic orders-once
tidemill pipeline run dedupe --from-topic orders --to-topic orders-once --by header:request-id --within 2h
tidemill pipeline run dedupe --from-topic orders --to-topic orders-once --by json:order.id --continuous
tidemill pipeline run dedupe --from-topic orders --to-topic orders-once --whole
"""

DEFAULT_WITHIN = "1h"
_OUTPUT_COLUMNS = ("key", "value", "headers", "timestamp")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser)
    parser.add_argument(
        "--by",
        metavar="WHAT",
        default="key",
        help="what makes records the same: key, value, header:NAME or json:FIELD (default key)",
    )
    parser.add_argument(
        "--within",
        metavar="TIME",
        type=interval,
        default=DEFAULT_WITHIN,
        help=f"how far apart repetitions may be, such as 10m (default {DEFAULT_WITHIN})",
    )
    parser.add_argument(
        "--whole",
        action="store_true",
        help="compare all records that there are now, in one job, without --within",
    )


def check(options: argparse.Namespace) -> None:
    _parse_by(options.by)
    if options.whole and options.continuous:
        raise PipelineError("--whole compares what there is now; it does not go with --continuous")
    check_flow(options)


def run(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    return _run_whole(spark, options, report) if options.whole else _run_stream(spark, options, report)


def _run_stream(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    def transform(source: DataFrame) -> DataFrame:
        return (
            source.withColumn("identity", identity(options.by))
            .withWatermark("timestamp", options.within)
            .dropDuplicatesWithinWatermark(["identity"])
            .select(*_OUTPUT_COLUMNS)
        )

    summary, totals = run_flow(spark, options, report, name=NAME, transform=transform)
    written = totals.observed.get("written", 0)
    summary.add("repetitions left out", max(totals.rows - written - totals.late, 0))
    summary.add("late records dropped", totals.late)
    return summary


def _run_whole(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    from pyspark.sql import Observation, Window
    from pyspark.sql import functions as f

    with open_cluster(options) as cluster:
        counts = require_topics(cluster, options.from_topic)
        if ensure_topic(cluster, options.to_topic, partition_count=max(counts.values())):
            report.note(f"created topic {options.to_topic}")
    read, written = Observation("read"), Observation("written")
    count = f.count(f.lit(1)).alias("records")
    place = ["topic", "partition", "offset"]
    order = Window.partitionBy("identity").orderBy("timestamp", *place)
    source = (
        spark.read.format(FORMAT)
        .options(
            subscribe=",".join(options.from_topic),
            includeHeaders="true",
            **{"kafka.isolation.level": "read_committed"},
            **connection_options(options),
        )
        .load()
        .observe(read, count)
    )
    first = (
        source.withColumn("identity", identity(options.by))
        .withColumn("rank", f.row_number().over(order))
        .where("rank = 1")
        .sortWithinPartitions("timestamp", *place)
        .select(*_OUTPUT_COLUMNS)
        .observe(written, count)
    )
    with report.jobs(spark, NAME):
        first.write.format(FORMAT).mode("append").options(
            topic=options.to_topic, **connection_options(options)
        ).save()
    summary = Summary()
    summary.add("from", ",".join(options.from_topic))
    summary.add("to", options.to_topic)
    summary.add("records read", read.get["records"])
    summary.add("records written", written.get["records"])
    summary.add("repetitions left out", read.get["records"] - written.get["records"])
    return summary


def identity(by: str) -> Column:
    """Text that is equal for records that are the same; a record's own place where it has nothing to compare."""
    from pyspark.sql import functions as f

    kind, name = _parse_by(by)
    if kind in ("key", "value"):
        found = f.base64(f.col(kind))
    elif kind == "json":
        found = field_text(name)
    else:
        matching = f.filter("headers", lambda header: header["key"] == name)
        found = f.base64(f.try_element_at(matching, f.lit(-1))["value"])
    place = f.concat_ws("/", "topic", "partition", "offset")
    return f.coalesce(f.concat(f.lit("="), found), f.concat(f.lit("@"), place))


def _parse_by(by: str) -> tuple[str, str]:
    kind, colon, name = by.partition(":")
    if (kind in ("key", "value") and not colon) or (kind in ("header", "json") and name):
        return kind, name
    raise PipelineError(f"--by takes key, value, header:NAME or json:FIELD, not {by!r}")
