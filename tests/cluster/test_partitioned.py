"""A broker that the network cuts off, in network namespaces: the others go on, and nothing is lost when it is back.

Packets vanish without an error, so that whoever was connected learns nothing. Needs root and iproute2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import interfaces
from tests.brokers import eventually
from tests.cluster.clusters import QUICK_FENCING, Cluster
from tests.cluster.namespaces import Namespaces, unavailable
from tests.cluster.workload import Workload
from tests.conftest import BOOTSTRAP
from tests.interop.confluent_group import ConfluentConsumer

_MISSING = "TIDEMILL_INTEROP_BOOTSTRAP names a broker that is not ours" if BOOTSTRAP else unavailable()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")

IDS = (1, 2, 3)


@pytest.fixture
def network() -> Iterator[Namespaces]:
    with interfaces.changing(), Namespaces(IDS) as network:
        yield network


@pytest.fixture
def cluster(network: Namespaces, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(3, tmp_path, settings=QUICK_FENCING, places=network.places()) as cluster:
        yield cluster


def _from_everybody(network: Namespaces, node: int) -> None:
    network.cut_off(node)


def _from_the_other_brokers(network: Namespaces, node: int) -> None:
    """Clients still reach it and ask it to lead."""
    for other in IDS:
        if other != node:
            network.cut(node, other)


def _of_what_it_sends(network: Namespaces, node: int) -> None:
    """Cuts off what a node sends; what the others send still arrives."""
    for other in IDS:
        if other != node:
            network.cut_one_way(node, other)


CUTS = {
    "from everybody": _from_everybody,
    "from the other brokers": _from_the_other_brokers,
    "one way": _of_what_it_sends,
}


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(cut, id=name, marks=[pytest.mark.long] if name == "from the other brokers" else [])
        for name, cut in CUTS.items()
    ],
)
def test_a_leader_is_cut_off_and_healed(
    cut: Callable[[Namespaces, int], None], network: Namespaces, cluster: Cluster
) -> None:
    """Failure 18, without the removal of a peer."""
    with Workload(cluster, "cut-off", members=(ConfluentConsumer,), with_aiokafka=False) as work:
        leader = cluster.leader_of(work.topic, 0)
        cut(network, leader)
        cluster.await_other_leader(work.topic, 0, leader)
        work.await_acks()
        network.heal()
        cluster.await_up()
        cluster.await_in_sync(work.topic, work.partitions)
        work.await_progress()
        work.finish()


def test_a_controller_in_a_minority_decides_nothing(network: Namespaces, cluster: Cluster) -> None:
    with Workload(cluster, "minority", members=(ConfluentConsumer,), with_aiokafka=False) as work:
        controller = cluster.active_controller()
        _from_the_other_brokers(network, controller)
        others = cluster.others(controller)
        eventually(lambda: cluster.active_controller(others) != controller, "another active controller")
        # It may hand the request on when the network is back; until then nothing is decided.
        minority = [cluster.nodes[controller]]
        assert cluster.try_to_create_topic("of-the-minority", minority, limit_ms=1_000) is not True
        assert cluster.try_to_create_topic("of-the-majority", others)
        assert cluster.state("of-the-majority", 0, others) is not None
        for side in (minority, others):
            assert cluster.state("of-the-minority", 0, side) is None
        assert cluster.state("of-the-majority", 0, minority) is None
        work.await_acks()
        network.heal()
        cluster.await_up()
        cluster.await_in_sync("of-the-majority", 1)
        work.await_progress()
        work.finish()
