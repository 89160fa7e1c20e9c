"""The operating system as a node sees it: files, network, clock, random numbers, and threads for what blocks.

These are the seams. A real node gets `real_platform`; a simulated one gets a disk, a network and a clock that are
made up, and runs what blocks in virtual time. Measurements of the process do not go through them: the time that a request
takes on the loop (`requests/calls.py`, `requests/quotas.py`) and the figures of `status/` come from the operating system.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tidemill.broker.clock import Clock, SystemClock, WallClock
from tidemill.broker.disk.syncer import RunBlocking
from tidemill.broker.net.network import Network
from tidemill.broker.net.sockets import SocketNetwork
from tidemill.log.files import DiskFiles, Files

_BLOCKING_THREADS = 8


@dataclass(frozen=True, slots=True)
class Platform:
    files: Files
    clock: Clock
    network: Network
    rng: random.Random
    run_blocking: RunBlocking
    # Distinguishes this process from others that may hold the data directory.
    pid: int
    # By which other machines know this one, where nothing else was configured.
    host_name: str
    # Another one after each start of the machine, which is when what was not synced may be lost; None: not known.
    boot_id: str | None
    close: Callable[[], None]


def boot_id() -> str | None:
    try:
        if sys.platform == "linux":
            with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
                return file.read().strip() or None
        command = ["sysctl", "-n", "kern.bootsessionuuid"]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip() or None
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def real_platform(
    *, files: Files | None = None, clock: WallClock | None = None, rng: random.Random | None = None
) -> Platform:
    """The operating system's own, for the running loop; tests may replace a part."""
    loop = asyncio.get_running_loop()
    network = SocketNetwork(loop)
    pool = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="tidemill-disk")

    def close() -> None:
        network.close()
        pool.shutdown()

    return Platform(
        files=files or DiskFiles(),
        clock=Clock(clock or SystemClock(), loop.time),
        network=network,
        rng=rng or random.SystemRandom(),
        run_blocking=lambda function: loop.run_in_executor(pool, function),
        pid=os.getpid(),
        host_name=socket.gethostname(),
        boot_id=boot_id(),
        close=close,
    )
