"""A cluster whose nodes reach each other over TLS with SCRAM, brokers and controllers alike."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.cluster.clusters import IS_APACHE_KAFKA, QUICK_FENCING, Cluster, ClusterNode, NodeSecurity

pytestmark = pytest.mark.skipif(
    IS_APACHE_KAFKA, reason="Kafka wants its SCRAM users when storage is formatted"
)

PASSWORD = NodeSecurity.PASSWORD
LIMIT_S = 60.0


class SecuredCluster(Cluster):
    """Secured whatever the environment says; `passwords` has those of nodes that log in with another."""

    def __init__(
        self, brokers: int, folder: Path, *, replicas: int = 3, passwords: dict[int, str] | None = None
    ) -> None:
        super().__init__(
            brokers, folder, settings=QUICK_FENCING | {"default.replication.factor": str(replicas)}
        )
        self._security = None
        self._own_security = NodeSecurity(self.folder)
        self._passwords = passwords or {}

    def properties(self, node: ClusterNode) -> dict[str, str]:
        password = self._passwords.get(node.id, PASSWORD)
        return self._own_security.secured(super().properties(node), node, password)


def write(cluster: Cluster, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(LIMIT_S) == 0


def read(cluster: Cluster, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "reader"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while len(values) < count:
        messages = consumer.consume(count, LIMIT_S)
        assert messages, f"{len(values)} of {count} records"
        values += [message.value() or b"" for message in messages if message.error() is None]
    consumer.close()
    return values


def test_secured_cluster_replicates_and_survives_the_kill_of_a_leader(tmp_path: Path) -> None:
    first, second = [b"%d" % each * 500 for each in range(500)], [b"after the kill"]
    with SecuredCluster(3, tmp_path) as cluster:
        write(cluster, "orders", first)
        cluster.await_in_sync("orders", 1)
        leader = cluster.leader_of("orders")
        cluster.kill(leader)
        cluster.await_other_leader("orders", 0, than=leader)
        write(cluster, "orders", second)
        cluster.start(leader)
        cluster.await_up()
        cluster.await_in_sync("orders", 1)
        assert read(cluster, "orders", len(first) + 1) == first + second
        for node in cluster.nodes.values():
            assert PASSWORD not in node.log()


def test_node_with_another_password_stays_outside(tmp_path: Path) -> None:
    cluster = SecuredCluster(3, tmp_path, replicas=2, passwords={3: "a guess"})
    two = [cluster.nodes[1], cluster.nodes[2]]
    for node in cluster.nodes.values():
        cluster._write(node)
    try:
        for node_id in cluster.nodes:
            cluster.start(node_id)
        cluster.await_up(two)
        write(cluster, "orders", [b"one"])
        state = cluster.state("orders", 0, two)
        assert state is not None
        assert 3 not in state.replicas
        assert any("its login failed" in node.log() for node in two)
    finally:
        cluster._end(is_failed=False)
