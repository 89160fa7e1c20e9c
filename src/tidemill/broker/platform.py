"""What a node stands on: files, network, clock, random numbers, and threads for what blocks.

These are the seams. A real node gets `real_platform`; a simulated one gets a disk, a network and a clock that are
made up, and runs what blocks in virtual time. Nothing else in the broker reaches for the operating system.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tidemill.broker.clock import Clock, SystemClock
from tidemill.broker.network import Network
from tidemill.broker.sockets import SocketNetwork
from tidemill.broker.syncer import RunBlocking
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
    close: Callable[[], None]


def real_platform(
    *, files: Files | None = None, clock: Clock | None = None, rng: random.Random | None = None
) -> Platform:
    """The operating system's own, for the running loop; tests may replace a part."""
    loop = asyncio.get_running_loop()
    pool = ThreadPoolExecutor(_BLOCKING_THREADS, thread_name_prefix="tidemill-disk")
    return Platform(
        files=files or DiskFiles(),
        clock=clock or SystemClock(),
        network=SocketNetwork(loop),
        rng=rng or random.SystemRandom(),
        run_blocking=lambda function: loop.run_in_executor(pool, function),
        pid=os.getpid(),
        host_name=socket.gethostname(),
        close=pool.shutdown,
    )
