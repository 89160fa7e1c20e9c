"""Counts records and bytes by partition, hour and key for a report, in one Spark job.

A read may cover evenly spread pieces of each partition only; counts are then scaled up by the part that was read.
Records by hour cannot be had from pieces, so they come from the brokers' time indexes instead (`hours_by_offsets`).
Bytes are those of keys and values.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.spark.pipelines.connecting import FORMAT, connection_options
from tidemill.spark.pipelines.topic_report.brokers import GROWTH_DAYS_MAX, Log
from tidemill.spark.pipelines.topic_report.findings import KeyUse, key_text, slices
from tidemill.spark.pipelines.topic_report.forecast import DAY_MS, HOUR_MS
from tidemill.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SLICES = 8


@dataclass
class Counts:
    """Counts over the records, scaled up to the ranges."""

    by_partition: dict[TopicPartition, tuple[int, int]]
    keyless: dict[str, int]
    keys: list[KeyUse]
    hours: dict[str, dict[int, tuple[int, int]]]
    """Records and bytes by topic and hour."""


def count(spark: SparkSession, options: argparse.Namespace, log: Log, percent: float) -> Counts:
    from pyspark.sql import Window
    from pyspark.sql import functions as sf

    pieces = {
        partition: slices(start, end, percent, _SLICES) for partition, (start, end) in log.ranges.items()
    }
    counts = Counts({}, {}, [], {})
    rows = _rows(spark, options, pieces)
    if rows is None:
        return counts
    length = sf.coalesce(sf.octet_length("key"), sf.lit(0)) + sf.coalesce(sf.octet_length("value"), sf.lit(0))
    hour = sf.floor(sf.unix_millis("timestamp") / HOUR_MS)
    chosen = rows.select("topic", "partition", "key", hour.alias("hour"), length.cast("long").alias("size"))
    # One pass over the records for both questions.
    grouped = (
        chosen.groupingSets(
            [("topic", "partition", "hour"), ("topic", "key")], "topic", "partition", "hour", "key"
        )
        .agg(
            sf.count("*").alias("records"),
            sf.sum("size").alias("bytes"),
            sf.grouping("key").alias("is_of_hour"),
        )
        .persist()
    )
    try:
        by_hour = (
            grouped.where("is_of_hour = 1").select("topic", "partition", "hour", "records", "bytes").collect()
        )
        per_topic = Window.partitionBy("topic")
        ranked = (
            grouped.where("is_of_hour = 0 AND key IS NOT NULL")
            .withColumn("by_records", sf.row_number().over(per_topic.orderBy(sf.desc("records"), "key")))
            .withColumn("by_bytes", sf.row_number().over(per_topic.orderBy(sf.desc("bytes"), "key")))
            .where((sf.col("by_records") <= options.top_keys) | (sf.col("by_bytes") <= options.top_keys))
        )
        keys = ranked.select("topic", "key", "records", "bytes").collect()
        keyless = grouped.where("is_of_hour = 0 AND key IS NULL").select("topic", "records").collect()
    finally:
        grouped.unpersist()
    _fill(counts, log, pieces, by_hour, keys, keyless)
    return counts


def _rows(
    spark: SparkSession, options: argparse.Namespace, pieces: Mapping[TopicPartition, list[tuple[int, int]]]
) -> DataFrame | None:
    """All pieces; those with the same number are one read."""
    rows = None
    for number in range(_SLICES):
        chosen = {partition: each[number] for partition, each in pieces.items() if len(each) > number}
        if not chosen:
            break
        read = (
            spark.read.format(FORMAT)
            .options(**connection_options(options))
            .option("columns", "key,value,topic,partition,timestamp")
            .option("assign", _by_topic(dict.fromkeys(chosen)))
            .option("startingOffsets", _by_topic({partition: each[0] for partition, each in chosen.items()}))
            .option("endingOffsets", _by_topic({partition: each[1] for partition, each in chosen.items()}))
            .load()
        )
        rows = read if rows is None else rows.unionAll(read)
    return rows


def _by_topic(values: Mapping[TopicPartition, int | None]) -> str:
    """The JSON of Spark's options: partitions of a topic, or their offsets."""
    if all(value is None for value in values.values()):
        named: dict[str, list[int]] = defaultdict(list)
        for topic, index in values:
            named[topic].append(index)
        return json.dumps(named)
    offsets: dict[str, dict[str, int | None]] = defaultdict(dict)
    for (topic, index), value in values.items():
        offsets[topic][str(index)] = value
    return json.dumps(offsets)


def _fill(
    counts: Counts,
    log: Log,
    pieces: Mapping[TopicPartition, list[tuple[int, int]]],
    by_hour: Iterable[Any],
    keys: Iterable[Any],
    keyless: Iterable[Any],
) -> None:
    """Rows to counts, each scaled by the part of its partition or topic that was read."""
    read = {partition: sum(end - start for start, end in each) for partition, each in pieces.items()}
    there = {partition: end - start for partition, (start, end) in log.ranges.items()}
    factors = {
        partition: there[partition] / read[partition] if read[partition] else 1.0 for partition in read
    }
    sums: dict[TopicPartition, list[float]] = defaultdict(lambda: [0.0, 0.0])
    hours: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for row in by_hour:
        partition = TopicPartition(row.topic, row.partition)
        for place in (sums[partition], hours[row.topic][row.hour * HOUR_MS]):
            place[0] += row.records * factors[partition]
            place[1] += row.bytes * factors[partition]
    counts.by_partition = {partition: (round(each[0]), round(each[1])) for partition, each in sums.items()}
    counts.hours = {
        topic: {hour: (round(each[0]), round(each[1])) for hour, each in of_topic.items()}
        for topic, of_topic in hours.items()
    }
    totals = {
        topic: (
            sum(there[each] for each in read if each.topic == topic),
            sum(read[each] for each in read if each.topic == topic),
        )
        for topic in log.partition_counts
    }
    scale = {topic: all_ / some if some else 1.0 for topic, (all_, some) in totals.items()}
    records = {
        topic: sum(each[0] for partition, each in counts.by_partition.items() if partition.topic == topic)
        for topic in log.partition_counts
    }
    counts.keyless = {row.topic: round(row.records * scale[row.topic]) for row in keyless}
    counts.keys = [
        KeyUse(
            row.topic,
            key_text(bytes(row.key)),
            round(row.records * scale[row.topic]),
            round(row.bytes * scale[row.topic]),
            row.records * scale[row.topic] / max(records[row.topic], 1),
        )
        for row in keys
    ]


def hours_by_offsets(
    cluster: Cluster, log: Log, counts: Counts, wall_ms: int
) -> dict[str, dict[int, tuple[int, int]]]:
    """Records by hour from the brokers' time indexes: pieces of a log do not show how many fell into an hour."""
    admin = Admin(cluster)
    hours: dict[str, dict[int, tuple[int, int]]] = {}
    for topic, seen in counts.hours.items():
        partitions = [partition for partition in log.ranges if partition.topic == topic]
        records = sum(counts.by_partition.get(each, (0, 0))[0] for each in partitions)
        size = sum(counts.by_partition.get(each, (0, 0))[1] for each in partitions)
        first = max(min(seen), (wall_ms - GROWTH_DAYS_MAX * DAY_MS) // HOUR_MS * HOUR_MS)
        before = {partition: log.ranges[partition][0] for partition in partitions}
        hours[topic] = {}
        for hour in range(first, wall_ms, HOUR_MS):
            after = admin.offsets_at(partitions, hour + HOUR_MS)
            count = sum(max(0, after[each] - max(before[each], log.ranges[each][0])) for each in partitions)
            hours[topic][hour] = (count, round(count * size / max(records, 1)))
            before = after
    return hours
