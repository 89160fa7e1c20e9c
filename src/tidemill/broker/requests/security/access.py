"""Authorises the peer of one request, and writes the audit log of the answers.

Every decision that refuses something leaves one line at INFO, every other one at DEBUG, in the logger `tidemill.authorizer`.
Names come from clients: what could end a line or pretend to be another one is escaped.
"""

from __future__ import annotations

import logging

from tidemill.broker.net.network import Peer
from tidemill.broker.requests.context import Broker
from tidemill.security.acls import CLUSTER, Operation, Resource, ResourceType
from tidemill.security.authorizer import Decision
from tidemill.types import TopicId

audit = logging.getLogger("tidemill.authorizer")

_SHOWN_MAX = 300


class Access:
    """Reads the broker's authorizer for each answer: ACLs may change while a request waits."""

    __slots__ = ("_broker", "host", "principal")

    def __init__(self, broker: Broker, peer: Peer) -> None:
        self._broker = broker
        self.principal = peer.principal
        self.host = peer.peer.rpartition(":")[0].strip("[]")

    def allows(self, operation: Operation, resource: Resource, *, quiet: bool = False) -> bool:
        """`quiet` is for lists from which a name is left out: a refusal is no event there."""
        authorizer = self._broker.authorizer
        if authorizer is None:
            return True
        decision = authorizer.authorize(self.principal, self.host, operation, resource)
        if not decision.allowed and not quiet:
            self._log(logging.INFO, decision, operation, resource)
        elif audit.isEnabledFor(logging.DEBUG):
            self._log(logging.DEBUG, decision, operation, resource)
        return decision.allowed

    def cluster(self, operation: Operation, *, quiet: bool = False) -> bool:
        return self.allows(operation, CLUSTER, quiet=quiet)

    def topic(self, operation: Operation, name: str, *, quiet: bool = False) -> bool:
        return self.allows(operation, Resource(ResourceType.TOPIC, name), quiet=quiet)

    def group(self, operation: Operation, name: str, *, quiet: bool = False) -> bool:
        return self.allows(operation, Resource(ResourceType.GROUP, name), quiet=quiet)

    def transactional_id(self, operation: Operation, name: str, *, quiet: bool = False) -> bool:
        return self.allows(operation, Resource(ResourceType.TRANSACTIONAL_ID, name), quiet=quiet)

    def any_topic(self, operation: Operation) -> bool:
        authorizer = self._broker.authorizer
        return authorizer is None or authorizer.authorize_by_resource_type(
            self.principal, self.host, operation, ResourceType.TOPIC
        )

    def wire_topic(self, operation: Operation, key: str | bytes) -> bool:
        """A topic by its name, or by its id; an unknown id is left to the handler, which says that it is unknown."""
        if isinstance(key, str):
            return self.topic(operation, key)
        known = self._broker.image.topics_by_id.get(TopicId(bytes(key)))
        return known is None or self.topic(operation, known.name)

    def operations(self, resource: Resource) -> int:
        """The bits that Metadata and the describing APIs show (KIP-430)."""
        authorizer = self._broker.authorizer
        assert authorizer is not None
        return authorizer.authorized_operations(self.principal, self.host, resource)

    def _log(self, level: int, decision: Decision, operation: Operation, resource: Resource) -> None:
        audit.log(
            level,
            "Principal = %s is %s operation = %s from host = %s on resource = %s by %s",
            shown(str(self.principal)),
            "Allowed" if decision.allowed else "Denied",
            operation.name,
            shown(self.host),
            shown(str(resource)),
            shown(decision.rule),
        )


def access_of(broker: Broker, peer: Peer) -> Access | None:
    """None without an authorizer: everything is allowed then."""
    return None if broker.authorizer is None else Access(broker, peer)


def shown(text: str) -> str:
    """A client's text in one line of a log, cut when it is long."""
    escaped = "".join(
        char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode()
        for char in text[: _SHOWN_MAX + 1]
    )
    return escaped if len(escaped) <= _SHOWN_MAX else escaped[:_SHOWN_MAX] + "…"
