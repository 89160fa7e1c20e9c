"""The CPU time and memory of processes, and how they are ended."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

Metrics = dict[str, float]


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _words(task / "children")]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except (FileNotFoundError, ProcessLookupError):  # the thread ended between the listing and the reading
        return []


def cpu_seconds(pid: int) -> float:
    """CPU time of a process, its threads and its descendants."""
    own = time.clock_gettime(~pid << 3 | 2)  # how Linux names the CPU clock of another process
    # The command's name, in parentheses, may hold spaces. After it, 13 and 14 are the ended children's times.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ended = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
    return own + ended + _of_children(pid, cpu_seconds)


def rss_mb(pid: int) -> float:
    """Resident memory of a process and its descendants, in 10^6 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024 / 1e6 + _of_children(pid, rss_mb)
    raise ProcessLookupError(f"process {pid} has no memory of its own: it is a zombie, or the kernel's")


def _of_children(pid: int, measure: Callable[[int], float]) -> float:
    """The sum over the children, without those that end meanwhile."""
    total = 0.0
    for child in children(pid):
        with contextlib.suppress(OSError):  # no such file, process or clock
            total += measure(child)
    return total


def stop_processes(processes: Sequence[subprocess.Popen[bytes]], seconds_max: float) -> None:
    """A clean stop of all at once; what does not stop in time is killed."""
    for process in processes:
        process.terminate()
    deadline_s = time.monotonic() + seconds_max
    for process in processes:
        try:
            process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Meter:
    """Wall time and the CPU time of the brokers and of the client between entering and leaving."""

    wall_s = broker_cpu_s = client_cpu_s = 0.0

    def __init__(self, broker_pids: Sequence[int]) -> None:
        self._broker_pids = broker_pids

    def _client_seconds(self) -> float:
        return time.process_time()

    def __enter__(self) -> Self:
        self.broker_cpu_s = -sum(map(cpu_seconds, self._broker_pids))
        self.client_cpu_s = -self._client_seconds()
        self.wall_s = -time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall_s += time.monotonic()
        self.client_cpu_s += self._client_seconds()
        self.broker_cpu_s += sum(map(cpu_seconds, self._broker_pids))

    def throughput(self, messages: int, payload_bytes: int) -> Metrics:
        gigabytes = payload_bytes / 1e9
        return {
            "mb_per_s": payload_bytes / 1e6 / self.wall_s,
            "messages_per_s": messages / self.wall_s,
            "broker_cpu_s_per_gb": self.broker_cpu_s / gigabytes,
            "client_cpu_s_per_gb": self.client_cpu_s / gigabytes,
        }
