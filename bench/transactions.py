"""The cost of transactions: throughput relative to an idempotent producer, and the time of a commit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial

from bench.brokers import Broker
from bench.cases import KB, LiveCase, Scale, size_text, topic
from bench.cluster.metadata import log_end_offset_sum
from bench.connection import RequestFailedError
from bench.load import measure
from bench.processes import Metrics
from bench.transaction_loads import SingleRecords, Stream

FAMILY = "transactions"
COMMIT_EVERY_MS = 100
VALUE_BYTES = (KB, 100)
# A transaction costs about this many small requests.
REQUESTS_PER_TRANSACTION = 30
LOG_END_TIMEOUT_S = 30.0
_ids = itertools.count(1)


def stream_name(value_bytes: int) -> str:
    return f"{size_text(value_bytes)} messages, commit every {COMMIT_EVERY_MS} ms"


def cases(scale: Scale) -> list[LiveCase]:
    streams = [
        LiveCase(
            FAMILY,
            stream_name(value),
            partial(_share, scale.payload_bytes(value) // value, value),
            written_bytes=3 * scale.payload_bytes(value),
        )
        for value in VALUE_BYTES
    ]
    singles = LiveCase(
        FAMILY,
        "begin, one record, commit",
        partial(_singles, scale.small_requests // REQUESTS_PER_TRANSACTION),
    )
    return [*streams, singles]


def share(stream: Callable[[str | None], Metrics]) -> Metrics:
    """The figures of `stream` with a transactional id, relative to the better of one run before and one after."""
    before = stream(None)
    transactional = stream(transactional_id())
    idempotent_mb_per_s = max(before["mb_per_s"], stream(None)["mb_per_s"])
    return {
        "mb_per_s": transactional["mb_per_s"],
        "idempotent_mb_per_s": idempotent_mb_per_s,
        "share_percent": 100 * transactional["mb_per_s"] / idempotent_mb_per_s,
        "commit_p50_ms": transactional["commit_p50_ms"],
        "commit_p99_ms": transactional["commit_p99_ms"],
        "broker_cpu_s_per_gb": transactional["broker_cpu_s_per_gb"],
    }


def transactional_id() -> str:
    """A new id in each round: a known id would have to be fenced first."""
    return f"bench-{time.time_ns():x}-{next(_ids)}"


def check_log_end(address: str, name: str, expected: int) -> None:
    """Markers follow the response to a commit, so the last ones may take a moment."""
    deadline_s = time.monotonic() + LOG_END_TIMEOUT_S
    while (end := log_end_offset_sum(address, name)) != expected:
        if time.monotonic() > deadline_s or end > expected:
            raise RequestFailedError(f"{expected} messages and markers expected, {end} in the log")
        time.sleep(0.01)


def _share(messages: int, value_bytes: int, broker: Broker) -> Metrics:
    def stream(transactional_id: str | None) -> Metrics:
        with topic(broker) as name:
            metrics = measure(
                Stream(
                    broker.bootstrap,
                    broker.pids,
                    topic=name,
                    partitions=1,
                    messages=messages,
                    value_bytes=value_bytes,
                    transactional_id=transactional_id,
                    commit_every_ms=COMMIT_EVERY_MS,
                )
            )
            check_log_end(broker.bootstrap, name, messages + int(metrics.get("markers", 0)))
        return metrics

    return share(stream)


def _singles(transactions: int, broker: Broker) -> Metrics:
    with topic(broker) as name:
        metrics = measure(
            SingleRecords(
                broker.bootstrap,
                broker.pids,
                topic=name,
                transactions=transactions,
                value_bytes=100,
                transactional_id=transactional_id(),
            )
        )
        check_log_end(broker.bootstrap, name, 2 * transactions)
    return metrics
