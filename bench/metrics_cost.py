"""The cost of metrics on the request path: one broker, with and without the counting statements, in turns."""

from __future__ import annotations

import os
import signal
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bench import frames
from bench.brokers import Target, Tidemill
from bench.cases import KB, FreshCase, Scale, topic
from bench.connection import Connection, RequestFailedError
from bench.load import Load, measure
from bench.processes import Metrics, cpu_seconds
from bench.raw_loads import send_pipelined
from bench.uncounted import CONTROL, COUNTING, UNCOUNTED

PROCESSES, QUICK_PROCESSES = 24, 6
ROUNDS = 40
IN_FLIGHT_MAX = 5
# After each exchange the interpreter has to specialise the code again.
WARM_UP_SHARE = 0.5
SIDES = (UNCOUNTED, COUNTING, CONTROL)


class Exchanging(Tidemill):
    @property
    def program(self) -> list[str]:
        return [sys.executable, "-m", "bench.uncounted"]

    @property
    def options(self) -> list[str]:
        # Requests are timed only while a status listener exists.
        return ["--status", "127.0.0.1:0"]


@dataclass(frozen=True)
class Bursts(Load):
    topic: str
    partitions: int
    # 0 for a batch of one record of 100 bytes.
    batch_bytes: int
    requests: int
    is_fetch: bool

    def run(self) -> Metrics:
        figures: dict[signal.Signals, list[float]] = {side: [] for side in SIDES}
        (pid,) = self.broker_pids
        rng = Random()
        with Connection(self.bootstrap) as connection:
            send_pipelined(connection, [self._produce()], 1)
            for _ in range(ROUNDS):
                for side in rng.sample(SIDES, len(SIDES)):
                    os.kill(pid, side)
                    self._burst(connection, int(self.requests * WARM_UP_SHARE))
                    before_s = cpu_seconds(pid)
                    self._burst(connection, self.requests)
                    figures[side].append((cpu_seconds(pid) - before_s) / self.requests * 1e6)
        return {
            "counted_us_per_request": statistics.median(figures[COUNTING]),
            "uncounted_us_per_request": statistics.median(figures[UNCOUNTED]),
            "counting_percent": _percent_more(figures[COUNTING] + figures[CONTROL], figures[UNCOUNTED] * 2),
            "control_percent": _percent_more(figures[CONTROL], figures[COUNTING]),
        }

    def _produce(self) -> bytearray:
        if self.batch_bytes:
            batch, _ = frames.full_batch(self.batch_bytes, bytes(KB))
        else:
            batch = frames.record_batch([bytes(100)])
        return frames.produce_request(self.topic, dict.fromkeys(range(self.partitions), batch), acks=1)

    def _burst(self, connection: Connection, requests: int) -> None:
        if not self.is_fetch:
            send_pipelined(connection, [self._produce()] * requests, IN_FLIGHT_MAX)
            return
        request = frames.fetch_request(self.topic, 0, self.batch_bytes)
        for _ in range(requests):
            error, records = frames.fetched(connection.call(request))
            if error or not records:
                raise RequestFailedError(f"Fetch: error code {error}, {len(records)} bytes")


@dataclass(frozen=True)
class Shape:
    name: str
    partitions: int = 1
    batch_bytes: int = 0
    requests: int = 200
    is_fetch: bool = False


SHAPES = (
    Shape("one record, 5 in flight"),
    Shape("one record in each of 10 partitions, 5 in flight", partitions=10, requests=60),
    Shape("one batch of 64 KB, 5 in flight", batch_bytes=64 * KB, requests=60),
    Shape("fetch of 64 KB, one at a time", batch_bytes=64 * KB, requests=100, is_fetch=True),
)


def cases(scale: Scale) -> list[FreshCase]:
    processes = QUICK_PROCESSES if scale.is_quick else PROCESSES

    def case(shape: Shape) -> FreshCase:
        def run(target: Target, data_dir: Path) -> Metrics:
            if target.name != "tidemill":
                return {}
            return _summary([_measure(data_dir / str(number), shape) for number in range(processes)])

        return FreshCase("metrics-cost", shape.name, run)

    return [case(shape) for shape in SHAPES]


def _measure(data_dir: Path, shape: Shape) -> Metrics:
    with Exchanging(data_dir) as broker, topic(broker, shape.partitions) as name:
        return measure(
            Bursts(
                broker.bootstrap,
                broker.pids,
                topic=name,
                partitions=shape.partitions,
                batch_bytes=shape.batch_bytes,
                requests=shape.requests,
                is_fetch=shape.is_fetch,
            )
        )


def _percent_more(figures: list[float], than: list[float]) -> float:
    return (statistics.median(one / other for one, other in zip(figures, than, strict=True)) - 1) * 100


def _summary(processes: list[Metrics]) -> Metrics:
    """Means over the processes, and the uncertainty of the comparison."""
    found = {key: statistics.mean(each[key] for each in processes) for key in processes[0]}
    for key in ("counting_percent", "control_percent"):
        found[f"{key}_error"] = statistics.stdev(each[key] for each in processes) / len(processes) ** 0.5
    return found
