"""Time that a test moves: one offset, added to the wall clock and to the clock of every loop that follows it.

`TravelClock` is what a test holds and what the nodes of one broker or cluster share. `TravelLoop` is asyncio's own loop
with that offset in its clock: between two calls of `advance` both run on as usual, so timers fire by themselves, too.

`advance` does not leap. It goes in steps, and after each one waits until every loop has run what had become due and
everything that followed from it, work in threads included. So what is due first happens first, and a timer that is set
on the way (a rebalance that begins when a session ends) is due in its turn. Two minutes go in steps of a second; of a
longer time, all but the first and the last seconds go in fifty large ones, so a week takes no longer than an hour.

Clients live in real time. To them it is as if they had been suspended for so long: sessions of theirs end, and they join
again. They also stamp their records with real time, which is older than the broker's from then on.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from datetime import UTC, datetime, timedelta
from typing import Protocol

_FINE_STEP_S = 1.0
_FINE_S_MAX = 120.0
# Of a longer time. What becomes due in a large step and needs a few more turns of the cluster has its time at the end.
_LAST_S = 10.0
_COARSE_STEPS = 50
# Nothing may be due and nobody busy for so many turns of the loop.
_QUIET_TURNS = 3
_CLUSTER_ROUNDS = 3
_THREADS_POLL_S = 0.001
# A cluster under load is never quiet; these are seconds of real time.
_STEP_S_MAX = 0.1
_ARRIVAL_S_MAX = 5.0
_HANGS_S = 60.0


class Traveller(Protocol):
    """Whoever follows the clock: it is told after each step, and once more when the clock has arrived."""

    def settle(self, *, is_alone: bool, limit_s: float) -> Future[None]:
        """Done when nothing is left to do at this moment, or when the time is over.

        Who is not alone waits for what the others may have sent, too.
        """

    def arrive(self) -> None:
        """The clock stands where it was to go: do what is done from time to time, without waiting for that time."""


class TravelClock:
    """The clock of a test broker. `advance(hours=8)` is all there is to it."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._travellers: list[Traveller] = []
        self._travelling = threading.Lock()

    @property
    def offset_s(self) -> float:
        """How far the clock is ahead of real time."""
        return self._offset_s

    def now_ms(self) -> int:
        """The broker's wall time."""
        return time.time_ns() // 1_000_000 + round(self._offset_s * 1000)

    def now(self) -> datetime:
        """The broker's wall time, in UTC."""
        return datetime.fromtimestamp(self.now_ms() / 1000, UTC)

    def advance(
        self,
        *,
        days: float = 0.0,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
        milliseconds: float = 0.0,
    ) -> None:
        """Let so much time pass. Returns when everything that became due has run, retention included.

        Do not call it on an event loop that the code under test needs: it blocks until the broker is done.
        """
        span_s = timedelta(
            days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds
        ).total_seconds()
        if span_s <= 0:
            raise ValueError(f"time goes forward: cannot advance by {span_s:g} s")
        with self._travelling:
            for step_s in steps(span_s):
                self._offset_s += step_s
                self._settle(_STEP_S_MAX)
            for traveller in list(self._travellers):
                traveller.arrive()
            self._settle(_ARRIVAL_S_MAX)

    def _settle(self, limit_s: float) -> None:
        travellers = list(self._travellers)
        is_alone = len(travellers) == 1
        # What one node says to another arrives when both are quiet, perhaps.
        for _ in range(1 if is_alone else _CLUSTER_ROUNDS):
            for waiting in [each.settle(is_alone=is_alone, limit_s=limit_s) for each in travellers]:
                # One that stops meanwhile has nothing left to do, either.
                with contextlib.suppress(CancelledError):
                    waiting.result(_HANGS_S)

    def follow(self, traveller: Traveller) -> Callable[[], None]:
        """Tell it of every step. Returns how to stop that."""
        self._travellers.append(traveller)
        return lambda: self._travellers.remove(traveller)


def steps(span_s: float) -> Iterator[float]:
    """The steps that make up a span, as the module's docstring has them."""
    if span_s <= _FINE_S_MAX:
        yield from _fine_steps(span_s)
        return
    yield from _fine_steps(_FINE_S_MAX - _LAST_S)
    for _ in range(_COARSE_STEPS):
        yield (span_s - _FINE_S_MAX) / _COARSE_STEPS
    yield from _fine_steps(_LAST_S)


def _fine_steps(span_s: float) -> Iterator[float]:
    while span_s > 0:
        yield min(span_s, _FINE_STEP_S)
        span_s -= _FINE_STEP_S


class TravelLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, whose seconds a `TravelClock` adds to."""

    def __init__(self, clock: TravelClock) -> None:
        self._travel_clock = clock
        # Work handed to threads that has not come back.
        self.blocking_count = 0
        super().__init__()
        # In debug mode asyncio would take a step of the clock for a callback that took so long.
        self.slow_callback_duration = float("inf")

    def time(self) -> float:
        return super().time() + self._travel_clock.offset_s

    async def settle(self, *, is_alone: bool, limit_s: float) -> None:
        """Returns when nothing is due, nothing is ready and no thread works, or when the time is over.

        What has come in from sockets does not count for who is alone: clients may send for ever.
        """
        quiet_turns = 0
        deadline_s = super().time() + limit_s
        while quiet_turns < _QUIET_TURNS and super().time() < deadline_s:
            await asyncio.sleep(0 if not self.blocking_count else _THREADS_POLL_S)
            quiet_turns = 0 if self._is_busy(is_alone) else quiet_turns + 1

    def _is_busy(self, is_alone: bool) -> bool:
        # asyncio has no public way to ask; the names are those of every CPython since 3.4.
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if self.blocking_count or any(_is_due(timer, self.time()) for timer in scheduled[:1]):
            return True
        if not is_alone:
            return bool(ready)
        watched = self._selector.get_map().values()  # type: ignore[attr-defined]
        of_sockets = {id(handle) for key in watched for handle in key.data if handle is not None}
        return any(id(handle) not in of_sockets for handle in ready)

    def forget_timers(self) -> None:
        """Of a node that is dead: nothing of it may run again."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        for timer in list(scheduled):
            timer.cancel()


def _is_due(timer: asyncio.TimerHandle, now_s: float) -> bool:
    return not timer.cancelled() and timer.when() <= now_s
