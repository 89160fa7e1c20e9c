"""The measurements of a load: volume, rate, latency, and whether the client was the limit.

Latencies are kept up to a bound and then thinned out evenly, so a long run needs no more memory than a short one. The
CPU time of the load's thread is compared with the wall clock: a thread that never waited was the limit itself.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_SAMPLES_MAX = 100_000
_PERCENTILES = (50.0, 95.0, 99.0, 99.9)
# Above this share the load's thread was as busy as one thread can be.
_BUSY_SHARE = 0.8


class Latencies:
    """Latencies in seconds."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._every = 1
        self._seen = 0

    def add(self, seconds: float) -> None:
        self._seen += 1
        if self._seen % self._every:
            return
        self._samples.append(seconds)
        if len(self._samples) >= _SAMPLES_MAX:
            del self._samples[::2]
            self._every *= 2

    def percentiles_ms(self) -> dict[str, float] | None:
        if not self._samples:
            return None
        ordered = sorted(self._samples)
        values = {f"p{percent:g}": _percentile(ordered, percent) for percent in _PERCENTILES}
        return {name: round(1000 * value, 3) for name, value in {**values, "max": ordered[-1]}.items()}


def _percentile(ordered: list[float], percent: float) -> float:
    """The smallest value that is not below this percentage of the values."""
    rank = -(-len(ordered) * percent // 100)
    return ordered[max(0, int(rank) - 1)]


@dataclass
class Result:
    """The result of one load."""

    load: str
    records: int = 0
    bytes: int = 0
    seconds: float = 0.0
    latency_ms: dict[str, float] | None = None
    # The share of time in which the load's thread was computing.
    client_cpu_share: float = 0.0
    # How often the client's queue was full.
    queue_full: int = 0
    errors: int = 0
    error: str | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def records_per_s(self) -> float:
        return self.records / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.seconds if self.seconds else 0.0

    @property
    def limit(self) -> str:
        """Returns what limited the load, as far as it can be seen from here."""
        if self.load == "end-to-end":
            return "none: the rate is given, the latency is what was measured"
        share = f"{100 * self.client_cpu_share:.0f} % of the time"
        if self.client_cpu_share >= _BUSY_SHARE:
            return (
                f"this client: its thread was computing {share}; the cluster can do more, run several at once"
            )
        if self.queue_full:
            return f"the cluster or the network: the client's queue was full {self.queue_full} times"
        return f"the cluster, the network or waiting for answers: the client was computing only {share}"

    def as_json(self) -> dict[str, object]:
        return {
            "load": self.load,
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.records_per_s, 1),
            "bytes_per_s": round(self.bytes_per_s, 1),
            "latency_ms": self.latency_ms,
            "client_cpu_share": round(self.client_cpu_share, 3),
            "queue_full": self.queue_full,
            "limit": self.limit,
            "errors": self.errors,
            "error": self.error,
            "notes": self.notes,
        }


class Stopwatch:
    """Wall time and CPU time of the calling thread."""

    def __init__(self) -> None:
        self._wall_s, self._thread_s = time.perf_counter(), time.thread_time()

    def stop(self, result: Result) -> None:
        result.seconds = time.perf_counter() - self._wall_s
        computing_s = time.thread_time() - self._thread_s
        result.client_cpu_share = min(1.0, computing_s / result.seconds) if result.seconds else 0.0
