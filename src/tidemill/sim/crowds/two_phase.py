"""The two-phase commit clients of a world, their faults, and their shutdown.

There is one query, with mostly one driver at a time and two processes that run its tasks. A driver that dies gets a
successor while its tasks continue. A paused driver continues beside its successor. At the end, transactions that a
lost driver left open are ended in the order that never aborts a decided one.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from tidemill.sim.clients.base import Client
from tidemill.sim.clients.two_phase import Attempt, Driver, Query, Task
from tidemill.sim.crowds.crowd import END_LIMIT_S, Crowd, partitions_of
from tidemill.sim.stage import Stage
from tidemill.types import TopicPartition

_ROWS = "rows"
_DECISIONS = "decisions"
TWO_PHASE_TOPICS = {_ROWS: 2, _DECISIONS: 1}
TWO_PHASE_CONFIGS = {_DECISIONS: {"cleanup.policy": "compact"}}
_LOOK_S = 2.0
_LAST_LIMIT_S = 120.0


class TwoPhaseCrowd(Crowd):
    """The clients of the two-phase workload."""

    def __init__(self, stage: Stage, rng: Random) -> None:
        rows = partitions_of(TWO_PHASE_TOPICS, _ROWS)
        super().__init__(stage, rng, rows, "row-reader")
        self._query = Query("query", rows, TopicPartition(_DECISIONS, 0), stage.trace.add)
        # By client process: those that were not killed, including paused ones and zombies.
        self._drivers: dict[str, Driver] = {}
        self._executors: dict[str, Client] = {}
        self._tasks: list[Task] = []

    # -- coming and going ------------------------------------------------------------------------------------

    def start(self, *, has_upsets: bool) -> None:
        for _ in range(2):
            self._add_executor()
        self._add_driver()
        self._add_reader(is_read_committed=True, rack=self._rng.choice(("", "rack-1")))
        self._look_after_driver()
        if has_upsets:
            self._upset_later(self._upset)

    def _add_executor(self) -> None:
        client = self._client("executor")
        self._executors[client.name] = client

    def _add_driver(self) -> Driver:
        client = self._client("driver")
        pause_s_max = self._stage.plan.transaction_pause_s_max / 2
        driver = self._drivers[client.name] = Driver(client, self._query, self._start_task, pause_s_max)
        self._stage.spawn(client, driver.run())
        return driver

    def _start_task(self, attempt: Attempt) -> None:
        task = Task(self._rng.choice(list(self._executors.values())), self._query, attempt)
        self._tasks = [each for each in self._tasks if not each.is_done]
        self._tasks.append(task)
        loop = task.client.loop
        # The process may be killed before it starts.
        loop.call_soon(lambda: loop.create_task(task.run()))

    def _look_after_driver(self) -> None:
        """Replace a driver that is dead."""
        if self._stage.record.is_ending:
            return
        if all(driver.is_done for driver in self._drivers.values()):
            self._add_driver()
        self._stage.scheduler.after(_LOOK_S, self._look_after_driver)

    # -- upsets ----------------------------------------------------------------------------------------------

    def _upset(self) -> None:
        if self._stage.record.is_ending:
            return
        rng = self._rng
        self._upset_later(self._upset)
        drivers = [name for name, driver in self._drivers.items() if not driver.is_done]
        if not drivers or rng.random() < 0.35:
            self._upset_executor(rng.choice(list(self._executors)))
            return
        name = rng.choice(drivers)
        chance = rng.random()
        if chance < 0.3:
            self._kill(name)
            del self._drivers[name]
        elif chance < 0.5:
            self._lose_touch(name)
        elif chance < 0.8:
            self._fall_asleep(name)
            self._add_driver()
        else:
            self._add_driver()

    def _upset_executor(self, name: str) -> None:
        chance = self._rng.random()
        if chance < 0.3:
            self._kill(name)
            del self._executors[name]
            self._add_executor()
        elif chance < 0.6:
            self._lose_touch(name)
        else:
            self._fall_asleep(name)

    # -- the end ---------------------------------------------------------------------------------------------

    def finish(self) -> bool:
        """Finish the workload. Returns whether it ended well."""
        drivers = list(self._drivers.values())
        return (
            self._stage.wait_for(
                lambda: all(each.is_done for each in drivers), END_LIMIT_S, "drivers come to an end"
            )
            and self._wait_idle()
            and self._let_last(Driver.run_last, "a batch is decided")
            and self._wait_idle()
            and self._let_last(Driver.sweep, "what was left open is ended")
            and self._wait_stable()
            and self._read_everything()
        )

    def _wait_idle(self) -> bool:
        return self._stage.wait_for(self._is_idle, END_LIMIT_S, "tasks come to an end")

    def _is_idle(self) -> bool:
        return all(task.is_done or task.client.loop.is_dead for task in self._tasks)

    def _let_last(self, act: Callable[[Driver], Coroutine[Any, Any, None]], what: str) -> bool:
        """Run the last driver without faults."""
        client = self._client("last-driver")
        driver = Driver(client, self._query, self._start_task, 0.0)
        self._stage.spawn(client, act(driver))
        return self._stage.wait_for(lambda: driver.is_done, _LAST_LIMIT_S, what)
