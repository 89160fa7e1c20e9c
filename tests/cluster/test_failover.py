"""Brokers and controllers that die, hang and are restarted under load: clients notice nothing but a retry.

Three processes, each broker and controller, `acks=all`, replication factor 3, `min.insync.replicas` 2. Everything that
was acknowledged is there afterwards, once, in order, the same in every replica.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import eventually
from tests.cluster.clusters import QUICK_FENCING, Cluster
from tests.cluster.workload import Workload
from tests.conftest import BOOTSTRAP
from tests.interop.confluent_group import ConfluentNewConsumer

pytestmark = pytest.mark.skipif(
    bool(BOOTSTRAP), reason="kills brokers; TIDEMILL_INTEROP_BOOTSTRAP names another's"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path, settings=QUICK_FENCING) as cluster:
        yield cluster


@pytest.mark.parametrize("kills", [1, pytest.param(3, marks=pytest.mark.long)])
def test_killed_leaders_are_replaced_and_come_back(cluster: Cluster, kills: int) -> None:
    with Workload(cluster, "killed-leaders") as work:
        for partition in range(kills):
            leader = cluster.leader_of(work.topic, partition)
            cluster.kill(leader)
            cluster.await_other_leader(work.topic, partition, leader)
            work.await_progress()
            cluster.start(leader)
            cluster.await_in_sync(work.topic, work.partitions)
        work.finish()


def test_a_killed_controller_is_replaced(cluster: Cluster) -> None:
    with Workload(cluster, "killed-controller") as work:
        first = cluster.active_controller()
        cluster.kill(first)
        eventually(lambda: cluster.active_controller() != first, "another active controller")
        work.await_progress()
        # The new one decides: leaders are moved, topics are made.
        for partition in range(work.partitions):
            assert cluster.leader_of(work.topic, partition, cluster.running()) != first
        cluster.start(first)
        cluster.await_up()
        cluster.create_topic("made-by-the-new-one", 3)
        work.finish()


def test_leader_paused_beyond_its_session_is_fenced(
    cluster: Cluster,
) -> None:
    """Failure 17: it believes to lead, and its clients believe it too."""
    with Workload(cluster, "paused-leader") as work:
        leader = cluster.leader_of(work.topic, 0)
        cluster.pause(leader)
        cluster.await_other_leader(work.topic, 0, leader)
        cluster.resume(leader)
        work.await_progress()
        cluster.await_in_sync(work.topic, work.partitions)
        work.finish()


@pytest.mark.long
def test_clients_survive_rolling_restart(cluster: Cluster) -> None:
    with Workload(cluster, "rolling-restart") as work:
        for node in list(cluster.nodes):
            cluster.stop(node)
            work.await_progress()
            cluster.start(node)
            cluster.await_up()
            cluster.await_in_sync(work.topic, work.partitions)
        work.finish()


@pytest.mark.long
def test_writes_wait_while_too_few_replicas_are_in_sync(cluster: Cluster) -> None:
    """The majority of the controllers is gone too. One of the dead is enough to go on."""
    with Workload(cluster, "too-few", with_aiokafka=False) as work:
        leader = cluster.leader_of(work.topic, 0)
        first, second = [node.id for node in cluster.others(leader)]
        cluster.kill(first)
        cluster.kill(second)
        cluster.start(first)
        work.await_progress()
        cluster.start(second)
        cluster.await_up()
        work.finish()


def test_cluster_recovers_after_all_brokers_were_killed(cluster: Cluster) -> None:
    with Workload(cluster, "all-killed", with_aiokafka=False) as work:
        for node in list(cluster.nodes):
            cluster.kill(node)
        for node in cluster.nodes:
            cluster.start(node)
        cluster.await_up()
        work.await_progress()
        work.finish()


@pytest.mark.long
def test_dedicated_controllers(tmp_path: Path) -> None:
    """The cluster goes on while its active controller is replaced, and then loses a broker."""
    with (
        Cluster(3, tmp_path, controllers=(101, 102, 103), settings=QUICK_FENCING) as cluster,
        Workload(cluster, "dedicated", members=(ConfluentNewConsumer, ConfluentNewConsumer)) as work,
    ):
        controller = cluster.active_controller()
        assert controller > 100
        cluster.kill(controller)
        eventually(lambda: cluster.active_controller() != controller, "another active controller")
        leader = cluster.leader_of(work.topic, 0)
        cluster.kill(leader)
        cluster.await_other_leader(work.topic, 0, leader)
        work.await_progress()
        cluster.start(leader)
        cluster.start(controller)
        cluster.await_up()
        work.finish()
