"""What a user sees of a failure: one line with the cause, whether Spark was loading, planning or running."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.brokers import RunningBroker
from tests.spark.conftest import Fed, Feed
from tests.unit.spark.test_java_regex import NAMES, PATTERNS
from tidemill.client.admin.topics import Admin
from tidemill.errors import TidemillError
from tidemill.spark.session import failure_line
from tidemill.spark.source.options import Query, SourceOptions
from tidemill.spark.source.readers import BatchReader, StreamReader
from tidemill.spark.source.work import Work


def line_of(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as failure:
        action()
    line = failure_line(failure.value)
    assert "\n" not in line
    assert "Traceback" not in line
    return line


def test_wrong_options_end_a_query_before_it_runs(
    spark: SparkSession, target: RunningBroker, topic: str
) -> None:
    def load(**options: str) -> DataFrame:
        told = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, **options}
        return spark.read.format("tidemill").options(**told).load()

    assert (
        "startingOffset is not an option of this source; did you mean startingOffsets?".lower()
        in line_of(lambda: load(startingOffset="earliest")).lower()
    )
    # What only a batch refuses is found out when the query is planned.
    assert "a batch query cannot start at the latest offset" in line_of(
        lambda: load(startingOffsets="latest").collect()
    )
    assert "the columns of this source are fixed" in line_of(
        lambda: (
            spark.read.format("tidemill")
            .schema("value string")
            .options(**{"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic})
            .load()
            .collect()
        )
    )
    assert f"there is no topic {topic}; create it" in line_of(lambda: load().collect())


def test_an_unreachable_broker_is_named(spark: SparkSession, free_port: int) -> None:
    address = f"127.0.0.1:{free_port}"
    frame = (
        spark.read.format("tidemill")
        .options(**{"kafka.bootstrap.servers": address, "subscribe": "orders"})
        .load()
    )
    assert f"no broker can be reached ({address}: connection refused)" in line_of(frame.collect)


@pytest.fixture
def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": '{"TOPIC":{"0":0}}'}, "startingOffsets does not name TOPIC-1"),
        ({"endingOffsets": '{"TOPIC":{"0":0,"1":0,"2":0}}'}, "does not read, TOPIC-2"),
        ({"assign": '{"TOPIC":[0,7]}'}, "there is no partition TOPIC-7"),
        ({"startingTimestamp": "99"}, "TOPIC-1 has no record as young as 99 ms; choose an earlier time"),
        (
            {"endingOffsets": '{"TOPIC":{"0":4,"1":0}}'},
            "endingOffsets: TOPIC-0 ends at offset 3, before the 4",
        ),
        (
            {"startingOffsets": '{"TOPIC":{"0":9,"1":0}}'},
            "startingOffsets: TOPIC-0 ends at offset 3, before the 9",
        ),
    ],
)
def test_places_that_the_topic_does_not_have_are_named(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str, options: Mapping[str, str], message: str
) -> None:
    admin.create_topic(topic, partition_count=2)
    feed(topic, [Fed(b"x", partition=0, timestamp_ms=100) for _ in range(3)])
    told = {name: value.replace("TOPIC", topic) for name, value in options.items()}
    if "assign" not in told:
        told["subscribe"] = topic
    parsed = SourceOptions.parse({"kafka.bootstrap.servers": target.bootstrap, **told}, Query.BATCH)
    with pytest.raises(TidemillError) as failure:
        BatchReader(parsed).partitions()
    assert message.replace("TOPIC", topic) in str(failure.value)


def test_a_tolerant_read_of_more_than_there_is_ends_with_the_topic(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"x") for _ in range(3)])

    def ranges(**bounds: int) -> list[tuple[int, int]]:
        told = {name: f'{{"{topic}":{{"0":{offset}}}}}' for name, offset in bounds.items()}
        options = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": topic, "failOnDataLoss": "false"}
        parsed = SourceOptions.parse({**options, **told}, Query.BATCH)
        works = [each for each in BatchReader(parsed).partitions() if isinstance(each, Work)]
        return [(each.start_offset, each.end_offset) for each in works]

    assert ranges(startingOffsets=1, endingOffsets=9) == [(1, 3)]
    assert f"endingOffsets: {topic}-0 ends at offset 3, before the 9 that was asked for" in caplog.text
    assert ranges(startingOffsets=8, endingOffsets=9) == []


def test_a_stream_that_starts_beyond_the_end_is_data_loss(
    target: RunningBroker, feed: Feed, admin: Admin, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    admin.create_topic(topic, partition_count=2)
    feed(topic, [Fed(b"x", partition=0) for _ in range(10)])

    def initial(first: int, second: int, **more: str) -> dict[str, dict[str, int]]:
        told = {"startingOffsets": f'{{"{topic}":{{"0":{first},"1":{second}}}}}', "subscribe": topic, **more}
        quick = {"kafka.bootstrap.servers": target.bootstrap, "fetchOffset.retryIntervalMs": "0"}
        with closing(StreamReader(SourceOptions.parse({**quick, **told}, Query.STREAM))) as reader:
            return reader.initialOffset()

    assert initial(10, -1) == {topic: {"0": 10, "1": 0}}
    line = f"startingOffsets: {topic}-0 ends at offset 10, before the 500 that was asked for"
    with pytest.raises(TidemillError, match=f"{line}; failOnDataLoss=false goes on without them"):
        initial(500, -2)
    assert initial(500, -2, failOnDataLoss="false") == {topic: {"0": 10, "1": 0}}
    assert line in caplog.text


def test_a_stream_does_not_begin_without_its_topics(target: RunningBroker, admin: Admin, topic: str) -> None:
    def reader(subscribe: str) -> StreamReader:
        told = {"kafka.bootstrap.servers": target.bootstrap, "subscribe": subscribe}
        return StreamReader(SourceOptions.parse(told, Query.STREAM))

    with closing(reader(topic)) as fresh, pytest.raises(TidemillError, match=f"there is no topic {topic}"):
        fresh.initialOffset()
    admin.create_topic(topic, partition_count=1)
    # A query that goes on is not to lose sight of a name that was never right.
    with (
        closing(reader(f"{topic},{topic}-typo")) as continued,
        pytest.raises(TidemillError, match=f"there is no topic {topic}-typo"),
    ):
        continued.latestOffset({topic: {"0": 0}}, ReadAllAvailable())


@contextmanager
def closing(reader: StreamReader) -> Iterator[StreamReader]:
    try:
        yield reader
    finally:
        reader.stop()


def test_patterns_of_topics_are_those_of_java(spark: SparkSession) -> None:
    java = spark._jvm.java.util.regex.Pattern  # type: ignore[union-attr]
    for pattern in PATTERNS:
        compiled = java.compile(pattern)
        assert [name for name in NAMES if compiled.matcher(name).find()] == list(PATTERNS[pattern]), pattern
