"""A world with authentication: the settings of its nodes, the logins of its clients, and what each broker lets pass.

Every listener has SASL with SCRAM, between nodes, too, and every node has the authorizer. Sessions are short, so that they
are renewed all the time (KIP-368). Nodes and the clients of the other workloads are one super user.

`Guards` looks at the brokers from outside. After each turn it compares a broker's authorizer with a twin that scans the
ACLs of the broker's own metadata, and with what was acknowledged to an administrator.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tidemill.broker.net.link_security import Exchange, LinkSecurity, LoginFailed
from tidemill.broker.node import Node
from tidemill.config import Login
from tidemill.security import scram
from tidemill.security.acls import AclBinding, Operation, Permission, Resource, ResourceType
from tidemill.security.principals import Principal
from tidemill.security.scram import ScramMechanism
from tidemill.sim.cluster import LISTENERS, Cluster, Machine
from tidemill.sim.platform.loops import SimulatedLoop
from tidemill.tls.settings import Password

NODE, NODE_PASSWORD = "node", "nodes-secret"
VAULT = "vault"
ITERATIONS = scram.ITERATIONS_MIN
_MECHANISM = ScramMechanism.SHA_256
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"

# The arithmetic is pure and costs milliseconds; a world has few passwords and logs in thousands of times.
salted_password = functools.lru_cache(maxsize=256)(scram.salted_password)


def node_settings() -> dict[str, str]:
    login = f'{_MODULE} required username="{NODE}" password="{NODE_PASSWORD}";'
    name = _MECHANISM.mechanism_name
    return {
        "listener.security.protocol.map": ",".join(f"{each}:SASL_PLAINTEXT" for each in LISTENERS),
        "sasl.enabled.mechanisms": name,
        "sasl.mechanism.inter.broker.protocol": name,
        "sasl.mechanism.controller.protocol": name,
        **{f"listener.name.{each.lower()}.{name.lower()}.sasl.jaas.config": login for each in LISTENERS},
        "connections.max.reauth.ms": "30000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": f"User:{NODE}",
    }


def login_of(
    rng: Random,
    user: str = NODE,
    password: str = NODE_PASSWORD,
    kind: type[LinkSecurity] = LinkSecurity,
) -> LinkSecurity:
    """Returns the login of a simulated client. Its arithmetic takes no simulated time."""

    async def run_now(function: Callable[[], Any]) -> Any:
        return function()

    login = Login(_MECHANISM.mechanism_name, user, Password(password))
    return kind(run_now, lambda: f"{rng.getrandbits(96):024x}", login=login)


class Burglar(LinkSecurity):
    """Goes on after any login: a server that lets it in has not shown that it knows the password, and need not."""

    async def authenticate(self, exchange: Exchange) -> float | None:
        with contextlib.suppress(LoginFailed):
            return await super().authenticate(exchange)
        return None


def credential_of(rng: Random, password: str) -> tuple[bytes, bytes]:
    """A salt and the salted password, as an administrator's client makes them (KIP-554)."""
    salt = rng.randbytes(16)
    return salt, salted_password(_MECHANISM, password, salt, ITERATIONS)


def is_allowed(acls: list[AclBinding], user: str) -> bool:
    """Whether rules about everything in the vault allow it, by looking at each of them."""
    own = [each for each in acls if each.principal == f"User:{user}" and each.resource_name == VAULT]
    if any(each.permission == Permission.DENY for each in own):
        return False
    return any(each.permission == Permission.ALLOW for each in own)


def takes_password(node: Node, user: str, password: str) -> bool:
    known = node.broker.image.security.scram_credential(_MECHANISM, user)
    if known is None:
        return False
    salted = salted_password(_MECHANISM, password, known.salt, known.iterations)
    return scram.credential(_MECHANISM, salted, known.salt, known.iterations).stored_key == known.stored_key


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A rule whose creation was acknowledged when the metadata up to `metadata_end` was committed."""

    binding: AclBinding
    metadata_end: int


@dataclass(frozen=True, slots=True)
class Sight:
    """One state of a broker's rules and credentials. As long as it is the same, so are the answers."""

    process: int
    # Identities: a part of the image that changed is another object.
    acls: object
    credentials: object

    def is_still(self, other: Sight | None) -> bool:
        return (
            other is not None
            and self.process == other.process
            and self.acls is other.acls
            and self.credentials is other.credentials
        )


class Guards:
    """Watches what the brokers of a world let pass."""

    def __init__(self, cluster: Cluster, accuse: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._accuse = accuse
        self._machines = {machine.host: machine for machine in cluster.brokers()}
        self._checked: dict[str, tuple[int, object, object, int, bool]] = {}
        self.acknowledged: list[Acknowledged] = []
        # The users whose rights are compared.
        self.users: list[str] = []

    def after_turn(self, loop: SimulatedLoop) -> None:
        machine = self._machines.get(loop.name)
        node = machine.node if machine is not None else None
        if machine is None or node is None or machine.process is None or machine.process.loop is not loop:
            return
        broker = node.broker
        end = broker.image.end_offset
        is_behind = any(end < each.metadata_end for each in self.acknowledged)
        acls = broker.image.security.acls
        state = (machine.process.number, broker.authorizer, acls, len(self.acknowledged), is_behind)
        if self._checked.get(loop.name) == state:
            return
        self._checked[loop.name] = state
        self._authorizer_follows_the_metadata(machine, node)
        self._acknowledged_rules_are_in_force(machine, node)

    def sight(self, host: str) -> Sight | None:
        """Returns the ACLs and credentials that a broker applies now; None while it is down."""
        machine = self._machines[host]
        node = machine.node
        if node is None or machine.process is None:
            return None
        security = node.broker.image.security
        return Sight(machine.process.number, security.acls, security.scram_credentials)

    def node(self, host: str) -> Node | None:
        return self._machines[host].node

    def may_read(self, host: str, user: str) -> bool:
        node = self._machines[host].node
        return node is not None and is_allowed(list(node.broker.image.security.acls.values()), user)

    def _authorizer_follows_the_metadata(self, machine: Machine, node: Node) -> None:
        acls = list(node.broker.image.security.acls.values())
        authorizer = node.broker.authorizer
        assert authorizer is not None
        for user in self.users:
            decision = authorizer.authorize(
                Principal.user(user), "anywhere", Operation.READ, Resource(ResourceType.TOPIC, VAULT)
            )
            if decision.allowed != is_allowed(acls, user):
                self._accuse(
                    f"{machine.host} decides {decision.allowed} for {user}, and its metadata say {not decision.allowed}"
                )

    def _acknowledged_rules_are_in_force(self, machine: Machine, node: Node) -> None:
        image = node.broker.image
        rules = set(image.security.acls.values())
        for each in self.acknowledged:
            if image.end_offset >= each.metadata_end and each.binding not in rules:
                self._accuse(
                    f"{machine.host} has the metadata up to {image.end_offset} without a rule that was acknowledged at "
                    f"{each.metadata_end}: {each.binding}"
                )
