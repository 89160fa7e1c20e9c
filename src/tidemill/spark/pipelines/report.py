"""`report`: how large the topics are, how evenly they are spread, who is behind, and when a disk fills up.

The parts are in `topic_report`. `brokers` gets sizes on disk, settings, groups and the ends of the logs from the
cluster. One Spark job counts what only the records show (`records`). `judgement` and `forecast` do the arithmetic;
`page` and the summary here show it. Nothing is written but the page.

Its cost is bounded. Beyond `RECORDS_MAX` records it reads evenly spread pieces of every partition instead of all of it;
--sample-percent changes that, and --last leaves out what is older. Whatever is scaled up says so.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tidemill.client.admin.topics import Admin
from tidemill.spark.pipelines import Bytes, PipelineError, Progress, Summary
from tidemill.spark.pipelines.connecting import open_cluster, require_topics
from tidemill.spark.pipelines.topic_report.brokers import ask_brokers, lags
from tidemill.spark.pipelines.topic_report.findings import Findings, parse_duration_ms, parse_size
from tidemill.spark.pipelines.topic_report.forecast import first_to_fill
from tidemill.spark.pipelines.topic_report.judgement import foresee, judge
from tidemill.spark.pipelines.topic_report.page import page
from tidemill.spark.pipelines.topic_report.records import count, hours_by_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "report"
SUMMARY = "sizes, key skew, hot partitions, lag, growth and a capacity forecast, as an HTML page"
EXAMPLES = """tidemill pipeline run report --output report.html
tidemill pipeline run report --topic orders --last 24h
tidemill pipeline run report --sample-percent 5 --capacity 500GB --json"""

RECORDS_MAX = 10_000_000
_ROWS_MAX = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--topic", metavar="TOPIC", action="append", help="repeatable (default: all but internal ones)"
    )
    parser.add_argument(
        "--output", metavar="FILE", default="report.html", help="the page (default report.html)"
    )
    parser.add_argument(
        "--last", metavar="TIME", type=_duration_ms, help="only records as young as that: 24h, 7d"
    )
    parser.add_argument(
        "--sample-percent",
        metavar="PERCENT",
        type=_percent,
        help=f"how much of every partition to read (default: what makes up {RECORDS_MAX // 1_000_000} million records)",
    )
    parser.add_argument(
        "--top-keys", metavar="N", type=int, default=10, help="how many keys of each topic (default 10)"
    )
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        type=_size,
        help="what all replicas together may take, such as 500GB (default: the free space of each broker's disk)",
    )


def check(options: argparse.Namespace) -> None:
    """Refuses wrong options before a session starts."""
    if options.top_keys < 1:
        raise PipelineError(f"--top-keys {options.top_keys}: it should be 1 or more")
    if not Path(options.output).absolute().parent.is_dir():
        raise PipelineError(f"{options.output}: there is no such folder; name another file with --output")
    with open_cluster(options) as cluster:
        require_topics(cluster, options.topic or [])


def run(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    wall_ms = int(time.time() * 1000)
    with open_cluster(options) as cluster:
        report.show("asking the brokers")
        log = ask_brokers(cluster, options.topic, options.last, wall_ms)
        behind = lags(cluster, log)
        cluster_id = Admin(cluster).describe_cluster().cluster_id
        percent = options.sample_percent or min(100.0, 100 * RECORDS_MAX / max(log.record_count, 1))
        with report.jobs(spark, "counting records"):
            counts = count(spark, options, log, percent)
        if percent < 100:
            report.show("asking the brokers for records by hour")
            counts.hours = hours_by_offsets(cluster, log, counts, wall_ms)
    findings = judge(log, counts, cluster_id, wall_ms, percent, options.last)
    findings.lags = behind
    foresee(findings, log, options.capacity)
    output = Path(options.output)
    try:
        output.write_text(page(findings), encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"{output}: {error.strerror}; name another file with --output") from None
    return _summary(findings, output, is_complete=bool(getattr(options, "json", False)))


def _summary(findings: Findings, output: Path, *, is_complete: bool) -> Summary:
    chosen = first_to_fill(findings.forecasts)
    summary = Summary()
    summary.add("page", str(output))
    summary.add("scope", findings.scope)
    summary.add("topics read", len(findings.topics))
    summary.add("records", sum(each.records for each in findings.topics))
    summary.add("bytes of keys and values", Bytes(sum(each.record_bytes for each in findings.topics)))
    if all(each.disk_bytes is not None for each in findings.topics):
        summary.add("bytes on disk", Bytes(sum(each.disk_bytes or 0 for each in findings.topics)))
    summary.add("hot partitions", len(findings.hot_partitions))
    summary.add("total lag", sum(each.lag or 0 for each in findings.lags))
    summary.add("capacity", f"{chosen.disk.name}: {chosen.verdict}" if chosen else findings.forecast_refusal)
    for number, remark in enumerate(findings.remarks, 1):
        summary.add(f"remark {number}", remark)
    limit = None if is_complete else _ROWS_MAX
    _add_tables(summary, findings, limit)
    return summary


def _add_tables(summary: Summary, findings: Findings, limit: int | None) -> None:
    """All of it for programs; people have the page for what does not fit a screen."""
    summary.add_table(
        "topics",
        (
            "topic",
            "partitions",
            "records",
            "record bytes",
            "disk bytes",
            "bytes a day",
            "low",
            "high",
            "kept",
        ),
        [
            (
                each.topic,
                each.partition_count,
                each.records,
                Bytes(each.record_bytes),
                None if each.disk_bytes is None else Bytes(each.disk_bytes),
                *(
                    (None, None, None)
                    if each.rate is None
                    else (Bytes(each.rate.mean), Bytes(each.rate.low), Bytes(each.rate.high))
                ),
                each.retention,
            )
            for each in findings.topics[:limit]
        ],
    )
    partitions = findings.partitions if limit is None else findings.hot_partitions[:limit]
    summary.add_table(
        "partitions" if limit is None else "hot partitions",
        ("topic", "partition", "records", "record bytes", "share", "fair share", "hot"),
        [
            (
                each.topic,
                each.partition,
                each.records,
                Bytes(each.record_bytes),
                round(each.share, 4),
                round(each.fair_share, 4),
                each.is_hot,
            )
            for each in partitions
        ],
    )
    summary.add_table(
        "approximate top keys" if findings.is_sampled else "top keys",
        ("topic", "key", "records", "record bytes", "share"),
        [
            (each.topic, each.key, each.records, Bytes(each.record_bytes), round(each.share, 4))
            for each in (findings.keys_by_records if limit is None else findings.keys_by_records[:10])
        ],
    )
    summary.add_table(
        "lag",
        ("group", "topic", "partition", "committed", "end", "lag"),
        [
            (each.group, each.topic, each.partition, each.committed_offset, each.end_offset, each.lag)
            for each in findings.lags[:limit]
        ],
    )


def _percent(text: str) -> float:
    try:
        percent = float(text.rstrip("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage above 0 and up to 100")
    return percent


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 500GB or 2TiB") from None


def _duration_ms(text: str) -> int:
    try:
        return parse_duration_ms(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 24h or 7d") from None
