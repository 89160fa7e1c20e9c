"""APIs between nodes at a listener that clients use, too: which peers are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tidemill.broker.net.network import Peer
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.handlers.nodes import for_nodes
from tidemill.broker.requests.node_proof import comes_from
from tidemill.config import ListenerSecurity, SecurityConfig
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api import brokers, quorum
from tidemill.protocol.schema import Request, Response
from tidemill.raft.voters import ReplicaKey, Voter, VoterEndpoint, VoterSet
from tidemill.security.principals import ANONYMOUS, Principal
from tidemill.tls.settings import TlsSettings

_NODE, _CLIENT = "10.0.0.2", "10.0.0.9"


_MUTUAL_TLS = ListenerSecurity("SSL", tls=TlsSettings(client_auth="required"))
_OPEN = SecurityConfig({}, failed_authentication_delay_ms=100, node_principals=frozenset())
_SECURED = SecurityConfig(
    {"SECURE": _MUTUAL_TLS, "CONTROLLER": _MUTUAL_TLS},
    failed_authentication_delay_ms=100,
    node_principals=frozenset({"User:node"}),
)


class _Loop:
    """Knows one name."""

    async def getaddrinfo(self, host: str, _port: None, *, type: int) -> list[Any]:  # noqa: A002
        if host != "broker-2":
            raise OSError("no such name")
        return [(2, type, 6, "", (_NODE, 0))]


def _connection(
    ip: str, local: str = "10.0.0.1", listener: str = "PLAINTEXT", principal: Principal = ANONYMOUS
) -> Peer:
    connection = SimpleNamespace(
        peer=f"{ip}:50000", local_address=(local, 9092), listener_name=listener, principal=principal
    )
    return cast(Peer, connection)


def _broker(security: SecurityConfig = _OPEN) -> Broker:
    hosts = {1: "10.0.0.1", 2: "broker-2", 3: "10.0.0.3"}
    voters = VoterSet(
        Voter(ReplicaKey(each, bytes([each]) * 16), (VoterEndpoint("PLAINTEXT", host, 9092),))
        for each, host in hosts.items()
        if each != 3
    )
    registered = {
        each: SimpleNamespace(id=each, endpoints={"PLAINTEXT": SimpleNamespace(host=host)})
        for each, host in hosts.items()
    }
    return cast(
        Broker,
        SimpleNamespace(
            config=SimpleNamespace(node_id=1, security=security),
            loop=_Loop(),
            image=SimpleNamespace(brokers=registered),
            quorum=SimpleNamespace(voters=voters),
            refused_as_nodes=set(),
            authorizer=None,
            quotas=None,
            is_controller_listener=lambda name: name == "CONTROLLER",
        ),
    )


def _vote(node_id: int) -> quorum.VoteRequest:
    part = quorum.VoteRequestPartitionData(replica_id=node_id)
    return quorum.VoteRequest(topics=[quorum.VoteRequestTopicData(partitions=[part])])


def _begin(node_id: int) -> quorum.BeginQuorumEpochRequest:
    part = quorum.BeginQuorumEpochRequestPartitionData(leader_id=node_id)
    return quorum.BeginQuorumEpochRequest(topics=[quorum.BeginQuorumEpochRequestTopicData(partitions=[part])])


def _end(node_id: int) -> quorum.EndQuorumEpochRequest:
    part = quorum.EndQuorumEpochRequestPartitionData(leader_id=node_id)
    return quorum.EndQuorumEpochRequest(topics=[quorum.EndQuorumEpochRequestTopicData(partitions=[part])])


def _registration(host: str) -> brokers.BrokerRegistrationRequest:
    return brokers.BrokerRegistrationRequest(listeners=[brokers.Listener(host=host)])


async def _is_served(request: Request, connection: Peer, broker: Broker | None = None) -> bool:
    @for_nodes
    async def serve(_broker: Broker, _call: Call, _request: Request) -> Response:
        return brokers.EnvelopeResponse()

    call = cast(Call, SimpleNamespace(connection=connection))
    try:
        await serve(broker or _broker(), call, request)
    except ApiError as error:
        return error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return True


_OF_NODE_2: Sequence[Request] = [
    _vote(2),
    _begin(2),
    _end(2),
    quorum.UpdateRaftVoterRequest(voter_id=2),
    _registration("broker-2"),
    brokers.BrokerHeartbeatRequest(broker_id=2),
    brokers.AlterPartitionRequest(broker_id=2),
    brokers.AllocateProducerIdsRequest(broker_id=2),
    brokers.EnvelopeRequest(),
]


@pytest.mark.parametrize("request_", _OF_NODE_2, ids=lambda each: type(each).__name__)
async def test_only_the_nodes_own_address_is_served(request_: Request) -> None:
    assert await _is_served(request_, _connection(_NODE))
    assert not await _is_served(request_, _connection(_CLIENT))
    assert await _is_served(request_, _connection(_CLIENT, listener="CONTROLLER"))


@pytest.mark.parametrize("make", [_vote, _begin, _end])
async def test_broker_that_is_no_voter_is_refused_in_the_quorum(make: Any) -> None:
    assert not await _is_served(make(3), _connection("10.0.0.3"))


@pytest.mark.parametrize(
    "request_",
    [_vote(1), _begin(1), _end(1), brokers.BrokerHeartbeatRequest(broker_id=1)],
    ids=lambda each: type(each).__name__,
)
@pytest.mark.parametrize("ip", ["127.0.0.1", "10.0.0.1"])
async def test_request_in_the_name_of_this_node_is_refused(request_: Request, ip: str) -> None:
    assert not await _is_served(request_, _connection(ip))


async def test_unregistered_broker_is_refused_by_the_controller() -> None:
    """It needs the controller's error to stop."""
    assert await _is_served(brokers.BrokerHeartbeatRequest(broker_id=7), _connection(_CLIENT))


async def test_a_refusal_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = _broker()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not await _is_served(_vote(2), _connection(_CLIENT), broker)
    assert len(caplog.records) == 1
    assert "Vote" in caplog.text
    assert _CLIENT in caplog.text


@pytest.mark.parametrize(
    ("ip", "local", "hosts", "is_from"),
    [
        ("127.0.0.1", "127.0.0.1", ["127.0.1.1"], True),
        ("10.0.0.1", "10.0.0.1", ["localhost.", "127.0.0.1"], True),
        ("::ffff:10.0.0.2", "::ffff:10.0.0.1", ["10.0.0.2"], True),
        ("10.0.0.1", "::ffff:10.0.0.1", ["127.0.0.1"], True),
        ("fe80::1", "fe80::2", ["[fe80:0::1]"], True),
        ("10.0.0.2", "10.0.0.1", ["broker-2"], True),
        ("10.0.0.2", "10.0.0.1", ["unknown", "10.0.0.3"], False),
        ("10.0.0.2", "10.0.0.1", [], False),
        ("10.0.0.2", "10.0.0.1", [*(f"unknown-{each}" for each in range(100)), "broker-2"], False),
    ],
)
async def test_connection_is_matched_with_the_hosts_of_a_node(
    ip: str, local: str, hosts: list[str], is_from: bool
) -> None:
    loop = cast(asyncio.AbstractEventLoop, _Loop())
    assert await comes_from(loop, _connection(ip, local), hosts) is is_from


@pytest.mark.parametrize("listener", ["SECURE", "CONTROLLER"])
def test_a_login_decides_where_peers_are_authenticated_and_the_address_does_not(listener: str) -> None:
    async def check() -> None:
        node, client = Principal.user("node"), Principal.user("client")
        broker = _broker(_SECURED)
        assert await _is_served(_vote(2), _connection(_CLIENT, listener=listener, principal=node), broker)
        assert not await _is_served(_vote(2), _connection(_NODE, listener=listener, principal=client), broker)
        assert not await _is_served(_vote(2), _connection(_NODE, listener=listener), broker)

    asyncio.run(check())
