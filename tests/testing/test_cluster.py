"""Three brokers in one process: leaders move, brokers stop and crash, and a producer notices nothing but a pause."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from tidemill.testing import InProcessCluster


class BusyProducer:
    """Writes numbers until it is stopped; knows which were acknowledged."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "retry.backoff.ms": 10,
            }
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acked: list[int] = []
        self.failed: list[object] = []

    def __enter__(self) -> BusyProducer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._done.is_set():
            self._producer.produce("orders", str(number), on_delivery=self._report(number))
            self._producer.poll(0.002)
            number += 1
        self._producer.flush(60)

    def _report(self, number: int) -> Callable[[object, object], None]:
        return lambda error, _: self.failed.append(error) if error else self.acked.append(number)


@pytest.fixture
def busy(tidemill_cluster: InProcessCluster) -> Iterator[BusyProducer]:
    tidemill_cluster.create_topic("orders")
    with BusyProducer(tidemill_cluster.bootstrap) as producer:
        tidemill_cluster.wait_until(lambda: producer.acked, "the producer is under way")
        yield producer


def _goes_on(cluster: InProcessCluster, busy: BusyProducer) -> None:
    seen = len(busy.acked)
    cluster.wait_until(lambda: len(busy.acked) > seen, "the producer goes on", 60)


def _check_exactly_once(cluster: InProcessCluster, busy: BusyProducer) -> None:
    busy.__exit__()
    assert busy.failed == []
    assert [int(record.value or b"") for record in cluster.records("orders")] == busy.acked


def test_three_brokers_with_three_copies(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.produce("orders", "x")
    admin = AdminClient({"bootstrap.servers": tidemill_cluster.bootstrap})
    metadata = admin.list_topics("orders", timeout=30)
    assert sorted(metadata.brokers) == [1, 2, 3]
    assert sorted(metadata.topics["orders"].partitions[0].replicas) == [1, 2, 3]
    assert tidemill_cluster.leader_of("orders") == metadata.topics["orders"].partitions[0].leader


def test_a_leader_is_elected_by_name(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.create_topic("orders", partitions=2)
    for broker in (3, 1, 2):
        tidemill_cluster.elect("orders", 1, broker)
        assert tidemill_cluster.leader_of("orders", 1) == broker
    with pytest.raises(ValueError, match="no replica"):
        tidemill_cluster.elect("orders", 0, 7)


def test_leaders_change_under_a_running_producer(
    tidemill_cluster: InProcessCluster, busy: BusyProducer
) -> None:
    for _ in range(3):
        before = tidemill_cluster.leader_of("orders")
        after = tidemill_cluster.elect_another_leader("orders")
        assert after != before
        assert tidemill_cluster.leader_of("orders") == after
        _goes_on(tidemill_cluster, busy)
    _check_exactly_once(tidemill_cluster, busy)


@pytest.mark.parametrize("how", ["stop", "crash"])
def test_a_leader_is_lost_under_a_running_producer(
    tidemill_cluster: InProcessCluster, busy: BusyProducer, how: str
) -> None:
    leader = tidemill_cluster.leader_of("orders")
    getattr(tidemill_cluster.broker(leader), how)()
    assert tidemill_cluster.leader_of("orders") != leader
    _goes_on(tidemill_cluster, busy)
    tidemill_cluster.broker(leader).start()
    tidemill_cluster.wait_until(lambda: leader in tidemill_cluster.isr_of("orders"), "it has caught up", 60)
    tidemill_cluster.elect("orders", 0, leader)
    _goes_on(tidemill_cluster, busy)
    _check_exactly_once(tidemill_cluster, busy)


def test_every_broker_crashes_once(tidemill_cluster: InProcessCluster) -> None:
    """One of them is the active controller."""
    tidemill_cluster.create_topic("orders")
    for broker in tidemill_cluster.brokers:
        broker.crash()
        assert not broker.is_running
        tidemill_cluster.produce("orders", f"without {broker.id}")
        broker.start()
        tidemill_cluster.wait_until(
            lambda each=broker: each.id in tidemill_cluster.isr_of("orders"),  # type: ignore[misc]
            f"broker {broker.id} is back",
            60,
        )
    values = [record.value for record in tidemill_cluster.records("orders")]
    assert values == [b"without 1", b"without 2", b"without 3"]


def test_a_rolling_restart_under_a_running_producer(
    tidemill_cluster: InProcessCluster, busy: BusyProducer
) -> None:
    for broker in tidemill_cluster.brokers:
        broker.restart()
        tidemill_cluster.wait_until(
            lambda: len(tidemill_cluster.isr_of("orders")) == 3, "all replicas are in sync", 60
        )
    _goes_on(tidemill_cluster, busy)
    _check_exactly_once(tidemill_cluster, busy)


def test_all_brokers_are_stopped_and_started(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.produce("orders", "kept")
    for broker in tidemill_cluster.brokers:
        broker.stop()
    tidemill_cluster.start()
    assert [record.value for record in tidemill_cluster.records("orders", count=1)] == [b"kept"]


def test_all_brokers_at_once_crash(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.create_topic("orders")
    tidemill_cluster.produce("orders", "kept")
    for broker in tidemill_cluster.brokers:
        broker.crash()
    tidemill_cluster.start()
    assert [record.value for record in tidemill_cluster.records("orders", count=1)] == [b"kept"]


def test_too_few_replicas(tidemill_cluster: InProcessCluster) -> None:
    """min.insync.replicas is 2: what a client with acks=all waits for when two of three are gone."""
    tidemill_cluster.create_topic("orders")
    leader = tidemill_cluster.leader_of("orders")
    producer = Producer({"bootstrap.servers": tidemill_cluster.bootstrap, "message.timeout.ms": 1500})
    others = [broker for broker in tidemill_cluster.brokers if broker.id != leader]
    reports: list[object] = []
    for broker in others:
        broker.crash()
    producer.produce("orders", "x", on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(30) == 0
    assert reports[0] is not None


def test_faults_strike_at_any_broker(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.create_topic("orders", partitions=3)
    producer = Producer(
        {"bootstrap.servers": tidemill_cluster.bootstrap, "enable.idempotence": True, "retry.backoff.ms": 10}
    )
    for partition in range(3):
        with tidemill_cluster.faults.lose_next_ack("orders") as fault:
            producer.produce("orders", str(partition), partition=partition)
            assert producer.flush(30) == 0
        assert fault.hits == 1
    assert len(tidemill_cluster.records("orders")) == 3


@pytest.mark.tidemill(**{"default.replication.factor": 1})
def test_settings_of_a_mark(tidemill_cluster: InProcessCluster) -> None:
    tidemill_cluster.create_topic("orders")
    assert len(tidemill_cluster.isr_of("orders")) == 1


def test_other_sizes() -> None:
    with InProcessCluster(2) as cluster:
        cluster.produce("orders", "x")
        assert len(cluster.isr_of("orders")) == 2
