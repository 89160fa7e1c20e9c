"""SIGTERM as Ctrl-C: for programs that are ended by systemd, Docker or Kubernetes.

Python dies of SIGTERM on the spot, so a member of a group does not leave it: its partitions wait until its session is over.
A library does not decide on the signals of its program. It offers this, and `tidemill` itself uses it.
"""

from __future__ import annotations

import signal
from types import FrameType


def stop_on_sigterm() -> None:
    """From now on SIGTERM does what Ctrl-C does: `with` blocks end, and consumers leave their groups.

    To be called from the main thread. In `asyncio.run`, the main task is cancelled. A handler that the program has set
    for SIGTERM stays.
    """
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, frame: FrameType | None) -> None:
    handler = signal.getsignal(signal.SIGINT)
    # A shell starts background jobs with SIGINT ignored, which must not make them deaf to SIGTERM.
    if not callable(handler):
        raise KeyboardInterrupt
    handler(signal.SIGINT, frame)
