"""A streaming query through faults of every kind while it runs, and the judgement of what it wrote.

The same exactly-once workload as `tests.cluster.exactly_once`, with Spark as the transformer: a producer writes numbered
records to an input topic, `chaos_query` makes an output topic of it. `Chaos.strike` kills somebody with `kill -9`, or has
the query fail or end in another way:

    executor         one JVM of a local cluster, with its Python workers or, to leave those alone for a moment, without
    python worker    the process in which a task of ours runs
    driver           the Python process and the JVM; the executors die with them, or find out by themselves
    broker           any of them; it comes back at once, or later
    row              one raises in a task, once
    stop             the query is stopped in the middle of a batch and started again, in its process
    cancel           all jobs are cancelled, so that the query fails; it is started again in its process
    decision         the driver and all that it started die in a commit, at a point of `faulty_source`

The last four are files in a folder, which whoever does it takes away: a strike is counted when that has happened. A driver
that was killed, or that ended because its query failed, is started again on its checkpoint. `finish` waits until the group
has no lag, reads all logs and lets `tidemill.sim.checks.exactly_once` judge them.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from types import TracebackType

from tests.brokers import eventually
from tests.cluster.clusters import Cluster
from tests.cluster.exactly_once import PARTITIONS, Filling, Summary, await_no_lag, judge, read_topic
from tests.spark.faulty_source import POINTS
from tests.spark.processes import EXECUTOR, LIMIT_S, STOP_LIMIT_S, WORKER, Driver, Process, descendants
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.cluster import Cluster as ClientCluster
from tidemill.errors import TidemillError
from tidemill.types import TopicPartition

# Executors are processes of their own in the one. In the other, which starts in half the time, their Python workers are.
EXECUTORS, ONE_PROCESS = "local-cluster[2,1,1024]", "local[2,4]"
# How much has to be transformed between two strikes.
PROGRESS = 50
# When, after progress was seen, and how long a broker stays away: a batch takes about as long.
STRIKE_DELAY_S_MAX = 2.0
AWAY_S_MAX = 4.0
# Brokers: all of them, a single one, three.
COMMON = {
    "transaction.state.log.num.partitions": str(PARTITIONS),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
ONE = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
THREE = {
    # A dead broker is noticed soon, but a busy machine does not lose the living.
    "broker.session.timeout.ms": "4000",
    "broker.heartbeat.interval.ms": "1000",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "offsets.topic.replication.factor": "3",
}
TARGETS = ("executor", "driver", "broker", "row", "stop", "cancel", "decision")


class Chaos:
    """Use as a context manager; `finish` judges. Leaving it early ends everybody without a judgement."""

    def __init__(self, cluster: Cluster, master: str, seed: int, folder: Path) -> None:
        brokers = len(cluster.brokers)
        self.summary = Summary(f"{master}, {brokers} broker{'s' * (brokers > 1)}", seed)
        self._has_executors = master == EXECUTORS
        self._cluster, self._rng = cluster, random.Random(seed)
        self._input, self._output, self._group = "chaos-input", "chaos-output", "chaos-group"
        self._targets: list[str] = []
        self._faults = folder / "faults"
        self._faults.mkdir()
        self._began_s = time.monotonic()
        self._client = ClientCluster(cluster.bootstrap, timeout_s=5.0)
        options = {
            "bootstrap": cluster.bootstrap,
            "input": self._input,
            "output": self._output,
            "group": self._group,
            "checkpoint": str(folder / "checkpoint"),
            "master": master,
            "scratch": str(folder / "spark"),
            "faults": str(self._faults),
        }
        words = [word for option, value in options.items() for word in (f"--{option}", value)]
        self._driver = Driver(
            [sys.executable, "-m", "tests.spark.chaos_query", *words], folder / "driver.log"
        )

    def __enter__(self) -> Chaos:
        for topic in (self._input, self._output):
            self._cluster.create_topic(topic, PARTITIONS)
        self._filling = Filling(self._cluster.bootstrap, self._input)
        try:
            self._driver.start()
            self.await_progress()
        except BaseException:
            self._end(is_failed=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(is_failed=kind is not None)

    def _end(self, *, is_failed: bool) -> None:
        self._driver.clean_up()
        if is_failed:
            self.summary.ended_by_themselves = self._driver.ends
            print(f"{self.summary}\n---- driver\n{self._driver.complaints()}")
            self._filling.give_up()
        self._client.close()

    # -- progress --------------------------------------------------------------------------------------------

    def _committed(self) -> dict[TopicPartition, int] | None:
        """The group's offsets; None when no broker answers."""
        self._driver.restart_if_ended()
        try:
            return dict(GroupAdmin(self._client).committed(self._group))
        except TidemillError:
            return None

    def await_progress(self) -> None:
        def count() -> tuple[int] | None:
            """A tuple is true also when nothing is transformed yet."""
            committed = self._committed()
            return None if committed is None else (sum(committed.values()),)

        (before,) = eventually(count, "the group's offsets", LIMIT_S)
        eventually(
            lambda: sum((self._committed() or {}).values()) >= before + PROGRESS,
            f"{PROGRESS} records more than {before}, after {self.summary}",
            LIMIT_S,
        )

    # -- strikes ---------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """One fault somewhere in the middle of the work; waits until the work goes on."""
        if not self._targets:
            self._targets = self._rng.sample(TARGETS, len(TARGETS))
        target = self._targets.pop()
        time.sleep(self._rng.uniform(0.0, STRIKE_DELAY_S_MAX))
        match target:
            case "executor":
                self._strike_executor()
            case "driver":
                self._count("driver")
                self._driver.kill(with_executors=self._rng.random() < 0.5)
                self._driver.start()
            case "broker":
                self._count("broker")
                self._strike_broker(self._rng.choice(self._cluster.brokers).id)
            case "decision":
                point = self._rng.choice(list(POINTS))
                self._ask_for(point)
                self._count(POINTS[point])
                self._driver.wait(STOP_LIMIT_S)
                self._driver.start()
            case _:
                self._ask_for(target)
                self._count(target)
        self.await_progress()

    def _count(self, target: str) -> None:
        self.summary.strikes[target] += 1
        passed_s = time.monotonic() - self._began_s
        ends = self._driver.ends
        print(
            f"{passed_s:.0f} s, fault {self.summary.strikes.total()}: {target}; {ends} failed queries",
            flush=True,
        )

    def _ask_for(self, fault: str) -> None:
        """Waits until a process has taken it."""
        asked = self._faults / fault
        asked.touch()

        def is_taken() -> bool:
            # In this order: who dies of it has taken it before.
            is_ended = self._driver.is_ended
            if not asked.exists():
                return True
            if is_ended:
                self._driver.restart_if_ended()
            return False

        eventually(is_taken, f"a process takes the fault: {fault}", LIMIT_S)

    def _strike_executor(self) -> None:
        """A Python worker that is not there now, because no task runs, was not struck."""
        kinds = [(WORKER, "python worker")]
        if self._has_executors:
            kinds.append((EXECUTOR, "executor"))
        part, target = self._rng.choice(kinds)

        def found() -> list[Process]:
            self._driver.restart_if_ended()
            return self._driver.processes(part)

        victim = self._rng.choice(eventually(found, f"a running {target}", LIMIT_S))
        self._count(target)
        family = descendants(victim.pid)
        victim.kill()
        if self._rng.random() < 0.5:
            for process in family:
                process.kill()

    def _strike_broker(self, node_id: int) -> None:
        self._cluster.kill(node_id)
        if len(self._cluster.brokers) > 1 and self._rng.random() < 0.5:
            self.await_progress()
        else:
            time.sleep(self._rng.uniform(0.0, AWAY_S_MAX))
        self._cluster.start(node_id)
        self._cluster.await_up()
        for topic in (self._input, self._output, "__consumer_offsets", "__transaction_state"):
            self._cluster.await_in_sync(topic, PARTITIONS)

    # -- judgement -------------------------------------------------------------------------------------------

    def finish(self) -> Summary:
        self._filling.stop()
        given, ends = read_topic(self._cluster.bootstrap, self._input, "read_uncommitted")
        await_no_lag(self._committed, ends, LIMIT_S)
        self._driver.stop()
        assert self._committed_at_rest() == ends, "the group's offsets moved when the query was stopped"
        self.summary.ended_by_themselves = self._driver.ends
        judge(self._cluster.bootstrap, self._output, given, self.summary, LIMIT_S)
        return self.summary

    def _committed_at_rest(self) -> dict[TopicPartition, int]:
        return dict(GroupAdmin(self._client).committed(self._group))
