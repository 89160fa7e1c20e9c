"""Mistakes of authentication and authorisation, to be planted as those of `bugs.py`: each has to be found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace as replace_
from typing import Any

from tests.sim.planted.bugs import ROUGH, Bug, Replace
from tidemill.broker.node import Node
from tidemill.broker.quorum import driver
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.security.access import Access
from tidemill.broker.requests.security.sasl import SaslGate
from tidemill.protocol.api.metadata import AccessControlEntryRecord
from tidemill.security.acls import Operation
from tidemill.security.authorizer import Authorizer
from tidemill.security.sasl import AUTHENTICATE_KEY, HANDSHAKE_KEY
from tidemill.security.scram import ScramServer

GUARDED = replace_(ROUGH, has_authentication=True)


def rules_are_taken_once(replace: Replace) -> None:
    """A broker goes by the rules that it found when it started."""
    original = Broker._follow_acls

    def _follow_acls(self: Broker, image: Any) -> None:
        if self._acls is None:
            original(self, image)

    replace(Broker, "_follow_acls", _follow_acls)


def removed_rules_stay(replace: Replace) -> None:
    original = Authorizer.changed

    def changed(self: Authorizer, removed: Any, added: Any) -> Authorizer:
        return original(self, [], added)

    replace(Authorizer, "changed", changed)


def a_snapshot_loses_the_rules(replace: Replace) -> None:
    original = vars(driver)["image_records"]

    def image_records(image: Any) -> Iterator[Any]:
        return (each for each in original(image) if not isinstance(each, AccessControlEntryRecord))

    replace(driver, "image_records", image_records)


def the_gate_stands_open(replace: Replace) -> None:
    """What comes before a login is handled, too."""
    original = SaslGate.dispatch

    def dispatch(self: SaslGate, connection: Any, frame: memoryview) -> None:
        if int.from_bytes(frame[:2], signed=True) in (HANDSHAKE_KEY, AUTHENTICATE_KEY):
            original(self, connection, frame)
        else:
            self._behind(connection, frame)

    replace(SaslGate, "dispatch", dispatch)


def any_password_will_do(replace: Replace) -> None:
    replace(ScramServer, "_is_proven", lambda *_: True)


def passwords_never_change(replace: Replace) -> None:
    """A broker keeps what it has once read of a user."""
    original = Node._find_scram

    def _find_scram(self: Node, mechanism: Any, user: str) -> Any:
        kept = self.__dict__.setdefault("kept", {})
        if kept.get(user) is None:
            kept[user] = original(self, mechanism, user)
        return kept[user]

    replace(Node, "_find_scram", _find_scram)


def writers_are_not_checked(replace: Replace) -> None:
    """One operation of many is forgotten."""
    original = Access.allows

    def allows(self: Access, operation: Operation, *args: Any, **options: Any) -> bool:
        return operation is Operation.WRITE or original(self, operation, *args, **options)

    replace(Access, "allows", allows)


GUARD_BUGS: tuple[Bug, ...] = (
    Bug("rules are taken once", rules_are_taken_once, plan=GUARDED),
    Bug("removed rules stay", removed_rules_stay, plan=GUARDED),
    Bug("a snapshot loses the rules", a_snapshot_loses_the_rules, plan=GUARDED),
    Bug("the gate stands open", the_gate_stands_open, plan=GUARDED),
    Bug("any password will do", any_password_will_do, plan=GUARDED),
    Bug("passwords never change", passwords_never_change, found_in=1, plan=GUARDED),
    Bug("writers are not checked", writers_are_not_checked, plan=GUARDED),
)
