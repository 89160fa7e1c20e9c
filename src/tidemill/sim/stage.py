"""The stage of one simulated world: a cluster, the processes of clients, the time, the trace, and what is wrong.

The clients of a workload act here (`crowds/`). `world.py` decides which of them do, and what else happens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tidemill.broker.net.link_security import LinkSecurity
from tidemill.coordinator.partitions import partition_for_group
from tidemill.internal_topics import OFFSETS_TOPIC
from tidemill.sim.checks.invariants import Invariants
from tidemill.sim.clients.base import Client, Record
from tidemill.sim.cluster import Cluster, Machine, Shape, host_of
from tidemill.sim.guarding import login_of, node_settings
from tidemill.sim.platform.loops import Scheduler, SimulatedLoop
from tidemill.sim.platform.network import Wires
from tidemill.sim.trace import Trace
from tidemill.types import BrokerId, TopicPartition

_VIOLATIONS_MAX = 20

_THREE = Shape()


@dataclass(frozen=True, slots=True)
class Plan:
    """The size, duration and fault rate of a world."""

    shape: Shape = _THREE
    duration_s: float = 600.0
    partitions: int = 2
    pause_s_max: float = 4.0
    mean_fault_interval_s: float = 12.0
    latency_s_max: float = 0.001
    has_faults: bool = True
    has_transactions: bool = True
    has_two_phase: bool = False
    has_delays: bool = False
    # Whether delayed records recur, replace each other, and count from their append.
    has_schedules: bool = False
    # Whether some of them are written in transactions, and whether retention removes segments before they are due.
    has_transactional_delays: bool = False
    has_expiring_delays: bool = False
    has_shares: bool = False
    # Whether a topic gets fewer partitions, and more again.
    has_shrinking: bool = False
    shrink_pause_s_max: float = 30.0
    # Whether nodes and clients log in, and ACLs and passwords change.
    has_authentication: bool = False
    transaction_pause_s_max: float = 8.0
    # The mean interval between faults of the transactional clients.
    mean_upset_interval_s: float = 20.0
    settings: dict[str, str] = field(default_factory=dict)


class Stage:
    """The cluster, network and clients of one seed."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        self.seed = seed
        self.plan = plan = plan or Plan()
        self.violations: list[str] = []
        self.scheduler = Scheduler(Random(f"{seed}/turns"))
        self.trace = Trace(lambda: self.scheduler.now_s)
        self.wires = Wires(self.scheduler, Random(f"{seed}/network"), self.trace.note)
        self.wires.weather.latency_s_max = plan.latency_s_max
        self.cluster = Cluster(
            self.scheduler, self.wires, self.trace, plan.shape, str(seed), self.accuse, self._on_exception
        )
        if plan.has_authentication:
            self.cluster.security = node_settings()
        self.record = Record(
            lambda: self.scheduler.now_s,
            self.accuse,
            coordinator_host=self._coordinator_host,
            leadership=self._leadership,
        )
        self._client_loops: dict[str, SimulatedLoop] = {}
        self._tasks: list[asyncio.Task[Any]] = []

    def build(self, settings: dict[str, str]) -> None:
        """Build the machines, and check their invariants from now on."""
        self.cluster.build(settings)
        self.invariants = Invariants(self.cluster, self.accuse)
        self.scheduler.after_turn = self.invariants.after_turn

    def dispose(self) -> None:
        self.cluster.dispose()
        for loop in self._client_loops.values():
            loop.dispose()

    # -- what is wrong ---------------------------------------------------------------------------------------

    def accuse(self, what: str) -> None:
        if len(self.violations) < _VIOLATIONS_MAX:
            self.violations.append(f"at {self.scheduler.now_s:.3f} s: {what}")
            self.trace.add("world", f"VIOLATION {what}")

    def _on_exception(self, loop: SimulatedLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.accuse(f"{loop.name}: {context.get('message')}: {described(error)}")

    # -- clients ---------------------------------------------------------------------------------------------

    def client(self, name: str, *, rng: Random | None = None, login: LinkSecurity | None = None) -> Client:
        """A client of the process of that name. In a world with authentication it is a super user, unless `rng` is given:
        then it has `login`, or none.
        """
        loop = self._client_loops.get(name)
        if loop is None:
            loop = self._client_loops[name] = self.scheduler.new_loop(name, self._on_exception)
        if rng is None:
            rng = Random(f"{self.seed}/{name}")
            login = login_of(Random(f"{self.seed}/{name}/login")) if self.plan.has_authentication else None
        network = self.wires.of(loop, name)
        return Client(name, loop, network, rng, self.cluster.bootstrap, self.record, login)

    def spawn(self, client: Client, coroutine: Coroutine[Any, Any, None]) -> None:
        client.loop.call_soon(lambda: self._tasks.append(client.loop.create_task(coroutine)))

    def client_loop(self, name: str) -> SimulatedLoop:
        return self._client_loops[name]

    def kill_client(self, name: str, *, is_silent: bool) -> None:
        loop = self._client_loops[name]
        loop.kill()
        self.wires.process_died(loop, is_silent=is_silent)

    def wait_for(self, condition: Callable[[], bool], limit_s: float, what: str) -> bool:
        self.scheduler.run_until(self.scheduler.now_s + limit_s, lambda: bool(self.violations) or condition())
        if not self.violations and not condition():
            self.accuse(f"not within {limit_s:g} s: {what}")
        return not self.violations

    # -- health ----------------------------------------------------------------------------------------------

    def is_healthy(self) -> bool:
        return self.health() == ""

    def health(self) -> str:
        """Returns why the cluster is not healthy; empty when every node is up and every replica in sync."""
        for machine in self.cluster.machines.values():
            node = machine.node
            if node is None or machine.process is None or machine.process.loop.is_paused:
                return f"{machine.host} is not up"
            if node._quorum.log.is_incomplete:
                return f"{machine.host} lacks metadata that it had"
        for machine in self.cluster.brokers():
            assert machine.node is not None
            image = machine.node.broker.image
            for broker_id in self.plan.shape.broker_ids:
                broker = image.brokers.get(BrokerId(broker_id))
                if broker is None or broker.is_fenced:
                    return f"{machine.host} believes that broker {broker_id} is fenced"
            for topic in image.topics_by_name.values():
                for index, partition in enumerate(topic.partitions):
                    if partition.leader < 0 or sorted(partition.isr) != sorted(partition.replicas):
                        return (
                            f"{topic.name}-{index} of {machine.host}: leader {partition.leader}, "
                            f"ISR {list(partition.isr)} of {list(partition.replicas)}"
                        )
        return ""

    def _coordinator_host(self, group: str) -> str | None:
        known = []
        for machine in self.cluster.brokers():
            topic = machine.node and machine.node.broker.image.topics_by_name.get(OFFSETS_TOPIC)
            if topic:
                known.append(topic.partitions[partition_for_group(group, len(topic.partitions))])
        newest = max(known, key=lambda partition: partition.leader_epoch, default=None)
        return None if newest is None or newest.leader < 0 else host_of(newest.leader)

    def _leadership(self, host: str, tp: TopicPartition) -> str:
        for machine in self.cluster.brokers():
            if machine.host == host and machine.node is not None:
                partition, _ = machine.node.broker.replicas.find((tp.topic, tp.partition))
                if partition is not None and partition.is_leader:
                    return f"{host}, process {machine.starts}, leader epoch {partition.leader_epoch}"
        return ""

    def may_be_killed(self, machine: Machine) -> bool:
        """Whether every node is up, and every partition has another ISR member, in every node's view."""
        for other in self.cluster.machines.values():
            if other.node is None:
                return False
            for topic in other.node.broker.image.topics_by_name.values():
                if any(set(partition.isr) <= {machine.id} for partition in topic.partitions):
                    return False
        return True


def described(error: object) -> str:
    if not isinstance(error, BaseException):
        return repr(error)
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return repr(error)
    code = traceback.tb_frame.f_code
    return f"{error!r} in {code.co_qualname} line {traceback.tb_lineno}"
