"""Failures of disks, clocks and background work, played on a whole cluster; see `test_failures.py` for the others."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.scripted import Stage, play
from tidemill.broker.partitions.isr_changes import IsrChanges
from tidemill.broker.partitions.upkeep.log_manager import LogManager
from tidemill.broker.quorum.lifecycle import Lifecycle
from tidemill.broker.quorum.log import MetadataLog
from tidemill.controller.controller import Controller
from tidemill.log.log import Log
from tidemill.log.sync import SyncWork
from tidemill.sim.checks.checker import Assigned
from tidemill.sim.cluster import Machine
from tidemill.sim.platform.disk import Operation

_HOUR_MS = 3_600_000
_EVERYTHING: tuple[Operation, ...] = (
    "create",
    "write",
    "truncate",
    "sync",
    "flush",
    "rename",
    "remove",
    "replace",
    "read",
)


def _leader(stage: Stage) -> Machine:
    return stage.leader_of()


def _follower(stage: Stage) -> Machine:
    return stage.followers_of()[0]


def _controller(stage: Stage) -> Machine:
    return stage.controller()


_ROLES: dict[str, Callable[[Stage], Machine]] = {
    "leader": _leader,
    "follower": _follower,
    "controller": _controller,
}


@pytest.mark.parametrize("pattern", [pytest.param("/data/orders-0/*", marks=pytest.mark.long), "/data/*"])
@pytest.mark.parametrize("role", _ROLES)
@pytest.mark.parametrize(
    "operations",
    [
        pytest.param(("write",), marks=pytest.mark.long, id="write"),
        pytest.param(("sync", "flush"), id="sync"),
        pytest.param(_EVERYTHING, id="all"),
    ],
)
def test_failure_05_a_disk_that_fails_moves_the_leaders(
    operations: tuple[Operation, ...], role: str, pattern: str
) -> None:
    def course(stage: Stage) -> None:
        victim = _ROLES[role](stage)
        process = victim.process
        victim.is_disk_faulty = True
        victim.disk.fail(*operations, pattern=pattern)
        hosts = any(victim.id in partition.replicas for partition in [stage.partition()])
        stage.require(hosts, "every node has the partition")
        stage.wait(lambda: victim.process is not process, "the broker stops")
        # It is started again on a disk that is as bad as it was.
        victim.disk.fail(*operations, pattern=pattern)
        stage.wait(
            lambda: (
                stage.controller_or_none() is not None and stage.partition().leader not in (-1, victim.id)
            ),
            "another one leads",
        )
        stage.wait_acks()
        stage.let(10)
        stage.require(stage.partition().leader not in (-1, victim.id), "another one leads still")
        stage.wait_acks()
        # The disk is replaced by one that works, with what was on it.
        stage.cluster.kill(victim)
        victim.disk.heal()
        victim.is_disk_faulty = False
        stage.cluster.start(victim)
        stage.wait_healthy()
        stage.wait_acks()

    play(course, settings={"log.flush.interval.ms": "1000", "log.flush.scheduler.interval.ms": "1000"})


@pytest.mark.parametrize("free_bytes", [0, 150])
@pytest.mark.parametrize("role", _ROLES)
def test_failure_27_a_full_disk_is_waited_for(role: str, free_bytes: int) -> None:
    def course(stage: Stage) -> None:
        victim = _ROLES[role](stage)
        process = victim.process
        victim.disk.free_bytes = free_bytes
        stage.let(20)
        stage.require(victim.process is process, "a full disk stops no node")
        victim.disk.heal()
        stage.wait_healthy()
        stage.wait_acks()

    play(course)


@pytest.mark.parametrize(
    "settings",
    [
        {"log.flush.interval.ms": "1000", "log.flush.scheduler.interval.ms": "1000"},
        {"log.flush.interval.messages": "1"},
    ],
    ids=["timed", "before the ack"],
)
def test_failure_27_a_sync_without_space_is_done_later(settings: dict[str, str]) -> None:
    """There is space for the records, and none for the checkpoint of the epochs that belongs to them."""

    def course(stage: Stage) -> None:
        old_leader = stage.leader_of()
        victims = [each for each in stage.machines() if each is not old_leader]
        processes = [each.process for each in victims]
        for victim in victims:
            victim.disk.fail("replace", pattern="*/orders-0/leader-epoch-checkpoint", error=errno.ENOSPC)
        stage.cluster.kill(old_leader)
        stage.wait(lambda: stage.partition().leader not in (-1, old_leader.id), "another one leads")
        stage.let(10)
        stage.require([each.process for each in victims] == processes, "a full disk stops no node")
        refused = [line for line in stage.trace.last() if "cannot sync" in line and "No space left" in line]
        stage.require(bool(refused), "a checkpoint was refused")
        for victim in victims:
            victim.disk.heal()
        stage.cluster.start(old_leader)
        stage.wait_healthy()
        stage.wait_acks()

    play(course, settings=settings)


@pytest.mark.parametrize("victim_is", ["controller", "other"])
def test_failure_27_the_others_go_on_while_a_followers_disk_is_full(victim_is: str) -> None:
    def course(stage: Stage) -> None:
        leader, controller = stage.leader_of(), stage.controller()
        stage.require(leader is not controller, "this seed has a controller that leads no orders")
        others = (each for each in stage.machines() if each not in (leader, controller))
        victim = controller if victim_is == "controller" else next(others)
        victim.is_disk_faulty = True
        victim.disk.free_bytes = 0
        stage.wait_acks(30)
        stage.require(victim.id not in stage.partition().isr, "who cannot write is not in sync")
        victim.disk.heal()
        victim.is_disk_faulty = False
        stage.wait_healthy()

    play(course, partitions=1, settings={"auto.leader.rebalance.enable": "false"})


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_failure_03_full_disks_keep_what_they_have_when_the_third_loses_its_power(seed: int) -> None:
    """There is no space for a vote, so no node is elected; but no node that has the records stops either."""

    def course(stage: Stage) -> None:
        victim = stage.controller()
        others = [each for each in stage.machines() if each is not victim]
        processes = [each.process for each in others]
        stage.wait_acks()
        for other in others:
            other.disk.free_bytes = 0
        stage.let(2)
        stage.cluster.cut_power(victim)
        stage.let(0.2)
        stage.cluster.start(victim)
        stage.let(12)
        stage.require([each.process for each in others] == processes, "a full disk stops no node")
        waits = [line for line in stage.trace.last() if "waits for space" in line]
        stage.require(bool(waits), "a node had no space for a vote")
        for other in others:
            other.disk.heal()
        stage.wait_healthy()
        stage.wait_acks()

    play(course, seed)


def test_failure_27_a_controller_with_a_full_disk_does_not_spin() -> None:
    """Its decisions fall due and cannot be written; time goes on all the same."""

    def course(stage: Stage) -> None:
        victim = stage.controller()
        other = next(each for each in stage.machines() if each is not victim)
        victim.is_disk_faulty = True
        victim.disk.free_bytes = 0
        stage.cluster.kill(other)
        before = stage.scheduler.callbacks
        stage.let(10)
        stage.require(stage.scheduler.callbacks - before < 50_000, "no node is busy for nothing")
        victim.disk.heal()
        victim.is_disk_faulty = False
        stage.cluster.start(other)
        stage.wait_healthy()
        stage.wait_acks()

    play(course)


def _facts(stage: Stage) -> dict[str, object]:
    """Returns the facts that change only when a node was taken for dead or behind."""
    image = stage.image()
    partitions = {
        f"{name}-{index}": (each.leader, each.leader_epoch, each.isr)
        for name, topic in image.topics_by_name.items()
        for index, each in enumerate(topic.partitions)
    }
    fenced = {f"broker {broker.id}": (broker.epoch, broker.is_fenced) for broker in image.brokers.values()}
    generations = [event.generation for event in stage.record.history if isinstance(event, Assigned)]
    return {**partitions, **fenced, "generations": generations, "controller": stage.controller().id}


@pytest.mark.parametrize("jump_ms", [_HOUR_MS, -_HOUR_MS])
@pytest.mark.parametrize(
    "node_ids",
    [*(pytest.param((each,), marks=pytest.mark.long) for each in (1, 2, 3)), (1, 2, 3)],
)
def test_failure_28_clocks_that_jump_by_an_hour_change_nothing(
    node_ids: tuple[int, ...], jump_ms: int
) -> None:
    def course(stage: Stage) -> None:
        stage.let(10)
        before = _facts(stage)
        for sign in (1, -1):
            for node_id in node_ids:
                stage.machine(node_id).clock.skew_ms += sign * jump_ms
            stage.let(15)
            after = _facts(stage)
            changed = {
                key: (value, after.get(key)) for key, value in before.items() if after.get(key) != value
            }
            stage.require(not changed, f"a jump of the clock changed {changed}")
            stage.wait_acks()
        for machine in stage.machines():
            assert machine.node is not None
            for partition in machine.node.broker.replicas.partitions():
                log = partition.log
                stage.require(log is not None and log.log_start_offset == 0, f"{partition.name} begins at 0")

    play(
        course,
        settings={
            "log.retention.ms": str(2 * _HOUR_MS),
            "log.retention.check.interval.ms": "2000",
            "auto.leader.rebalance.enable": "false",
        },
    )


def test_failure_28_a_controller_whose_clock_is_an_hour_off_fences_no_broker() -> None:
    def course(stage: Stage) -> None:
        stage.let(5)
        for node_id, jump_ms in zip((1, 2, 3), (_HOUR_MS, -_HOUR_MS, 0), strict=True):
            stage.machine(node_id).clock.skew_ms += jump_ms
        for _ in range(3):
            victim = stage.controller()
            others = [machine.id for machine in stage.machines() if machine is not victim]
            stage.cluster.kill(victim)
            stage.wait(lambda: stage.controller_or_none() is not None, "there is a controller")
            for _ in range(100):
                fenced = [
                    broker.id
                    for broker in stage.image().brokers.values()
                    if broker.is_fenced and broker.id in others
                ]
                stage.require(not fenced, f"{fenced} are fenced")
                stage.let(0.1)
            stage.cluster.start(victim)
            stage.wait_healthy()
            stage.wait_acks()

    play(course)


# -- 26 ------------------------------------------------------------------------------------------------------


class _Bug(Exception):
    """An unforeseen error."""


_BACKGROUND = {
    "heartbeats": (Lifecycle, "_heartbeat"),
    "ISR changes": (IsrChanges, "_request"),
    "syncing": (Log, "sync_work"),
    "syncing the metadata": (MetadataLog, "sync_work"),
    "the thread that syncs": (SyncWork, "run"),
    "checkpoints": (LogManager, "offsets"),
    "high watermarks": (LogManager, "_high_watermarks"),
    "the controller's deadlines": (Controller, "expire"),
}


@pytest.mark.parametrize("work", _BACKGROUND)
def test_failure_26_background_work_that_fails_once_is_done_all_the_same(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or its node stops, and another one takes its place: no node looks alive and does nothing."""
    owner, name = _BACKGROUND[work]
    original = getattr(owner, name)
    bugs: list[_Bug] = []
    is_armed = False

    def fails_once(self: Any, *args: Any, **options: Any) -> Any:
        if is_armed and not bugs:
            bugs.append(_Bug(f"in {name}"))
            raise bugs[0]
        return original(self, *args, **options)

    monkeypatch.setattr(owner, name, fails_once)

    def course(stage: Stage) -> None:
        nonlocal is_armed
        stage.expected += ["_Bug"]
        is_armed = True
        leader = stage.leader_of()
        follower = next(each for each in stage.followers_of() if each is not stage.controller())
        stage.require(leader is not stage.controller(), "this seed has a controller that leads no orders")
        stage.part([leader], [follower])
        stage.wait(lambda: bool(bugs), f"{work} failed")
        stage.wait(lambda: _has_acted(stage, leader, follower), "the leader acts, or another one leads", 30)
        stage.wait_acks()
        stage.cluster.wires.heal_all()
        stage.wait_healthy()
        stage.wait_acks()

    play(
        course,
        settings={"log.flush.interval.messages": "1", "log.flush.offset.checkpoint.interval.ms": "5000"},
    )


def _has_acted(stage: Stage, leader: Machine, follower: Machine) -> bool:
    if stage.controller_or_none() is None:
        return False
    partition = stage.partition()
    return partition.leader != leader.id or follower.id not in partition.isr
