"""Source, sink and table against a broker with SASL_SSL, and a search for the password in everything that Spark shows."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tidemill.testing import InProcessBroker, Security

SECRET = "xyzzyplugh"
RULES = ["all topic:orders", "all topic:copy", "all topic:_tidemill_spark_commits", "create cluster"]
RULES += ["all transactional-id:*", "idempotent-write cluster"]
COUNT = 20


@pytest.fixture
def broker() -> Iterator[InProcessBroker]:
    security = Security("SASL_SSL", users={"alice": SECRET, "mallory": "plughxyzzy"}, acls={"alice": RULES})
    with InProcessBroker(security=security) as broker:
        for topic in ("orders", "copy"):
            broker.create_topic(topic, partitions=2)
        for number in range(COUNT):
            broker.produce("orders", f"order {number}")
        yield broker


@contextlib.contextmanager
def event_log(spark: SparkSession, folder: Path) -> Iterator[None]:
    """Spark's own event log, of what happens meanwhile."""
    jvm: Any = spark.sparkContext._jvm
    context = spark.sparkContext._jsc.sc()
    conf = context.conf().clone().set("spark.eventLog.compress", "false")
    home = jvm.java.net.URI(f"file://{folder}")
    listener = jvm.org.apache.spark.scheduler.EventLoggingListener(
        "secured", jvm.scala.Option.empty(), home, conf
    )
    listener.start()
    context.listenerBus().addToEventLogQueue(listener)
    try:
        yield
    finally:
        context.listenerBus().waitUntilEmpty()
        context.listenerBus().removeListener(listener)
        listener.stop()


def inline(broker: InProcessBroker, user: str = "alice") -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in broker.client_options(user).properties.items()}


def by_file(broker: InProcessBroker) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.bootstrap,
        "commandConfig": str(broker.client_options("alice").properties_file),
    }


def shown(frame: DataFrame) -> str:
    """Everything that a DataFrame says of itself."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        frame.explain(True)
        frame.explain("formatted")
    execution = frame._jdf.queryExecution()
    return "".join((printed.getvalue(), frame.schema.json(), repr(frame), execution.toString()))


@pytest.mark.long
def test_secured_cluster_is_read_and_written_and_the_password_is_nowhere(
    spark: SparkSession, broker: InProcessBroker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    texts = []
    (tmp_path / "events").mkdir()
    with event_log(spark, tmp_path / "events"):
        for options in (inline(broker), by_file(broker)):
            read = spark.read.format("tidemill").options(**options).option("subscribe", "orders").load()
            assert read.count() == COUNT
            texts.append(shown(read))
            # The command prints the options of what it is made of.
            read.createOrReplaceTempView("secured_view")
        read.select("value").write.format("tidemill").options(**inline(broker)).option("topic", "copy").mode(
            "append"
        ).save()
        stream = spark.readStream.format("tidemill").options(**inline(broker)).option("subscribe", "orders")
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .select("value")
            .writeStream.format("tidemill")
            .options(**inline(broker))
            .option("topic", "copy")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        texts += [json.dumps(each, default=str) for each in query.recentProgress]
        options_text = ", ".join(f"`{name}` '{value}'" for name, value in by_file(broker).items())
        spark.sql(f"CREATE TABLE secured USING tidemill OPTIONS ({options_text}, subscribe 'orders')")
        table = spark.sql("SELECT * FROM secured")
        assert table.count() == COUNT
        texts += [shown(table), str(spark.sql("DESCRIBE EXTENDED secured").collect())]
        spark.sql("DROP TABLE secured")
        spark.catalog.dropTempView("secured_view")
    assert len(broker.records("copy")) == 2 * COUNT

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    logged = "".join(path.read_text(errors="replace") for path in files if "events" in path.parts)
    assert "sasl.jaas.config=*********(redacted)" in logged, "the event log has no options to be searched"
    assert any("checkpoint" in path.parts for path in files)
    for path in files:
        assert SECRET.encode() not in path.read_bytes(), path
    for text in (*texts, *capfd.readouterr()):
        assert SECRET not in text


def test_refused_login_and_refused_topic_are_named_without_the_password(
    spark: SparkSession, broker: InProcessBroker
) -> None:
    wrong = inline(broker)
    wrong["kafka.sasl.jaas.config"] = wrong["kafka.sasl.jaas.config"].replace(SECRET, "a-guess-of-it")
    for options, reason in (
        (wrong, "user alice is refused"),
        (inline(broker, "mallory"), "TOPIC_AUTHORIZATION"),
    ):
        read = spark.read.format("tidemill").options(**options).option("subscribe", "orders").load()
        with pytest.raises(Exception, match=reason) as refused:
            read.count()
        told = str(refused.value) + repr(refused.value)
        assert "a-guess-of-it" not in told
        assert "plughxyzzy" not in told
