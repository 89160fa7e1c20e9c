"""Proves that a connection is that of a node of this cluster: by its login, or by the address from which it comes.

Where a listener authenticates its peers, the principal decides. Elsewhere a request speaks for a node, and the metadata
says where that node is (`security/node_hosts.py`). What this proves, and what it does not, is in docs/decisions/0010. Three
things rest on it: whether a request that only nodes may send is served (`handlers/nodes.py`), whether a fetch of the
metadata counts as that of a replica (`ReplicaProofs`), and whether a connection need not wait in line with clients
(`NodeLanes`, `turns.py`).
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import inf

from tidemill.broker.net.network import Peer
from tidemill.config import SecurityConfig
from tidemill.security.addresses import normal_address

# The machine of this node, by whichever of its addresses.
_HERE = "here"
# Names to look up for one request. A broker has a few listeners; a list of thousands is not one's.
_HOSTS_MAX = 1_000
_NAMES_MAX = 8
# A node may come before its registration does, so a claim that was not true is looked at again.
_CLAIMED_AGAIN_S = 1.0


class NodeLanes:
    """Lets connections of nodes pass the line in which clients wait. A claim alone gives nothing.

    Every peer at a listener for controllers counts as a node. Elsewhere a connection has to come from a host of the node
    for which its request speaks. Names are looked up beside the request, which does not wait for that.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        security: SecurityConfig,
        is_controller_listener: Callable[[str], bool],
    ) -> None:
        self._loop = loop
        self._security = security
        self._is_controller_listener = is_controller_listener
        # By the connection's peer, when its next claim is looked at: never again when one was true.
        self._due_s: dict[str, float] = {}
        self._lookups: set[asyncio.Task[None]] = set()

    def claim(self, connection: Peer, hosts: Callable[[], Sequence[str]]) -> None:
        """`hosts` says where the node is for which the connection speaks."""
        peer = connection.peer
        due_s = self._due_s.get(peer)
        if due_s is None:
            connection.close_callbacks.append(partial(self._forget, peer))
            due_s = 0.0
        now_s = self._loop.time()
        if now_s < due_s:
            return
        self._due_s[peer] = now_s + _CLAIMED_AGAIN_S
        is_node = is_authenticated_node(self._security, connection)
        if is_node is not None:
            if is_node:
                self._grant(connection)
            return
        if self._is_controller_listener(connection.listener_name):
            self._grant(connection)
            return
        where = hosts()
        if not where:
            return
        is_there, names = _compare(connection, where)
        if is_there:
            self._grant(connection)
        elif names:
            lookup = self._loop.create_task(self._look_up(connection, names))
            self._lookups.add(lookup)
            lookup.add_done_callback(self._lookups.discard)

    def _forget(self, peer: str) -> None:
        self._due_s.pop(peer, None)

    def _grant(self, connection: Peer) -> None:
        self._due_s[connection.peer] = inf
        connection.mark_as_node()

    async def _look_up(self, connection: Peer, names: Sequence[str]) -> None:
        if await _is_at_any(self._loop, connection, names) and not connection.is_closed:
            self._grant(connection)


@dataclass(slots=True, eq=False)
class _Claim:
    """The replica for which a connection fetches the metadata."""

    node_id: int
    is_proven: bool = False
    # While the names of its hosts are looked up, and when that may be done again.
    lookup: asyncio.Task[bool] | None = None
    due_s: float = 0.0


class ReplicaProofs:
    """Remembers the replica that each connection has proved to be. Every fetch of the metadata asks; one of them pays.

    A node fetches for itself only, so a connection has one proof. Names are looked up once a second at most.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._claims: dict[Peer, _Claim] = {}

    def check(
        self, connection: Peer, node_id: int, evidence: Callable[[], bool | Sequence[str]]
    ) -> bool | asyncio.Task[bool]:
        """Whether it is that replica's, perhaps only after a lookup. `evidence` says it, or where the replica is."""
        if connection.is_closed:
            # Its close callbacks have run, so a claim would never be forgotten.
            return False
        claim = self._claims.get(connection)
        if claim is not None and claim.node_id == node_id:
            if claim.is_proven:
                return True
            if claim.lookup is not None and not claim.lookup.done():
                return claim.lookup
        found = evidence()
        is_proven, names = (found, []) if isinstance(found, bool) else _compare(connection, found)
        due_s = 0.0 if claim is None else claim.due_s
        is_due = self._loop.time() >= due_s
        if not is_proven and not (names and is_due):
            return False
        if claim is None:
            connection.close_callbacks.append(partial(self._forget, connection))
        self._claims[connection] = claim = _Claim(node_id, is_proven, due_s=due_s)
        if is_proven:
            return True
        claim.due_s = self._loop.time() + _CLAIMED_AGAIN_S
        claim.lookup = self._loop.create_task(self._look_up(claim, connection, names))
        return claim.lookup

    def _forget(self, connection: Peer) -> None:
        self._claims.pop(connection, None)

    async def _look_up(self, claim: _Claim, connection: Peer, names: Sequence[str]) -> bool:
        claim.is_proven = await _is_at_any(self._loop, connection, names)
        return claim.is_proven


def is_authenticated_node(security: SecurityConfig, connection: Peer) -> bool | None:
    """Whether the peer has logged in as a node or a super user; None where the listener knows no logins.

    Without a login an address is all that can be proven.
    """
    listener = security.listeners.get(connection.listener_name)
    if listener is None or not listener.authenticates:
        return None
    return str(connection.principal) in security.node_principals


async def comes_from(loop: asyncio.AbstractEventLoop, connection: Peer, hosts: Iterable[str]) -> bool:
    """Whether a connection comes from one of these hosts."""
    is_there, names = _compare(connection, hosts)
    return is_there or await _is_at_any(loop, connection, names)


def _compare(connection: Peer, hosts: Iterable[str]) -> tuple[bool, list[str]]:
    """Whether it comes from one of these addresses, and if not, the names among the hosts that may be looked up."""
    local = connection.local_address[0]
    source = _source(connection)
    names = []
    for host in islice(dict.fromkeys(hosts), _HOSTS_MAX):
        if source == _normal(host, local):
            return True, []
        if not _is_literal(host):
            names.append(host)
    return False, names[:_NAMES_MAX]


def _source(connection: Peer) -> str:
    return _normal(connection.peer.rpartition(":")[0], connection.local_address[0])


async def _is_at_any(loop: asyncio.AbstractEventLoop, connection: Peer, names: Iterable[str]) -> bool:
    local, source = connection.local_address[0], _source(connection)
    for name in names:
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
    address = normal_address(host.strip("[]"))
    if not _is_literal(address):
        return address
    is_here = ipaddress.ip_address(address).is_loopback or address == normal_address(local.strip("[]"))
    return _HERE if is_here else address
