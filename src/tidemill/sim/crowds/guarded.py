"""The workload of a world with authentication: one vault, its warden, and visitors with and without rights.

Users come in generations. A guest gets a password, is allowed in, and gets another password. It is shut out by a rule
or by the removal of its rule, and the next guest follows. Rules of a generation are created once and never come back,
so a request that arrives late and again changes nothing that was acknowledged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from tidemill.broker.net.link_security import LinkSecurity
from tidemill.security.acls import Permission
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.visitors import Guest, Stranger, Visitor, Warden, rule
from tidemill.sim.guarding import NODE, VAULT, Acknowledged, Burglar, Guards, login_of
from tidemill.sim.platform.loops import SimulatedLoop
from tidemill.sim.stage import Stage

AfterTurn = Callable[[SimulatedLoop], None]

GUARDED_TOPICS = {VAULT: 1}
_END_LIMIT_S = 300.0
_STAGE_S_MAX = 12.0
_NOBODY, _IMPOSTOR = "mallory", "impostor"


class GuardedCrowd:
    """The clients around the vault."""

    def __init__(self, stage: Stage, rng: Random) -> None:
        self._stage = stage
        self._rng = rng
        self.guards = Guards(stage.cluster, stage.accuse)
        # What the next client of the guest logs in with, and what the one at work does.
        self._guest = self._worn = ("guest-0", "not yet")
        self._visitors: list[Visitor] = []
        self._made = 0
        self._is_warden_done = False
        self._generations = 0

    def start(self, *, has_upsets: bool) -> None:
        del has_upsets
        stage, guards = self._stage, self.guards
        stage.scheduler.after_turn = _both(stage.invariants.after_turn, guards.after_turn)
        guards.users.append(_NOBODY)
        client = stage.client("warden")
        stage.spawn(client, self._rule(client))
        place = (guards, stage.cluster.bootstrap, self._topic_id)
        visitors = {
            "stranger": Stranger(lambda: self._dressed("stranger"), *place),
            _IMPOSTOR: Stranger(lambda: self._dressed(_IMPOSTOR, NODE, "a guess"), *place),
            _NOBODY: Visitor(lambda: self._dressed(_NOBODY, _NOBODY, "pass"), *place),
            "guest": Guest(lambda: self._dressed("guest", *self._guest), *place, lambda: self._worn),
        }
        for name, visitor in visitors.items():
            self._visitors.append(visitor)
            stage.spawn(stage.client(name), visitor.run())

    def _dressed(self, name: str, user: str = "", password: str = "") -> Client:
        """A new client with such a login, in the process of its visitor."""
        self._made += 1
        rng = Random(f"{self._stage.seed}/{name}/{self._made}")
        if name == "guest":
            self._worn = (user, password)
        kind = Burglar if name == _IMPOSTOR else LinkSecurity
        login = login_of(rng, user, password, kind) if user else None
        return self._stage.client(name, rng=rng, login=login)

    def _topic_id(self) -> bytes:
        for machine in self._stage.cluster.brokers():
            topic = machine.node and machine.node.broker.image.topics_by_name.get(VAULT)
            if topic:
                return bytes(topic.id)
        return bytes(16)

    async def _rule(self, client: Client) -> None:
        warden, rng = Warden(client), self._rng
        await warden.set_password(_NOBODY, "pass")
        while not client.record.is_ending:
            self._generations += 1
            user = f"guest-{self._generations}"
            self.guards.users.append(user)
            await self._set_password(warden, user, "first")
            await self._create(warden, user, Permission.ALLOW)
            await asyncio.sleep(rng.uniform(1, _STAGE_S_MAX))
            await self._set_password(warden, user, "second")
            await asyncio.sleep(rng.uniform(1, _STAGE_S_MAX))
            if rng.random() < 0.5:
                await self._create(warden, user, Permission.DENY)
            else:
                allowed = rule(user, Permission.ALLOW)
                acknowledged = self.guards.acknowledged
                acknowledged[:] = [each for each in acknowledged if each.binding != allowed]
                await warden.delete(allowed)
                self._stage.trace.add("warden", f"has removed the rule of {user}")
            await asyncio.sleep(rng.uniform(1, _STAGE_S_MAX))
        self._is_warden_done = True

    async def _set_password(self, warden: Warden, user: str, password: str) -> None:
        await warden.set_password(user, password)
        self._guest = (user, password)
        self._stage.trace.add("warden", f"has set the password {password} of {user}")

    async def _create(self, warden: Warden, user: str, permission: Permission) -> None:
        binding = rule(user, permission)
        await warden.create(binding)
        end = self._stage.invariants.committed_metadata_end()
        self.guards.acknowledged.append(Acknowledged(binding, end))
        self._stage.trace.add("warden", f"has made it so: {binding}")

    def finish(self) -> bool:
        """Finish the workload. Returns whether it ended well."""
        stage = self._stage
        if not stage.wait_for(lambda: self._is_warden_done, _END_LIMIT_S, "the warden is done"):
            return False
        if not stage.wait_for(
            lambda: all(each.is_done for each in self._visitors), _END_LIMIT_S, "visitors leave"
        ):
            return False
        return stage.wait_for(self._is_known_everywhere, _END_LIMIT_S, "every broker goes by the last rules")

    def _is_known_everywhere(self) -> bool:
        ends = [each.metadata_end for each in self.guards.acknowledged]
        for machine in self._stage.cluster.brokers():
            if machine.node is None or machine.node.broker.image.end_offset < max(ends, default=0):
                return False
        return True


def _both(first: AfterTurn, second: AfterTurn) -> AfterTurn:
    def after_turn(loop: SimulatedLoop) -> None:
        first(loop)
        second(loop)

    return after_turn
