"""Connections of nodes skip the queue of clients. Their address proves a node, not their requests."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.net.network import Peer
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.nodes import fetches_as_replica
from tidemill.broker.requests.node_proof import NodeLanes, ReplicaProofs
from tidemill.broker.requests.security.node_hosts import hosts_of_replica, known_hosts
from tidemill.config import SecurityConfig
from tidemill.protocol.api import brokers, quorum
from tidemill.protocol.schema import Request
from tidemill.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from tidemill.security.principals import ANONYMOUS

_NODE, _CLIENT = "10.0.0.2", "10.0.0.9"


class _Peer:
    local_address = ("10.0.0.1", 9092)
    principal = ANONYMOUS
    is_closed = False

    def __init__(self, ip: str, listener: str = "PLAINTEXT") -> None:
        self.peer = f"{ip}:50000"
        self.listener_name = listener
        self.close_callbacks: list[Callable[[], None]] = []
        self.is_node = False

    def mark_as_node(self) -> None:
        self.is_node = True


class _Loop:
    """Knows one name, and a time that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.lookups = 0
        self.tasks: list[asyncio.Task[Any]] = []

    def time(self) -> float:
        return self.now_s

    def create_task(self, coroutine: Any) -> asyncio.Task[Any]:
        self.tasks.append(asyncio.get_running_loop().create_task(coroutine))
        return self.tasks[-1]

    async def getaddrinfo(self, host: str, _port: None, *, type: int) -> list[Any]:  # noqa: A002
        self.lookups += 1
        if host != "broker-4":
            raise OSError("no such name")
        return [(2, type, 6, "", ("10.0.0.4", 0))]


class _World:
    """Node 1, with brokers 2 and 4, the latter known by its name, and voter 3."""

    def __init__(self) -> None:
        self.loop = _Loop()
        hosts = {1: "10.0.0.1", 2: _NODE, 4: "broker-4"}
        self.registered: dict[int, Any] = {
            each: SimpleNamespace(endpoints={"PLAINTEXT": SimpleNamespace(host=host)})
            for each, host in hosts.items()
        }
        voter = Voter(ReplicaKey(3, b"3" * 16), (VoterEndpoint("CONTROLLER", "10.0.0.3", 9093),))
        self.broker = cast(
            Broker,
            SimpleNamespace(
                config=SimpleNamespace(
                    node_id=1,
                    security=SecurityConfig({}, 100, frozenset()),
                    network=SimpleNamespace(controller_listeners=()),
                ),
                loop=self.loop,
                authorizer=None,
                is_controller_listener=lambda name: name == "CONTROLLER",
                replica_proofs=ReplicaProofs(cast(asyncio.AbstractEventLoop, self.loop)),
                image=SimpleNamespace(brokers=self.registered),
                quorum=SimpleNamespace(voters=VoterSet([voter])),
            ),
        )
        self.lanes = NodeLanes(
            cast(asyncio.AbstractEventLoop, self.loop),
            self.broker.config.security,
            lambda name: name == "CONTROLLER",
        )

    def claim(self, peer: _Peer, hosts: Callable[[], Sequence[str]]) -> bool:
        self.lanes.claim(cast(Peer, peer), hosts)
        return peer.is_node

    def send(self, peer: _Peer, request: Request) -> bool:
        return self.claim(peer, lambda: known_hosts(self.broker, request))

    def fetch(self, peer: _Peer, replica_id: int) -> bool:
        return self.claim(peer, lambda: hosts_of_replica(self.broker, replica_id))

    async def is_replica(self, peer: _Peer, replica_id: int) -> bool:
        proof = fetches_as_replica(self.broker, cast(Peer, peer), replica_id)
        return proof if isinstance(proof, bool) else await proof


_HEARTBEAT = brokers.BrokerHeartbeatRequest(broker_id=2)


@pytest.mark.parametrize(
    "request_",
    [
        _HEARTBEAT,
        brokers.AlterPartitionRequest(broker_id=2),
        brokers.EnvelopeRequest(),
        quorum.FetchSnapshotRequest(),
        quorum.VoteRequest(
            topics=[quorum.VoteRequestTopicData(partitions=[quorum.VoteRequestPartitionData(replica_id=3)])]
        ),
    ],
    ids=lambda each: type(each).__name__,
)
async def test_a_client_gets_no_lane_by_sending_a_request_of_nodes(request_: Request) -> None:
    world, peer = _World(), _Peer(_CLIENT)
    world.send(peer, request_)
    await asyncio.gather(*world.loop.tasks)
    assert not peer.is_node


def test_a_client_gets_no_lane_by_registering_as_a_broker() -> None:
    registration = brokers.BrokerRegistrationRequest(listeners=[brokers.Listener(host=_CLIENT)])
    assert not _World().send(_Peer(_CLIENT), registration)


@pytest.mark.parametrize("replica_id", [2, 3, 4, 77, -1, 1])
async def test_a_client_gets_no_lane_by_fetching_as_a_follower(replica_id: int) -> None:
    world, peer = _World(), _Peer(_CLIENT)
    world.fetch(peer, replica_id)
    await asyncio.gather(*world.loop.tasks)
    assert not peer.is_node


def test_a_node_has_its_lane_from_its_own_address() -> None:
    assert _World().send(_Peer(_NODE), _HEARTBEAT)
    assert _World().fetch(_Peer(_NODE), 2)
    assert _World().fetch(_Peer("10.0.0.3"), 3)


def test_node_has_no_lane_for_requests_in_the_name_of_another() -> None:
    assert not _World().fetch(_Peer("10.0.0.3"), 2)


def test_a_listener_for_controllers_is_for_nodes() -> None:
    assert _World().send(_Peer(_CLIENT, "CONTROLLER"), _HEARTBEAT)


async def test_a_node_that_is_known_by_its_name_has_its_lane_once_that_was_looked_up() -> None:
    world, peer = _World(), _Peer("10.0.0.4")
    assert not world.fetch(peer, 4)
    await asyncio.gather(*world.loop.tasks)
    assert peer.is_node
    assert world.loop.lookups == 1


async def test_names_are_looked_up_once_a_second_at_most_however_often_a_client_claims() -> None:
    world, peer = _World(), _Peer(_CLIENT)
    for _ in range(100):
        world.fetch(peer, 4)
        await asyncio.sleep(0)
    assert world.loop.lookups == 1
    assert not peer.is_node


def test_a_broker_that_came_before_its_registration_has_its_lane_soon_after() -> None:
    world, peer = _World(), _Peer("10.0.0.5")
    assert not world.fetch(peer, 5)
    world.registered[5] = SimpleNamespace(endpoints={"PLAINTEXT": SimpleNamespace(host="10.0.0.5")})
    world.loop.now_s += 1.5
    assert world.fetch(peer, 5)


def test_an_address_that_was_a_nodes_counts_for_nothing_on_the_next_connection() -> None:
    """The port may be another program's by then."""
    world, peer = _World(), _Peer(_NODE)
    assert world.fetch(peer, 2)
    for callback in peer.close_callbacks:
        callback()
    del world.registered[2]
    assert not world.fetch(_Peer(_NODE), 2)


# -- fetches of the metadata ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ip", "replica_id"), [(_NODE, 2), ("10.0.0.3", 3), ("10.0.0.4", 4)])
async def test_a_replica_fetches_from_its_own_address(ip: str, replica_id: int) -> None:
    world, peer = _World(), _Peer(ip)
    for _ in range(3):
        assert await world.is_replica(peer, replica_id)
    assert world.loop.lookups == (1 if replica_id == 4 else 0)


@pytest.mark.parametrize("replica_id", [1, 2, 3, 4, 77])
async def test_a_client_fetches_as_no_replica(replica_id: int) -> None:
    world, peer = _World(), _Peer(_CLIENT)
    for _ in range(100):
        assert not await world.is_replica(peer, replica_id)
    assert world.loop.lookups <= 1


async def test_a_node_fetches_as_no_other_node() -> None:
    world, peer = _World(), _Peer(_NODE)
    assert await world.is_replica(peer, 2)
    assert not await world.is_replica(peer, 3)
    assert await world.is_replica(peer, 2)


async def test_a_listener_for_controllers_takes_every_peer_for_a_replica() -> None:
    world = _World()
    assert await world.is_replica(_Peer(_CLIENT, "CONTROLLER"), 2)


async def test_beside_a_listener_for_controllers_no_address_proves_a_replica_of_the_metadata() -> None:
    world = _World()
    world.broker.config.network.controller_listeners = ("CONTROLLER",)  # type: ignore[assignment,misc]
    assert not await world.is_replica(_Peer(_NODE), 2)


async def test_a_broker_that_came_before_its_registration_is_a_replica_after_it() -> None:
    world, peer = _World(), _Peer("10.0.0.5")
    assert not await world.is_replica(peer, 5)
    world.registered[5] = SimpleNamespace(endpoints={"PLAINTEXT": SimpleNamespace(host="10.0.0.5")})
    assert await world.is_replica(peer, 5)


@pytest.mark.parametrize("replica_id", [2, 4])
async def test_a_connection_that_is_closed_before_its_request_is_handled_is_not_kept(replica_id: int) -> None:
    """FetchSnapshot is handled in a task, and a frame behind it may have closed the connection by then."""
    world, peer = _World(), _Peer(_NODE)
    peer.is_closed = True
    await world.is_replica(peer, replica_id)
    world.loop.tasks.clear()
    kept = weakref.ref(peer)
    del peer
    gc.collect()
    assert kept() is None
