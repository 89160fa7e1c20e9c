"""Group commit: the disk is synced off the loop, and one sync answers all requests that wait for it.

While a round of syncs runs in a thread, further requests gather; the next round takes them together. The thread gets a
snapshot (`Log.sync_work`) and never touches a structure that the loop changes. Its failure is a value that arrives back
on the loop: a round always ends, with success or with the error handed to every waiter.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

logger = logging.getLogger(__name__)

Done = Callable[[OSError | None], None]


class Work(Protocol):
    """Makes a log durable up to `end_offset`; safe to run in another thread."""

    @property
    def end_offset(self) -> int: ...
    def run(self) -> None: ...


class Syncable(Protocol):
    """A log."""

    @property
    def folder(self) -> str: ...
    def sync_work(self) -> Work: ...
    def synced(self, end_offset: int, wall_ms: int) -> None: ...


class RunBlocking(Protocol):
    """Run a function that blocks without blocking the loop."""

    def __call__(self, function: Callable[[], Any], /) -> Awaitable[Any]: ...


class Syncer:
    def __init__(self, run_blocking: RunBlocking, wall_ms: Callable[[], int]) -> None:
        self._run_blocking = run_blocking
        self._wall_ms = wall_ms
        self._waiting: dict[Syncable, list[Done]] = {}
        self._round: asyncio.Task[None] | None = None

    def sync(self, log: Syncable, done: Done) -> None:
        """Make durable what `log` holds now, then call `done`."""
        self._waiting.setdefault(log, []).append(done)
        if self._round is None:
            self._round = asyncio.get_running_loop().create_task(self._run_rounds())

    async def sync_now(self, log: Syncable) -> None:
        """Syncs for a coroutine. Raises the error of the disk."""
        finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: OSError | None) -> None:
            if finished.cancelled():
                return
            if error is None:
                finished.set_result(None)
            else:
                finished.set_exception(error)

        self.sync(log, done)
        await finished

    async def _run_rounds(self) -> None:
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, {}
                attempts = [(log, _Attempt(log)) for log in waiting]
                outcomes = await asyncio.gather(*(self._run_blocking(attempt) for _, attempt in attempts))
                for (log, attempt), error in zip(attempts, outcomes, strict=True):
                    if error is None:
                        log.synced(attempt.end_offset, self._wall_ms())
                    else:
                        logger.error("cannot sync %s: %s", log.folder, error)
                    for done in waiting[log]:
                        done(error)
        finally:
            self._round = None

    async def drain(self) -> None:
        if self._round is not None:
            await self._round


class _Attempt:
    """The thread's whole job: an error is returned, not raised, so that a round cannot be lost.

    An unforeseen error counts as the disk's: waiting requests would otherwise wait for ever (failure 26).
    """

    __slots__ = ("_error", "_work", "end_offset")

    def __init__(self, log: Syncable) -> None:
        self._work: Work | None = None
        self._error: OSError | None = None
        self.end_offset = 0
        try:
            self._work = log.sync_work()
            self.end_offset = self._work.end_offset
        except Exception as error:
            self._error = _unforeseen(error)

    def __call__(self) -> OSError | None:
        try:
            if self._work is not None:
                self._work.run()
        except OSError as error:
            return error
        except Exception as error:
            return _unforeseen(error)
        return self._error


def _unforeseen(error: Exception) -> OSError:
    logger.error("a sync failed unexpectedly; it counts as a failure of the disk", exc_info=error)
    return error if isinstance(error, OSError) else OSError(errno.EIO, repr(error))
