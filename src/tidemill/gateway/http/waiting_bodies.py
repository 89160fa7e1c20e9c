"""`WaitingBodies`: the bodies that are still to come, bounded in number and in the bytes that are held of them.

A body that comes slowly costs a place and what was read of it. Beyond `bodies_max` the body that has made no progress
for the longest time gives way: its request is refused (503), and the new one takes its place. So slow bodies, however
many, cannot keep out a caller that sends its own. Beyond `bodies_bytes_max` the body that needs more is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Iterator

from starlette.requests import Request
from starlette.types import Message

from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Limits


class WaitingBodies:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # The first has been without progress for the longest time.
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._bytes = 0

    @contextlib.contextmanager
    def place(self) -> Iterator[Place]:
        if len(self._places) >= self._limits.bodies_max:
            self._places.popitem(last=False)[0].lose()
        place = Place(self)
        self._places[place] = None
        try:
            yield place
        finally:
            self._places.pop(place, None)
            self._bytes -= place.bytes_held

    def made_progress(self, place: Place) -> None:
        if place in self._places:
            self._places.move_to_end(place)

    def hold(self, place: Place, size_bytes: int) -> None:
        more = size_bytes - place.bytes_held
        if more > 0 and self._bytes + more > self._limits.bodies_bytes_max:
            raise Problem(503, 50301, "too many large bodies are under way; try again later")
        self._bytes += more
        place.bytes_held = size_bytes


class Place:
    """The place of one body."""

    def __init__(self, bodies: WaitingBodies) -> None:
        self._bodies = bodies
        self._timeout: asyncio.Timeout | None = None
        self._is_lost = False
        self.bytes_held = 0

    async def receive(self, request: Request, patience_s: float) -> Message:
        """The body's next part. 408 when it does not come in time, 503 when the place was lost."""
        try:
            if self._is_lost or patience_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(patience_s) as self._timeout:
                message = await request.receive()
        except TimeoutError:
            raise _gave_way() if self._is_lost else _too_slow() from None
        finally:
            self._timeout = None
        self._bodies.made_progress(self)
        return message

    def hold(self, size_bytes: int) -> None:
        """So many bytes of the body are kept from now on."""
        self._bodies.hold(self, size_bytes)

    def lose(self) -> None:
        self._is_lost = True
        if self._timeout is not None and not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time())


def bodies_of(request: Request) -> WaitingBodies:
    bodies: WaitingBodies = request.app.state.waiting_bodies
    return bodies


def _too_slow() -> Problem:
    return Problem(408, 408, "the body arrives too slowly")


def _gave_way() -> Problem:
    return Problem(
        503, 50301, "too many bodies are under way, and this one has waited longest for its next byte"
    )
