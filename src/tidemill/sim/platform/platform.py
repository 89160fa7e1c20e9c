"""The `Platform` of a simulated process: its disk, clock and network, and blocking work that takes virtual time."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from tidemill.broker.clock import Clock
from tidemill.broker.platform import Platform
from tidemill.sim.platform.disk import SimulatedDisk
from tidemill.sim.platform.loops import Scheduler, SimulatedLoop
from tidemill.sim.platform.network import Wires

# The wall time at which every simulation starts.
EPOCH_MS = 1_800_000_000_000


@dataclass(slots=True)
class DiskSpeed:
    """The duration of blocking operations; it may change at any time."""

    s_min: float = 0.0005
    s_max: float = 0.004


class WallClock:
    """A host's wall clock, which is off by some amount and may jump."""

    def __init__(self, scheduler: Scheduler, skew_ms: int) -> None:
        self._scheduler = scheduler
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return EPOCH_MS + int(self._scheduler.now_s * 1000) + self.skew_ms


class Blocking:
    """A simulated thread pool: work takes effect at some moment, and the loop gets the result later.

    A process that is killed in between has done the work without a result.
    """

    def __init__(self, scheduler: Scheduler, loop: SimulatedLoop, speed: DiskSpeed, rng: Random) -> None:
        self._scheduler = scheduler
        self._loop = loop
        self._speed = speed
        self._rng = rng

    def __call__(self, function: Callable[[], Any], /) -> Future[Any]:
        future = self._loop.create_future()
        duration_s = self._rng.uniform(self._speed.s_min, self._speed.s_max)
        done_share = self._rng.random()

        def work() -> None:
            if self._loop.is_dead:
                return
            if self._loop.is_paused:
                # The threads of a paused process are paused too.
                self._scheduler.after(duration_s, work)
                return
            outcome, error = None, None
            try:
                outcome = function()
            except Exception as raised:
                error = raised
            self._scheduler.after(
                duration_s * (1 - done_share),
                lambda: self._loop.call_soon(_complete, future, outcome, error),
            )

        self._scheduler.after(duration_s * done_share, work)
        return future


def _complete(future: Future[Any], outcome: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


def simulated_platform(
    scheduler: Scheduler,
    wires: Wires,
    loop: SimulatedLoop,
    host: str,
    disk: SimulatedDisk,
    clock: WallClock,
    speed: DiskSpeed,
    rng: Random,
    pid: int,
    boots: int = 0,
) -> Platform:
    return Platform(
        files=disk,
        clock=Clock(clock, loop.time),
        network=wires.of(loop, host),
        rng=rng,
        run_blocking=Blocking(scheduler, loop, speed, rng),
        pid=pid,
        host_name=host,
        boot_id=f"{host} boot {boots}",
        close=lambda: None,
    )
