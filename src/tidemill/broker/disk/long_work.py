"""Work on the loop that takes long, one piece at a time and a step at a time.

A batch of some kilobytes can hold a hundred thousand records. Looking into them is Python, so a thread would take the
interpreter from the loop. So the loop itself does it, in steps with a turn of the loop between two of them, and only
one piece at a time. Other requests wait for one step at most. Only what does not hold the interpreter, decompression,
goes to a thread; one at a time bounds the memory, too.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tidemill.broker.disk.syncer import RunBlocking
from tidemill.protocol.steps import Blocking, Steps

logger = logging.getLogger(__name__)

# Between two steps the loop has a turn. In simulated time a step would take none, and nothing could happen between two.
_PAUSE_S = 0.0

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]


class LongWork:
    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._waiting: deque[tuple[Callable[[], Steps[Any]], Done]] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(self, begin: Callable[[], Steps[T]], done: Callable[[T, Exception | None], None]) -> None:
        """Do it after all that was submitted before; `done` gets the result, or what was raised instead."""
        self._waiting.append((begin, done))
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def run(self, begin: Callable[[], Steps[T]]) -> T:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(result: T, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.submit(begin, done)
        return await future

    async def drain(self, limit_s: float) -> None:
        """Wait until all of it is done, or for so long."""
        deadline_s = asyncio.get_running_loop().time() + limit_s
        while self._task is not None and (left_s := deadline_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait([self._task], timeout=left_s)

    def close(self) -> None:
        """Gives up the work that is under way and the work that waits."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._waiting:
                begin, done = self._waiting.popleft()
                result, raised = None, None
                try:
                    result = await self._advance(begin())
                except Exception as error:
                    _drop_locals(error)
                    raised = error
                try:
                    done(result, raised)
                except Exception:
                    # What comes behind has nothing to do with it.
                    logger.exception("taking the result of long work failed")
        finally:
            self._task = None

    async def _advance(self, steps: Steps[T]) -> T:
        value: Any = None
        failure: Exception | None = None
        while True:
            try:
                work: Blocking | None = steps.send(value) if failure is None else steps.throw(failure)
            except StopIteration as end:
                result: T = end.value
                return result
            value, failure = None, None
            if work is None:
                await asyncio.sleep(_PAUSE_S)
                continue
            try:
                value = await self._run_blocking(work)
            except Exception as error:
                failure = error


def _drop_locals(error: BaseException) -> None:
    """Let go of what the failed steps worked on: a decompressed batch may be 100 MB.

    An error refers to its frames, and a caller's frame, or the future between the two, refers to the error. Only the
    garbage collector ends that cycle, and a few large objects do not call it.
    """
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        traceback.clear_frames(each.__traceback__)
        pending += (each.__cause__, each.__context__)
