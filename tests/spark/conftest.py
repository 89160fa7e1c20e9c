"""One Spark session for every test of a pytest worker: `local[2,4]`, no web interface, files under a folder of its own.

A task is tried four times. Where there is no Java 17 the tests are skipped with the line that says how to get it. `feed`
writes with librdkafka, so that what a test reads was not written by the code under test; `admin` asks the broker of
`target` by our own client.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from tests.brokers import RunningBroker
from tests.cluster.clusters import Cluster as Brokers
from tests.spark.chaos import COMMON, THREE
from tests.spark.chaos_query import JAVA_OPTIONS
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.spark.session import SparkUnavailable, find_java, lean_spark_home

JAVA_MISSING = "Java 17 is not installed: apt install openjdk-17-jre-headless, or set JAVA_HOME"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Py4J leaves its sockets to the garbage collector, in whichever test that runs.
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    try:
        find_java()
    except SparkUnavailable:
        pytest.skip(JAVA_MISSING)
    home = tmp_path_factory.mktemp("spark")
    # Workers are started from these: the interpreter that runs the tests, with what it can import.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master("local[2,4]")
        .appName("tidemill-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.local.dir", str(home / "local"))
        .config("spark.sql.warehouse.dir", str(home / "warehouse"))
        .config("spark.sql.session.timeZone", "UTC")
    )
    with lean_spark_home(home):
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module", params=["one broker", pytest.param("three brokers", marks=pytest.mark.long)])
def bootstrap(
    request: pytest.FixtureRequest, target: RunningBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "one broker":
        yield target.bootstrap
        return
    with Brokers(3, tmp_path_factory.mktemp("brokers"), settings=COMMON | THREE) as brokers:
        yield brokers.bootstrap


@pytest.fixture
def admin(target: RunningBroker) -> Iterator[Admin]:
    with Cluster(target.bootstrap) as cluster:
        yield Admin(cluster)


class Fed(NamedTuple):
    """A record to write. Without a partition its key decides."""

    value: bytes | None
    key: bytes | None = None
    partition: int = -1
    timestamp_ms: int = 0
    headers: list[tuple[str, str | bytes | None]] | None = None


Feed: TypeAlias = Callable[..., None]


@pytest.fixture
def feed(target: RunningBroker) -> Feed:
    def write(topic: str, records: Iterable[Fed], settings: Mapping[str, Any] | None = None) -> None:
        producer = Producer({"bootstrap.servers": target.bootstrap, **(settings or {})})
        for each in records:
            producer.produce(
                topic,
                each.value,
                each.key,
                partition=each.partition,
                timestamp=each.timestamp_ms,
                headers=each.headers or [],
            )
        assert producer.flush(30) == 0

    return write


Read: TypeAlias = Callable[..., DataFrame]


@pytest.fixture
def read(spark: SparkSession, target: RunningBroker) -> Read:
    """A batch read with these options, of the broker of `target`."""

    def load(options: Mapping[str, str]) -> DataFrame:
        reader = spark.read.format("tidemill").option("kafka.bootstrap.servers", target.bootstrap)
        return reader.options(**options).load()

    return load
