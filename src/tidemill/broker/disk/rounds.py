"""Background work in rounds, such as compaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)


class Rounds:
    """Repeats a round until it returns False, pauses, and begins again."""

    def __init__(self, what: str, run_round: Callable[[], Awaitable[bool]], pause_s: float) -> None:
        self._what = what
        self._run_round = run_round
        self._pause_s = pause_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

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
            await asyncio.sleep(self._pause_s)
