"""Log lines about peers that were refused: each once, and no flood of them.

A peer can be refused ten thousand times a second. The first lines of a second are written as they come; the
number of the others is part of the next line.
"""

from __future__ import annotations

import logging

_LINES_MAX = 10


class RefusalLog:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._began_s = 0.0
        self._count = 0

    def tell(self, line: str, now_s: float) -> None:
        """One refusal. What a peer sent is escaped by the caller."""
        if now_s - self._began_s >= 1.0:
            if self._count > _LINES_MAX:
                self._logger.warning("refused %d more connections before this", self._count - _LINES_MAX)
            self._began_s, self._count = now_s, 0
        self._count += 1
        if self._count <= _LINES_MAX:
            self._logger.warning("%s", line)
