"""Cuts long work on the event loop into turns of a millisecond: `Turns` for the gateway, `Turn` for one request.

A request with many records checks `turn.is_over` after each record, and then gives way. Each pass of the event loop resumes
one of the requests that gave way, in their order. So a pass lasts about one turn, however many such requests there are, and
`/healthz` waits for one pass at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from starlette.requests import Request

TURN_S = 0.001


class Turns:
    """The requests that gave way. Belongs to one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    def begin(self) -> Turn:
        return Turn(self)

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        place = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._resume_one)
        self._waiting.append(place)
        await place

    def _resume_one(self) -> None:
        """Runs once in each pass of the loop while there are places to resume."""
        place = self._waiting.popleft()
        # A request whose caller went away was cancelled.
        if not place.done():
            place.set_result(None)
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._resume_one)


class Turn:
    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._until_s = time.monotonic() + TURN_S

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self._until_s

    async def give_way(self) -> None:
        """A new turn begins when it returns."""
        await self._turns.wait()
        self._until_s = time.monotonic() + TURN_S


def turn_of(request: Request) -> Turn:
    turns: Turns = request.app.state.turns
    return turns.begin()
