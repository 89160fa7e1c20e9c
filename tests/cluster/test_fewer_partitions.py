"""A topic gets fewer partitions, and more again, while leaders are killed: each acknowledged record is there once, in order.

Producers name their partitions for as long as they live, as clients do that never learn of fewer.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import confluent_kafka
import pytest

from tests.brokers import command, eventually
from tests.cluster.clusters import QUICK_FENCING, Cluster
from tests.cluster.producing import Producing
from tests.cluster.workload import CONFLUENT_SETTINGS
from tests.conftest import BOOTSTRAP
from tests.wire.connection import Connection, read_all
from tidemill.sim.checks.checker import MessageId, Sent
from tidemill.sim.checks.keyed import KeyedHistory, KeyedPlace, check_keyed

pytestmark = pytest.mark.skipif(bool(BOOTSTRAP), reason="Apache Kafka cannot take partitions away")

ck: Any = confluent_kafka
TOPIC = "accounts"
BEFORE, AFTER = 4, 2
LIMIT_S = 90.0


class Reading:
    """A consumer of a group that reads along."""

    def __init__(self, bootstrap: str, history: KeyedHistory) -> None:
        self._history = history
        self._is_stopping = threading.Event()
        self._consumer = ck.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "bookkeeping",
                "auto.offset.reset": "earliest",
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reading:
        self._consumer.subscribe([TOPIC])
        self._thread.start()
        return self

    def _run(self) -> None:
        while not self._is_stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self._history.delivered.add(_message_of(message.value()))
        self._consumer.close()

    def __exit__(self, *_: object) -> None:
        self._is_stopping.set()
        self._thread.join()


class Course:
    """A topic in a cluster, its producer and its reader. `finish` judges."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._history = KeyedHistory(TOPIC)
        cluster.create_topic(TOPIC, BEFORE)
        cluster.await_in_sync(TOPIC, BEFORE)
        self._keep_briefly()
        self._producing = Producing(
            cluster.bootstrap,
            TOPIC,
            BEFORE,
            settings={**CONFLUENT_SETTINGS, "topic.metadata.refresh.interval.ms": 500},
        )
        self._reading = Reading(cluster.bootstrap, self._history)

    def _keep_briefly(self) -> None:
        config = {"name": "tidemill.partitions.kept.ms", "config_operation": 0, "value": "3000"}
        resource = {"resource_type": 2, "resource_name": TOPIC, "configs": [config]}
        with Connection(self.cluster.running()[0]) as connection:
            answer = connection.request(
                "incremental_alter_configs", 1, resources=[resource], validate_only=False
            )
        assert answer.responses[0].error_code == 0

    def __enter__(self) -> Course:
        self._producing.start()
        self._reading.__enter__()
        self.await_acks()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._producing.give_up()
        self._reading.__exit__()

    def tidemill(self, *arguments: str) -> str:
        bootstrap = ("--bootstrap", self.cluster.running()[0].bootstrap)
        done = subprocess.run(
            [*command(), "topics", *arguments, *bootstrap], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def await_acks(self) -> None:
        """Every partition that the producer names takes records that are sent from now on."""
        before = self._producing.acked()

        def have_acks() -> bool:
            new = self._producing.acked() - before
            return {message.producer for message in new} == {f"p{index}" for index in range(BEFORE)}

        eventually(have_acks, "acks for every partition", LIMIT_S)

    def kill_leader(self, partition: int) -> None:
        leader = self.cluster.leader_of(TOPIC, partition)
        self.cluster.kill(leader)
        self.cluster.await_other_leader(TOPIC, partition, leader)
        self.await_acks()
        self.cluster.start(leader)
        self.cluster.await_up()

    def count(self) -> int:
        with Connection(self.cluster.running()[0]) as connection:
            return len(connection.metadata(TOPIC).partitions)

    def find(self, partitions: range) -> None:
        """Note what the partitions hold."""
        for partition in partitions:
            leader = self.cluster.nodes[self.cluster.leader_of(TOPIC, partition)]
            for batch in read_all(leader, TOPIC, partition):
                for delta, value in enumerate(batch.values()):
                    place = KeyedPlace(partition, batch.leader_epoch, batch.base_offset + delta)
                    self._history.found[place] = _message_of(value)

    def await_read(self) -> None:
        found = set(self._history.found.values())
        eventually(lambda: found <= self._history.delivered, "the group has read everything", LIMIT_S)

    def finish(self) -> None:
        self._producing.stop()
        self.cluster.await_in_sync(TOPIC, self.count())
        self.find(range(self.count()))
        self.await_read()
        history = self._history
        history.sent.update(e.message for e in self._producing.events if isinstance(e, Sent))
        # Clients make an offset of the -1 that they get for a partition whose records are elsewhere.
        history.acked.update(dict.fromkeys(self._producing.acked(), (0, -1)))
        history.is_complete = True
        violations = check_keyed(history)
        assert not violations, "\n".join(map(str, violations[:20]))


def _message_of(value: bytes | None) -> MessageId:
    producer, _, number = (value or b"").decode().partition("/")
    return MessageId(producer, int(number))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path, settings=QUICK_FENCING) as cluster:
        yield cluster


def test_leaders_killed_during_a_shrink_that_is_taken_back_cost_no_record(cluster: Cluster) -> None:
    with Course(cluster) as course:
        course.tidemill("shrink", TOPIC, "--partitions", str(AFTER))
        course.kill_leader(BEFORE - 1)
        course.tidemill("shrink", TOPIC, "--cancel")
        course.await_acks()
        course.finish()


@pytest.mark.long
def test_leaders_killed_until_partitions_are_gone_and_added_again_cost_no_record(cluster: Cluster) -> None:
    with Course(cluster) as course:
        course.tidemill("shrink", TOPIC, "--partitions", str(AFTER))
        for partition in range(BEFORE):
            course.kill_leader(partition)
        cluster.await_in_sync(TOPIC, BEFORE)
        course.find(range(AFTER, BEFORE))
        course.await_read()
        for partition in range(AFTER, BEFORE):
            course.tidemill(
                "delete-records", TOPIC, "--before", "end", "--partition", str(partition), "--yes"
            )
        # It waits for a minute for a pause of the producers.
        eventually(lambda: course.count() == AFTER, "the partitions are gone", 2 * LIMIT_S)
        course.await_acks()
        course.tidemill("add-partitions", TOPIC, "--to", str(BEFORE))
        course.await_acks()
        course.kill_leader(BEFORE - 1)
        course.finish()
