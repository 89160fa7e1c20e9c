"""`dedupe`, `aggregate` and a user's file over a real session, against a dumb twin that looks at every record.

Topics are written by librdkafka and the results read by it, with read_committed. Runs are as `tidemill pipeline run` makes
them, only in the session of the tests.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition
from pyspark.sql import SparkSession

from tests.brokers import RunningBroker
from tests.spark.conftest import Fed, Feed, Read
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.errors import TidemillError
from tidemill.spark import pipelines
from tidemill.spark.pipelines import Pipeline, PipelineError, Progress, Summary
from tidemill.spark.pipelines.aggregate import aggregated
from tidemill.spark.pipelines.connecting import options_of
from tidemill.spark.user_pipeline import UserPipeline

# A minute of the past, at the beginning of an hour; younger than what retention deletes.
HOUR_MS = 3_600_000
START_MS = int(time.time() * 1000) // HOUR_MS * HOUR_MS - 24 * HOUR_MS
LIMIT_S = 30.0

Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(spark: SparkSession, target: RunningBroker, tmp_path: Path) -> Run:
    """A pipeline from its first check to its summary."""

    def to_end(pipeline: str | Pipeline, *words: str) -> dict[str, Any]:
        chosen: Any = pipelines.load(pipeline) if isinstance(pipeline, str) else pipeline
        more = [] if "--whole" in words else ["--checkpoint", str(tmp_path / "checkpoint")]
        options = options_of(chosen, [*words, *more], bootstrap=target.bootstrap)
        chosen.check(options)
        summary: Summary = chosen.run(spark, options, Progress())
        return summary.as_json()

    return to_end


class Written(NamedTuple):
    key: bytes | None
    value: bytes
    timestamp_ms: int
    headers: list[tuple[str, bytes]] | None


def committed(target: RunningBroker, admin: Admin, topic: str) -> list[Written]:
    """Everything that committed transactions wrote to the topic."""
    partitions = [each.partition_index for each in admin.topic(topic).partitions]
    consumer: Any = Consumer(
        {
            "bootstrap.servers": target.bootstrap,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
    found: list[Written] = []
    ended: set[int] = set()
    deadline = time.monotonic() + LIMIT_S
    while len(ended) < len(partitions):
        assert time.monotonic() < deadline, f"{topic} was not read to its end"
        message = consumer.poll(0.5)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
        else:
            found.append(Written(message.key(), message.value(), message.timestamp()[1], message.headers()))
    consumer.close()
    return found


# --- dedupe ---


def firsts(records: Iterable[Fed], identity: Callable[[Fed], object]) -> list[Fed]:
    """The dumb twin of dedupe: what has no identity stays, and of the others the first."""
    seen: set[object] = set()
    kept = []
    for record in records:
        what = identity(record)
        if what is None or what not in seen:
            kept.append(record)
            seen.update(() if what is None else (what,))
    return kept


def values(records: Iterable[Fed] | Iterable[Written]) -> Counter[bytes | None]:
    return Counter(record.value for record in records)


@pytest.mark.long
def test_dedupe_by_key_over_two_runs(
    run: Run, feed: Feed, admin: Admin, target: RunningBroker, topic: str
) -> None:
    chance = Random(5)
    admin.create_topic(topic, partition_count=3)
    records = [
        Fed(
            f"value {number}".encode(),
            None if number % 17 == 0 else f"key {chance.randrange(40)}".encode(),
            timestamp_ms=START_MS + number * 1000,
            headers=[("number", str(number).encode())],
        )
        for number in range(300)
    ]
    words = ["--from-topic", topic, "--to-topic", f"{topic}-once", "--group", f"{topic}-group"]
    feed(topic, records[:200])
    first = run("dedupe", *words)
    feed(topic, records[200:])
    second = run("dedupe", *words)

    expected = firsts(records, lambda record: record.key)
    written = committed(target, admin, f"{topic}-once")
    assert values(written) == values(expected)
    assert {each.value: (each.key, each.timestamp_ms, each.headers) for each in written} == {
        each.value: (each.key, each.timestamp_ms, each.headers) for each in expected
    }
    assert (first["records_read"], second["records_read"]) == (200, 100)
    assert first["records_written"] + second["records_written"] == len(expected)
    left_out = first["repetitions_left_out"] + second["repetitions_left_out"]
    assert left_out == len(records) - len(expected)
    assert first["late_records_dropped"] == second["late_records_dropped"] == 0
    assert len(admin.topic(f"{topic}-once").partitions) == 3
    lags = GroupAdmin(admin.cluster).lags(GroupAdmin(admin.cluster).describe(f"{topic}-group"))
    assert [each.lag for each in lags] == [0, 0, 0]


def test_dedupe_of_a_whole_topic_by_header(
    run: Run, feed: Feed, admin: Admin, target: RunningBroker, topic: str
) -> None:
    """Repetitions lie in different partitions; the one with the lowest timestamp wins, wherever it is."""
    chance = Random(6)
    admin.create_topic(topic, partition_count=2)
    records = []
    for number in range(120):
        headers: list[tuple[str, str | bytes | None]] = [("other", b"x")]
        if number % 10:
            headers.append(("id", f"id {chance.randrange(30)}".encode()))
        records.append(
            Fed(
                str(number).encode(),
                partition=chance.randrange(2),
                timestamp_ms=START_MS - number * 1000,
                headers=headers,
            )
        )
    feed(topic, records)
    summary = run(
        "dedupe", "--from-topic", topic, "--to-topic", f"{topic}-once", "--by", "header:id", "--whole"
    )
    expected = firsts(reversed(records), lambda record: dict(record.headers or []).get("id"))
    assert values(committed(target, admin, f"{topic}-once")) == values(expected)
    assert summary["records_read"] == 120
    assert summary["records_written"] == len(expected)


# --- aggregate ---


class Order(NamedTuple):
    at_ms: int
    status: str
    amount: float | None

    def fed(self) -> Fed:
        value = {"order": {"status": self.status, "amount": self.amount}, "at": self.at_ms}
        return Fed(json.dumps(value).encode(), self.status.encode())


def windows_of(
    orders: Iterable[Order], length_ms: int, slide_ms: int
) -> dict[tuple[str, int], dict[str, Any]]:
    """The dumb twin of aggregate: every window asks every order."""
    amounts: dict[tuple[str, int], list[float | None]] = defaultdict(list)
    for order in orders:
        start_ms = order.at_ms // slide_ms * slide_ms
        while start_ms > order.at_ms - length_ms:
            amounts[order.status, start_ms].append(order.amount)
            start_ms -= slide_ms
    results = {}
    for (status, start_ms), all_amounts in amounts.items():
        known = [amount for amount in all_amounts if amount is not None]
        results[status, start_ms] = {
            "window_start": moment(start_ms),
            "window_end": moment(start_ms + length_ms),
            "order.status": status,
            "count": len(all_amounts),
            "order.amount_sum": sum(known) if known else None,
            "order.amount_avg": pytest.approx(sum(known) / len(known)) if known else None,
            "order.amount_min": min(known, default=None),
            "order.amount_max": max(known, default=None),
        }
    return results


def moment(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def some_orders(chance: Random, count: int) -> list[Order]:
    # Amounts are sums of powers of two: their sums are exact in any order.
    return [
        Order(
            START_MS + chance.randrange(600_000),
            chance.choice(["created", "paid"]),
            chance.choice([None, chance.randrange(1000) / 4]),
        )
        for _ in range(count)
    ]


AGGREGATE = ["--by", "order.status", "--time", "at", "--sum", "order.amount", "--avg", "order.amount"]
AGGREGATE += ["--min", "order.amount", "--max", "order.amount"]


@pytest.mark.long
def test_windows_are_written_once_when_they_are_final(
    run: Run, feed: Feed, admin: Admin, target: RunningBroker, topic: str
) -> None:
    admin.create_topic(topic, partition_count=2)
    orders = some_orders(Random(7), 400)
    no_time = Fed(b"no JSON at all")
    words = ["--from-topic", topic, "--to-topic", f"{topic}-stats", "--window", "1m", "--watermark", "90s"]
    feed(topic, [*(order.fed() for order in orders), no_time])
    first = run("aggregate", *words, *AGGREGATE)
    watermark_ms = max(order.at_ms for order in orders) - 90_000
    late = Order(START_MS, "paid", 1000.0)
    closing = Order(START_MS + 3_600_000, "paid", 0.25)
    feed(topic, [late.fed(), closing.fed()])
    second = run("aggregate", *words, *AGGREGATE)

    written = committed(target, admin, f"{topic}-stats")
    expected = windows_of(orders, 60_000, 60_000)
    assert written_windows(written) == {
        json.dumps({"order.status": status, "window_start": moment(start_ms)}, separators=(",", ":")): result
        for (status, start_ms), result in expected.items()
    }
    closed = [start_ms for _, start_ms in expected if start_ms + 60_000 <= watermark_ms]
    assert 0 < len(closed) < len(expected)
    assert first["records_written"] == len(closed)
    assert first["groups_still_open"] == len(expected) - len(closed)
    assert first["records_without_event_time"] == 1
    assert second["records_written"] == len(expected) - len(closed)
    assert second["late_records_dropped"] == 1
    assert second["groups_still_open"] == 1


def written_windows(written: Iterable[Written]) -> dict[str, Any]:
    found = [(each.key.decode() if each.key else "", json.loads(each.value)) for each in written]
    assert len(dict(found)) == len(found), "a window was written twice"
    return dict(found)


@pytest.mark.long
def test_sliding_windows(feed: Feed, admin: Admin, read: Read, topic: str) -> None:
    admin.create_topic(topic, partition_count=1)
    orders = some_orders(Random(8), 100)
    feed(topic, [order.fed() for order in orders])
    words = ["--from-topic", topic, "--to-topic", "x", "--window", "2m", "--slide", "30s", *AGGREGATE]
    options = options_of(pipelines.load("aggregate"), words, bootstrap="unused")
    rows = aggregated(read({"subscribe": topic}), options).collect()
    results = [json.loads(row["value"]) for row in rows]
    expected = list(windows_of(orders, 120_000, 30_000).values())

    def by_group(result: dict[str, Any]) -> tuple[str, str]:
        return result["order.status"], result["window_start"]

    assert sorted(results, key=by_group) == sorted(expected, key=by_group)


# --- a user's own ---


def test_a_users_function_runs_in_executors_that_lack_its_file(
    run: Run, feed: Feed, admin: Admin, target: RunningBroker, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "doubling.py"
    path.write_text(
        "from pyspark.sql import functions as f\n\n"
        "def twice(text):\n    return 2 * int(text)\n\n"
        "def pipeline(source):\n"
        "    number = f.udf(twice, 'int', useArrow=False)(f.col('value').cast('string'))\n"
        "    return source.select('key', number.alias('doubled'))\n"
    )
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(str(number).encode(), b"k") for number in range(5)])
    run(UserPipeline(path), "--from-topic", topic, "--to-topic", f"{topic}-doubled")
    written = committed(target, admin, f"{topic}-doubled")
    assert [(each.key, json.loads(each.value)) for each in written] == [
        (b"k", {"doubled": 2 * number}) for number in range(5)
    ]


@pytest.mark.long
@pytest.mark.parametrize("own", [(), ("--factor", "3")])
def test_a_users_file_may_need_a_session_at_its_top(
    spark: SparkSession,
    feed: Feed,
    admin: Admin,
    target: RunningBroker,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: tuple[str, ...],
) -> None:
    path = tmp_path / "top.py"
    options = "def add_arguments(parser):\n    parser.add_argument('--factor', type=int)\n\n" if own else ""
    factor = "options.factor" if own else "3"
    path.write_text(
        "from pyspark.sql import SparkSession, functions as f\n\n"
        "SparkSession.getActiveSession().version\n\n"
        "@f.udf(returnType='string', useArrow=False)\ndef shout(text):\n    return text.upper()\n\n"
        f"{options}"
        "def pipeline(source, options):\n"
        f"    return source.select(shout(f.col('value').cast('string')).alias('v'), f.lit({factor}).alias('n'))\n"
    )
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"a")])

    # As the command does it: the file is found, and its options are parsed, before there is a session.
    with monkeypatch.context() as before:
        before.setattr(SparkSession, "getActiveSession", staticmethod(lambda: None))
        pipeline = UserPipeline(path)
        words = [
            "--from-topic",
            topic,
            "--to-topic",
            f"{topic}-out",
            "--checkpoint",
            str(tmp_path / "c"),
            *own,
        ]
        chosen = options_of(pipeline, words, bootstrap=target.bootstrap)
    pipeline.run(spark, chosen, Progress())
    assert [json.loads(each.value) for each in committed(target, admin, f"{topic}-out")] == [
        {"v": "A", "n": 3}
    ]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return None", "returned NoneType, not a DataFrame"),
        ("return {}['amount']", r"line 2: KeyError: 'amount'"),
        ("return source.select('key')", "no column to write"),
        ("pass\nimport nonsense_that_is_not_there", r"line 3: ModuleNotFoundError"),
    ],
)
def test_error_of_a_users_function_is_one_line(
    run: Run, admin: Admin, topic: str, tmp_path: Path, body: str, told: str
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(f"def pipeline(source):\n    {body}\n")
    admin.create_topic(topic, partition_count=1)
    with pytest.raises(PipelineError, match=told):
        run(UserPipeline(path), "--from-topic", topic, "--to-topic", f"{topic}-out")


def test_missing_topic_is_reported_before_spark_starts(run: Run, topic: str) -> None:
    with pytest.raises(TidemillError, match=f"there is no topic {topic}-nowhere"):
        run("dedupe", "--from-topic", f"{topic}-nowhere", "--to-topic", "x")
