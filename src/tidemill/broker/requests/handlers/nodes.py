"""Decides which connections may use the APIs that nodes have for each other.

A listener that authenticates its peers serves those that log in as a node or a super user. Without authentication,
controller listeners serve every peer that reaches them. A lone node has one listener for all peers: there
a request of a node is served when it comes from the address of the node for which it speaks. What that proves, and what
it does not, is in docs/decisions/0010.

Every peer may fetch the metadata, but only the fetches of a proven replica show what that replica has
(`fetches_as_replica`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import TypeVar

from tidemill.broker.net.network import Peer
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.node_proof import comes_from, is_authenticated_node
from tidemill.broker.requests.security.node_hosts import claimed_hosts, hosts_of_replica
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol import api as apis
from tidemill.protocol.schema import Request, Response

logger = logging.getLogger(__name__)

_REFUSALS_TOLD_MAX = 1_000

RequestT = TypeVar("RequestT", bound=Request)
ResponseT = TypeVar("ResponseT", bound=Response)
Handler = Callable[[Broker, Call, RequestT], Awaitable[ResponseT]]


def for_nodes(handler: Handler[RequestT, ResponseT]) -> Handler[RequestT, ResponseT]:
    """A handler that only nodes of the cluster may reach."""

    @wraps(handler)
    async def guarded(broker: Broker, call: Call, request: RequestT) -> ResponseT:
        connection = call.connection
        # With an authorizer the connection's principal has ClusterAction, or the request does not come this far.
        is_node = (
            True
            if broker.authorizer is not None
            else is_authenticated_node(broker.config.security, connection)
        )
        if is_node is False:
            _tell(broker, connection, request.api_key)
            raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        if is_node is None and not broker.is_controller_listener(connection.listener_name):
            hosts = claimed_hosts(broker, request)
            if hosts is not None and not await comes_from(broker.loop, connection, hosts):
                _tell(broker, connection, request.api_key)
                raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return await handler(broker, call, request)

    return guarded


def fetches_as_replica(broker: Broker, connection: Peer, node_id: int) -> bool | asyncio.Task[bool]:
    """Whether the connection is that of the replica for which it fetches metadata, perhaps only after a lookup of names."""

    def evidence() -> bool | Sequence[str]:
        if broker.authorizer is not None:
            return True  # it has ClusterAction, or the request does not come this far
        is_node = is_authenticated_node(broker.config.security, connection)
        if is_node is not None:
            return is_node
        if broker.is_controller_listener(connection.listener_name):
            return True
        return False if broker.config.network.controller_listeners else hosts_of_replica(broker, node_id)

    return broker.replica_proofs.check(connection, node_id, evidence)


def _tell(broker: Broker, connection: Peer, api_key: int) -> None:
    """Once for each address and API, and for no more of them than fit."""
    ip, told = connection.peer.rpartition(":")[0], broker.refused_as_nodes
    if (ip, api_key) not in told and len(told) < _REFUSALS_TOLD_MAX:
        told.add((ip, api_key))
        logger.warning(
            "refusing %s of %s (%r), which is no node of this cluster as far as its login and address tell; if it is one, "
            "give this node a listener for controllers (controller.listener.names), or name the principal in super.users",
            apis.API_NAMES[api_key],
            ip,
            str(connection.principal),
        )
