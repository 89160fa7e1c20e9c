"""Loads that only a secured broker gets: connections that do little but shake hands, and a producer over its quota."""

from __future__ import annotations

import itertools
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench import frames
from bench.connection import Connection, RequestFailedError, answers_api_versions
from bench.load import Load
from bench.processes import Meter, Metrics


@dataclass(frozen=True)
class Handshakes(Load):
    """New connections with a full handshake and one request each, a few at a time."""

    connections: int
    at_once: int

    def run(self) -> Metrics:
        with ThreadPoolExecutor(self.at_once) as pool, Meter(self.broker_pids) as meter:
            answered = sum(pool.map(answers_api_versions, itertools.repeat(self.bootstrap, self.connections)))
        if answered != self.connections:
            raise RequestFailedError(f"{answered} of {self.connections} connections were answered")
        return {
            "handshakes_per_s": self.connections / meter.wall_s,
            "broker_ms_per_handshake": meter.broker_cpu_s / self.connections * 1e3,
        }


@dataclass(frozen=True)
class ProduceOverQuota(Load):
    """As much as the broker takes.

    A quota is an average over a window, so bursts come back with each window: whole windows are counted, after the first.
    """

    topic: str
    rate_bytes_per_s: int
    batch_bytes: int
    settling_s: float
    counted_s: float

    def run(self) -> Metrics:
        batch, _ = frames.full_batch(self.batch_bytes, bytes(1000))
        request = frames.produce_request(self.topic, {0: batch}, 1)
        acked: deque[float] = deque()
        began_s = time.monotonic()
        with Connection(self.bootstrap) as connection:
            while time.monotonic() - began_s < self.settling_s + self.counted_s:
                errors = frames.produce_errors(connection.call(request))
                if errors:
                    raise RequestFailedError(f"Produce: error codes {errors}")
                acked.append(time.monotonic() - began_s)
        counted = sum(self.settling_s <= at_s < self.settling_s + self.counted_s for at_s in acked)
        held = counted * len(request) / self.counted_s
        return {
            "set_mb_per_s": self.rate_bytes_per_s / 1e6,
            "held_mb_per_s": held / 1e6,
            "off_percent": abs(held / self.rate_bytes_per_s - 1) * 100,
        }
