"""Which connections may use the APIs that nodes have for each other.

Where controllers have listeners of their own, whoever reaches those may. A lone node has one listener for everybody: there
a request of a node is served when it comes from the address of the node for which it speaks. What that proves, and what
it does not, is in docs/decisions/0010.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import wraps
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from tidemill.broker.requests.dispatch import Call, Peer
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.api import brokers, quorum
from tidemill.protocol.schema import Request, Response
from tidemill.types import BrokerId

if TYPE_CHECKING:
    from tidemill.broker.requests.context import Broker

logger = logging.getLogger(__name__)

# The machine of this node, by whichever of its addresses.
_HERE = "here"
_REFUSALS_TOLD_MAX = 1_000
# Names to look up for one request. A broker has a few listeners; a list of thousands is not one's.
_HOSTS_MAX = 1_000
_NAMES_MAX = 8

RequestT = TypeVar("RequestT", bound=Request)
ResponseT = TypeVar("ResponseT", bound=Response)
Handler = Callable[["Broker", Call, RequestT], Awaitable[ResponseT]]


def for_nodes(handler: Handler[RequestT, ResponseT]) -> Handler[RequestT, ResponseT]:
    """A handler that only nodes of the cluster may reach."""

    @wraps(handler)
    async def guarded(broker: Broker, call: Call, request: RequestT) -> ResponseT:
        connection = call.connection
        if not broker.is_controller_listener(connection.listener_name):
            hosts = claimed_hosts(broker, request)
            if hosts is not None and not await comes_from(broker.loop, connection, hosts):
                _tell(broker, connection, request.api_key)
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await handler(broker, call, request)

    return guarded


def _tell(broker: Broker, connection: Peer, api_key: int) -> None:
    """Once for each address and API, and for no more of them than fit."""
    ip, told = connection.peer.rpartition(":")[0], broker.refused_as_nodes
    if (ip, api_key) not in told and len(told) < _REFUSALS_TOLD_MAX:
        told.add((ip, api_key))
        logger.warning(
            "refusing %s of %s, which is no node of this cluster as far as its address tells; give this node a listener "
            "for controllers (controller.listener.names) if it is one",
            apis.API_NAMES[api_key],
            ip,
        )


def claimed_hosts(broker: Broker, request: Request) -> Sequence[str] | None:
    """Where the node is for which the request speaks; none where it speaks for nobody who could send it.

    None, where it speaks for a broker that is not registered: that the controller refuses by itself.
    """
    match request:
        case quorum.VoteRequest():
            return _hosts_of_voters(broker, _ids(request.topics, "replica_id"))
        case quorum.BeginQuorumEpochRequest() | quorum.EndQuorumEpochRequest():
            return _hosts_of_voters(broker, _ids(request.topics, "leader_id"))
        case quorum.UpdateRaftVoterRequest():
            return _hosts_of_voters(broker, [request.voter_id])
        case brokers.BrokerRegistrationRequest() | brokers.ControllerRegistrationRequest():
            return [each.host for each in request.listeners]
        case (
            brokers.BrokerHeartbeatRequest()
            | brokers.AlterPartitionRequest()
            | brokers.AllocateProducerIdsRequest()
        ):
            is_known = BrokerId(request.broker_id) in broker.image.brokers
            return _hosts_of_brokers(broker, [request.broker_id]) if is_known else None
    return _hosts_of_brokers(broker, broker.image.brokers)


def _ids(topics: Iterable[object], field: str) -> list[int]:
    return [getattr(part, field) for topic in topics for part in topic.partitions]  # type: ignore[attr-defined]


def _hosts_of_voters(broker: Broker, ids: Iterable[int]) -> list[str]:
    """Of other nodes: this one has no connection to itself."""
    voters = [broker.quorum.voters.get(each) for each in ids if each != broker.config.node_id]
    return [endpoint.host for voter in voters if voter is not None for endpoint in voter.endpoints]


def _hosts_of_brokers(broker: Broker, ids: Iterable[int]) -> list[str]:
    known = broker.image.brokers
    others = [known[BrokerId(each)] for each in ids if each != broker.config.node_id]
    return [endpoint.host for other in others for endpoint in other.endpoints.values()]


async def comes_from(loop: asyncio.AbstractEventLoop, connection: Peer, hosts: Iterable[str]) -> bool:
    """Whether a connection comes from one of these hosts."""
    local = connection.local_address[0]
    source = _normal(connection.peer.rpartition(":")[0], local)
    names = []
    for host in islice(dict.fromkeys(hosts), _HOSTS_MAX):
        if source == _normal(host, local):
            return True
        if not _is_literal(host):
            names.append(host)
    for name in names[:_NAMES_MAX]:
        if source in await _resolved(loop, name, local):
            return True
    return False


async def _resolved(loop: asyncio.AbstractEventLoop, host: str, local: str) -> set[str]:
    try:
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {_normal(str(address[0]), local) for *_, address in found}


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _normal(host: str, local: str) -> str:
    """An address in one spelling; every loopback address, and the one that was dialled, is this machine."""
    host = host.strip("[]")
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return _HERE if address.is_loopback or host == local.strip("[]") else str(address)
