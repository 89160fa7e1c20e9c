"""The files of a secured cluster: which there are, and what stands in them. Touches no disk.

    ca/ca.pem, ca/ca.key               the authority; its key belongs on no broker
    node-N/server.properties           of each node, beside node.pem (key and chain) and ca.pem
    clients/admin.properties           of the admin, a super user
    clients/app.properties             of the first user, which has no rights until it gets ACLs
    clients/app.password               the password of the first user, for `tidemill users add`

The admin logs in with a credential that stands in each node's `sasl.jaas.config`, so it works before there is any
metadata. Nodes of a cluster log in at each other as another user, on listeners of their own. A lone node has one listener,
and its own login is the admin's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tidemill.config.broker.listeners import is_loopback
from tidemill.config.broker.security import DECOY_SECRET

ADMIN, NODE, APP = "admin", "node", "app"
MECHANISM = "SCRAM-SHA-512"
CLIENTS, NODES, CONTROLLER = "CLIENTS", "NODES", "CONTROLLER"
_LOGIN_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
# The ports of nodes that share a host are this far apart.
_PORT_STEP = 100
# A user that was removed is out after this long, whatever connections it has.
_REAUTHENTICATION_MS = 3_600_000


class NodeAddress(NamedTuple):
    """The address of a node: clients connect to `port`, controllers to the next one, brokers to the one after that."""

    node_id: int
    host: str
    port: int

    @property
    def name(self) -> str:
        return f"node-{self.node_id}"

    @property
    def bind_host(self) -> str:
        """A host name may resolve to something else on its own machine, so only loopback is bound by name."""
        if is_loopback(self.host):
            return self.host
        return "::" if ":" in self.host else "0.0.0.0"

    def certificate_hosts(self) -> list[str]:
        return list(
            dict.fromkeys((self.host, "localhost", "127.0.0.1") if is_loopback(self.host) else (self.host,))
        )


class Passwords(NamedTuple):
    """Not in any `repr`: a traceback may show one."""

    admin: str
    node: str
    app: str
    # No user's: unknown users get their salts from it.
    decoy: str

    def __repr__(self) -> str:
        return "Passwords([hidden])"


def node_addresses(hosts: Sequence[tuple[str, int]], count: int) -> list[NodeAddress]:
    """One host for each node, or one host for all of them at different ports."""
    if len(hosts) == count:
        return [NodeAddress(index + 1, *each) for index, each in enumerate(hosts)]
    ((host, port),) = hosts
    return [NodeAddress(index + 1, host, port + index * _PORT_STEP) for index in range(count)]


def bootstrap(nodes: Sequence[NodeAddress]) -> str:
    return ",".join(f"{_in_url(node.host)}:{node.port}" for node in nodes)


def server_properties(
    node: NodeAddress, nodes: Sequence[NodeAddress], folder: Path, passwords: Passwords
) -> dict[str, str]:
    """`folder` is the node's, where it runs."""
    is_lone = len(nodes) == 1
    ports = {CLIENTS: node.port}
    if not is_lone:
        ports |= {NODES: node.port + 2, CONTROLLER: node.port + 1}
    properties = {
        "node.id": str(node.node_id),
        "process.roles": "broker,controller",
        "log.dirs": str(folder / "data"),
        "listeners": _listeners(node.bind_host, ports),
        "advertised.listeners": _listeners(
            node.host, {name: port for name, port in ports.items() if name != CONTROLLER}
        ),
        "listener.security.protocol.map": ",".join(f"{name}:SASL_SSL" for name in ports),
        "inter.broker.listener.name": CLIENTS if is_lone else NODES,
        "sasl.enabled.mechanisms": MECHANISM,
        "connections.max.reauth.ms": str(_REAUTHENTICATION_MS),
        DECOY_SECRET: passwords.decoy,
        "sasl.mechanism.inter.broker.protocol": MECHANISM,
        f"listener.name.{CLIENTS.lower()}.{MECHANISM.lower()}.sasl.jaas.config": _login(
            ADMIN, passwords.admin
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "node.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "authorizer.class.name": _AUTHORIZER,
        "super.users": f"User:{ADMIN}" if is_lone else f"User:{ADMIN};User:{NODE}",
    }
    if is_lone:
        return properties
    login = _login(NODE, passwords.node)
    replicas = min(3, len(nodes))
    return properties | {
        "controller.listener.names": CONTROLLER,
        "controller.quorum.voters": ",".join(
            f"{each.node_id}@{_in_url(each.host)}:{each.port + 1}" for each in nodes
        ),
        "sasl.mechanism.controller.protocol": MECHANISM,
        f"listener.name.{NODES.lower()}.{MECHANISM.lower()}.sasl.jaas.config": login,
        f"listener.name.{CONTROLLER.lower()}.{MECHANISM.lower()}.sasl.jaas.config": login,
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(replicas // 2 + 1),
    }


def client_properties(
    nodes: Sequence[NodeAddress], user: str, password: str, authority: Path
) -> dict[str, str]:
    """In the names of Kafka's Java client, which the commands of Tidemill read too."""
    return {
        "bootstrap.servers": bootstrap(nodes),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": MECHANISM,
        "sasl.jaas.config": _login(user, password),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
    }


def properties_text(properties: Mapping[str, str]) -> str:
    return "".join(f"{key}={value.replace(chr(92), chr(92) * 2)}\n" for key, value in properties.items())


def _login(user: str, password: str) -> str:
    """Passwords are made here from letters, digits, - and _, so none of them needs an escape."""
    return f'{_LOGIN_MODULE} required username="{user}" password="{password}";'


def _listeners(host: str, ports: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{_in_url(host)}:{port}" for name, port in ports.items())


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
