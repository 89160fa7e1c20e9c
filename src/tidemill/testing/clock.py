"""The clock of a test: one offset, added to the wall clock and to the clock of every event loop that follows it.

`TravelClock` is the test's object, shared by the nodes of one broker or cluster. `TravelLoop` is asyncio's loop with
that offset in its clock. Between calls of `advance` both run as usual, so timers also fire by themselves.

`advance` moves in steps. After each step it waits until every loop has run everything that became due, including work
in threads. So events happen in order, and a timer that is set on the way is due in its turn. Two minutes pass in steps
of a second. Of a longer time, all but the first and last seconds pass in fifty large steps, so a week takes no longer
than an hour.

Clients live in real time. To them the broker seems to jump: their sessions end, and they rejoin. Their records have
real timestamps, which are older than the broker's time from then on.
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
# The small steps at the end of a longer time: events of a large step that need more turns of the cluster complete in
# them.
_LAST_S = 10.0
_COARSE_STEPS = 50
# The loop counts as quiet after this many turns without work.
_QUIET_TURNS = 3
_CLUSTER_ROUNDS = 3
_THREADS_POLL_S = 0.001
# In real seconds: a cluster under load is never quiet.
_STEP_S_MAX = 0.1
_ARRIVAL_S_MAX = 5.0
_HANGS_S = 60.0


class ClockFollower(Protocol):
    """A follower of the clock. It is called after each step, and once at the end."""

    def settle(self, *, is_alone: bool, limit_s: float) -> Future[None]:
        """Return when no work is left at this moment, or when the time limit is over.

        Unless `is_alone`, also wait for what other nodes may have sent.
        """

    def arrive(self) -> None:
        """The clock has reached its target: run periodic work now."""


class TravelClock:
    """The clock of a test broker, moved with `advance(hours=8)`."""

    def __init__(self) -> None:
        self._offset_s = 0.0
        self._travellers: list[ClockFollower] = []
        self._travelling = threading.Lock()

    @property
    def offset_s(self) -> float:
        """The seconds by which the clock is ahead of real time."""
        return self._offset_s

    def wall_ms(self) -> int:
        """The broker's wall time in milliseconds."""
        return time.time_ns() // 1_000_000 + round(self._offset_s * 1000)

    def now(self) -> datetime:
        """The broker's wall time, in UTC."""
        return datetime.fromtimestamp(self.wall_ms() / 1000, UTC)

    def advance(
        self,
        *,
        days: float = 0.0,
        hours: float = 0.0,
        minutes: float = 0.0,
        seconds: float = 0.0,
        milliseconds: float = 0.0,
    ) -> None:
        """Let time pass. Returns when everything that became due has run, including retention.

        It blocks until the broker is done, so do not call it on an event loop that the code under test needs.
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
            for follower in list(self._travellers):
                follower.arrive()
            self._settle(_ARRIVAL_S_MAX)

    def _settle(self, limit_s: float) -> None:
        travellers = list(self._travellers)
        is_alone = len(travellers) == 1
        # A message between nodes may arrive when both are quiet.
        for _ in range(1 if is_alone else _CLUSTER_ROUNDS):
            for waiting in [each.settle(is_alone=is_alone, limit_s=limit_s) for each in travellers]:
                # A node that stops meanwhile has no work left either.
                with contextlib.suppress(CancelledError):
                    waiting.result(_HANGS_S)

    def follow(self, follower: ClockFollower) -> Callable[[], None]:
        """Register a follower. Returns a function that removes it."""
        self._travellers.append(follower)
        return lambda: self._travellers.remove(follower)


def steps(span_s: float) -> Iterator[float]:
    """The steps of a time span, as described above."""
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
    """asyncio's event loop with the offset of a `TravelClock`."""

    def __init__(self, clock: TravelClock) -> None:
        self._travel_clock = clock
        # The number of calls in threads that have not returned.
        self.blocking_count = 0
        super().__init__()
        # In debug mode asyncio would report a step of the clock as a slow callback.
        self.slow_callback_duration = float("inf")

    def time(self) -> float:
        return super().time() + self._travel_clock.offset_s

    async def settle(self, *, is_alone: bool, limit_s: float) -> None:
        """Return when nothing is due or ready and no thread works, or when the time limit is over.

        When `is_alone`, input from sockets does not count: clients may send for ever.
        """
        quiet_turns = 0
        deadline_s = super().time() + limit_s
        while quiet_turns < _QUIET_TURNS and super().time() < deadline_s:
            await asyncio.sleep(0 if not self.blocking_count else _THREADS_POLL_S)
            quiet_turns = 0 if self._is_busy(is_alone) else quiet_turns + 1

    def _is_busy(self, is_alone: bool) -> bool:
        # asyncio has no public API for this; the names exist in every CPython since 3.4.
        ready, scheduled = self._ready, self._scheduled  # type: ignore[attr-defined]
        if self.blocking_count or any(_is_due(timer, self.time()) for timer in scheduled[:1]):
            return True
        if not is_alone:
            return bool(ready)
        watched = self._selector.get_map().values()  # type: ignore[attr-defined]
        of_sockets = {id(handle) for key in watched for handle in key.data if handle is not None}
        return any(id(handle) not in of_sockets for handle in ready)

    def forget_timers(self) -> None:
        """Cancel all timers of a dead node."""
        scheduled = self._scheduled  # type: ignore[attr-defined]
        for timer in list(scheduled):
            timer.cancel()


def _is_due(timer: asyncio.TimerHandle, now_s: float) -> bool:
    return not timer.cancelled() and timer.when() <= now_s
