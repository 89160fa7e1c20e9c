"""The performance goals: absolute figures, and ratios to Apache Kafka measured in the same run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.results import Result


@dataclass(frozen=True)
class Goal:
    text: str
    family: str
    case_prefix: str
    metric: str
    limit: float
    is_ratio: bool = False
    is_at_least: bool = False


@dataclass(frozen=True)
class Verdict:
    goal: Goal
    worst: float

    @property
    def is_met(self) -> bool:
        return self.worst >= self.goal.limit if self.goal.is_at_least else self.worst <= self.goal.limit


CPU = "broker_cpu_s_per_gb"
GOALS = (
    Goal("produce, 64 KB batches: CPU-s/GB", "produce", "1 KB messages, 64 KB", CPU, 2.0),
    Goal("produce, 256 KB batches: CPU-s/GB", "produce", "1 KB messages, 256 KB", CPU, 1.2),
    Goal("produce, 1 MB batches: CPU-s/GB", "produce", "1 KB messages, 1 MB", CPU, 1.2),
    Goal("fetch: CPU-s/GB", "fetch", "1 KB messages", CPU, 0.8),
    Goal("one-record request: µs", "requests", "one record, 5 in flight", "broker_us_per_request", 25),
    Goal("further partition: µs", "requests", "one record in each", "broker_us_per_further_partition", 10),
    Goal("ack p50 at 5,000 msgs/s: ms", "latency", "ack, 5,000 msgs/s, raw", "p50_ms", 0.5),
    Goal("ack p99: ms", "latency", "ack", "p99_ms", 10),
    Goal("end to end p99: ms", "latency", "end to end", "p99_ms", 50),
    Goal("empty broker: RSS MB", "start", "", "rss_mb", 60),
    Goal("empty broker: start s", "start", "", "start_s", 0.5),
    Goal("produce throughput : Kafka's", "produce", "", "mb_per_s", 1.0, is_ratio=True, is_at_least=True),
    Goal("fetch throughput : Kafka's", "fetch", "", "mb_per_s", 1.0, is_ratio=True, is_at_least=True),
    Goal("produce CPU-s/GB : Kafka's", "produce", "", CPU, 1.0, is_ratio=True),
    Goal("fetch CPU-s/GB : Kafka's", "fetch", "", CPU, 1.0, is_ratio=True),
    Goal("ack p99 : Kafka's", "latency", "ack", "p99_ms", 1.0, is_ratio=True),
    Goal("heartbeat CPU µs : Kafka's", "groups", "heartbeat", "broker_us_per_request", 1.0, is_ratio=True),
    Goal("commit CPU µs : Kafka's", "groups", "commit", "broker_us_per_request", 1.0, is_ratio=True),
    Goal("rebalance of 500 : Kafka's", "groups", "rebalance", "rebalance_ms", 1.0, is_ratio=True),
    Goal("transactions: share %", "transactions", "", "share_percent", 80, is_at_least=True),
    Goal("transactions : Kafka's", "transactions", "", "mb_per_s", 1.0, is_ratio=True, is_at_least=True),
    Goal(
        "replicated transactions: share %",
        "replicated-transactions",
        "",
        "share_percent",
        80,
        is_at_least=True,
    ),
    Goal(
        "replicated transactions : Kafka's",
        "replicated-transactions",
        "",
        "mb_per_s",
        1.0,
        is_ratio=True,
        is_at_least=True,
    ),
    Goal("replicated ack p99 : ms", "replicated-latency", "ack", "p99_ms", 10),
    Goal("failover, defaults: max s", "failover", "default", "kill_to_writable_max_s", 10),
    Goal("failover, 2 s session: max s", "failover", "broker.session", "kill_to_writable_max_s", 3),
    Goal("failover: messages lost", "failover", "", "lost", 0),
    Goal("failover: messages repeated", "failover", "", "repeated", 0),
    Goal(
        "replicated produce : Kafka's",
        "replicated-produce",
        "",
        "mb_per_s",
        1.0,
        is_ratio=True,
        is_at_least=True,
    ),
    Goal("replicated CPU-s/GB : Kafka's", "replicated-produce", "", CPU, 1.0, is_ratio=True),
    Goal("replicated ack p50 : Kafka's", "replicated-latency", "", "p50_ms", 1.0, is_ratio=True),
    Goal("replicated ack p99 : Kafka's", "replicated-latency", "", "p99_ms", 1.0, is_ratio=True),
    Goal("loaded ack p50 : Kafka's", "replicated-produce", "", "p50_ms", 1.0, is_ratio=True),
    Goal("loaded ack p99 : Kafka's", "replicated-produce", "", "p99_ms", 1.0, is_ratio=True),
    Goal(
        "Spark source, 100 B: M rows/s", "spark-source", "100 B", "million_rows_per_s", 1.0, is_at_least=True
    ),
    Goal("Spark source, 1 KB: MB/s", "spark-source", "1 KB", "mb_per_s", 300, is_at_least=True),
    Goal("Spark sink, 100 B: M rows/s", "spark-sink", "100 B", "million_rows_per_s", 0.4, is_at_least=True),
    *(
        Goal(f"{text} : JVM connector's", family, "", "mb_per_s", 1.0, is_ratio=True, is_at_least=True)
        for text, family in (
            ("Spark source", "spark-source"),
            ("segment scan", "spark-scan"),
            ("Spark sink", "spark-sink"),
        )
    ),
    *(
        goal
        for text, family in (("TLS produce", "tls-produce"), ("TLS fetch", "tls-fetch"))
        for goal in (
            Goal(f"{text} : Kafka's", family, "", "mb_per_s", 1.0, is_ratio=True, is_at_least=True),
            Goal(f"{text} CPU-s/GB : Kafka's", family, "", CPU, 0.7, is_ratio=True),
        )
    ),
    Goal("TLS ack p99 : Kafka's", "tls-latency", "ack", "p99_ms", 0.7, is_ratio=True),
    Goal("quota: rate off by %", "quotas", "", "off_percent", 5),
    Goal("start : Kafka's", "start", "", "start_s", 0.2, is_ratio=True),
    Goal("RSS : Kafka's", "start", "", "rss_mb", 0.2, is_ratio=True),
)


def judge(results: Sequence[Result], ours: str, theirs: str) -> list[Verdict]:
    """A verdict on every goal that these results cover."""
    median = {(r.target, r.family, r.case): r.median for r in results if r.rounds}
    verdicts = []
    for goal in GOALS:
        values = []
        for (target, family, case), metrics in median.items():
            if target != ours or family != goal.family or not case.startswith(goal.case_prefix):
                continue
            value = metrics.get(goal.metric)
            if value is not None and goal.is_ratio:
                other = median.get((theirs, family, case), {}).get(goal.metric)
                value = value / other if other else None
            if value is not None:
                values.append(value)
        if values:
            verdicts.append(Verdict(goal, min(values) if goal.is_at_least else max(values)))
    return verdicts
