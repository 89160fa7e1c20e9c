"""Background work in rounds, such as compaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)


class Rounds:
    """Repeats a round until it returns False, pauses, and begins again."""

    # A shorter pause would keep the loop busy.
    _PAUSE_S_MIN = 0.01

    def __init__(self, what: str, run_round: Callable[[], Awaitable[bool]], pause_s: float) -> None:
        self._what = what
        self._run_round = run_round
        self._pause_s = max(pause_s, self._PAUSE_S_MIN)
        self._timer: asyncio.TimerHandle | None = None
        self._is_over: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    def set_pause(self, pause_s: float) -> None:
        """Pauses for that long from now on. A pause that is under way ends."""
        pause_s = max(pause_s, self._PAUSE_S_MIN)
        if pause_s != self._pause_s:
            self._pause_s = pause_s
            self._end_pause()

    async def stop(self) -> None:
        """Stop at once, in the middle of a round."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            try:
                while await self._run_round():
                    pass
            except Exception:
                # A background task that dies unseen is failure 26: it is logged and tried again.
                logger.exception("%s failed; trying again", self._what)
            await self._pause()

    async def _pause(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_over = loop.create_future()
        self._timer = loop.call_later(self._pause_s, self._end_pause)
        try:
            await self._is_over
        finally:
            self._timer.cancel()

    def _end_pause(self) -> None:
        if self._is_over is not None and not self._is_over.done():
            self._is_over.set_result(None)
