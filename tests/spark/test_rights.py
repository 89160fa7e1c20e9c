"""The rights that docs/spark.md lists are enough for the source and the sink, against a broker that authorises."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.spark.sinks import options, rows, write_batch
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.cluster import Cluster
from tidemill.spark.sink.writers import Task
from tidemill.spark.source.options import Query, SourceOptions
from tidemill.spark.source.readers import StreamReader
from tidemill.spark.source.work import Work
from tidemill.spark.versions import ReadAllAvailable
from tidemill.testing import InProcessBroker, Security
from tidemill.types import TopicPartition

SOURCE = ("read topic:orders", "read group:lag")
SINK = (
    "write topic:copy",
    "write transactional-id:spark-*",
    *(f"{each} topic:_tidemill_spark_commits" for each in ("read", "write", "create")),
)
TWO_PHASE = "two-phase-commit transactional-id:spark-*"
RULES = {"reader": SOURCE, "writer": (*SINK, TWO_PHASE), "partial": SINK}


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    security = Security("SASL_PLAINTEXT", users=dict.fromkeys(RULES, "secret"), acls=RULES)
    with InProcessBroker(security=security) as broker:
        for topic in ("orders", "copy"):
            broker.create_topic(topic)
        broker.produce("orders", "an order")
        yield broker


def access(broker: InProcessBroker, user: str) -> dict[str, str]:
    return {f"kafka.{name}": value for name, value in broker.client_options(user).properties.items()}


def test_a_stream_reads_and_shows_its_lag(broker: InProcessBroker, caplog: pytest.LogCaptureFixture) -> None:
    told = {"subscribe": "orders", "startingOffsets": "earliest", "groupId": "lag"}
    reader = StreamReader(SourceOptions.parse(access(broker, "reader") | told, Query.STREAM))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        works = [each for each in reader.partitions(start, end) if isinstance(each, Work)]
        read = [
            value.as_py() for work in works for batch in work.read(("value",)) for value in batch["value"]
        ]
        reader.commit(end)
    finally:
        reader.stop()
    assert read == [b"an order"]
    assert not caplog.records
    with Cluster(broker.bootstrap, security=broker.client_options("reader").security) as cluster:
        assert GroupAdmin(cluster).committed("lag") == {TopicPartition("orders", 0): 1}


def write(broker: InProcessBroker, user: str) -> None:
    sink = options(broker.bootstrap, "copy", **access(broker, user))
    before = len(broker.records("copy"))
    for batch_id in range(2):
        write_batch(sink, Task(f"query-{user}", batch_id, 0), [rows("a", "b")])
    assert len(broker.records("copy")) == before + 4


def test_the_sink_writes_and_commits_in_two_phases(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    write(broker, "writer")
    assert not caplog.records


def test_a_sink_that_may_not_commit_in_two_phases_warns(
    broker: InProcessBroker, caplog: pytest.LogCaptureFixture
) -> None:
    write(broker, "partial")
    assert "needs the right TwoPhaseCommit on spark-" in caplog.text
