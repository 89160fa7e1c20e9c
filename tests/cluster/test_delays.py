"""Delayed records on three brokers while the partition's leader is killed: each comes once, and none before its time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from tests.brokers import eventually
from tests.cluster.clusters import IS_APACHE_KAFKA, QUICK_FENCING, Cluster
from tests.cluster.workload import CONFLUENT_SETTINGS
from tests.conftest import BOOTSTRAP
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster as ClientCluster

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP) or IS_APACHE_KAFKA, reason="kills brokers of ours; Apache Kafka has no delays"
)

TOPIC = "later"
COUNT = 1000
# The first is due after so long, the last so much later.
FIRST_DUE_MS, SPREAD_MS = 6_000, 3_000
LIMIT_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path, settings=QUICK_FENCING) as cluster:
        with ClientCluster(cluster.bootstrap) as client:
            Admin(client).create_topic(
                TOPIC, partition_count=1, replication_factor=3, configs={"tidemill.delays.enable": "true"}
            )
        cluster.await_in_sync(TOPIC, 1)
        yield cluster


class Reader:
    """Reads the partition from its start. Notes how often each record came, and which came too early."""

    def __init__(self, cluster: Cluster) -> None:
        settings = {"group.id": "reader", "enable.auto.commit": False}
        self._consumer = Consumer({**CONFLUENT_SETTINGS, **settings, "bootstrap.servers": cluster.bootstrap})
        self._consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
        self.seen: Counter[bytes] = Counter()
        self.early: list[bytes] = []

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def has_seen(self, count: int) -> bool:
        for message in self._consumer.consume(500, 0.1):
            if message.error() is None:
                self._note(message)
        return len(self.seen) >= count

    def _note(self, message: Message) -> None:
        value = message.value() or b""
        self.seen[value] += 1
        if time.time() * 1000 < int(value.partition(b" due ")[2]):
            self.early.append(value)


def produce(cluster: Cluster) -> set[bytes]:
    """Returns the values of the delayed records, all of which were acknowledged by all replicas."""
    producer = Producer({**CONFLUENT_SETTINGS, "bootstrap.servers": cluster.bootstrap, "acks": "all"})
    acked: set[bytes] = set()

    def delivered(error: object, message: Message) -> None:
        assert error is None, error
        acked.add(message.value() or b"")

    first_ms = int(time.time() * 1000) + FIRST_DUE_MS
    for number in range(COUNT):
        due_ms = first_ms + SPREAD_MS * number // COUNT
        producer.produce(
            TOPIC,
            b"%d due %d" % (number, due_ms),
            partition=0,
            headers={"tidemill-deliver-at": b"%d" % due_ms},
            on_delivery=delivered,
        )
        producer.poll(0)
    producer.flush()
    assert len(acked) == COUNT
    return acked


@pytest.mark.parametrize(
    "seen_before", [0, COUNT // 10], ids=["before they are due", "while they are delivered"]
)
def test_killed_leader_leaves_each_delayed_record_to_be_delivered_once(
    cluster: Cluster, seen_before: int
) -> None:
    leader = cluster.leader_of(TOPIC)
    acked = produce(cluster)
    with Reader(cluster) as reader:
        eventually(lambda: reader.has_seen(seen_before), "the first are delivered", limit_s=LIMIT_S)
        cluster.kill(leader)
        cluster.await_other_leader(TOPIC, 0, leader)
        eventually(lambda: reader.has_seen(COUNT), "all are delivered", limit_s=LIMIT_S)
        cluster.start(leader)
        cluster.await_in_sync(TOPIC, 1)
        # A second copy would stand before this one.
        producer = Producer({**CONFLUENT_SETTINGS, "bootstrap.servers": cluster.bootstrap})
        producer.produce(TOPIC, b"end due 0", partition=0)
        producer.flush()
        eventually(lambda: reader.has_seen(COUNT + 1), "the end", limit_s=LIMIT_S)
    assert reader.early == []
    assert set(reader.seen) == acked | {b"end due 0"}
    assert set(reader.seen.values()) == {1}
