"""The cost of a broker before its first use, and its memory after it."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from bench.brokers import Broker, Target
from bench.cases import FreshCase, LiveCase, Scale
from bench.processes import Metrics, rss_mb

SETTLE_S = 2.0


def cases(scale: Scale) -> list[FreshCase]:
    def run(target: Target, data_dir: Path) -> Metrics:
        return _start(target, data_dir, scale.starts)

    return [FreshCase("start", f"empty broker, median of {scale.starts} starts", run)]


def after_load_cases(_: Scale) -> list[LiveCase]:
    """These cases must follow the other live cases."""
    return [LiveCase("memory", "after all the loads above", _rss)]


def _start(target: Target, data_dir: Path, starts: int) -> Metrics:
    started_s, rss = [], []
    for number in range(starts):
        with target.start(data_dir / str(number)) as broker:
            started_s.append(broker.started_seconds)
            time.sleep(SETTLE_S)
            rss.append(rss_mb(broker.pid))
    return {"start_s": statistics.median(started_s), "rss_mb": statistics.median(rss)}


def _rss(broker: Broker) -> Metrics:
    return {"rss_mb": rss_mb(broker.pid)}
