"""`aggregate`: counts, sums, averages and extremes by windows of event time, as JSON records in another topic.

The event time is the record's timestamp, or the JSON field that --time names. A window is final when the watermark, the
newest event time less --watermark, has passed its end. It is then written once, and what comes later for it is dropped
and counted. Windows that are still open at the end of a run stay in the checkpoint, and the next run goes on with them.
With --emit updates, a window is written whenever it has changed; its key stays the same, so that a compacted topic
keeps the last.

The key is JSON of the group and the window's start, the value JSON of the group, the window and the results.
A record without an event time, or whose number is none, is left out of that result; the summary counts the former.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tidemill.spark.pipelines import PipelineError, Summary
from tidemill.spark.pipelines.json_fields import field_number, field_text, field_time
from tidemill.spark.pipelines.reporting import Progress, Totals
from tidemill.spark.pipelines.topic_to_topic import add_flow_arguments, check_flow, interval, run_flow

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

NAME = "aggregate"
SUMMARY = "count, sum, average and find extremes by windows of event time, into a topic"
EXAMPLES = """
tidemill pipeline run aggregate --from-topic orders --to-topic by-minute --window 1m --by status --sum amount
tidemill pipeline run aggregate --from-topic clicks --to-topic busy --window 5m --slide 1m --by key --continuous
tidemill pipeline run aggregate --from-topic orders --to-topic revenue --window 1h --time paid_at --avg amount
"""

_FUNCTIONS = ("sum", "avg", "min", "max")
_KEY = "key"
_JSON_OPTIONS = {
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSXXX",
    "ignoreNullFields": "false",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flow_arguments(parser)
    parser.add_argument(
        "--window", metavar="TIME", type=interval, required=True, help="its length, such as 5m"
    )
    parser.add_argument(
        "--slide",
        metavar="TIME",
        type=interval,
        help="a new window begins that often (default: when one ends)",
    )
    parser.add_argument(
        "--watermark",
        metavar="TIME",
        type=interval,
        default="1m",
        help="how late records may come, measured by the newest (default 1m)",
    )
    parser.add_argument(
        "--by",
        metavar="FIELD,FIELD",
        default="",
        help="groups: JSON fields, or `key` for the record's key (default: one group for all)",
    )
    parser.add_argument(
        "--time", metavar="FIELD", help="the JSON field with the event time (default: the record's timestamp)"
    )
    for function in _FUNCTIONS:
        parser.add_argument(
            f"--{function}", metavar="FIELD", action="append", default=[], help="of a JSON field; repeatable"
        )
    parser.add_argument(
        "--emit",
        choices=("final", "updates"),
        default="final",
        help="a window once, when it can no longer change, or whenever it has changed (default final)",
    )


def check(options: argparse.Namespace) -> None:
    names = output_names(options)
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PipelineError(f"the result would have two fields {twice}; leave one of them out")
    check_flow(options)


def run(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    summary, totals = run_flow(
        spark,
        options,
        report,
        name=NAME,
        transform=lambda source: aggregated(source, options),
        output_mode="append" if options.emit == "final" else "update",
        columns=("key", "value", "timestamp"),
    )
    summary.add("records without event time", totals.observed.get("without_time", 0))
    summary.add("late records dropped", totals.late)
    summary.add("groups still open", _open_groups(totals))
    return summary


def group_fields(options: argparse.Namespace) -> list[str]:
    return [field.strip() for field in options.by.split(",") if field.strip()]


def output_names(options: argparse.Namespace) -> list[str]:
    """The fields of the value, in their order."""
    results = [f"{field}_{function}" for function in _FUNCTIONS for field in getattr(options, function)]
    return ["window_start", "window_end", *group_fields(options), "count", *results]


def aggregated(source: DataFrame, options: argparse.Namespace) -> DataFrame:
    """The columns key and value for the sink, of a stream or of a bounded read."""
    from pyspark.sql import functions as f

    time = field_time(options.time) if options.time else f.col("timestamp")
    fields = {field for function in _FUNCTIONS for field in getattr(options, function)}
    prepared = source.select(
        time.alias("event_time"),
        *(_group(field).alias(f"group_{number}") for number, field in enumerate(group_fields(options))),
        *(field_number(field).alias(_number_name(field)) for field in sorted(fields)),
    ).observe("source", f.count_if(f.col("event_time").isNull()).alias("without_time"))
    windowed = prepared.withWatermark("event_time", options.watermark).groupBy(
        f.window("event_time", options.window, options.slide or options.window),
        *(f"group_{number}" for number in range(len(group_fields(options)))),
    )
    return _as_records(windowed.agg(*_results(options)), options)


def _results(options: argparse.Namespace) -> list[Column]:
    from pyspark.sql import functions as f

    functions = {"sum": f.sum, "avg": f.avg, "min": f.min, "max": f.max}
    results = [f.count(f.lit(1)).alias("count")]
    for name in _FUNCTIONS:
        results += [
            functions[name](_number_name(field)).alias(f"{field}_{name}".replace(".", "_dot_"))
            for field in getattr(options, name)
        ]
    return results


def _as_records(results: DataFrame, options: argparse.Namespace) -> DataFrame:
    from pyspark.sql import functions as f

    groups = [f.col(f"group_{number}").alias(field) for number, field in enumerate(group_fields(options))]
    start, end = f.col("window.start").alias("window_start"), f.col("window.end").alias("window_end")
    values = [
        f.col(f"{field}_{name}".replace(".", "_dot_")).alias(f"{field}_{name}")
        for name in _FUNCTIONS
        for field in getattr(options, name)
    ]
    return results.select(
        f.to_json(f.struct(*groups, start), _JSON_OPTIONS).alias("key"),
        f.to_json(f.struct(start, end, *groups, "count", *values), _JSON_OPTIONS).alias("value"),
    )


def _group(field: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("key").cast("string") if field == _KEY else field_text(field)


def _number_name(field: str) -> str:
    return f"number_{field.replace('.', '_dot_')}"


def _open_groups(totals: Totals) -> int:
    """Rows of state after the last batch: one for each group of each window that is not final."""
    return sum(int(each.get("numRowsTotal") or 0) for each in totals.last.get("stateOperators") or [])
