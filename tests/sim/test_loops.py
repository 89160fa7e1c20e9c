"""Virtual time: order, pauses, deaths, drift."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from tidemill.sim.platform.loops import Livelock, Scheduler, SimulatedLoop
from tidemill.sim.platform.platform import Blocking, DiskSpeed


def fail_on_exception(loop: SimulatedLoop, context: dict[str, Any]) -> None:
    raise AssertionError(f"{loop.name}: {context}")


class Processes:
    def __init__(self) -> None:
        self.scheduler = Scheduler(Random(1))
        self.seen: list[str] = []

    def loop(self, name: str = "a", **options: float) -> SimulatedLoop:
        return self.scheduler.new_loop(name, fail_on_exception, **options)

    def note(self, text: str) -> Callable[[], None]:
        return lambda: self.seen.append(f"{self.scheduler.now_s:g} {text}")


@pytest.fixture
def processes() -> Processes:
    return Processes()


def test_an_hour_of_sleep_takes_no_time_and_keeps_order(processes: Processes) -> None:
    one, other = processes.loop("one"), processes.loop("other")

    async def ticks(loop: SimulatedLoop, interval_s: float) -> None:
        while True:
            await asyncio.sleep(interval_s)
            processes.note(loop.name)()

    tasks = []
    one.call_soon(lambda: tasks.append(one.create_task(ticks(one, 1000))))
    other.call_soon(lambda: tasks.append(other.create_task(ticks(other, 1500))))
    processes.scheduler.run_until(3600)
    assert processes.seen == ["1000 one", "1500 other", "2000 one", "3000 one", "3000 other"] or (
        processes.seen == ["1000 one", "1500 other", "2000 one", "3000 other", "3000 one"]
    )
    assert processes.scheduler.now_s == 3600
    one.dispose()
    other.dispose()


def test_a_paused_process_catches_up_in_order(processes: Processes) -> None:
    loop = processes.loop()
    loop.call_later(1, processes.note("first"))
    loop.call_later(2, processes.note("second"))
    loop.pause()
    processes.scheduler.after(5, loop.resume)
    processes.scheduler.run_until(10)
    assert processes.seen == ["5 first", "5 second"]


def test_nothing_of_a_dead_process_runs_not_even_a_finally(processes: Processes) -> None:
    loop = processes.loop()

    async def dies() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            processes.note("finally")()

    tasks = []
    loop.call_soon(lambda: tasks.append(loop.create_task(dies())))
    processes.scheduler.after(5, loop.kill)
    processes.scheduler.run_until(20)
    assert processes.seen == []
    loop.dispose()
    assert processes.seen == ["20 finally"]


def test_a_fast_clock_fires_early(processes: Processes) -> None:
    loop = processes.loop(rate=2.0, started_s=100.0)
    assert loop.time() == 100
    loop.call_later(10, processes.note("due"))
    processes.scheduler.run_until(20)
    assert processes.seen == ["5 due"]
    assert loop.time() == 140


def test_a_cancelled_timer_does_not_fire(processes: Processes) -> None:
    loop = processes.loop()
    loop.call_later(1, processes.note("cancelled")).cancel()
    processes.scheduler.run_until(2)
    assert processes.seen == []


def test_livelock_is_detected(processes: Processes) -> None:
    loop = processes.loop()

    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(Livelock):
        processes.scheduler.run_until(1)


def test_timeouts_work_as_in_any_loop(processes: Processes) -> None:
    loop = processes.loop()

    async def waits() -> None:
        try:
            async with asyncio.timeout(3):
                await asyncio.Event().wait()
        except TimeoutError:
            processes.note("timed out")()

    tasks = []
    loop.call_soon(lambda: tasks.append(loop.create_task(waits())))
    processes.scheduler.run_until(10)
    assert processes.seen == ["3 timed out"]


@pytest.mark.parametrize(("killed_after_s", "is_done"), [(0.0, False), (10.0, True)])
def test_blocking_work_of_a_process_that_dies_is_done_or_not(
    processes: Processes, killed_after_s: float, is_done: bool
) -> None:
    loop = processes.loop()
    run_blocking = Blocking(processes.scheduler, loop, DiskSpeed(1.0, 2.0), Random(3))
    run_blocking(processes.note("worked"))
    processes.scheduler.after(killed_after_s, loop.kill)
    processes.scheduler.run_until(20)
    assert bool(processes.seen) is is_done


def test_process_may_die_between_work_and_result(processes: Processes) -> None:
    """The sync happened without a result: a client's write may be there although it was never acknowledged."""
    unreported = 0
    for seed in range(50):
        loop = processes.loop()
        done: list[str] = []
        run_blocking = Blocking(processes.scheduler, loop, DiskSpeed(1.0, 2.0), Random(seed))
        future = run_blocking(lambda done=done: done.append("worked"))  # type: ignore[misc]
        processes.scheduler.run_until(processes.scheduler.now_s + 1.0)
        loop.kill()
        processes.scheduler.run_until(processes.scheduler.now_s + 5)
        unreported += bool(done) and not future.done()
    assert unreported > 5
