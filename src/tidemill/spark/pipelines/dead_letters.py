"""`dead-letters`: what is in a dead-letter topic and why, and back to where it came from, perhaps put right by a function.

By itself it only looks: letters by reason, those that no convention explains, the first few of all. With --republish,
each letter goes through the user's `fix`, if one is given, and is published to the topic that its headers name or to
--to-topic (`tidemill.dead_letters` has the rules). That is a streaming query which ends when all is read. Its
checkpoint remembers what is done. The sink's transactions make each letter arrive exactly once, however often the run
is killed or repeated. The checkpoint belongs to the dead-letter topic: another --fix or --to-topic goes on with what is
not published. With --dry-run the same decisions are made and shown, and nothing is published or remembered.

A letter that `fix` cannot handle stops the run and is named: put the function right and run again, and it goes on with
what is not published yet. Published letters carry a count, so that one that comes back again and again is left alone
after --max-attempts.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.dead_letters import (
    EXHAUSTED,
    FAILED,
    LEFT,
    PUBLISH,
    DeadLetter,
    Decision,
    Header,
    decide,
    read,
    unknown_headers,
)
from tidemill.spark.pipelines import PipelineError, Progress, Summary
from tidemill.spark.pipelines.connecting import (
    FORMAT,
    add_checkpoint_argument,
    checkpoint_dir,
    connection_options,
    open_cluster,
    require_topics,
)
from tidemill.spark.pipelines.fixes import load_fix

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "dead-letters"
SUMMARY = (
    "look into a dead-letter topic, put records right with a function and publish them again, exactly once"
)
EXAMPLES = """
tidemill pipeline run dead-letters --from-topic orders.dlq
tidemill pipeline run dead-letters --from-topic orders.dlq --republish --fix fix.py --dry-run
tidemill pipeline run dead-letters --from-topic orders.dlq --republish --fix fix.py
tidemill pipeline run dead-letters --from-topic orders.dlq --republish --to-topic orders
"""

_SCHEMA = (
    "convention string, original string, reason string, message string, unknown array<string>, outcome string, why string, "
    "place_partition int, place_offset bigint, place_time timestamp, key binary, value binary, "
    "headers array<struct<key:string,value:binary>>, topic string, partition int, timestamp timestamp"
)
_SINK_COLUMNS = ("key", "value", "headers", "topic", "partition", "timestamp")
_OUTCOMES = (PUBLISH, LEFT, EXHAUSTED, FAILED)
_ROWS_MAX = 100
_TEXT_CHARS_MAX = 60


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from-topic", metavar="TOPIC", required=True, help="the dead-letter topic")
    parser.add_argument(
        "--republish", action="store_true", help="publish the letters again; without it they are only shown"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --republish: show what would happen")
    parser.add_argument(
        "--to-topic",
        metavar="TOPIC",
        help="where all letters go (default: where their headers say they came from)",
    )
    parser.add_argument(
        "--fix",
        metavar="FILE.py",
        type=Path,
        help="has fix(record), which returns the record to publish, or None to leave it",
    )
    parser.add_argument(
        "--max-attempts",
        metavar="N",
        type=int,
        default=3,
        help="how often a letter is published again that keeps coming back (default 3)",
    )
    parser.add_argument(
        "--show", metavar="N", type=int, default=5, help="how many letters to show (default 5)"
    )
    parser.add_argument(
        "--group", metavar="ID", help="the consumer group that shows what is still to be published"
    )
    add_checkpoint_argument(parser)


def check(options: argparse.Namespace) -> None:
    for name, is_given in (("--fix", options.fix is not None), ("--dry-run", options.dry_run)):
        if is_given and not options.republish:
            raise PipelineError(f"{name} has no effect without --republish")
    if options.to_topic == options.from_topic:
        raise PipelineError(f"topic {options.from_topic} cannot be read and published to by the same run")
    _fix_source(options)
    with open_cluster(options) as cluster:
        require_topics(cluster, [options.from_topic, *([options.to_topic] if options.to_topic else [])])


def run(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    check(options)
    if options.republish and not options.dry_run:
        return _republish(spark, options, report)
    return _look(spark, options, report)


# --- looking ---


def _look(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    from pyspark.sql import Observation
    from pyspark.sql import functions as sf

    source = spark.read.format(FORMAT).options(**_source_options(options)).load()
    counted = Observation()
    letters = _decided(source, options, is_strict=False).observe(counted, sf.count("*").alias("letters"))
    letters.persist()
    summary = Summary()
    try:
        with report.jobs(spark, "reading dead letters"):
            has_unknown = _add_reasons(summary, letters)
            summary.add("dead letters", counted.get["letters"])
            if has_unknown:
                _add_unknown(summary, letters)
            if options.republish:
                _add_outcomes(summary, letters)
            _add_first(summary, letters, options.show)
    finally:
        letters.unpersist()
    return summary


def _add_unknown(summary: Summary, letters: DataFrame) -> None:
    from pyspark.sql import functions as sf

    headers = letters.where("convention IS NULL").select(sf.explode("unknown").alias("header"))
    rows = headers.groupBy("header").count().orderBy(sf.desc("count"), "header").limit(_ROWS_MAX).collect()
    summary.add_table(
        "headers of letters that follow no known convention",
        ("header", "letters"),
        [(row["header"], row["count"]) for row in rows],
    )


def _add_reasons(summary: Summary, letters: DataFrame) -> bool:
    """Whether there are letters that follow no convention."""
    from pyspark.sql import functions as sf

    grouped = letters.groupBy("reason", "original", "convention").agg(
        sf.count("*").alias("letters"),
        sf.min("place_time").alias("first"),
        sf.max("place_time").alias("last"),
        sf.min_by("message", "place_offset").alias("example"),
    )
    rows = grouped.orderBy(sf.desc("letters"), "reason", "original").limit(_ROWS_MAX).collect()
    summary.add_table(
        "reasons",
        ("reason", "original topic", "convention", "letters", "first", "last", "example"),
        [
            (
                row.reason,
                row.original,
                row.convention or "unknown",
                row.letters,
                _moment(row["first"]),
                _moment(row["last"]),
                row.example,
            )
            for row in rows
        ],
    )
    return any(row.convention is None for row in rows)


def _add_outcomes(summary: Summary, letters: DataFrame) -> None:
    from pyspark.sql import functions as sf

    target = sf.when(sf.col("outcome") == PUBLISH, sf.col("topic"))
    grouped = letters.groupBy("outcome", target.alias("target"), "why").count()
    rows = grouped.orderBy("outcome", "target", "why").limit(_ROWS_MAX).collect()
    summary.add_table(
        "what would happen",
        ("outcome", "to topic", "letters", "why"),
        [(row.outcome, row.target, row["count"], row.why) for row in rows],
    )


def _add_first(summary: Summary, letters: DataFrame, count: int) -> None:
    rows = letters.orderBy("place_partition", "place_offset").limit(count).collect() if count else []
    summary.add_table(
        "first letters",
        ("partition", "offset", "time", "key", "reason", "outcome", "value"),
        [
            (
                row.place_partition,
                row.place_offset,
                _moment(row.place_time),
                _shown(row.key),
                row.reason,
                row.outcome,
                _shown(row.value),
            )
            for row in rows
        ],
    )


# --- publishing ---


def _republish(spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary:
    from pyspark.sql import functions as sf

    with open_cluster(options) as cluster:
        # The same wherever the letters go: one that is published is done with, also when --to-topic changes.
        checkpoint = checkpoint_dir(options, cluster, NAME, [options.from_topic, "original-topics"])
    report.note(f"checkpoint {checkpoint}")
    group = options.group or f"tidemill-{NAME}-{options.from_topic}"
    source = (
        spark.readStream.format(FORMAT)
        .options(**_source_options(options), startingOffsets="earliest", groupId=group)
        .load()
    )
    counts = [sf.sum((sf.col("outcome") == each).cast("long")).alias(each) for each in _OUTCOMES]
    letters = _decided(source, options, is_strict=True).observe("outcomes", *counts)
    writer = (
        letters.where(sf.col("outcome") == PUBLISH)
        .select(*_SINK_COLUMNS)
        .writeStream.format(FORMAT)
        .options(checkpointLocation=checkpoint, **connection_options(options))
        .queryName(f"{NAME}: {options.from_topic}")
        .trigger(availableNow=True)
    )
    totals = report.follow(writer.start, "publishing dead letters")
    summary = Summary()
    summary.add("dead letters read", totals.rows)
    summary.add("published", totals.observed.get(PUBLISH, 0))
    summary.add("left by fix", totals.observed.get(LEFT, 0))
    summary.add("came back too often", totals.observed.get(EXHAUSTED, 0))
    summary.add("consumer group", group)
    summary.add("checkpoint", checkpoint)
    return summary


def _source_options(options: argparse.Namespace) -> dict[str, str]:
    return {
        **connection_options(options),
        "subscribe": options.from_topic,
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }


def _fix_source(options: argparse.Namespace) -> tuple[str, str] | None:
    """The text of the user's file and its name; what cannot be loaded is said before anything runs."""
    if options.fix is None:
        return None
    try:
        source = options.fix.read_text(encoding="utf-8")
    except OSError as error:
        raise PipelineError(f"{options.fix}: {error.strerror}; --fix names a Python file") from None
    load_fix(source, str(options.fix))
    return source, str(options.fix)


def _decided(source: DataFrame, options: argparse.Namespace, *, is_strict: bool) -> DataFrame:
    """One row for each letter: what it says, and what becomes of it. `is_strict` fails where a letter does."""
    import pyarrow as pa
    from pyspark.sql import functions as sf

    from tidemill.spark.versions import require

    require((4, 1), NAME)
    from pyspark.sql.pandas.functions import arrow_udf

    decide_all = _decider(_fix_source(options), options.to_topic, options.max_attempts, is_strict)
    # Spark tells by these what kind of function it is.
    decide_all.__annotations__ = {"letters": pa.Array, "return": pa.Array}
    # mapInArrow would do, but asks for pandas. Declared nondeterministic, the function runs once for each letter,
    # however often its result is used.
    decided = arrow_udf(decide_all, _SCHEMA).asNondeterministic()  # type: ignore[call-overload]
    return source.select(decided(sf.struct(*source.columns)).alias("decided")).select("decided.*")


def _decider(
    fix_source: tuple[str, str] | None, to_topic: str | None, attempts_max: int, is_strict: bool
) -> Callable[[Any], Any]:
    """Runs on executors, so it takes along nothing but its arguments."""

    def decide_all(letters: Any) -> Any:
        fix = None if fix_source is None else load_fix(*fix_source)
        rows = []
        for row in letters.to_pylist():
            decision = decide(_letter(row, to_topic), fix, attempts_max)
            if is_strict and decision.outcome == FAILED:
                raise PipelineError(
                    f"dead letter {decision.letter.place}: {decision.why}; put that right and run again, "
                    "what is published already is not repeated"
                )
            rows.append(_row(decision, row))
        return _as_arrow(rows)

    return decide_all


def _as_arrow(rows: list[dict[str, Any]]) -> Any:
    """Returns the rows as an Arrow array with the types of `_SCHEMA`."""
    import pyarrow as pa

    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    time = pa.timestamp("us", "UTC")
    fields = [
        *((name, pa.string()) for name in ("convention", "original", "reason", "message")),
        *(("unknown", pa.list_(pa.string())), ("outcome", pa.string()), ("why", pa.string())),
        *(("place_partition", pa.int32()), ("place_offset", pa.int64()), ("place_time", time)),
        *(("key", pa.binary()), ("value", pa.binary()), ("headers", headers)),
        *(("topic", pa.string()), ("partition", pa.int32()), ("timestamp", time)),
    ]
    return pa.array(rows, pa.struct(fields))


def _letter(row: dict[str, Any], to_topic: str | None) -> DeadLetter:
    headers = [Header(each["key"], each["value"]) for each in row["headers"] or ()]
    return read(
        row["topic"],
        row["partition"],
        row["offset"],
        round(row["timestamp"].timestamp() * 1000),
        row["key"],
        row["value"],
        headers,
        to_topic,
    )


def _row(decision: Decision, found: dict[str, Any]) -> dict[str, Any]:
    letter = decision.letter
    headers = [Header(each["key"], each["value"]) for each in found["headers"] or ()]
    return {
        "convention": letter.failure.convention,
        "original": letter.failure.topic,
        "reason": letter.failure.reason,
        "message": letter.failure.message,
        "unknown": unknown_headers(headers),
        "outcome": decision.outcome,
        "why": decision.why,
        "place_partition": found["partition"],
        "place_offset": found["offset"],
        "place_time": found["timestamp"],
        "key": letter.key,
        "value": letter.value,
        "headers": [{"key": each.key, "value": each.value} for each in letter.headers],
        "topic": letter.topic,
        "partition": letter.partition,
        "timestamp": datetime.fromtimestamp(letter.timestamp_ms / 1000, UTC),
    }


def _moment(time: datetime) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _shown(value: bytes | None) -> str | None:
    if value is None:
        return None
    text = bytes(value).decode("utf-8", "backslashreplace")
    return text if len(text) <= _TEXT_CHARS_MAX else f"{text[: _TEXT_CHARS_MAX - 1]}…"
