"""Clusters that change their size under load: brokers join, one is drained and taken out, a lone node gets company."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker, command, eventually
from tests.cluster.clusters import IS_APACHE_KAFKA, QUICK_FENCING, Cluster
from tests.cluster.member_process import MemberProcess
from tests.cluster.producing import Producing, producing_to, read_log
from tests.cluster.workload import Workload
from tests.conftest import BOOTSTRAP
from tests.interop.confluent_group import ConfluentConsumer
from tests.interop.group_consumers import MemberSettings
from tests.wire.connection import Connection
from tidemill.sim.checks import checker

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP) or IS_APACHE_KAFKA, reason="starts a cluster of its own, by Tidemill's own commands"
)
COMMAND_LIMIT_S = 90


def tidemill(cluster: Cluster, *arguments: str) -> str:
    done = subprocess.run(
        [*command(), *arguments, "--bootstrap", cluster.bootstrap, "--timeout", str(COMMAND_LIMIT_S - 10)],
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
    )
    assert done.returncode == 0, f"tidemill {' '.join(arguments)}: {done.stdout}\n{done.stderr}"
    return done.stdout


def replicas(cluster: Cluster, topic: str, partitions: int) -> set[int]:
    states = [cluster.state(topic, partition) for partition in range(partitions)]
    return {replica for state in states if state is not None for replica in state.replicas}


def test_a_broker_joins_and_takes_over_from_one_that_is_drained_and_removed(tmp_path: Path) -> None:
    with (
        Cluster(3, tmp_path, controllers=(101,), settings=QUICK_FENCING) as cluster,
        Workload(cluster, "moving", with_aiokafka=False) as work,
    ):
        cluster.join(4)
        cluster.await_up()
        assert replicas(cluster, work.topic, work.partitions) == {1, 2, 3}
        tidemill(cluster, "brokers", "drain", "3")
        for topic, partitions in ((work.topic, work.partitions), ("__consumer_offsets", 3)):
            assert replicas(cluster, topic, partitions) == {1, 2, 4}
            cluster.await_in_sync(topic, partitions)
        work.await_progress()
        cluster.stop(3)
        tidemill(cluster, "brokers", "remove", "3")
        work.await_progress()
        # The newcomer counts: with it, one of the others may go.
        cluster.kill(2)
        work.await_acks()
        cluster.start(2)
        cluster.await_up()
        work.finish()


@pytest.fixture
def join(tmp_path: Path) -> Iterator[Callable[[int, str], None]]:
    """Starts brokers that join a quorum of which they know only an address."""
    processes: list[subprocess.Popen[bytes]] = []

    def start_one(node_id: int, quorum: str) -> None:
        properties = {
            "node.id": str(node_id),
            "process.roles": "broker",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "controller.quorum.bootstrap.servers": quorum,
            "log.dirs": str(tmp_path / f"data-{node_id}"),
        }
        config = tmp_path / f"server-{node_id}.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
        with (tmp_path / f"server-{node_id}.log").open("wb") as log:
            processes.append(
                subprocess.Popen(
                    [*command(), "serve", "--config", str(config)], stdout=log, stderr=subprocess.STDOUT
                )
            )

    yield start_one
    for process in processes:
        process.kill()
        process.wait()


def _brokers(broker: Broker) -> set[int]:
    with Connection(broker) as connection:
        answer = connection.request("metadata", 12, topics=[])
    return {each.node_id for each in answer.brokers}


def _partitions(broker: Broker, topic: str) -> list[Any]:
    with Connection(broker) as connection:
        return list(connection.metadata(topic).partitions)


def test_single_node_grows_into_cluster(
    start: Callable[..., Broker], join: Callable[[int, str], None]
) -> None:
    """It was started with no thought of a cluster, and has records and a group."""
    lone = start({"offsets.topic.num.partitions": "1"})
    settings = MemberSettings("early", topics=("early",))
    with producing_to(lone, "early", 1) as early:
        member = MemberProcess("m", ConfluentConsumer, lone.bootstrap, settings)
        eventually(lambda: member.delivered() > 50, "the group reads")
        for node_id in (2, 3):
            join(node_id, lone.bootstrap)
        eventually(lambda: _brokers(lone) == {1, 2, 3}, "three brokers")
        with Connection(lone) as connection:
            new = {"name": "late", "num_partitions": 3, "replication_factor": 3}
            created = connection.request("create_topics", 7, topics=[new], timeout=20_000).topics[0]
            assert created.error_code == 0, created
        with Producing(lone.bootstrap, "late", 3) as late:
            eventually(lambda: len(late.acked()) > 100, "acks of all three")
        read_before = member.delivered()
        eventually(lambda: member.delivered() > read_before + 50, "the group reads on")
    eventually(lambda: early.acked() <= _got(member), "everything read")
    member.leave()
    eventually(
        lambda: all(sorted(each.isr_nodes) == [1, 2, 3] for each in _partitions(lone, "__consumer_offsets")),
        "the group's state has three replicas too",
    )
    for partition in _partitions(lone, "late"):
        assert sorted(partition.replica_nodes) == sorted(partition.isr_nodes) == [1, 2, 3]
    history = [*early.events, *member.events, *read_log(lone, "early", [0])]
    history.sort(key=lambda event: event.at_s)
    assert [str(violation) for violation in checker.check(history)] == []


def _got(member: MemberProcess) -> set[checker.MessageId]:
    return {event.message for event in list(member.events) if isinstance(event, checker.Delivered)}
