"""The machines of a simulated cluster, and the events that can happen to them.

A machine has a disk, a clock and at most one process: a real `Node` on a simulated platform. A kill leaves the disk as
it was written; a power failure loses what was not synced. A node that stops by itself is restarted after a while, as
by a supervisor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from tidemill.broker.net.network import Address
from tidemill.broker.node import Node
from tidemill.config import BrokerConfig, load_broker_config
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.sim.platform.loops import OnException, Scheduler, SimulatedLoop
from tidemill.sim.platform.network import Wires
from tidemill.sim.platform.platform import DiskSpeed, WallClock, simulated_platform
from tidemill.sim.trace import Trace

BROKER_PORT = 9092
CONTROLLER_PORT = 9093
LISTENERS = BROKER_LISTENER, CONTROLLER_LISTENER = "BROKER", "CONTROLLER"
_CLOCK_RATE_ERROR_MAX = 0.0005
_SUPERVISOR_S = 3.0
_SKEW_MS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class Shape:
    """The nodes of a cluster and their roles."""

    combined: int = 3
    brokers: int = 0
    controllers: int = 0

    @property
    def broker_ids(self) -> tuple[int, ...]:
        return tuple(range(1, self.combined + self.brokers + 1))

    @property
    def controller_ids(self) -> tuple[int, ...]:
        dedicated = range(101, 101 + self.controllers)
        return tuple(range(1, self.combined + 1)) + tuple(dedicated)

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(sorted({*self.broker_ids, *self.controller_ids}))

    @property
    def replicas(self) -> int:
        return max(1, min(3, len(self.broker_ids)))

    @property
    def min_insync_replicas(self) -> int:
        return 2 if self.replicas >= 3 else 1

    def __str__(self) -> str:
        return f"{self.combined} combined, {self.brokers} brokers, {self.controllers} controllers"


@dataclass(slots=True, eq=False)
class Process:
    """One run of a node, from its start to its end."""

    loop: SimulatedLoop
    number: int
    node: Node | None = None
    is_up: bool = False
    is_asked_to_stop: bool = False


@dataclass(slots=True, eq=False)
class Machine:
    """One machine of the cluster."""

    id: int
    host: str
    config: BrokerConfig
    disk: SimulatedDisk
    clock: WallClock
    speed: DiskSpeed
    rng: Random
    process: Process | None = None
    starts: int = 0
    # How often its power has failed.
    boots: int = 0
    # Whether an injected fault explains that the node cannot start, or stops by itself.
    is_disk_faulty: bool = False

    @property
    def is_broker(self) -> bool:
        return self.config.is_broker

    @property
    def node(self) -> Node | None:
        """The running node; None while it is down or starting."""
        process = self.process
        return process.node if process is not None and process.is_up else None


@dataclass(slots=True)
class Cluster:
    """All machines of a world."""

    scheduler: Scheduler
    wires: Wires
    trace: Trace
    shape: Shape
    seed: str
    accuse: Callable[[str], None]
    on_exception: OnException
    # What secures the listeners of every node.
    security: Mapping[str, str] = field(default_factory=dict)
    machines: dict[int, Machine] = field(default_factory=dict)
    # The loops of ended processes, kept so that none of their objects is collected before the end.
    graveyard: list[SimulatedLoop] = field(default_factory=list)

    def build(self, extra: Mapping[str, str]) -> None:
        for node_id in self.shape.node_ids:
            rng = Random(f"{self.seed}/node {node_id}")
            config, _ = load_broker_config({**self._properties(node_id), **extra})
            self.machines[node_id] = Machine(
                node_id,
                host_of(node_id),
                config,
                SimulatedDisk(),
                WallClock(self.scheduler, rng.randint(-_SKEW_MS_MAX, _SKEW_MS_MAX)),
                DiskSpeed(),
                rng,
            )

    def _properties(self, node_id: int) -> dict[str, str]:
        shape, host = self.shape, host_of(node_id)
        is_broker, is_controller = node_id in shape.broker_ids, node_id in shape.controller_ids
        listeners = []
        if is_broker:
            listeners.append(f"{BROKER_LISTENER}://{host}:{BROKER_PORT}")
        if is_controller:
            listeners.append(f"{CONTROLLER_LISTENER}://{host}:{CONTROLLER_PORT}")
        roles = ("broker",) * is_broker + ("controller",) * is_controller
        voters = ",".join(f"{each}@{host_of(each)}:{CONTROLLER_PORT}" for each in shape.controller_ids)
        return {
            "node.id": str(node_id),
            "process.roles": ",".join(roles),
            "listeners": ",".join(listeners),
            "controller.listener.names": CONTROLLER_LISTENER,
            "listener.security.protocol.map": ",".join(f"{each}:PLAINTEXT" for each in LISTENERS),
            "inter.broker.listener.name": BROKER_LISTENER,
            "controller.quorum.voters": voters,
            "broker.rack": f"rack-{node_id % 3}",
            "log.dirs": "/data",
            "default.replication.factor": str(shape.replicas),
            "min.insync.replicas": str(shape.min_insync_replicas),
            "offsets.topic.replication.factor": str(shape.replicas),
            "transaction.state.log.replication.factor": str(shape.replicas),
            "transaction.state.log.min.isr": str(shape.min_insync_replicas),
            **self.security,
        }

    @property
    def bootstrap(self) -> list[Address]:
        return [Address(host_of(each), BROKER_PORT) for each in self.shape.broker_ids]

    def brokers(self) -> Sequence[Machine]:
        return [machine for machine in self.machines.values() if machine.is_broker]

    # -- processes -------------------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        assert machine.process is None
        machine.starts += 1
        rng = machine.rng
        loop = self.scheduler.new_loop(
            machine.host,
            self.on_exception,
            started_s=rng.uniform(0, 1000),
            rate=1 + rng.uniform(-_CLOCK_RATE_ERROR_MAX, _CLOCK_RATE_ERROR_MAX),
        )
        process = machine.process = Process(loop, machine.starts)
        self.wires.regain_power(machine.host)
        self.trace.add(machine.host, "starts")
        loop.call_soon(lambda: loop.create_task(self._live(machine, process)))

    async def _live(self, machine: Machine, process: Process) -> None:
        platform = simulated_platform(
            self.scheduler,
            self.wires,
            process.loop,
            machine.host,
            machine.disk,
            machine.clock,
            machine.speed,
            Random(machine.rng.getrandbits(64)),
            machine.starts,
            machine.boots,
        )
        node = process.node = Node(machine.config, platform)
        try:
            await node.start()
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not machine.is_disk_faulty:
                self.accuse(f"{machine.host} cannot start: {error!r}")
            self._exited(machine, process, f"could not start: {error!r}")
            return
        process.is_up = True
        self.trace.add(machine.host, "is up")
        await node.wait_until_stopped()
        process.is_up = False
        await node.stop()
        self._exited(machine, process, node.failure or "stopped")

    def _exited(self, machine: Machine, process: Process, how: str) -> None:
        self.trace.add(machine.host, f"exited: {how}")
        self._bury(machine, process, is_silent=False)
        machine.disk = machine.disk.kill()
        if not process.is_asked_to_stop:
            self.scheduler.after(_SUPERVISOR_S, lambda: self.start_if_down(machine))

    def start_if_down(self, machine: Machine) -> None:
        if machine.process is None:
            self.start(machine)

    def _bury(self, machine: Machine, process: Process, *, is_silent: bool) -> None:
        process.loop.kill()
        process.is_up = False
        self.graveyard.append(process.loop)
        self.wires.process_died(process.loop, is_silent=is_silent)
        machine.process = None

    # -- what happens to them --------------------------------------------------------------------------------

    def kill(self, machine: Machine) -> None:
        """Kill the process with SIGKILL: what was written stays."""
        if machine.process is not None:
            self.trace.add(machine.host, "is killed")
            self._bury(machine, machine.process, is_silent=False)
            machine.disk = machine.disk.kill()

    def cut_power(self, machine: Machine) -> None:
        """Cut the power: what was not synced is lost, torn, or kept."""
        if machine.process is not None:
            self.trace.add(machine.host, "loses power")
            machine.boots += 1
            self._bury(machine, machine.process, is_silent=True)
            self.wires.lose_power(machine.host)
            machine.disk = machine.disk.crash(machine.rng)

    def stop(self, machine: Machine) -> None:
        """Stop the process with SIGTERM; the caller restarts it."""
        process = machine.process
        if process is not None and process.node is not None and process.is_up:
            self.trace.add(machine.host, "is asked to stop")
            process.is_asked_to_stop = True
            process.loop.call_soon(process.node.request_stop)

    def dispose(self) -> None:
        for machine in self.machines.values():
            if machine.process is not None:
                machine.process.loop.kill()
                self.graveyard.append(machine.process.loop)
                machine.process = None
            machine.disk.kill()
        for loop in self.graveyard:
            loop.dispose()


def host_of(node_id: int) -> str:
    return f"node{node_id}"
