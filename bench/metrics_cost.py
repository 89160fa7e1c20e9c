"""What counting costs on the way of a request: one broker, with the statements that count and without them, in turns.

The broker is one process whose code is exchanged while it runs (`uncounted.py`). A client gives it short bursts of the same
requests, counted and uncounted in turns, first one and then the other first, and reads the CPU clock of the process around
each. The cost is the median over the pairs of bursts that follow each other: other work on the machine falls on both.
The first cases are the dearest there are: requests so small that a few additions show.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from bench import frames
from bench.brokers import Target, Tidemill
from bench.cases import KB, FreshCase, Scale, topic
from bench.connection import Connection, RequestFailedError
from bench.load import Load, measure
from bench.processes import Metrics, cpu_seconds
from bench.raw_loads import send_pipelined

BURSTS, QUICK_BURSTS = 400, 100
IN_FLIGHT_MAX = 5
# After each exchange: what the interpreter has learned about the code has to be learned again.
WARM_UP_SHARE = 0.5
COUNT, STOP_COUNTING = signal.SIGUSR2, signal.SIGUSR1


class Exchanging(Tidemill):
    @property
    def program(self) -> list[str]:
        return [sys.executable, "-m", "bench.uncounted"]


@dataclass(frozen=True)
class Bursts(Load):
    topic: str
    partitions: int
    # 0 for a batch of one record of 100 bytes.
    batch_bytes: int
    requests: int
    bursts: int
    is_fetch: bool

    def run(self) -> Metrics:
        figures: dict[signal.Signals, list[float]] = {COUNT: [], STOP_COUNTING: []}
        (pid,) = self.broker_pids
        with Connection(self.bootstrap) as connection:
            send_pipelined(connection, [self._produce()], 1)
            for number in range(self.bursts):
                for side in (COUNT, STOP_COUNTING) if number % 2 else (STOP_COUNTING, COUNT):
                    os.kill(pid, side)
                    self._burst(connection, int(self.requests * WARM_UP_SHARE))
                    before_s = cpu_seconds(pid)
                    self._burst(connection, self.requests)
                    figures[side].append((cpu_seconds(pid) - before_s) / self.requests * 1e6)
        ratios = [
            counted / uncounted
            for counted, uncounted in zip(figures[COUNT], figures[STOP_COUNTING], strict=True)
        ]
        return {
            "counted_us_per_request": statistics.median(figures[COUNT]),
            "uncounted_us_per_request": statistics.median(figures[STOP_COUNTING]),
            "counting_percent": (statistics.median(ratios) - 1) * 100,
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
    bursts = QUICK_BURSTS if scale.is_quick else BURSTS

    def case(shape: Shape) -> FreshCase:
        def run(target: Target, data_dir: Path) -> Metrics:
            return _measure(data_dir, shape, bursts) if target.name == "tidemill" else {}

        return FreshCase("metrics-cost", shape.name, run)

    return [case(shape) for shape in SHAPES]


def _measure(data_dir: Path, shape: Shape, bursts: int) -> Metrics:
    with Exchanging(data_dir) as broker, topic(broker, shape.partitions) as name:
        return measure(
            Bursts(
                broker.bootstrap,
                broker.pids,
                topic=name,
                partitions=shape.partitions,
                batch_bytes=shape.batch_bytes,
                requests=shape.requests,
                bursts=bursts,
                is_fetch=shape.is_fetch,
            )
        )
