"""The trace of a run, one line an event, in a form that two runs can be compared by.

Every line is added to a running hash: equal digests mean equal traces, byte for byte. The last lines are kept for
failure reports. Frames on the wire are hashed only.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

_KEPT_LINES = 200


class Trace:
    """The trace of one run."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.lines = 0
        self.on_line: Callable[[str], None] | None = None
        self._now_s = now_s
        self._hash = hashlib.blake2b(digest_size=16)
        self._kept: deque[str] = deque(maxlen=_KEPT_LINES)

    def add(self, who: str, what: str) -> None:
        line = f"{self._now_s():.6f} {who} {what}"
        self._kept.append(line)
        self._count(line)

    def note(self, what: str) -> None:
        """Add an event to the hash only."""
        self._count(f"{self._now_s():.6f} {what}")

    def _count(self, line: str) -> None:
        self.lines += 1
        self._hash.update(line.encode() + b"\n")
        if self.on_line is not None:
            self.on_line(line)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def last(self) -> list[str]:
        return list(self._kept)
