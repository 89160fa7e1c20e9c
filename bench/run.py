"""Runs cases against targets in turns, and collects their results."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import (
    compaction,
    delays,
    fetch,
    groups,
    latency,
    machine,
    metrics_cost,
    partitions,
    produce,
    shares,
    small_requests,
    startup,
    transactions,
    views,
)
from bench.apache_kafka import KafkaFailedError
from bench.brokers import Broker, BrokerFailedError, Target
from bench.cases import Case, FreshCase, LiveCase, Scale
from bench.cluster.families import CLUSTER_FAMILIES
from bench.cluster.produce import warm_up as warm_up_cluster
from bench.connection import RequestFailedError
from bench.load import LoadFailedError
from bench.processes import Metrics
from bench.results import Result
from bench.secured.families import SECURED_FAMILIES
from bench.warm_up import warm_up

# Family → its cases, in the order of the report.
FAMILIES: dict[str, Callable[[Scale], Sequence[Case]]] = {
    "start": startup.cases,
    "produce": produce.cases,
    "produce-ceiling": produce.ceiling_cases,
    "fetch": fetch.cases,
    "latency": latency.cases,
    "requests": small_requests.cases,
    "groups": groups.cases,
    "transactions": transactions.cases,
    "shares": shares.cases,
    "compaction": compaction.cases,
    "views": views.cases,
    "delays": delays.cases,
    "delays-pending": delays.pending_cases,
    "memory": startup.after_load_cases,
    "partitions": partitions.cases,
    "metrics-cost": metrics_cost.cases,
}


@dataclass(frozen=True)
class Suite:
    """Families that measure one kind of target, and how a target of that kind is warmed."""

    families: Mapping[str, Callable[[Scale], Sequence[Case]]]
    warm_up: Callable[[Broker], None]


ONE_BROKER = Suite(FAMILIES, warm_up)
CLUSTER = Suite(CLUSTER_FAMILIES, warm_up_cluster)
SECURED = Suite(SECURED_FAMILIES, warm_up)
# More memory than any broker holds before it is loaded.
START_TOUCHED_BYTES = 1 << 30
FAILURES = (RequestFailedError, LoadFailedError, BrokerFailedError, KafkaFailedError, OSError)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Run:
    """One run of some families; `results` grows as it goes."""

    def __init__(
        self, suite: Suite, targets: Sequence[Target], families: Sequence[str], scale: Scale, scratch: Path
    ) -> None:
        self.results: list[Result] = []
        self._targets, self._scale, self._scratch = targets, scale, scratch
        self._warm_up = suite.warm_up
        self._cases: list[Case] = [
            case for name, make in suite.families.items() if name in families for case in make(scale)
        ]
        self._step = 0
        self._steps = sum(self._rounds_of(case) * len(targets) for case in self._cases)

    def to_the_end(self) -> None:
        live = [case for case in self._cases if isinstance(case, LiveCase)]
        is_live_done = not live
        for case in self._cases:
            if isinstance(case, FreshCase):
                self._run_fresh(case)
            elif not is_live_done:
                self._run_live(live)
                is_live_done = True

    def _rounds_of(self, case: Case) -> int:
        return 1 if isinstance(case, FreshCase) else self._scale.rounds

    def _run_fresh(self, case: FreshCase) -> None:
        for target in self._targets:
            result = self._result(case, target)
            data_dir = self._scratch / f"{case.family}-{target.name}"
            machine.touch_memory(START_TOUCHED_BYTES)
            self._attempt(result, lambda: case.run(target, data_dir))  # noqa: B023 (called at once)
            shutil.rmtree(data_dir, ignore_errors=True)

    def _run_live(self, cases: Sequence[LiveCase]) -> None:
        with ExitStack() as stack:
            brokers = [(target, self._warm_broker(stack, target)) for target in self._targets]
            for case in cases:
                results = [(self._result(case, target), broker) for target, broker in brokers]
                for _ in range(self._scale.rounds):
                    for result, broker in results:
                        self._run_once(case, result, broker)

    def _warm_broker(self, stack: ExitStack, target: Target) -> Broker | None:
        """None when the broker does not start, or fails during the warm-up."""
        say(f"starting and warming {target.name} {target.version}")
        machine.touch_memory(START_TOUCHED_BYTES)
        started_s = time.monotonic()
        try:
            broker = stack.enter_context(target.start(self._scratch / target.name))
            self._warm_up(broker)
        except FAILURES as failure:
            say(f"{target.name} cannot be measured: {failure}")
            return None
        say(f"warm after {time.monotonic() - started_s:.1f} s")
        return broker

    def _run_once(self, case: LiveCase, result: Result, broker: Broker | None) -> None:
        if broker is None:
            result.error = "the broker did not start or failed its warm-up"
            return
        os.sync()  # writes of the previous case must not count for this one
        machine.touch_memory(2 * case.written_bytes)
        self._attempt(result, lambda: case.run(broker))

    def _result(self, case: Case, target: Target) -> Result:
        result = Result(case.family, case.name, target.name)
        self.results.append(result)
        return result

    def _attempt(self, result: Result, run: Callable[[], Metrics]) -> None:
        self._step += 1
        label = f"[{self._step}/{self._steps}] {result.target}: {result.family}: {result.case}"
        started_s = time.monotonic()
        try:
            metrics = run()
        except FAILURES as failure:
            result.error = str(failure)
            say(f"{label}: FAILED: {failure}")
            return
        result.rounds.append(metrics)
        figures = ", ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        say(f"{label}: {figures} ({time.monotonic() - started_s:.1f} s)")
