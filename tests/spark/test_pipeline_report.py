"""The report on topics whose content is known: every number against a count in plain Python over what was written."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.brokers import RunningBroker
from tests.spark.conftest import Fed, Feed
from tests.unit.spark.test_report_page import read as read_page
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.spark.pipelines import PipelineError, Progress, report
from tidemill.types import TopicPartition

HOUR_MS = 3_600_000
HOURS = 10
EVIL_KEY = b"<script>alert(1)</script>"


def options_of(target: RunningBroker, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    report.add_arguments(parser)
    return argparse.Namespace(**vars(parser.parse_args(words)), bootstrap=target.bootstrap, json=True)


def run(spark: SparkSession, target: RunningBroker, *words: str) -> dict[str, Any]:
    return report.run(spark, options_of(target, *words), Progress()).as_json()


def skewed(wall_ms: int) -> list[Fed]:
    """Ten hours of records: most of one key, in partition 0; some without a key; hour h has 100 + 10 h records."""
    start_ms = wall_ms // HOUR_MS * HOUR_MS - HOURS * HOUR_MS
    records = []
    for hour in range(HOURS):
        for number in range(100 + 10 * hour):
            at_ms = start_ms + hour * HOUR_MS + number * 1000
            if number % 4:
                records.append(Fed(b"x" * 50, EVIL_KEY, 0, at_ms))
            elif number % 8:
                records.append(Fed(b"y" * 10, f"key-{number}".encode(), 1 + number % 3, at_ms))
            else:
                records.append(Fed(b"z", None, 3, at_ms))
    return records


def size_of(record: Fed) -> int:
    return len(record.key or b"") + len(record.value or b"")


@pytest.fixture
def records(admin: Admin, feed: Feed, topic: str) -> list[Fed]:
    admin.create_topic(topic, partition_count=4)
    fed = skewed(int(time.time() * 1000))
    feed(topic, fed)
    return fed


def test_every_number_is_the_one_that_was_written(
    spark: SparkSession, target: RunningBroker, admin: Admin, topic: str, records: list[Fed], tmp_path: Path
) -> None:
    GroupAdmin(admin.cluster).commit(f"g-{topic}", {TopicPartition(topic, 0): 7, TopicPartition(topic, 1): 0})
    output = tmp_path / "report.html"
    found = run(spark, target, "--topic", topic, "--output", str(output), "--capacity", "1TB")

    (of_topic,) = found["topics"]
    assert of_topic["records"] == len(records)
    assert of_topic["record_bytes"] == sum(map(size_of, records))
    assert of_topic["disk_bytes"] > len(records)

    by_partition = Counter(record.partition for record in records)
    sizes = Counter[int]()
    for record in records:
        sizes[record.partition] += size_of(record)
    total = sum(sizes.values())
    assert [
        (each["partition"], each["records"], each["record_bytes"], each["hot"])
        for each in found["partitions"]
    ] == [(index, by_partition[index], sizes[index], index == 0) for index in range(4)]
    assert [each["share"] for each in found["partitions"]] == [
        round(sizes[index] / total, 4) for index in range(4)
    ]

    by_key = Counter(record.key.decode() for record in records if record.key is not None)
    assert len(found["top_keys"]) >= 10
    assert found["top_keys"][0]["key"] == EVIL_KEY.decode()
    assert [each["records"] for each in found["top_keys"][:5]] == [
        count for _, count in by_key.most_common(5)
    ]
    assert all(each["records"] == by_key[each["key"]] for each in found["top_keys"])

    lags = {each["partition"]: each["lag"] for each in found["lag"] if each["group"] == f"g-{topic}"}
    # Two partitions have no commit: all that is in them is unread.
    assert lags == {index: by_partition[index] - (7 if index == 0 else 0) for index in range(4)}

    # The current hour is not over and the first one may not be whole: their neighbours are the mean.
    by_hour = [
        sum(size_of(each) for each in records if _hour(each) == hour)
        for hour in sorted({_hour(r) for r in records})
    ]
    assert of_topic["bytes_a_day"] == int(24 * sum(by_hour[1:]) / (HOURS - 1))
    assert of_topic["low"] < of_topic["bytes_a_day"] < of_topic["high"]
    assert found["capacity"].startswith("cluster: ")

    text = output.read_text()
    assert "<script" not in text
    rows = read_page(text).rows
    assert [topic, EVIL_KEY.decode(), f"{by_key[EVIL_KEY.decode()]:,}"] in [row[:3] for row in rows]
    assert [
        f"{sum(1 for each in records if _hour(each) == h):,}" for h in sorted({_hour(r) for r in records})
    ] == [row[1] for row in rows if len(row) == 3 and row[0].endswith(":00")]


def _hour(record: Fed) -> int:
    return record.timestamp_ms // HOUR_MS


@pytest.mark.long
def test_a_sample_is_scaled_up_and_says_so(
    spark: SparkSession, target: RunningBroker, topic: str, records: list[Fed], tmp_path: Path
) -> None:
    output = tmp_path / "report.html"
    found = run(spark, target, "--topic", topic, "--output", str(output), "--sample-percent", "20")
    (of_topic,) = found["topics"]
    assert of_topic["records"] == pytest.approx(len(records), rel=0.02)
    assert found["approximate_top_keys"][0]["records"] == pytest.approx(
        sum(record.key == EVIL_KEY for record in records), rel=0.05
    )
    assert "20 %" in found["scope"]
    rows = read_page(output.read_text()).rows
    # Hours come from the brokers' time indexes, so that they are exact although only a part was read.
    assert [
        f"{sum(1 for each in records if _hour(each) == h):,}" for h in sorted({_hour(r) for r in records})
    ] == [row[1] for row in rows if len(row) == 3 and row[0].endswith(":00") and row[1] != "0"]


def test_only_the_last_hours_are_read(
    spark: SparkSession, target: RunningBroker, topic: str, records: list[Fed], tmp_path: Path
) -> None:
    before_ms = int(time.time() * 1000)
    found = run(spark, target, "--topic", topic, "--output", str(tmp_path / "r.html"), "--last", "3h")
    after_ms = int(time.time() * 1000)
    (of_topic,) = found["topics"]
    counts = [sum(each.timestamp_ms >= at - 3 * HOUR_MS for each in records) for at in (after_ms, before_ms)]
    assert counts[0] <= of_topic["records"] <= counts[1]
    assert found["capacity"].startswith("Too little data for a forecast")


def test_what_cannot_be_reported_on_is_said(target: RunningBroker, topic: str) -> None:
    with pytest.raises(PipelineError, match=f"there is no topic {topic}"):
        report.check(options_of(target, "--topic", topic))
    with pytest.raises(SystemExit):
        options_of(target, "--sample-percent", "0")
    with pytest.raises(SystemExit):
        options_of(target, "--last", "soon")


def test_an_empty_topic_has_a_page(
    spark: SparkSession, target: RunningBroker, admin: Admin, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, partition_count=2)
    found = run(spark, target, "--topic", topic, "--output", str(tmp_path / "r.html"))
    assert found["records"] == 0
    assert "No record was read" in (tmp_path / "r.html").read_text()
    with pytest.raises(PipelineError, match="name another file with --output"):
        report.check(options_of(target, "--output", str(tmp_path / "no" / "r.html")))
    with pytest.raises(PipelineError, match="name another file with --output"):
        run(spark, target, "--topic", topic, "--output", str(tmp_path / "no" / "r.html"))
