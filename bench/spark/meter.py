"""The cost of one query: wall time, and the CPU time of Spark (driver, JVM, Python workers) and of the broker."""

from __future__ import annotations

import os
import time

from bench.processes import Meter, Metrics, cpu_seconds

TRIES = 20


def settled_cpu_seconds(pid: int) -> float:
    """Python workers come and go while the processes are walked; then they are walked again."""
    for _ in range(TRIES - 1):
        try:
            return cpu_seconds(pid)
        except OSError:
            time.sleep(0.01)
    return cpu_seconds(pid)


class SparkMeter(Meter):
    """Spark is the client here, and everything of it is a descendant of this process."""

    def _client_seconds(self) -> float:
        return settled_cpu_seconds(os.getpid())

    def throughput(self, rows: int, payload_bytes: int) -> Metrics:
        gigabytes = payload_bytes / 1e9
        return {
            "million_rows_per_s": rows / 1e6 / self.wall_s,
            "mb_per_s": payload_bytes / 1e6 / self.wall_s,
            "spark_cpu_s_per_gb": self.client_cpu_s / gigabytes,
            "broker_cpu_s_per_gb": self.broker_cpu_s / gigabytes,
            "wall_s": self.wall_s,
        }
