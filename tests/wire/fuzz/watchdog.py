"""Says whether brokers stay well while they are attacked.

An innocent client's round trips go on throughout. Findings are: a process that ended, more memory than the bound, a log
entry at ERROR or with a traceback, a round trip that failed. Where a bound is given, a p99 of round trips that is not
below it in all windows of ten seconds is one too. `report` gives the times and the memory seen.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.brokers import Broker, RunningBroker, eventually
from tests.cluster.clusters import Cluster, ClusterNode
from tests.wire.connection import Connection
from tests.wire.fuzz.innocent import READY

INNOCENT_TOPIC = "innocent"
RSS_BYTES_MAX = 700_000_000
# What the topic has to be, whatever an attacker says of the cluster's defaults.
_INNOCENT_CONFIGS = {"min.insync.replicas": "1", "max.message.bytes": "1000000", "retention.ms": "-1"}
_INNOCENT_CONFIGS |= {"retention.bytes": "-1", "cleanup.policy": "delete", "compression.type": "producer"}
_STOP_LIMIT_S = 90.0
_BAD_ENTRY = re.compile(r" (ERROR|CRITICAL) |^Traceback |^\w*(Error|Exception)\b")
_ENTRY = re.compile(r"^\d{4}-\d\d-\d\dT")
_LINES_OF_ENTRY_MAX = 60


@dataclass
class Process:
    """A broker's process: its id, its log, and whether it runs."""

    name: str
    pid: int
    log_path: Path
    exit_code: Callable[[], int | None]
    rss_bytes_seen: int = 0

    def rss_bytes(self) -> int:
        """The most memory that it has ever held: a peak between two looks counts."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            return int(status.split("VmHWM:")[1].split()[0]) * 1024
        except (OSError, IndexError):
            return 0


@dataclass
class Target:
    """What is attacked: one broker or a cluster of them."""

    brokers: list[RunningBroker]
    # Listeners that serve controllers only.
    controllers: list[RunningBroker]
    processes: list[Process]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)


def target_of_broker(broker: Broker) -> Target:
    process = Process("broker", broker.pid, broker.log_path, broker.process.poll)
    return Target([RunningBroker(broker.host, broker.port)], [], [process])


def target_of_cluster(cluster: Cluster) -> Target:
    def process(node: ClusterNode) -> Process:
        assert node.process is not None
        return Process(f"node {node.id}", node.process.pid, node.log_path, node.process.poll)

    return Target(
        [RunningBroker(node.host, node.port) for node in cluster.brokers],
        [RunningBroker(node.host, node.controller_port) for node in cluster.nodes.values()],
        [process(node) for node in cluster.nodes.values()],
    )


@dataclass
class Finding:
    what: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.what}\n{self.detail}" if self.detail else self.what


@dataclass
class _LogTail:
    process: Process
    position: int = 0
    rest: str = ""

    def new_entries(self) -> list[str]:
        """Whole entries since the last look, each with the lines that belong to it."""
        with self.process.log_path.open("rb") as log:
            log.seek(self.position)
            data = log.read()
        self.position += len(data)
        text = self.rest + data.decode(errors="replace")
        whole, newline, self.rest = text.rpartition("\n")
        entries: list[list[str]] = []
        for line in (whole + newline).splitlines():
            if _ENTRY.match(line) or not entries:
                entries.append([line])
            elif len(entries[-1]) < _LINES_OF_ENTRY_MAX:
                entries[-1].append(line)
        return ["\n".join(lines) for lines in entries]


@dataclass
class Watchdog:
    target: Target
    rss_bytes_max: int = RSS_BYTES_MAX
    # For a machine that does nothing else.
    p99_ms_max: float | None = None
    # What is expected in the log for a reason of its own.
    is_expected: Callable[[str], bool] = field(default=lambda _: False)
    findings: list[Finding] = field(default_factory=list)
    innocent: dict[str, Any] = field(default_factory=dict)

    def __enter__(self) -> Watchdog:
        create_innocent_topic(self.target)
        self._tails = [_LogTail(process) for process in self.target.processes]
        for tail in self._tails:
            tail.new_entries()
        self._ended: set[str] = set()
        partitions = str(len(self.target.brokers))
        self._client = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.wire.fuzz.innocent",
                self.target.bootstrap,
                INNOCENT_TOPIC,
                partitions,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # The attack begins when it is served. When it never is, the line says why.
        assert self._client.stdout is not None
        self._said = self._client.stdout.readline()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            printed, _ = self._client.communicate(timeout=_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._client.kill()
            printed, _ = self._client.communicate()
        printed = printed.strip() or self._said.removeprefix(READY).strip()
        self.innocent = json.loads(printed) if printed else {"failure": "it ended without a word"}
        if self.innocent["failure"]:
            self.findings.append(Finding("the innocent client", str(self.innocent["failure"])))
        elif self.p99_ms_max is not None and self.innocent["worst_10s_p99_ms"] >= self.p99_ms_max:
            what = f"the innocent client's p99 of the worst ten seconds is not below {self.p99_ms_max:g} ms"
            self.findings.append(Finding(what))
        self.look()

    def give_up(self) -> None:
        """End the innocent client: nothing serves it any more."""
        self._client.kill()

    @property
    def is_innocent_served(self) -> bool:
        return self._client.poll() is None

    def look(self) -> list[Finding]:
        """What is new since the last look."""
        before = len(self.findings)
        for process, tail in zip(self.target.processes, self._tails, strict=True):
            for entry in tail.new_entries():
                if any(_BAD_ENTRY.search(line) for line in entry.splitlines()) and not self.is_expected(
                    entry
                ):
                    self.findings.append(Finding(f"{process.name} logged", entry))
            code = process.exit_code()
            if code is not None and process.name not in self._ended:
                self._ended.add(process.name)
                end = process.log_path.read_text(errors="replace")[-3000:]
                self.findings.append(Finding(f"{process.name} ended with {code}", end))
            rss_bytes = process.rss_bytes()
            if rss_bytes > self.rss_bytes_max >= process.rss_bytes_seen:
                self.findings.append(Finding(f"{process.name} holds {rss_bytes / 1e6:.0f} MB"))
            process.rss_bytes_seen = max(process.rss_bytes_seen, rss_bytes)
        return self.findings[before:]

    def report(self) -> str:
        memory = ", ".join(
            f"{each.name} {each.rss_bytes_seen / 1e6:.0f} MB" for each in self.target.processes
        )
        times = ", ".join(f"{name} {value}" for name, value in self.innocent.items() if name != "failure")
        return f"innocent client: {times}; largest RSS: {memory}"


def create_innocent_topic(target: Target) -> None:
    """With a partition led by each broker, and settings that no attack on the defaults changes."""
    count = len(target.brokers)
    configs = [{"name": name, "value": value} for name, value in _INNOCENT_CONFIGS.items()]
    new = {"name": INNOCENT_TOPIC, "num_partitions": count, "replication_factor": count, "configs": configs}
    with Connection(target.brokers[0]) as connection:
        created = connection.request("create_topics", 7, topics=[new], timeout=20_000).topics[0]
        assert created.error_code in (0, 36), created

        def is_led() -> bool:
            described = connection.metadata(INNOCENT_TOPIC)
            return len(described.partitions) == count and all(
                each.leader_id >= 0 for each in described.partitions
            )

        eventually(is_led, "leaders of the innocent client's topic")
