"""The parts of a measurement: the sizes of a run, the cases, and a topic for each case."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.brokers import Broker, Target
from bench.connection import create_topics, delete_topics
from bench.processes import Metrics

KB = 1024
MB = 1024 * KB
_topic_numbers = itertools.count(1)


@dataclass(frozen=True)
class Scale:
    is_quick: bool
    rounds: int
    throughput_bytes: int
    small_requests: int
    latency_s: float
    latency_warm_up_s: float
    idle_s: float
    starts: int

    def payload_bytes(self, value_bytes: int) -> int:
        """The bytes that a throughput case moves: half for small messages, which take the client several times as
        long.
        """
        return self.throughput_bytes if value_bytes >= KB else self.throughput_bytes // 2


FULL = Scale(
    is_quick=False,
    rounds=3,
    throughput_bytes=512 * MB,
    small_requests=30_000,
    latency_s=6,
    latency_warm_up_s=2,
    idle_s=10,
    starts=5,
)
QUICK = Scale(
    is_quick=True,
    rounds=1,
    throughput_bytes=128 * MB,
    small_requests=10_000,
    latency_s=3,
    latency_warm_up_s=1,
    idle_s=5,
    starts=3,
)


@dataclass(frozen=True)
class LiveCase:
    family: str
    name: str
    run: Callable[[Broker], Metrics]
    # The bytes that the broker will write. As much page cache is touched first, and as much for the client.
    written_bytes: int = 0


@dataclass(frozen=True)
class FreshCase:
    family: str
    name: str
    run: Callable[[Target, Path], Metrics]


Case = LiveCase | FreshCase


@contextmanager
def topic(broker: Broker, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Iterator[str]:
    name = f"bench-{next(_topic_numbers)}"
    create_topics(broker.bootstrap, [name], partitions, configs)
    try:
        yield name
    finally:
        delete_topics(broker.bootstrap, [name])


def size_text(size: int) -> str:
    if size >= MB:
        return f"{size // MB} MB"
    return f"{size // KB} KB" if size >= KB else f"{size} B"
