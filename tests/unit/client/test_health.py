"""Symptoms of a cluster, from the answers of its brokers; and brokers that do not answer."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tidemill.client.admin.cluster import Quorum
from tidemill.client.admin.health import (
    BrokerFact,
    BrokerState,
    Health,
    Severity,
    examine,
    judge,
    quorum_symptoms,
)
from tidemill.client.admin.probes import Probes
from tidemill.client.cluster import Cluster
from tidemill.client.connections.connection import Address
from tidemill.protocol.api.cluster import MetadataResponsePartition, MetadataResponseTopic
from tidemill.protocol.api.quorum import ReplicaState
from tidemill.testing import InProcessBroker

MINUTE_MS = 60_000


def broker(broker_id: int, *, is_fenced: bool = False) -> BrokerFact:
    return BrokerFact(broker_id, "host", 9092, None, is_fenced)


def topic(name: str, *partitions: tuple[int, list[int], list[int]]) -> MetadataResponseTopic:
    """Each partition is its leader, its replicas, and those in sync."""
    return MetadataResponseTopic(
        name=name,
        partitions=[
            MetadataResponsePartition(
                partition_index=index, leader_id=leader, replica_nodes=replicas, isr_nodes=in_sync
            )
            for index, (leader, replicas, in_sync) in enumerate(partitions)
        ],
    )


def names(health: Health) -> dict[str, list[str]]:
    lists = {
        "offline": health.offline,
        "led by silent": health.led_by_silent,
        "under min": health.under_min_isr,
        "under-replicated": health.under_replicated,
    }
    return {what: [each.name for each in rows] for what, rows in lists.items() if rows}


def test_a_healthy_cluster_has_no_symptoms() -> None:
    health = judge([broker(1), broker(2)], [topic("t", (1, [1, 2], [2, 1]))], {"t": 2}, {})
    assert health.symptoms == []
    assert health.partition_count == 1


def test_a_broker_that_does_not_answer_is_named_before_it_is_fenced() -> None:
    topics = [topic("t", (1, [1, 2], [1, 2]), (2, [1, 2], [1, 2]))]
    health = judge([broker(1), broker(2)], topics, {}, {2: "host:9092: connection refused"})
    assert health.brokers == {1: BrokerState.UP, 2: BrokerState.SILENT}
    assert names(health) == {"led by silent": ["t-1"]}
    first, second = health.symptoms
    assert first.severity is second.severity is Severity.CRITICAL
    assert first.text == "Broker 2 does not answer (host:9092: connection refused)"
    assert "t-1" in second.text


def test_fenced_and_unregistered_brokers_are_down() -> None:
    topics = [topic("t", (1, [1, 2, 3], [1]))]
    health = judge([broker(1), broker(2, is_fenced=True)], topics, {}, {2: "it is fenced anyway"})
    assert health.brokers == {1: BrokerState.UP, 2: BrokerState.FENCED, 3: BrokerState.GONE}
    assert health.silent == {}
    assert [each.text for each in health.symptoms] == [
        "Brokers 2, 3 are down or fenced",
        "1 partition is under-replicated, out of sync on broker 2, 3: t-0",
    ]


def test_the_minimum_in_sync_is_counted_as_the_leader_counts() -> None:
    topics = [
        topic("one", (1, [1], [1])),
        topic("three", (1, [1, 2, 3], [1])),
        topic("new", (1, [1, 2], [1])),
    ]
    health = judge([broker(1), broker(2), broker(3)], topics, {"one": 2, "three": 2}, {})
    assert names(health) == {"under min": ["three-0"], "under-replicated": ["three-0", "new-0"]}


def test_a_partition_without_a_leader_is_offline() -> None:
    health = judge([broker(1)], [topic("t", (-1, [1], [1]))], {}, {})
    assert names(health) == {"offline": ["t-0"]}
    assert health.symptoms[0].severity is Severity.CRITICAL


def voter(voter_id: int, caught_up_ms: int, end: int = 10) -> ReplicaState:
    return ReplicaState(replica_id=voter_id, log_end_offset=end, last_caught_up_timestamp=caught_up_ms)


@pytest.mark.parametrize(
    ("quorum", "texts"),
    [
        (Quorum(1, 5, 10, [voter(1, MINUTE_MS), voter(2, MINUTE_MS - 500)], [], {}), []),
        (Quorum(1, 5, 10, [voter(1, -1), voter(2, -1)], [], {}), []),
        (
            Quorum(1, 5, 10, [voter(1, MINUTE_MS), voter(2, 1, end=7), voter(3, -1, end=-1)], [], {}),
            ["2 of 3 voters of the controller quorum do not follow: 2 (3 behind), 3 (it never fetched)"],
        ),
        (Quorum(-1, 5, 10, [voter(1, MINUTE_MS)], [], {}), ["The controller quorum has no leader"]),
    ],
)
def test_voters_are_judged_by_the_clock_of_their_leader(quorum: Quorum, texts: list[str]) -> None:
    found = quorum_symptoms(quorum)
    assert len(found) == len(texts)
    for each, text in zip(found, texts, strict=True):
        assert each.text.startswith(text)


# --- probes ---


@pytest.fixture
def silent_address() -> Iterator[Address]:
    """Takes connections, as the kernel does for a process that was stopped, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Address("127.0.0.1", server.getsockname()[1])


def test_probes_tell_brokers_that_answer_from_those_that_do_not(silent_address: Address) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        closed = Address("127.0.0.1", free.getsockname()[1])
    with InProcessBroker() as running, Cluster(running.bootstrap) as cluster:
        probes = Probes(cluster.open, 0.5)
        brokers = {1: Address(running.host, running.port), 2: closed, 3: silent_address}
        try:
            for _ in range(2):
                silent = probes.silent(brokers)
                assert set(silent) == {2, 3}
                assert "connection refused" in silent[2]
                assert "no answer" in silent[3] or "timed out" in silent[3]
            # The connection that was kept is dead; a new one is made in time.
            running.restart()
            assert probes.silent({1: brokers[1]}) == {}
        finally:
            probes.close()


def test_a_single_broker_is_examined() -> None:
    with InProcessBroker() as running, Cluster(running.bootstrap) as cluster:
        running.create_topic("t", 3)
        health = examine(cluster)
    assert (health.symptoms, health.partition_count) == ([], 3)
