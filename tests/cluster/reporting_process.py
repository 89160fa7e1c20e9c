"""A Python module as a process that reports what it does, a line for each event. It can be killed.

What a killed process has done is in the pipe, because it writes each line before it goes on.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

REPO = Path(__file__).resolve().parents[2]
COMPLAINTS_MAX = 4000


class ReportingProcess:
    """`python -m MODULE WORDS…`, whose whole lines a thread passes to `take`."""

    def __init__(
        self, name: str, module: str, *words: str, take: Callable[[str], None], limit_s: float
    ) -> None:
        self._name = name
        self._take = take
        self._limit_s = limit_s
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
            cwd=REPO,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):  # the last line of a killed process may be cut
                self._take(line)

    @property
    def stdin(self) -> IO[str]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def assert_alive(self) -> None:
        code = self._process.poll()
        assert code is None, f"{self._name} ended by itself with {code}\n{self._read_complaints()}"

    def assert_ends_well(self) -> None:
        code = self._process.wait(self._limit_s)
        complaints = self._read_complaints()
        self.close()
        assert code == 0, f"{self._name} ended with {code}\n{complaints}"

    def kill(self) -> None:
        """`kill -9`."""
        self._process.kill()
        self._process.wait(self._limit_s)
        self.close()

    def _read_complaints(self) -> str:
        """The end of what it wrote to its standard error."""
        self._complaints.seek(0)
        return self._complaints.read().decode(errors="replace")[-COMPLAINTS_MAX:]

    def close(self) -> None:
        self._reader.join(self._limit_s)
        self._complaints.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
