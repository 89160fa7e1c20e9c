"""What one query costs: wall time, and the CPU time of Spark's side (driver, JVM, Python workers) and of the broker."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType

from bench.processes import Metrics, cpu_seconds

TRIES = 20


def settled_cpu_seconds(pid: int) -> float:
    """Python workers come and go while the processes are walked; then they are walked again."""
    for _ in range(TRIES - 1):
        try:
            return cpu_seconds(pid)
        except OSError:
            time.sleep(0.01)
    return cpu_seconds(pid)


class SparkMeter:
    """Everything of Spark is a descendant of this process."""

    wall_s = broker_cpu_s = spark_cpu_s = 0.0

    def __init__(self, broker_pids: Sequence[int]) -> None:
        self._broker_pids = broker_pids

    def __enter__(self) -> SparkMeter:
        self.broker_cpu_s = -sum(map(cpu_seconds, self._broker_pids))
        self.spark_cpu_s = -settled_cpu_seconds(os.getpid())
        self.wall_s = -time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.wall_s += time.monotonic()
        self.spark_cpu_s += settled_cpu_seconds(os.getpid())
        self.broker_cpu_s += sum(map(cpu_seconds, self._broker_pids))

    def throughput(self, rows: int, payload_bytes: int) -> Metrics:
        gigabytes = payload_bytes / 1e9
        return {
            "million_rows_per_s": rows / 1e6 / self.wall_s,
            "mb_per_s": payload_bytes / 1e6 / self.wall_s,
            "spark_cpu_s_per_gb": self.spark_cpu_s / gigabytes,
            "broker_cpu_s_per_gb": self.broker_cpu_s / gigabytes,
            "wall_s": self.wall_s,
        }
