"""Dead letters in a real session: the report about them, and that each is published again exactly once."""

from __future__ import annotations

import argparse
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql import SparkSession

from tests.brokers import RunningBroker
from tests.spark.conftest import Fed, Feed
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.spark import session
from tidemill.spark.pipelines import PipelineError, Progress, dead_letters

CREATED_MS = 1_700_000_000_000
FIX = """
import json

def fix(record):
    order = json.loads(record.value)
    if order["amount"] is None:
        return None
    return record.replace(value=json.dumps({**order, "amount": float(order["amount"])}))
"""


def options_of(target: RunningBroker, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    dead_letters.add_arguments(parser)
    return argparse.Namespace(**vars(parser.parse_args(words)), bootstrap=target.bootstrap)


Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(spark: SparkSession, target: RunningBroker, tmp_path: Path) -> Run:
    def run_with(*words: str) -> dict[str, Any]:
        options = options_of(target, *words, "--checkpoint", str(tmp_path / "checkpoint"))
        return dead_letters.run(spark, options, Progress()).as_json()

    return run_with


def records_of(target: RunningBroker, topic: str) -> list[Message]:
    """All committed records of partition 0, by a stock client."""
    consumer = Consumer(
        {"bootstrap.servers": target.bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
    )
    try:
        end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1]
        consumer.assign([TopicPartition(topic, 0, 0)])
        found: list[Message] = []
        position = 0
        while position < end:
            found += [each for each in consumer.consume(100, timeout=0.5) if each.error() is None]
            (at,) = consumer.position([TopicPartition(topic, 0)])
            position = max(position, at.offset)
        return found
    finally:
        consumer.close()


def spring(
    original: str, exception: bytes = b"java.lang.NumberFormatException"
) -> list[tuple[str, str | bytes | None]]:
    return [
        ("kafka_dlt-exception-fqcn", exception),
        ("kafka_dlt-exception-message", b"not a number"),
        ("kafka_dlt-original-topic", original.encode()),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-timestamp", struct.pack(">q", CREATED_MS)),
        ("trace-id", b"t1"),
    ]


def connect(original: str) -> list[tuple[str, str | bytes | None]]:
    return [
        ("__connect.errors.topic", original.encode()),
        ("__connect.errors.exception.class.name", b"DataException"),
        ("__connect.errors.exception.message", b"bad json"),
    ]


def order(amount: object) -> bytes:
    return json.dumps({"amount": amount}).encode()


@pytest.fixture
def letters(admin: Admin, feed: Feed, topic: str) -> str:
    """A dead-letter topic: three letters of Spring's, of which one cannot be fixed and one came back; one of Connect's."""
    admin.create_topic(topic, partition_count=1)
    admin.create_topic(f"{topic}.dlq", partition_count=2)
    feed(
        f"{topic}.dlq",
        [
            Fed(order("1.5"), b"a", 0, CREATED_MS + 5000, spring(topic)),
            Fed(order(None), b"b", 0, CREATED_MS + 6000, spring(topic)),
            Fed(order("3"), b"c", 1, CREATED_MS + 7000, [*spring(topic), ("tidemill.republished", b"3")]),
            Fed(order("4"), b"d", 1, CREATED_MS + 8000, connect(topic)),
        ],
    )
    return f"{topic}.dlq"


@pytest.mark.long
def test_letters_are_counted_by_reason_and_nothing_is_published(
    run: Run, target: RunningBroker, feed: Feed, topic: str, letters: str, tmp_path: Path
) -> None:
    feed(letters, [Fed(b"?", None, 0, CREATED_MS, [("x-error", b"e"), ("x-source", b"s")])])
    fix = tmp_path / "fix.py"
    fix.write_text(FIX)
    found = run("--from-topic", letters, "--republish", "--fix", str(fix), "--dry-run")
    assert found["dead_letters"] == 5
    assert [
        (each["reason"], each["original_topic"], each["convention"], each["letters"])
        for each in found["reasons"]
    ] == [
        ("java.lang.NumberFormatException", topic, "Spring", 3),
        ("DataException", topic, "Kafka Connect", 1),
        ("unknown", None, "unknown", 1),
    ]
    assert found["reasons"][1]["example"] == "bad json"
    assert found["reasons"][1]["first"] == "2023-11-14 22:13:28"
    assert found["headers_of_letters_that_follow_no_known_convention"] == [
        {"header": "x-error", "letters": 1},
        {"header": "x-source", "letters": 1},
    ]
    assert [(each["partition"], each["offset"], each["key"]) for each in found["first_letters"]] == [
        (0, 0, "a"),
        (0, 1, "b"),
        (0, 2, None),
        (1, 0, "c"),
        (1, 1, "d"),
    ]
    would = found["what_would_happen"]
    assert [(each["outcome"], each["to_topic"], each["letters"]) for each in would] == [
        ("exhausted", None, 1),
        ("failed", None, 1),
        ("left", None, 1),
        ("publish", topic, 2),
    ]
    assert "fix() raised JSONDecodeError" in would[1]["why"]
    assert records_of(target, topic) == []


def test_each_letter_is_published_exactly_once(
    run: Run, target: RunningBroker, admin: Admin, feed: Feed, topic: str, letters: str, tmp_path: Path
) -> None:
    fix = tmp_path / "fix.py"
    fix.write_text(FIX)
    words = ("--from-topic", letters, "--republish", "--fix", str(fix), "--group", f"g-{topic}")
    first = run(*words)
    assert (first["dead_letters_read"], first["published"]) == (4, 2)
    assert (first["left_by_fix"], first["came_back_too_often"]) == (1, 1)
    published = {each.key(): each for each in records_of(target, topic)}
    assert {key: each.value() for key, each in published.items()} == {b"a": order(1.5), b"d": order(4.0)}
    assert published[b"a"].headers() == [("trace-id", b"t1"), ("tidemill.republished", b"1")]
    assert published[b"d"].headers() == [("tidemill.republished", b"1")]
    # The record's own time, where the headers have it; otherwise that of the letter.
    assert published[b"a"].timestamp()[1] == CREATED_MS
    assert published[b"d"].timestamp()[1] == CREATED_MS + 8000

    again = run(*words)
    assert (again["dead_letters_read"], again["published"]) == (0, 0)
    feed(letters, [Fed(order("9"), b"e", 1, CREATED_MS, spring(topic))])
    third = run(*words)
    assert (third["dead_letters_read"], third["published"]) == (1, 1)
    assert sorted(each.key() or b"" for each in records_of(target, topic)) == [b"a", b"d", b"e"]
    groups = GroupAdmin(admin.cluster)
    assert [each.lag for each in groups.lags(groups.describe(f"g-{topic}"))] == [0, 0]


def test_a_letter_that_fix_cannot_handle_stops_the_run_and_is_named(
    run: Run, target: RunningBroker, admin: Admin, feed: Feed, topic: str, tmp_path: Path
) -> None:
    admin.create_topic(topic, partition_count=1)
    admin.create_topic(f"{topic}.dlq", partition_count=1)
    feed(
        f"{topic}.dlq", [Fed(order("1"), b"a", 0, 0, connect(topic)), Fed(b"{}", b"b", 0, 0, connect(topic))]
    )
    fix = tmp_path / "fix.py"
    fix.write_text(FIX)
    words = ("--from-topic", f"{topic}.dlq", "--republish", "--fix", str(fix))
    with pytest.raises(Exception) as raised:
        run(*words)
    line = session.failure_line(raised.value)
    assert line.startswith(f"dead letter {topic}.dlq-0 offset 1: fix() raised KeyError: 'amount'; ")
    assert records_of(target, topic) == []
    fix.write_text("def fix(record): return record.replace(value='fixed')")
    assert run(*words)["published"] == 2
    assert [each.value() for each in records_of(target, topic)] == [b"fixed", b"fixed"]


@pytest.mark.long
def test_another_target_goes_on_with_what_is_not_published(
    spark: SparkSession,
    target: RunningBroker,
    admin: Admin,
    feed: Feed,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    letters, other = f"{topic}.dlq", f"{topic}-other"
    for name in (topic, letters, other):
        admin.create_topic(name, partition_count=1)

    def published(*words: str) -> int:
        options = options_of(target, "--from-topic", letters, "--republish", *words)
        found: int = dead_letters.run(spark, options, Progress()).as_json()["published"]
        return found

    feed(letters, [Fed(b"%d" % number, None, 0, 0, connect(topic)) for number in range(3)])
    assert published() == 3
    feed(letters, [Fed(b"lost", None, 0, 0, [("x-error", b"e")])])
    with pytest.raises(Exception) as raised:
        published()
    assert "--to-topic" in session.failure_line(raised.value)
    assert published("--to-topic", other) == 1
    assert len(records_of(target, topic)) == 3
    assert [each.value() for each in records_of(target, other)] == [b"lost"]


def test_what_makes_no_sense_is_refused_before_anything_runs(
    target: RunningBroker, admin: Admin, topic: str
) -> None:
    admin.create_topic(topic, partition_count=1)
    for words, why in (
        (("--from-topic", f"{topic}-no"), "there is no topic"),
        (("--from-topic", topic, "--to-topic", topic), "cannot be read and published to"),
        (("--from-topic", topic, "--fix", "fix.py"), "--fix has no effect without --republish"),
        (("--from-topic", topic, "--republish", "--fix", "no.py"), "No such file"),
    ):
        with pytest.raises(PipelineError, match=why):
            dead_letters.check(options_of(target, *words))
