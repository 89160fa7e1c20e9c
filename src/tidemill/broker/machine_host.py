"""A machine's runtime in the event loop: futures for the requests that wait, one timer for what is due.

The controller and the coordinators share it. `runtime.py` waits for nothing and knows no clock; this is what waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidemill.broker.clock import Clock
from tidemill.errors import ApiError
from tidemill.runtime import NO_TOKEN

# No machine answers with this; one may answer with None.
_NOT_YET: Any = object()


class Requests:
    """The requests that runtimes handle, by token."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._last_token = NO_TOKEN
        # The request that a runtime is handling, and its answer if that came before the runtime returned.
        self._handled = NO_TOKEN
        self._answered_now: Any = _NOT_YET

    def ask(self, handle: Callable[[int], None]) -> Any | asyncio.Future[Any]:
        """The answer to `handle(token)`; a future where the runtime holds it back. `ApiError`, now or awaited."""
        answer = self._handle(handle)
        if answer is _NOT_YET:
            later = self._waiting[self._last_token] = asyncio.get_running_loop().create_future()
            return later
        return answer

    def tell(self, handle: Callable[[int], None]) -> None:
        """As `ask`, without waiting: `ApiError` when the runtime refuses at once, a later answer goes nowhere."""
        self._handle(handle)

    def _handle(self, handle: Callable[[int], None]) -> Any:
        self._last_token = self._handled = self._last_token + 1
        try:
            handle(self._handled)
        finally:
            # Also when it raises: an answer that it gave before is not the next request's.
            answer, self._answered_now = self._answered_now, _NOT_YET
            self._handled = NO_TOKEN
        if isinstance(answer, ApiError):
            raise answer
        return answer

    def respond(self, token: int, response: Any) -> None:
        if token == NO_TOKEN:
            return
        if token == self._handled:
            self._answered_now = response
            return
        answer = self._waiting.pop(token, None)
        if answer is None or answer.done():
            return
        if isinstance(response, ApiError):
            answer.set_exception(response)
        else:
            answer.set_result(response)


class DeadlineTimer:
    """One loop timer for the earliest deadline of a machine.

    It may fire early: a deadline that moved back is found out then, so that moving one costs nothing.
    """

    def __init__(self, clock: Clock, on_due: Callable[[], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_ms = 0

    def schedule(self, deadline_ms: int | None) -> None:
        if deadline_ms is None or (self._timer is not None and self._at_ms <= deadline_ms):
            return
        self.cancel()
        delay_s = max(0, deadline_ms - self._clock.steady_ms()) / 1000
        self._at_ms = deadline_ms
        self._timer = self._loop.call_later(delay_s, self._fire)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fire(self) -> None:
        self._timer = None
        self._on_due()
