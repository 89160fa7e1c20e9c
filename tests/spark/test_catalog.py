"""Spark SQL over topics: tables of the catalog, views over them and temporary views, read and inserted into."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.brokers import RunningBroker
from tests.spark import sinks
from tests.spark.conftest import Fed, Feed
from tests.spark.streams import ended
from tidemill.client.admin.topics import Admin
from tidemill.spark.session import failure_line

Create = Callable[..., None]


@pytest.fixture
def create(spark: SparkSession, target: RunningBroker) -> Iterator[Create]:
    created = []

    def create_table(name: str, kind: str = "TABLE", **options: str) -> None:
        told = {"kafka.bootstrap.servers": target.bootstrap, **options}
        listed = ", ".join(f"`{key}` '{value}'" for key, value in told.items())
        spark.sql(f"CREATE {kind} {name} USING tidemill OPTIONS ({listed})")
        created.append(("VIEW" if kind.endswith("VIEW") else kind, name))

    yield create_table
    for kind, name in reversed(created):
        spark.sql(f"DROP {kind} {name}")


def line_of(action: Callable[[], object]) -> str:
    with pytest.raises(PySparkException) as failure:
        action()
    return failure_line(failure.value)


def test_a_table_is_read_viewed_and_inserted_into(
    spark: SparkSession, target: RunningBroker, feed: Feed, admin: Admin, topic: str, create: Create
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"one", b"k"), Fed(b"two")])
    create("orders", subscribe=topic, **{"kafka.max.poll.records": "5"})
    spark.sql("CREATE VIEW order_values AS SELECT CAST(value AS STRING) AS v FROM orders WHERE offset > 0")
    try:
        assert [row.v for row in spark.sql("SELECT * FROM order_values").collect()] == ["two"]
        spark.sql("INSERT INTO orders (key, value) VALUES (CAST('a' AS BINARY), CAST('three' AS BINARY))")
        # No list of columns: null stands for what the broker decides on.
        spark.sql("INSERT INTO orders SELECT null, CAST('four' AS BINARY), null, 0, null, null, null")
        assert sinks.values(sinks.read(target.bootstrap, topic)) == ["four", "one", "three", "two"]
        assert [row.v for row in spark.sql("SELECT * FROM order_values").collect()] == [
            "two",
            "three",
            "four",
        ]
        ending = 'SELECT * FROM orders WITH (endingOffsets = \'{"TOPIC":{"0":1}}\')'.replace("TOPIC", topic)
        assert spark.sql(ending).count() == 1
        assert "a topic cannot be overwritten" in line_of(
            lambda: spark.sql("INSERT OVERWRITE orders (value) VALUES (CAST('x' AS BINARY))")
        )
    finally:
        spark.sql("DROP VIEW order_values")


@pytest.mark.long
def test_a_copy_of_another_table_goes_to_no_wrong_topic(
    spark: SparkSession, target: RunningBroker, feed: Feed, admin: Admin, topic: str, create: Create
) -> None:
    for name in (topic, f"{topic}-copy"):
        admin.create_topic(name, partition_count=1)
    feed(topic, [Fed(b"one", b"k")])
    create("orders", subscribe=topic)
    create("copies", subscribe=topic, topic=f"{topic}-copy", exactlyOnce="true", failOnDataLoss="false")
    assert "a row that is inserted has an offset" in line_of(
        lambda: spark.sql("INSERT INTO copies SELECT * FROM orders")
    )
    spark.sql("INSERT INTO copies (key, value, timestamp) SELECT key, value, timestamp FROM orders")
    assert sinks.values(sinks.read(target.bootstrap, f"{topic}-copy")) == ["one"]
    assert sinks.values(sinks.read(target.bootstrap, topic)) == ["one"]


def test_a_temporary_view_is_read_and_inserted_into(
    spark: SparkSession, target: RunningBroker, feed: Feed, admin: Admin, topic: str, create: Create
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"one", b"k")])
    create("recent", "TEMPORARY VIEW", subscribe=topic, startingOffsets="earliest")
    assert [bytes(row.value) for row in spark.sql("SELECT value FROM recent").collect()] == [b"one"]
    spark.sql("INSERT INTO recent SELECT key, value, null, null, null, null, null FROM recent")
    # Spark plans a temporary view once, so another reader looks.
    assert sinks.values(sinks.read(target.bootstrap, topic)) == ["one", "one"]


def test_a_table_is_a_stream_too(
    spark: SparkSession, feed: Feed, admin: Admin, topic: str, create: Create
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"one", b"k")])
    create("orders", subscribe=topic, startingOffsets="earliest")
    writer = spark.readStream.table("orders").writeStream.format("noop").trigger(availableNow=True)
    query = ended(writer.start)
    assert sum(each["numInputRows"] for each in query.recentProgress) == 1


def test_what_a_table_cannot_have_is_said_when_it_is_created(
    spark: SparkSession, topic: str, create: Create
) -> None:
    assert "subscribes is not an option of this source; did you mean subscribe?" in line_of(
        lambda: create("wrong", subscribes=topic)
    )
    login = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "spark",
        "kafka.sasl.password": "hunter2",
    }
    assert "kafka.sasl.password cannot be an option of a table" in line_of(
        lambda: create("wrong", subscribe=topic, **login)
    )
    assert "a table needs the column offset" in line_of(
        lambda: create("wrong", subscribe=topic, columns="value")
    )
    assert "kafka.acks=2 is not understood" in line_of(
        lambda: create("wrong", subscribe=topic, topic=topic, **{"kafka.acks": "2"})
    )
    spark.sql("CREATE TABLE listed (value BINARY) USING tidemill OPTIONS (subscribe 'x')")
    try:
        assert "Spark gave no options" in line_of(lambda: spark.table("listed").collect())
    finally:
        spark.sql("DROP TABLE listed")
