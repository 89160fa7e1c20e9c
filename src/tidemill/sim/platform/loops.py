"""Virtual time, and one event loop for each simulated process.

`Scheduler` owns the time. A heap holds everything that is due, ordered by virtual time and then by insertion. It never
waits: when no process can run, time jumps to the next entry. `SimulatedLoop` is the asyncio loop of one process, with
its own clock, which may run a little fast or slow, and its own queue of callbacks.

A dead process is a loop that never runs again. `dispose` closes its coroutines at the end of the simulation, so that
no destructor runs dead code in between. A paused process keeps its queue; timers and messages accumulate until it
continues.

Callbacks take no virtual time. A process that never lets time pass would stop the world, so too many callbacks at one
time are an error.
"""

from __future__ import annotations

import asyncio
import heapq
from asyncio import AbstractEventLoop, Future, Handle, Task, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from random import Random
from typing import Any

_CALLBACKS_AT_ONCE_MAX = 100_000
_RESOLUTION_S = 1e-9


OnException = Callable[["SimulatedLoop", dict[str, Any]], None]


class Livelock(Exception):
    """A process ran callbacks without letting time pass."""


class Scheduler:
    """The owner of virtual time."""

    def __init__(self, rng: Random) -> None:
        self.now_s = 0.0
        # The number of callbacks that ran, as a measure of work.
        self.callbacks = 0
        # Called after each turn of a loop.
        self.after_turn: Callable[[SimulatedLoop], None] | None = None
        self._rng = rng
        self._sequence = 0
        self._due: list[tuple[float, int, SimulatedLoop | None, Handle | Callable[[], object]]] = []
        self._runnable: list[SimulatedLoop] = []

    def new_loop(
        self, name: str, on_exception: OnException, *, started_s: float = 0.0, rate: float = 1.0
    ) -> SimulatedLoop:
        """Create a loop. `rate` is the number of its own seconds in a second of the world."""
        return SimulatedLoop(self, name, on_exception, started_s, rate)  # type: ignore[abstract]

    def at(self, when_s: float, callback: Callable[[], object]) -> None:
        """Schedule an event of the world, independent of the state of its processes."""
        self._push(when_s, None, callback)

    def after(self, delay_s: float, callback: Callable[[], object]) -> None:
        self._push(self.now_s + delay_s, None, callback)

    def push_timer(self, when_s: float, loop: SimulatedLoop, handle: TimerHandle) -> None:
        self._push(when_s, loop, handle)

    def _push(
        self, when_s: float, loop: SimulatedLoop | None, callback: Handle | Callable[[], object]
    ) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (max(when_s, self.now_s), self._sequence, loop, callback))

    def make_runnable(self, loop: SimulatedLoop) -> None:
        self._runnable.append(loop)

    def run_until(self, end_s: float, is_done: Callable[[], bool] = lambda: False) -> None:
        """Advance time to `end_s`, or until `is_done` returns true after a turn."""
        due, runnable = self._due, self._runnable
        at_once = 0
        while not is_done():
            if runnable:
                # The next process among those that can run is random.
                index = self._rng.randrange(len(runnable)) if len(runnable) > 1 else 0
                loop = runnable.pop(index)
                ran = loop.take_turn()
                self.callbacks += ran
                at_once += ran
                if at_once > _CALLBACKS_AT_ONCE_MAX:
                    raise Livelock(f"{loop.name} at {self.now_s:.6f} s: {loop.next_callback()}")
                if self.after_turn is not None:
                    self.after_turn(loop)
                continue
            if not due or due[0][0] > end_s:
                self.now_s = max(self.now_s, end_s)
                return
            when_s, _, owner, callback = heapq.heappop(due)
            if when_s > self.now_s:
                self.now_s = when_s
                at_once = 0
            if owner is not None:
                assert isinstance(callback, Handle)
                owner.enqueue(callback)
            else:
                assert not isinstance(callback, Handle)
                callback()


class SimulatedLoop(AbstractEventLoop):
    """The part of an event loop that code without sockets, threads and signals needs."""

    def __init__(
        self,
        scheduler: Scheduler,
        name: str,
        on_exception: OnException,
        started_s: float,
        rate: float,
    ) -> None:
        self.name = name
        self.is_dead = False
        self._scheduler = scheduler
        self._on_exception = on_exception
        self._rate = rate
        self._offset_s = started_s - scheduler.now_s * rate
        self._ready: deque[Handle] = deque()
        self._is_paused = False
        self._is_queued = False
        self._tasks: dict[Task[Any], None] = {}

    # -- what the world does with it -------------------------------------------------------------------------

    def take_turn(self) -> int:
        """Run the callbacks that were ready at the start of this turn. Returns their number."""
        self._is_queued = False
        if self.is_dead or self._is_paused:
            return 0
        ready = self._ready
        count = len(ready)
        asyncio._set_running_loop(self)
        try:
            for _ in range(count):
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if self.is_dead:
                    return count
        finally:
            asyncio._set_running_loop(None)
        if ready:
            self._queue()
        return count

    def next_callback(self) -> str:
        """A description of the next callback."""
        if not self._ready:
            return "nothing"
        callback = getattr(self._ready[0], "_callback", None)
        task = getattr(callback, "__self__", None)
        if isinstance(task, Task):
            return f"task {getattr(task.get_coro(), '__qualname__', '?')}"
        return getattr(callback, "__qualname__", str(callback))

    def enqueue(self, handle: Handle) -> None:
        if not self.is_dead and not handle.cancelled():
            self._ready.append(handle)
            self._queue()

    def _queue(self) -> None:
        if not self._is_queued and not self._is_paused:
            self._is_queued = True
            self._scheduler.make_runnable(self)

    @property
    def is_paused(self) -> bool:
        return self._is_paused

    def pause(self) -> None:
        """Pause the process, as SIGSTOP does."""
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
        if self._ready and not self.is_dead:
            self._queue()

    def kill(self) -> None:
        """Stop running this process, including its `finally` blocks."""
        self.is_dead = True
        self._ready.clear()

    def dispose(self) -> None:
        """Free the process's objects at the end. Its coroutines see a dead loop and a dead disk."""
        self.kill()
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            coroutine = task.get_coro()
            try:
                if coroutine is not None:
                    coroutine.close()
            except BaseException as error:
                # Errors of a dead process are irrelevant.
                del error
        self._tasks.clear()

    # -- what coroutines see ---------------------------------------------------------------------------------

    def time(self) -> float:
        return self._offset_s + self._scheduler.now_s * self._rate

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(callback, args, self, context)
        if not self.is_dead:
            self._ready.append(handle)
            self._queue()
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> TimerHandle:
        handle = TimerHandle(when, callback, args, self, context)
        if not self.is_dead:
            # Never early, not even by a rounding error: the caller would schedule the timer again at once.
            due_s = (when - self._offset_s) / self._rate + _RESOLUTION_S
            self._scheduler.push_timer(due_s, self, handle)
        return handle

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """A cancelled timer is skipped when it is due."""

    def create_future(self) -> Future[Any]:
        return Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], **options: Any
    ) -> Task[Any]:
        task = Task(coro, loop=self, **options)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: Task[Any]) -> None:
        self._tasks.pop(task, None)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Future[Any]:
        raise NotImplementedError("a simulated process has no threads")

    async def getaddrinfo(  # type: ignore[override]
        self, host: str, port: int | None, **_: object
    ) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        """Resolve a host: in the simulation its name is its address."""
        return [(0, 0, 0, "", (host, port or 0))]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self._on_exception(self, context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.is_dead

    async def shutdown_asyncgens(self) -> None:
        return
