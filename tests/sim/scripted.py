"""A simulated cluster whose course of events is written down instead of drawn.

A test hands `play` a *course*: a function that gets the `Stage` once the cluster is up, its topics are made and its clients
are at work. The course breaks things at exact moments (`until`), waits for what must come (`wait`), and returns. Then
everything heals, the cluster has to become whole, everything is read to its end, and the checker and the invariants judge
the whole of it, as they do for the worlds of `World`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from tidemill.broker.quorum.quorum import Quorum
from tidemill.controller.image import MetadataImage, PartitionImage
from tidemill.protocol.schema import Request, Response
from tidemill.sim.checks.checker import Drained, Found
from tidemill.sim.checks.invariants import Invariants
from tidemill.sim.clients.admin import Admin
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.member import Member
from tidemill.sim.clients.producer import IdempotentProducer
from tidemill.sim.cluster import CONTROLLER_PORT, Machine, Shape, host_of
from tidemill.sim.platform.loops import SimulatedLoop
from tidemill.sim.stage import Plan
from tidemill.sim.world import SETTINGS, Outcome, World
from tidemill.types import TopicPartition

TOPIC = "orders"
ORDERS = TopicPartition(TOPIC, 0)
_LIMIT_S = 120.0
_PAUSE_S_MAX = 0.6
# Only the course changes anything.
_NEVER_S = 1e9

ResponseT = TypeVar("ResponseT", bound=Response)
Course = Callable[["Stage"], None]


class _Over(Exception):
    """Something is wrong: the rest of the course would only be noise."""


class Answer(Generic[ResponseT]):
    """The answer of a request that is under way."""

    def __init__(self) -> None:
        self.response: ResponseT | None = None
        self.is_done = False


class Stage(World):
    def __init__(self, seed: int, course: Course, plan: Plan, starts: tuple[int, ...]) -> None:
        super().__init__(seed, plan)
        self._course = course
        self._starts = starts
        # Nodes that are not part of the cluster, not yet or not any more.
        self.absent = {each for each in plan.shape.node_ids if each not in starts}
        # Violations that do not count, by a part of the text: the fault itself.
        self.expected: list[str] = []
        self._questions = 0
        self._groups: dict[str, list[Member]] = {}

    def accuse(self, what: str) -> None:
        if not any(text in what for text in self.expected):
            super().accuse(what)

    # -- the course of events --------------------------------------------------------------------------------

    def _run(self) -> None:
        plan = self.plan
        self._producers = []
        self.cluster.build({**SETTINGS, **plan.settings})
        if plan.has_delays:
            # A clock that is ahead delivers early, and here nothing notes by how much.
            for machine in self.cluster.machines.values():
                machine.clock.skew_ms = 0
        self.invariants = Invariants(self.cluster, self.accuse)
        self.scheduler.after_turn = self._look
        for node_id in self._starts:
            self.cluster.start(self.machine(node_id))
        client = self.client("admin")
        admin = Admin(client, self._note_admin, plan.shape.broker_ids, _NEVER_S)
        self.spawn(client, self._create_topics(admin))
        try:
            self.wait(lambda: self._has_topics, "the topics are made")
            self._start_clients(admin, client)
            self.wait(lambda: self.is_healthy() and self.acked > 0, "the cluster works")
            self._course(self)
            self.trace.add("world", "the course is over")
            self.heal()
            self.record.is_ending = True
            admin.is_done = True
            self._finish()
            self.agree()
        except _Over:
            return

    def _look(self, loop: SimulatedLoop) -> None:
        """The invariants read what a process wrote, also from a disk that fails for the process itself."""
        machine = next((each for each in self.cluster.machines.values() if each.host == loop.name), None)
        if machine is None or not machine.disk._faults:
            self.invariants.after_turn(loop)
            return
        faults, machine.disk._faults = machine.disk._faults, []
        try:
            self.invariants.after_turn(loop)
        finally:
            machine.disk._faults = faults

    def _finish(self) -> None:
        super()._finish()
        found = [event for event in self.record.history if isinstance(event, Found)]
        ends = {
            tp: max((event.offset + 1 for event in found if event.partition == tp), default=0)
            for tp in self.partitions
        }
        for group, members in self._groups.items():
            self.wait(lambda members=members: _is_at(members, ends), f"{group} reaches the end")  # type: ignore[misc]
            self.record.history.append(Drained(self.scheduler.now_s, group))

    def heal(self) -> None:
        """Everything that is broken and not gone for good."""
        self.cluster.wires.heal_all()
        for machine in self.machines():
            machine.disk.heal()
            if machine.process is not None:
                machine.process.loop.resume()
            self.cluster.start_if_down(machine)

    def let(self, duration_s: float) -> None:
        self.scheduler.run_until(self.scheduler.now_s + duration_s, lambda: bool(self.violations))
        if self.violations:
            raise _Over

    def wait(self, condition: Callable[[], bool], what: str, limit_s: float = _LIMIT_S) -> None:
        """Waits until a condition holds, with a generous limit. Checks it after every turn of every process."""
        if not self.wait_for(condition, limit_s, what):
            self.trace.add("world", self.health())
            raise _Over

    def require(self, condition: bool, what: str) -> None:
        if not condition:
            self.accuse(what)
            raise _Over

    def wait_healthy(self) -> None:
        self.wait(self.is_healthy, "all nodes are up and all replicas in sync")

    def wait_acks(self, count: int = 10) -> None:
        """Producers get on: writes are acknowledged that were sent from now on."""
        before = [producer.acked for producer in self._producers]
        self.wait(
            lambda: all(
                producer.acked >= acked + count
                for producer, acked in zip(self._producers, before, strict=True)
            ),
            "every partition takes writes",
        )

    # -- clients ---------------------------------------------------------------------------------------------

    def add_producer(self, tp: TopicPartition) -> None:
        client = self.client(f"producer-{len(self._producers)}")
        producer = IdempotentProducer(client, tp, self.plan.pause_s_max)
        self._producers.append(producer)
        self.spawn(client, producer.run())

    def add_member(self, group: str) -> None:
        members = self._groups.setdefault(group, [])
        client = self.client(f"{group}-{len(members)}")
        member = Member(client, group, [TOPIC])
        members.append(member)
        self.spawn(client, member.run())

    # -- knowing ---------------------------------------------------------------------------------------------

    @property
    def acked(self) -> int:
        return sum(producer.acked for producer in self._producers)

    def machine(self, node_id: int) -> Machine:
        return self.cluster.machines[node_id]

    def machines(self) -> list[Machine]:
        """Returns the machines of the nodes that belong to the cluster."""
        return [machine for machine in self.cluster.machines.values() if machine.id not in self.absent]

    def quorum_of(self, machine: Machine) -> Quorum | None:
        return machine.node._quorum if machine.node is not None else None

    def controller(self) -> Machine:
        found = self.controller_or_none()
        self.require(found is not None, "there is no active controller")
        assert found is not None
        return found

    def controller_or_none(self) -> Machine | None:
        """The active one of the latest epoch."""
        active = []
        for machine in self.machines():
            quorum = self.quorum_of(machine)
            if quorum is not None and quorum.is_active:
                active.append((quorum.epoch, machine.id))
        return self.machine(max(active)[1]) if active else None

    def image(self) -> MetadataImage:
        """Returns the image of the active controller's node."""
        node = self.controller().node
        assert node is not None
        return node.broker.image

    def partition(self, tp: TopicPartition = ORDERS) -> PartitionImage:
        return self.image().topics_by_name[tp.topic].partitions[tp.partition]

    def leader_of(self, tp: TopicPartition = ORDERS) -> Machine:
        return self.machine(self.partition(tp).leader)

    def followers_of(self, tp: TopicPartition = ORDERS) -> list[Machine]:
        partition = self.partition(tp)
        return [self.machine(each) for each in partition.replicas if each != partition.leader]

    def health(self) -> str:
        for machine in self.machines():
            process = machine.process
            if machine.node is None or process is None or process.loop.is_paused:
                return f"{machine.host} is not up"
        for machine in self.machines():
            node = machine.node
            if node is None or not machine.is_broker:
                continue
            image = node.broker.image
            for broker_id in self.plan.shape.broker_ids:
                broker = next((each for each in image.brokers.values() if each.id == broker_id), None)
                if (broker is not None and not broker.is_fenced) == (broker_id in self.absent):
                    return f"{machine.host} is wrong about broker {broker_id}: {broker}"
            for topic in image.topics_by_name.values():
                for index, partition in enumerate(topic.partitions):
                    if partition.leader < 0 or sorted(partition.isr) != sorted(partition.replicas):
                        return f"{topic.name}-{index} of {machine.host}: {partition}"
        return ""

    def agree(self) -> None:
        """All nodes know the same controller, the same voters and the same leaders."""
        self.wait(lambda: len(set(map(self._opinion, self.machines()))) == 1, "all nodes agree")

    def _opinion(self, machine: Machine) -> tuple[object, ...]:
        node, quorum = machine.node, self.quorum_of(machine)
        if node is None or quorum is None:
            return (machine.id,)
        partitions = tuple(
            (
                name,
                tuple((each.leader, each.leader_epoch, each.isr, each.replicas) for each in topic.partitions),
            )
            for name, topic in sorted(node.broker.image.topics_by_name.items())
        )
        return quorum.leader_id, quorum.epoch, tuple(quorum.voters.ids), partitions

    def perform(self, client: Client, what: Coroutine[Any, Any, None]) -> Answer[Response]:
        """Let a client do something, and things go on; `is_done` says when it has."""
        answer: Answer[Response] = Answer()

        async def run() -> None:
            await what
            answer.is_done = True

        self.spawn(client, run())
        return answer

    def finished(self, answer: Answer[Response], what: str) -> None:
        self.wait(lambda: answer.is_done, what)

    # -- doing -----------------------------------------------------------------------------------------------

    def begin(self, request: Request, response_type: type[ResponseT]) -> Answer[ResponseT]:
        """Ask some broker, as an administrator's tool does, and let things go on."""
        self._questions += 1
        client = self.client(f"tool-{self._questions}")
        answer: Answer[ResponseT] = Answer()
        self.spawn(client, _ask(client, request, response_type, answer))
        return answer

    def ask(self, request: Request, response_type: type[ResponseT]) -> ResponseT:
        answer = self.begin(request, response_type)
        self.wait(lambda: answer.is_done, f"{type(request).__name__} is answered")
        assert answer.response is not None
        return answer.response

    def pause(self, machine: Machine) -> None:
        assert machine.process is not None
        self.trace.add(machine.host, "pauses")
        machine.process.loop.pause()

    def resume(self, machine: Machine) -> None:
        assert machine.process is not None
        self.trace.add(machine.host, "goes on")
        machine.process.loop.resume()

    def part(self, *sides: list[Machine]) -> None:
        """No side reaches another. Clients reach everybody."""
        self.trace.add("world", f"parts into {[[machine.id for machine in side] for side in sides]}")
        for number, side in enumerate(sides):
            for other in sides[:number]:
                for one in side:
                    for two in other:
                        self.cluster.wires.cut(one.host, two.host)
                        self.cluster.wires.cut(two.host, one.host)


def _is_at(members: list[Member], ends: dict[TopicPartition, int]) -> bool:
    committed: dict[TopicPartition, int] = {}
    for member in members:
        committed.update(member.committed)
    return all(committed.get(tp) == end for tp, end in ends.items())


async def _ask(
    client: Client, request: Request, response_type: type[ResponseT], answer: Answer[ResponseT]
) -> None:
    answer.response = await client.ask_any(request, response_type)
    answer.is_done = True


def dynamic_quorum(shape: Shape, first: tuple[int, ...]) -> Mapping[str, str]:
    """Settings of a quorum that controllers can join and leave; `first` are those that form it."""
    servers = ",".join(f"{host_of(each)}:{CONTROLLER_PORT}" for each in first)
    return {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": servers}


def play(
    course: Course,
    seed: int = 1,
    *,
    shape: Shape | None = None,
    partitions: int = 2,
    settings: Mapping[str, str] | None = None,
    starts: tuple[int, ...] | None = None,
    pause_s_max: float = _PAUSE_S_MAX,
    has_transactions: bool = False,
    has_delays: bool = False,
) -> Outcome:
    """Play it, and fail with the trace when a promise is broken."""
    shape = shape or Shape()
    plan = Plan(
        shape=shape,
        partitions=partitions,
        pause_s_max=pause_s_max,
        has_faults=False,
        has_transactions=has_transactions,
        has_delays=has_delays,
        settings=dict(settings or {}),
    )
    outcome = Stage(seed, course, plan, starts or shape.node_ids).run()
    assert not outcome.violations, "\n".join([*outcome.last_lines, "", *outcome.violations])
    assert outcome.acked > 0
    return outcome
