"""Who changes the machine's network interfaces, and who must not be disturbed by that.

Chromium gives up every request under way, those to the loopback too, when an interface comes or goes. Tests run beside
each other, in several processes: so whoever makes network namespaces and whoever drives a browser take turns.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def kept() -> Iterator[None]:
    """Interfaces do not change meanwhile."""
    with _lock_file() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield


@contextmanager
def changing() -> Iterator[None]:
    """No test that depends on the interfaces runs meanwhile."""
    with _lock_file() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _lock_file() -> IO[str]:
    return (Path(tempfile.gettempdir()) / "tidemill-tests-interfaces.lock").open("w")
