"""Ctrl-C and SIGTERM for commands with something to tidy up, which they do at a place of their own choice."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, Self


class Stop:
    """Records the first signal that ends the command, instead of raising KeyboardInterrupt anywhere. The second one
    does raise it.
    """

    def __init__(self) -> None:
        self._handlers: dict[signal.Signals, Any] = {}
        self._is_asked_for = False

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            # An ignored signal, such as Ctrl-C in background jobs, stays ignored.
            if callable(signal.getsignal(number)):
                self._handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        if self._is_asked_for:
            raise KeyboardInterrupt
        self._is_asked_for = True

    def check(self) -> None:
        """Raise KeyboardInterrupt if a signal has come."""
        if self._is_asked_for:
            raise KeyboardInterrupt
