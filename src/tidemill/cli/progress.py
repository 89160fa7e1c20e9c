"""The progress of a long operation: a bar on a terminal, a line now and then anywhere else.

Progress goes to standard error, so that standard output holds the result alone.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import IO

_BAR_CELLS = 30
_LINE_INTERVAL_S = 2.0


class Progress:
    """A context manager that shows progress. Leaving it ends the bar's line."""

    def __init__(self, stream: IO[str] | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream or sys.stderr
        self._clock = clock
        self._is_terminal = self._stream.isatty()
        self._shown = ""
        self._shown_at: float | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_terminal and self._shown:
            self._write("\n")

    def show(self, share: float | None, text: str) -> None:
        """Show that `share` of the work is done, from 0 to 1; None when the total is unknown. The end is always shown,
        once.
        """
        percent = None if share is None else int(100 * min(max(share, 0.0), 1.0))
        line = text if percent is None else f"{percent:3d} %  {text}"
        if line == self._shown:
            return
        if self._is_terminal:
            self._write(f"\r{_bar(percent)}{line}\x1b[K")
        elif percent == 100 or self._is_due():
            self._write(f"{line}\n")
            self._shown_at = self._clock()
        else:
            return
        self._shown = line

    def note(self, text: str) -> None:
        """Print a line that stays."""
        self._write(f"\r\x1b[K{text}\n" if self._is_terminal else f"{text}\n")
        self._shown = ""

    def _is_due(self) -> bool:
        return self._shown_at is None or self._clock() - self._shown_at >= _LINE_INTERVAL_S

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def _bar(percent: int | None) -> str:
    if percent is None:
        return ""
    cells = _BAR_CELLS * percent // 100
    return f"[{'#' * cells}{'.' * (_BAR_CELLS - cells)}] "
