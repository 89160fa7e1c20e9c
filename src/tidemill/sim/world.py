"""One simulated world from a seed: a cluster, its clients, its faults, and the verdict.

`World(seed).run()` starts every node on an empty disk and creates topics. Producers, consumers, a group and an
administrator work while `faults.py` injects faults. Then everything heals, and the final state is checked: all
replicas in sync, all clients done, every log readable to its end. `checker.py` checks the history, and `invariants.py`
checks while it runs. The same seed gives the same trace, byte for byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import sys
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from random import Random
from types import ModuleType
from typing import Any

from tidemill.broker.coordinators import markers
from tidemill.broker.disk import long_work
from tidemill.broker.partitions import delivery
from tidemill.broker.partitions.shrinking import passing_on
from tidemill.broker.quorum import driver
from tidemill.broker.requests.security import sasl as gate
from tidemill.security import scram
from tidemill.sim.checks.checker import Died, Drained, MemberName, check
from tidemill.sim.checks.decisions import check_decisions
from tidemill.sim.checks.delays import check_delays
from tidemill.sim.checks.keyed import check_keyed
from tidemill.sim.checks.shares import check_shares
from tidemill.sim.checks.transactions import Ended, check_transactions
from tidemill.sim.clients.admin import Admin
from tidemill.sim.clients.base import Client
from tidemill.sim.clients.consumer import Auditor, Reader, ViewReader
from tidemill.sim.clients.member import Member
from tidemill.sim.clients.producer import CarelessProducer, IdempotentProducer
from tidemill.sim.cluster import Shape
from tidemill.sim.crowds.delays import DELAY_TOPICS, DelayedCrowd, delay_configs, delay_settings
from tidemill.sim.crowds.guarded import GUARDED_TOPICS, GuardedCrowd
from tidemill.sim.crowds.shares import (
    SHARE_CONFIGS,
    SHARE_GROUP,
    SHARE_GROUP_CONFIGS,
    SHARE_SETTINGS,
    SHARE_TOPICS,
    ShareCrowd,
)
from tidemill.sim.crowds.shrinking import SHRINKING_CONFIGS, SHRINKING_TOPICS, ShrinkingCrowd
from tidemill.sim.crowds.transactional import (
    TRANSACTION_SETTINGS,
    TRANSACTION_TOPICS,
    TransactionalCrowd,
)
from tidemill.sim.crowds.two_phase import TWO_PHASE_CONFIGS, TWO_PHASE_TOPICS, TwoPhaseCrowd
from tidemill.sim.faults import Faults
from tidemill.sim.guarding import salted_password
from tidemill.sim.platform.disk import Stopped
from tidemill.sim.platform.loops import Livelock, SimulatedLoop
from tidemill.sim.stage import Plan, Stage, described
from tidemill.types import TopicPartition

_TOPIC = "orders"
_LOOSE_TOPIC = "loose"
_VIEW = "orders-view"
# Segments are sealed every few seconds, so that views read most records through a tag index.
_CONFIGS = {_TOPIC: {"segment.ms": "4000"}}
_VIEW_FILTER = "key = 'shown'"
_GROUP = "billing"
_START_LIMIT_S = 120.0
_END_LIMIT_S = 300.0
_MEMBER_LIFE_S = 120.0
# Snapshots, repeated markers, long work that takes time, and producers that wait for the replay of delayed records. Salted
# passwords are computed once.
_HURRIED: tuple[tuple[ModuleType, str, object], ...] = (
    (delivery, "_SNAPSHOT_EVERY_BYTES", 3_000),
    (delivery, "_LAST_SNAPSHOT_BYTES", 3_000),
    (long_work, "_PAUSE_S", 0.002),
    (delivery, "_BEHIND_MAX", 1),
    (delivery, "_REPLAYED_A_ROUND", 20),
    (passing_on, "_QUIET_AWAITED_MS", 10_000),
    (driver, "_SNAPSHOT_AFTER_RECORDS", 60),
    (markers, "_TIMEOUT_S", 2.0),
    (scram, "salted_password", salted_password),
    (gate, "salted_password", salted_password),
)

# Small files and short timeouts, so that much happens in ten minutes. No setting weakens a guarantee.
SETTINGS = {
    "offsets.topic.num.partitions": "2",
    "auto.create.topics.enable": "false",
    "log.roll.ms": "60000",
    "log.index.size.max.bytes": "4096",
    "log.retention.ms": "-1",
    "log.cleaner.dedupe.buffer.size": "1048576",
    "group.initial.rebalance.delay.ms": "500",
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "1500",
    "replica.lag.time.max.ms": "6000",
    "replica.fetch.wait.max.ms": "1000",
    "replica.fetch.max.bytes": "4096",
    "leader.imbalance.check.interval.seconds": "60",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    **TRANSACTION_SETTINGS,
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a world."""

    seed: int
    digest: str
    violations: list[str]
    last_lines: list[str]
    acked: int
    callbacks: int
    ended_s: float
    trace_lines: int
    # The number of transactions that are known to be committed.
    committed: int

    @classmethod
    def of_failure(cls, seed: int, reason: str) -> Outcome:
        """The outcome of a world that failed to run."""
        return cls(seed, "", [reason], [], 0, 0, 0.0, 0, 0)


class World(Stage):
    """A stage, the clients and faults on it, and the verdict."""

    def __init__(self, seed: int, plan: Plan | None = None) -> None:
        super().__init__(seed, plan)
        self._rng = Random(f"{seed}/world")
        self._members_made = 0
        self._has_topics = False
        self._delays = DelayedCrowd(self)
        self._faults: Faults | None = None
        self._crowds: list[
            TransactionalCrowd | TwoPhaseCrowd | GuardedCrowd | ShareCrowd | ShrinkingCrowd
        ] = []
        self._shrinking = ShrinkingCrowd(self, Random(f"{seed}/shrinking"))
        self._shares = ShareCrowd(self, Random(f"{seed}/shares"))

    # -- the course of events --------------------------------------------------------------------------------

    def run(self) -> Outcome:
        with _LogCapture(self), _clean_ups_watched(self.accuse), _hurry():
            thresholds = gc.get_threshold()
            gc.set_threshold(100_000, 50, 50)
            try:
                self._run()
            except Livelock as error:
                self.accuse(f"livelock: {error}")
            finally:
                gc.set_threshold(*thresholds)
            # A failed task without a reader reports its error when it is collected.
            self._tasks.clear()
            gc.collect()
            history_end_s = self.scheduler.now_s
            if not self.violations:
                # A truncated history shows too little: a member may not know yet what it lost.
                transactions = self.record.transactions
                for violation in (
                    *check(self.record.history),
                    *check_transactions(transactions),
                    *check_decisions(transactions),
                    *check_delays(self._delays.events, self._ahead_ms_max, transactions),
                    *check_shares(self._shares.events),
                    *check_keyed(self._shrinking.history),
                ):
                    self.accuse(str(violation))
            outcome = Outcome(
                self.seed,
                self.trace.digest,
                self.violations,
                self.trace.last(),
                sum(producer.acked for producer in self._producers),
                self.scheduler.callbacks,
                history_end_s,
                self.trace.lines,
                sum(isinstance(event, Ended) and event.is_commit for event in self.record.transactions),
            )
            self.dispose()
        return outcome

    def _run(self) -> None:
        plan, scheduler = self.plan, self.scheduler
        self._producers: list[IdempotentProducer] = []
        shared = SHARE_SETTINGS if plan.has_shares else {}
        self.build({**SETTINGS, **shared, **delay_settings(plan), **_safety(plan.shape), **plan.settings})
        for machine in self.cluster.machines.values():
            scheduler.after(self._rng.random(), lambda machine=machine: self.cluster.start_if_down(machine))  # type: ignore[misc]
        admin_client = self.client("admin")
        admin = Admin(admin_client, self._note_admin, plan.shape.broker_ids, 30.0)
        self.spawn(admin_client, self._create_topics(admin))
        if not self.wait_for(lambda: self._has_topics, _START_LIMIT_S, "the topics are made"):
            return
        self._start_clients(admin, admin_client)
        faults = self._faults = Faults(
            self.cluster,
            Random(f"{self.seed}/faults"),
            self.is_healthy,
            self.may_be_killed,
            list(self._client_loops),
            mean_interval_s=plan.mean_fault_interval_s,
        )
        if plan.has_faults:
            faults.begin()
            scheduler.after(self._rng.expovariate(1 / _MEMBER_LIFE_S), self._replace_member)
        scheduler.run_until(plan.duration_s, lambda: bool(self.violations))
        if self.violations:
            return
        faults.end()
        self.record.is_ending = True
        self._finish()

    def _create_topics(self, admin: Admin) -> Coroutine[Any, Any, None]:
        plan = self.plan
        topics = {_TOPIC: plan.partitions, _LOOSE_TOPIC: 1, **(DELAY_TOPICS if plan.has_delays else {})}
        if plan.has_transactions:
            topics |= TRANSACTION_TOPICS
        if plan.has_two_phase:
            topics |= TWO_PHASE_TOPICS
        if plan.has_authentication:
            topics |= GUARDED_TOPICS
        if plan.has_shares:
            topics |= SHARE_TOPICS
        if plan.has_shrinking:
            topics |= SHRINKING_TOPICS
        return self._create(admin, topics)

    async def _create(self, admin: Admin, topics: dict[str, int]) -> None:
        await admin.create(
            topics,
            self.plan.shape.replicas,
            {
                **_CONFIGS,
                **TWO_PHASE_CONFIGS,
                **SHARE_CONFIGS,
                **delay_configs(self.plan),
                **SHRINKING_CONFIGS,
            },
        )
        await admin.create_view(_VIEW, _TOPIC, _VIEW_FILTER)
        if self.plan.has_shares:
            await admin.configure_group(SHARE_GROUP, SHARE_GROUP_CONFIGS)
        self._has_topics = True

    @property
    def _ahead_ms_max(self) -> int:
        """How far ahead the fastest clock of a broker ever was."""
        return self._faults.ahead_ms_max if self._faults else 0

    def _note_admin(self, what: str) -> None:
        self.trace.add("admin", what)

    def _start_clients(self, admin: Admin, admin_client: Client) -> None:
        plan = self.plan
        tps = self.partitions = [TopicPartition(_TOPIC, index) for index in range(plan.partitions)]
        loose = TopicPartition(_LOOSE_TOPIC, 0)
        for number, tp in enumerate(tps):
            client = self.client(f"producer-{number}")
            producer = IdempotentProducer(client, tp, plan.pause_s_max)
            self._producers.append(producer)
            self.spawn(client, producer.run())
        client = self.client("careless")
        self._careless = CarelessProducer(client, loose, plan.pause_s_max)
        self.spawn(client, self._careless.run())
        self._readers: list[Reader | ViewReader] = []
        for name, rack in (("reader", ""), ("near-reader", "rack-1")):
            client = self.client(name)
            self._add_reader(client, Reader(client, [*tps, loose], rack))
        for name, rack in (("view-reader", ""), ("near-view-reader", "rack-1")):
            client = self.client(name)
            self._add_reader(client, ViewReader(client, _VIEW, tps, rack))
        self._members: dict[str, Member] = {}
        for _ in range(2):
            self._add_member()
        # Crowds finish in this order. A two-phase transaction does not time out, so the crowd that ends such
        # transactions is first: every crowd waits until no partition has an open one.
        if plan.has_two_phase:
            self._crowds.append(TwoPhaseCrowd(self, Random(f"{self.seed}/two-phase")))
        if plan.has_transactions:
            self._crowds.append(TransactionalCrowd(self, Random(f"{self.seed}/transactions")))
        if plan.has_authentication:
            self._crowds.append(GuardedCrowd(self, Random(f"{self.seed}/guarded")))
        if plan.has_shares:
            self._crowds.append(self._shares)
        if plan.has_shrinking:
            self._crowds.append(self._shrinking)
        for crowd in self._crowds:
            crowd.start(has_upsets=plan.has_faults)
        if plan.has_delays:
            self._delays.start()
        self._admin = admin
        self.spawn(admin_client, admin.run())

    def _add_reader(self, client: Client, reader: Reader | ViewReader) -> None:
        self._readers.append(reader)
        self.spawn(client, reader.run())

    def _add_member(self) -> None:
        client = self.client(f"member-{self._members_made}")
        self._members_made += 1
        member = self._members[client.name] = Member(client, _GROUP, [_TOPIC])
        self.spawn(client, member.run())

    def _replace_member(self) -> None:
        """Kill a member and start another."""
        if self.record.is_ending:
            return
        name = self._rng.choice(list(self._members))
        self.trace.add(name, "is killed")
        del self._members[name]
        self.kill_client(name, is_silent=self._rng.random() < 0.5)
        self.record.history.append(Died(self.scheduler.now_s, MemberName(_GROUP, name)))
        self._add_member()
        self.scheduler.after(self._rng.expovariate(1 / _MEMBER_LIFE_S), self._replace_member)

    def _finish(self) -> None:
        """Finish all workloads; without faults they must end soon."""
        if not self.wait_for(self.is_healthy, _END_LIMIT_S, "all nodes are up and all replicas in sync"):
            self.accuse(self.health())
            return
        if not self.wait_for(self._is_written, _END_LIMIT_S, "writers are done"):
            return
        if not all(crowd.finish() for crowd in self._crowds):
            return
        if self.plan.has_delays and not self._delays.finish(self._ahead_ms_max):
            return
        client = self.client("auditor")
        auditor = Auditor(client, [*self.partitions, TopicPartition(_LOOSE_TOPIC, 0)])
        self.spawn(client, auditor.run())
        if not self.wait_for(lambda: auditor.is_done, _END_LIMIT_S, "every log can be read to its end"):
            return
        ends = auditor.end_offsets
        assert ends is not None
        for reader in self._readers:
            reader.end_offsets = ends
        self.wait_for(
            lambda: all(reader.is_done for reader in self._readers), _END_LIMIT_S, "readers reach the end"
        )
        if self.wait_for(lambda: self._is_drained(ends), _END_LIMIT_S, "the group reaches the end"):
            self.record.history.append(Drained(self.scheduler.now_s, _GROUP))
        self.invariants.check_all()

    def _is_written(self) -> bool:
        are_done = all(producer.is_done for producer in self._producers)
        return are_done and self._careless.is_done and self._admin.is_done

    def _is_drained(self, ends: dict[TopicPartition, int]) -> bool:
        committed: dict[TopicPartition, int] = {}
        for member in self._members.values():
            committed.update(member.committed)
        return all(committed.get(tp) == ends[tp] for tp in self.partitions)


@contextlib.contextmanager
def _clean_ups_watched(accuse: Callable[[str], None]) -> Iterator[None]:
    """Accuse an error that is raised while an object is collected: no caller can catch it.

    An error of a process that is dead is expected.
    """
    before = sys.unraisablehook

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        error = unraisable.exc_value
        if error is not None and not isinstance(error, Stopped):
            accuse(f"{described(error)} in the clean-up of {unraisable.object!r}")

    sys.unraisablehook = report
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _hurry() -> Iterator[None]:
    """Trigger rare events, which ten minutes would not show."""
    before = [(module, name, vars(module)[name]) for module, name, _ in _HURRIED]
    for module, name, value in _HURRIED:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _safety(shape: Shape) -> dict[str, str]:
    """Settings for a single replica: an acknowledged write must be on disk."""
    return {"log.flush.interval.messages": "1"} if shape.replicas == 1 else {}


class _LogCapture(logging.Handler):
    """Adds the nodes' log lines to the trace, with the name of the running process."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world
        self._logger = logging.getLogger("tidemill")

    def __enter__(self) -> None:
        self._before = (self._logger.level, self._logger.propagate)
        self._logger.setLevel(logging.INFO)
        self._logger.propagate = False
        self._logger.addHandler(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeHandler(self)
        self._logger.level, self._logger.propagate = self._before
        logging.getLogger("tidemill").setLevel(self._before[0])

    def emit(self, record: logging.LogRecord) -> None:
        loop = asyncio._get_running_loop()
        name = loop.name if isinstance(loop, SimulatedLoop) else "world"
        text = record.getMessage()
        self._world.trace.add(name, f"{record.levelname} {text}")
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, OSError):
            self._world.accuse(f"{name} logged {text!r}: {described(error)}")
