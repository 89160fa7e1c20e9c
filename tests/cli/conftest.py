"""Runs the console script as a user does, against a broker that lets groups begin at once.

Preparations that are not under test go through the client in this process: that saves a start of Python each.
"""

from __future__ import annotations

import functools
import json
import os
import pty
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.brokers import KEEPS_EVERYTHING, RunningBroker, command, readable, start_broker
from tests.cli.clusters import CLUSTER_BOOTSTRAP, LocalCluster, RunningCluster, start_cluster
from tests.conftest import BOOTSTRAP
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.producing.producer import Producer

LIMIT_S = 60.0


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line of a failure."""
        assert self.code == 1, self
        assert self.err.count("\n") == 1, self
        return self.err.rstrip("\n")

    @property
    def ok(self) -> str:
        self.check()
        return self.out

    def check(self) -> None:
        assert self.code == 0, self


Run = Callable[..., Result]


def _environment(broker: RunningBroker | RunningCluster) -> dict[str, str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS")}
    return environment | {"TIDEMILL_BOOTSTRAP": broker.bootstrap, "TERM": "xterm"}


def run_command(broker: RunningBroker | RunningCluster, *words: str, stdin: bytes = b"") -> Result:
    done = subprocess.run(
        [*command(), *words],
        input=stdin,
        capture_output=True,
        timeout=LIMIT_S,
        env=_environment(broker),
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    if BOOTSTRAP:
        host, port = BOOTSTRAP.rsplit(":", 1)
        yield RunningBroker(host, int(port))
        return
    settings = {"group.initial.rebalance.delay.ms": "0", **KEEPS_EVERYTHING}
    with start_broker(tmp_path_factory.mktemp("cli") / "data", settings=settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def cluster(target: RunningBroker) -> Iterator[Cluster]:
    with Cluster(target.bootstrap) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster of three brokers, for tests that leave it as they found it."""
    if CLUSTER_BOOTSTRAP:
        yield RunningCluster(CLUSTER_BOOTSTRAP)
        return
    data_dir = tmp_path_factory.mktemp("three") / "cluster"
    with start_cluster(data_dir, "--brokers", "3", "--base-port", "0") as cluster:
        yield cluster


@pytest.fixture
def cli_three(three: RunningCluster) -> Run:
    return functools.partial(run_command, three)


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """Starts clusters that a test may harm, all in `tmp_path / "cluster"`, and stops them."""
    if CLUSTER_BOOTSTRAP:
        pytest.skip("starts a cluster of its own; TIDEMILL_CLUSTER_BOOTSTRAP names one that is not ours")
    started: list[LocalCluster] = []

    def start(*options: str) -> LocalCluster:
        started.append(start_cluster(tmp_path / "cluster", *options))
        return started[-1]

    yield start
    for cluster in started:
        cluster.stop()


@pytest.fixture
def orders(cluster: Cluster, topic: str) -> str:
    """A topic of three partitions."""
    Admin(cluster).create_topic(topic, partition_count=3)
    return topic


def write(
    cluster: Cluster, topic: str, partition: int, *values: str, timestamp_ms: int | None = None
) -> None:
    producer = Producer(cluster)
    for value in values:
        producer.add(topic, value.encode(), partition=partition, timestamp_ms=timestamp_ms)
    producer.flush()


@pytest.fixture
def cli(target: RunningBroker) -> Run:
    def run(*words: str, stdin: bytes = b"", environment: dict[str, str] | None = None) -> Result:
        done = subprocess.run(
            [*command(), *words],
            input=stdin,
            capture_output=True,
            timeout=LIMIT_S,
            env=_environment(target) | (environment or {}),
        )
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def spawn(target: RunningBroker) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Commands that stay: they are ended with the test."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[bytes]:
        process = subprocess.Popen([*command(), *words], env=_environment(target), **options)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait(LIMIT_S)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


@pytest.fixture
def terminal(target: RunningBroker) -> Run:
    """Runs a command on a terminal of its own; `typed` is what the user enters. Everything shown is `out`."""

    def run(*words: str, typed: bytes = b"", environment: dict[str, str] | None = None) -> Result:
        ours, theirs = pty.openpty()
        try:
            process = subprocess.Popen(
                [*command(), *words],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                env=_environment(target) | (environment or {}),
            )
            os.close(theirs)
            os.write(ours, typed)
            shown = _read_all(ours)
            return Result(process.wait(LIMIT_S), shown.decode().replace("\r\n", "\n"), "")
        finally:
            os.close(ours)

    return run


def _read_all(descriptor: int) -> bytes:
    shown = b""
    deadline = time.monotonic() + LIMIT_S
    while readable([descriptor], deadline - time.monotonic()):
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # Linux: the other side has closed.
            return shown
        if not chunk:
            return shown
        shown += chunk
    raise AssertionError(f"the command did not end\n{shown.decode(errors='replace')}")
