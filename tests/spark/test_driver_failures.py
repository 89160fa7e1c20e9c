"""What ends a driver or an executor in the middle of a batch: Ctrl-C, kill -9 at every point, a lost executor, a second
attempt, a second driver.

Each test runs `fault_query` in processes of its own, again and again on one checkpoint until it ends well. Then every
row is there once and no transaction is open. What fails within one session is in `test_sink_failures`.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import eventually
from tests.spark.chaos import EXECUTORS, ONE_PROCESS
from tests.spark.faulty_source import POINTS
from tests.spark.gates import EXPECTED, PADDING, ROWS, Gate, seen
from tests.spark.processes import EXECUTOR, LIMIT_S, Driver, Standalone, descendants, kill_family
from tests.spark.sinks import assert_nothing_is_open, create
from tidemill.client.admin.transactions import TransactionAdmin
from tidemill.client.cluster import Cluster
from tidemill.spark.session import SparkUnavailable, find_java

FILES = 8
TRIES = 3
BOTH_EXECUTORS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": f"{LIMIT_S:.0f}s",
}
# A task has not fetched everything when it begins to write.
ONE_BLOCK_AT_A_TIME = BOTH_EXECUTORS | {"spark.reducer.maxBlocksInFlightPerAddress": "1"}
SPECULATION = BOTH_EXECUTORS | {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.efficiency.enabled": "false",
    # A second attempt is none that repeats a failed one.
    "spark.task.maxFailures": "1",
}
# Of the sink, of one of its tasks, and of Spark's checkpoint.
SECOND_DRIVER = (
    "another driver of the query took its place",
    "transaction_coordinator.Fenced: ",
    "CONCURRENT_STREAM_LOG_UPDATE",
)


@pytest.fixture(autouse=True)
def _java() -> None:
    try:
        find_java()
    except SparkUnavailable as missing:
        pytest.skip(str(missing))


class Job:
    """Drivers on one checkpoint."""

    def __init__(self, bootstrap: str, topic: str, folder: Path) -> None:
        self.bootstrap, self.topic, self._folder = bootstrap, topic, folder
        self.faults = folder / "faults"
        self._files = folder / "in"
        for each in (self.faults, self._files):
            each.mkdir()
        for index in range(FILES):
            lines = "".join(f"{number:06d}{PADDING * 3}\n" for number in range(index, ROWS, FILES))
            (self._files / f"{index}.txt").write_text(lines)
        self._drivers: list[Driver] = []

    def start(
        self,
        gate: Gate,
        rows: str = "wait",
        *,
        master: str = ONE_PROCESS,
        settings: dict[str, str] | None = None,
    ) -> Driver:
        name = f"driver-{len(self._drivers)}"
        options = {
            "bootstrap": self.bootstrap,
            "topic": self.topic,
            "files": str(self._files),
            "checkpoint": str(self._folder / "checkpoint"),
            "master": master,
            "scratch": str(self._folder / name),
            "gate": str(gate.folder),
            "rows": rows,
            "faults": str(self.faults),
        }
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        words += [f"--set={each}={value}" for each, value in (settings or {}).items()]
        driver = Driver(
            [sys.executable, "-m", "tests.spark.fault_query", *words], self._folder / f"{name}.log"
        )
        self._drivers.append(driver)
        driver.start()
        return driver

    def ends_well(self, gate: Gate) -> None:
        """Every row waits no more."""
        gate.open()
        for _ in range(TRIES):
            if self.start(gate).wait(LIMIT_S) == 0:
                return
        pytest.fail(f"no driver ended well:\n{self._drivers[-1].complaints()}")

    def in_open_transaction(self, gate: Gate) -> None:
        gate.reached()
        with Cluster(self.bootstrap) as cluster:
            admin, partitions = TransactionAdmin(cluster), cluster.partitions_of(self.topic)
            eventually(lambda: admin.open_transactions(partitions), "an open transaction")

    def open_transactions(self) -> int:
        with Cluster(self.bootstrap) as cluster:
            return len(TransactionAdmin(cluster).open_transactions(cluster.partitions_of(self.topic)))

    def check(self) -> None:
        assert_nothing_is_open(self.bootstrap, self.topic)
        assert seen(self.bootstrap, self.topic) == EXPECTED

    def clean_up(self) -> None:
        for driver in self._drivers:
            driver.clean_up()


@pytest.fixture
def job(bootstrap: str, topic: str, tmp_path: Path) -> Iterator[Job]:
    create(bootstrap, topic)
    job = Job(bootstrap, topic, tmp_path)
    yield job
    job.clean_up()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


# --- the driver ends ---


@pytest.mark.long
def test_ctrl_c(job: Job, gate: Gate) -> None:
    driver = job.start(gate)
    job.in_open_transaction(gate)
    assert driver.process is not None
    os.killpg(driver.process.pid, signal.SIGINT)
    assert driver.wait(LIMIT_S) != 0
    assert "KeyboardInterrupt" in driver.complaints()
    job.ends_well(gate)
    job.check()


@pytest.mark.long
def test_kill_in_an_open_transaction(job: Job, gate: Gate) -> None:
    driver = job.start(gate)
    job.in_open_transaction(gate)
    assert driver.process is not None
    kill_family(driver.process.pid)
    assert driver.wait(LIMIT_S) == -signal.SIGKILL
    job.ends_well(gate)
    job.check()


@pytest.mark.long
@pytest.mark.parametrize(("point", "left_open"), [("before", 2), ("between", 1), ("after", 0)])
def test_kill_at_the_decision(job: Job, gate: Gate, point: str, left_open: int) -> None:
    assert point in POINTS
    gate.open()
    (job.faults / point).touch()
    driver = job.start(gate)
    assert driver.wait(LIMIT_S) == -signal.SIGKILL, driver.complaints()
    assert not (job.faults / point).exists()
    eventually(lambda: job.open_transactions() == left_open, f"{left_open} open transactions")
    job.ends_well(gate)
    job.check()


# --- others end, or begin twice ---


@pytest.mark.long
def test_a_lost_executor_takes_the_shuffle_with_it(job: Job, gate: Gate) -> None:
    """Two tasks wait in their transactions. One dies; the other will look for what the dead executor had."""
    driver = job.start(gate, "hold-tasks", master=EXECUTORS, settings=ONE_BLOCK_AT_A_TIME)
    eventually(lambda: len(gate.touched("task-")) == 2, "two tasks that wait", LIMIT_S)
    eventually(lambda: job.open_transactions() == 2, "two open transactions", LIMIT_S)
    victim = driver.processes(EXECUTOR)[0]
    for process in (victim, *descendants(victim.pid)):
        process.kill()
    gate.open()
    assert driver.wait(LIMIT_S) == 0, driver.complaints()
    assert "FetchFailed" in driver.log_path.read_text()
    job.check()


@pytest.mark.long
@pytest.mark.parametrize("loser", ["first", "second"])
def test_speculation(job: Job, gate: Gate, loser: str, tmp_path: Path) -> None:
    """The attempt that waits is the one that Spark does not take: the gate stays shut."""
    with Standalone(tmp_path, workers=2) as cluster:
        driver = job.start(gate, f"wait-in-{loser}-attempt", master=cluster.url, settings=SPECULATION)
        assert driver.wait(LIMIT_S) == 0, driver.complaints()
    assert gate.touched("attempt-") == ["attempt-0", "attempt-1"]
    job.check()


@pytest.mark.long
def test_two_drivers(job: Job, gate: Gate, tmp_path: Path) -> None:
    """Both are in the middle of the same batch. One of them may fail, and says why."""
    gates = [gate, Gate(tmp_path / "other-gate")]
    drivers = []
    for each in gates:
        drivers.append(job.start(each))
        job.in_open_transaction(each)
    for each in gates:
        each.open()
    for driver in drivers:
        if driver.wait(LIMIT_S) != 0:
            log = driver.log_path.read_text()
            assert any(reason in log for reason in SECOND_DRIVER), driver.complaints()
    job.ends_well(gate)
    job.check()
