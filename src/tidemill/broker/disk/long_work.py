"""Work on the loop that takes long, one piece at a time and a step at a time.

A batch of some kilobytes can hold a hundred thousand records. Looking into them is Python, so a thread would take the
interpreter from the loop. So the loop itself does it, in steps with a turn of the loop between two of them, and only
one piece at a time. Other requests wait for one step at most. Only what does not hold the interpreter, decompression,
goes to a thread; one at a time bounds the memory, too.

Connections take turns, a piece each, so that none waits for all that another has sent. The pieces of one connection keep
their order. What the broker does for itself has a turn like a connection. So has what connections left behind when they
closed, all of it together: a client that sends and closes may rely on it, as far as one connection may have waiting.
The rest is given up.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from tidemill.broker.disk.syncer import RunBlocking
from tidemill.protocol.steps import Blocking, Steps

logger = logging.getLogger(__name__)

# Between two steps the loop has a turn. In simulated time a step would take none, and nothing could happen between two.
_PAUSE_S = 0.0
# What is done for closed connections: as much as one connection may have waiting (`connection.py`).
_LEFT_BEHIND_MAX = 512
_LEFT_BEHIND_BYTES_MAX = 4 << 20

T = TypeVar("T")
Done = Callable[[Any, Exception | None], None]


class Owner(Protocol):
    """The connection for which work is done."""

    @property
    def is_closed(self) -> bool: ...
    @property
    def close_callbacks(self) -> list[Callable[[], None]]: ...


class GivenUp(Exception):
    """The work was given up: its connection is closed, and closed connections have left too much behind."""


class _Piece(NamedTuple):
    begin: Callable[[], Steps[Any]]
    done: Done
    size: int


class _Queue:
    """The pieces of one connection, or of several that are closed."""

    __slots__ = ("closed", "pieces")

    def __init__(self, closed: Callable[[], None] | None = None) -> None:
        self.pieces: deque[_Piece] = deque()
        # What the connection calls when it closes.
        self.closed = closed


class LongWork:
    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        # In the order of their turns. None is the broker itself, and LongWork what closed connections left behind.
        self._queues: OrderedDict[Owner | type[LongWork] | None, _Queue] = OrderedDict()
        self._left_behind_bytes = 0
        self._given_up: deque[_Piece] = deque()
        self._task: asyncio.Task[None] | None = None

    def submit(
        self,
        begin: Callable[[], Steps[T]],
        done: Callable[[T, Exception | None], None],
        owner: Owner | None = None,
        size: int = 0,
    ) -> None:
        """Do it after all that was submitted before for its owner; `done` gets the result, or what was raised instead.

        `size` is how many bytes wait with it.
        """
        piece = _Piece(begin, done, size)
        if owner is not None and owner.is_closed:
            self._leave_behind([piece])
        else:
            queue = self._queues.get(owner)
            if queue is None:
                queue = self._queues[owner] = _Queue()
                if owner is not None:
                    queue.closed = partial(self._owner_closed, owner)
                    owner.close_callbacks.append(queue.closed)
            queue.pieces.append(piece)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    def _owner_closed(self, owner: Owner) -> None:
        queue = self._queues.pop(owner, None)
        if queue is not None:
            self._leave_behind(queue.pieces)

    def _leave_behind(self, pieces: Iterable[_Piece]) -> None:
        """Queues the pieces of a closed connection. From the first one above the limits on, they are given up, in order."""
        queue = self._queues.get(LongWork)
        if queue is None:
            queue = self._queues[LongWork] = _Queue()
        is_full = False
        for piece in pieces:
            size = self._left_behind_bytes + piece.size
            is_full = is_full or len(queue.pieces) >= _LEFT_BEHIND_MAX
            is_full = is_full or (size > _LEFT_BEHIND_BYTES_MAX and bool(queue.pieces))
            if is_full:
                self._given_up.append(piece)
            else:
                self._left_behind_bytes = size
                queue.pieces.append(piece)
        if not queue.pieces:
            del self._queues[LongWork]

    def _next(self) -> _Piece:
        """Takes the next piece of the owner whose turn it is."""
        owner, queue = self._queues.popitem(last=False)
        piece = queue.pieces.popleft()
        if queue.pieces:
            self._queues[owner] = queue
        elif owner is not None and not isinstance(owner, type):
            assert queue.closed is not None
            owner.close_callbacks.remove(queue.closed)
        if owner is LongWork:
            self._left_behind_bytes -= piece.size
        return piece

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
        self._queues.clear()
        self._given_up.clear()
        if self._task is not None:
            self._task.cancel()

    async def _work(self) -> None:
        try:
            while self._queues or self._given_up:
                while self._given_up:
                    self._complete(self._given_up.popleft().done, None, GivenUp())
                if not self._queues:
                    break
                begin, done, _ = self._next()
                result, raised = None, None
                try:
                    result = await self._advance(begin())
                except Exception as error:
                    _drop_locals(error)
                    raised = error
                self._complete(done, result, raised)
        finally:
            self._task = None

    def _complete(self, done: Done, result: object, raised: Exception | None) -> None:
        try:
            done(result, raised)
        except Exception:
            # What comes behind has nothing to do with it.
            logger.exception("taking the result of long work failed")

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
