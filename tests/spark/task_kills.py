"""The source and the sink of a streaming query through kills, without Spark: one a second, not one in ten.

The same workload as in `chaos`, with as much of Spark as matters here. `Query` is the driver and its checkpoint: it plans a
batch, writes down where it ends, has a task for each partition, and commits and goes on when all of them have written. A
task that fails is begun again; a driver that crashes begins again at its checkpoint, with the same batch, whose rows then
fall to other tasks. Tasks are processes (`task_process`). `TaskKills.strike` runs batches until it has struck somebody in
the middle of one:

    task      killed
    zombie    stopped, and begun again elsewhere as if it were dead; it is woken later and goes on where it was
    twin      begun again although nothing is wrong with it; what it writes, the driver does not take: so it is with a
              speculative attempt, and with one whose upstream failed
    driver    gone, before or after the last task has written, or between its decision and the commits that follow; its
              tasks are killed, stopped and woken later, or left alone
    broker    killed; it comes back soon, or of several brokers one stays away until the next is struck

Tasks are struck where they spend most of their time, in the middle of their transactions, so this leaves aborted records
behind, as the runs with Spark hardly do. `finish` waits until the group has no lag; `tidemill.sim.checks.exactly_once`
then checks the output.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import unittest.mock
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import BinaryType, StructField, StructType

from tests.brokers import eventually
from tests.cluster.clusters import Cluster
from tests.cluster.exactly_once import (
    COMPLAINTS_MAX,
    LIMIT_S,
    PARTITIONS,
    REPO,
    STOP_LIMIT_S,
    Filling,
    Summary,
    await_no_lag,
    judge,
    read_topic,
)
from tests.spark.processes import Process, process_of
from tests.spark.task_process import Order
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.cluster import Cluster as ClientCluster
from tidemill.errors import TidemillError
from tidemill.spark.sink import two_phase
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.sink.writers import StreamWriter, Task, Written
from tidemill.spark.source.options import Query as QueryKind
from tidemill.spark.source.options import SourceOptions
from tidemill.spark.source.readers import StreamReader
from tidemill.spark.source.work import Work
from tidemill.types import TopicPartition

# Who is struck, in an order that each seed shuffles anew.
TARGETS = ("task", "zombie", "twin", "driver", "broker")
# When a driver dies that has everything it needs to commit.
DEATHS = ("before", "decided", "committed in part", "after")
ZOMBIE_S_MIN, ZOMBIE_S_MAX = 0.05, 3.0
AWAY_S_MAX = 2.0
BATCH_ROWS = (50, 200, 1000)
POLL_S = 0.003
IDLE_S = 0.05
COLUMNS = StructType([StructField("key", BinaryType()), StructField("value", BinaryType())])


@dataclass(frozen=True)
class Attempt:
    """A task's process. None when it was over before anybody had looked at it."""

    task: Task
    process: Process | None
    outcome_path: Path

    @property
    def is_over(self) -> bool:
        return self.process is None or process_of(self.process.pid) != self.process

    def send(self, number: signal.Signals) -> None:
        if self.process is not None:
            self.process.send(number)

    def outcome(self) -> Written | None:
        """Returns the outcome; None when the task has written nothing, as far as is known."""
        if not self.outcome_path.exists():
            return None
        told = pickle.loads(self.outcome_path.read_bytes())
        assert isinstance(told, Written), f"{self.task} failed in a way that no task should:\n{told}"
        return told


class Executor:
    """Begins tasks. Closing it ends all of them."""

    def __init__(self, folder: Path, options: SinkOptions) -> None:
        self._folder, self._options = folder, options
        self._numbers = itertools.count()
        self._log_path = folder / "tasks.log"
        words = [sys.executable, "-m", "tests.spark.task_process"]
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=REPO,
                # Numpy's threads would be there when it forks.
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},
            )

    def start(self, work: Work, task: Task) -> Attempt:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        path = self._folder / f"task-{next(self._numbers)}"
        pickle.dump(Order(work, task, self._options, path), self._process.stdin)
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the process that begins tasks is gone\n{self.complaints()}"
        return Attempt(task, process_of(int(answer)), path)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_LIMIT_S)
        finally:
            self._process.kill()
            self._process.wait(STOP_LIMIT_S)
            self._process.stdout.close()

    def complaints(self) -> str:
        return self._log_path.read_text(errors="replace")[-COMPLAINTS_MAX:]


@dataclass
class Batch:
    """One attempt at a batch: the ranges of its tasks, the processes at work, and the outcomes."""

    works: Sequence[Work]
    running: dict[int, Attempt] = field(default_factory=dict)
    written: dict[int, Written] = field(default_factory=dict)
    attempts: int = 0

    @property
    def is_written(self) -> bool:
        return len(self.written) == len(self.works)

    def messages(self) -> list[Written]:
        return [self.written[number] for number in range(len(self.works))]


class DriverDied(Exception):
    pass


class Query:
    """The driver. Of what it knows, `batch_id`, `_start` and `_end` are its checkpoint and outlive a crash."""

    def __init__(self, source: dict[str, str], sink: dict[str, str], query_id: str) -> None:
        self.query_id, self.batch_id = query_id, 0
        self._source = SourceOptions.parse(source, QueryKind.STREAM)
        self._writer = StreamWriter(COLUMNS, sink)
        self._reader = StreamReader(self._source)
        self._start: dict[str, Any] | None = None
        self._end: dict[str, Any] | None = None

    def plan(self, rows_max: int) -> list[Work]:
        """The tasks of the batch that is due; none when there is nothing new."""
        start = self._reader.initialOffset() if self._start is None else self._start
        if self._end is None:
            end = self._reader.latestOffset(start, ReadMaxRows(rows_max))
            if end == start:
                return []
            self._end = end
        works = self._reader.partitions(start, self._end)
        return [work for work in works if isinstance(work, Work)]

    def commit_writer(self, messages: Sequence[Written]) -> None:
        self._writer.commit(messages, self.batch_id)

    def die_committing(self, messages: Sequence[Written], death: str) -> None:
        """A task without rows has no transaction, so a batch may be committed before the driver has died."""
        commit, last = two_phase._commit, 1 if death == "committed in part" else 0
        calls = itertools.count()

        def dies(*args: Any) -> None:
            if next(calls) >= last:
                raise DriverDied
            commit(*args)

        with contextlib.suppress(DriverDied), unittest.mock.patch.object(two_phase, "_commit", dies):
            self.commit_writer(messages)

    def go_on(self) -> None:
        """The batch is done."""
        assert self._end is not None
        self.batch_id, self._start, self._end = self.batch_id + 1, self._end, None

    def restart(self) -> None:
        self._reader.stop()
        self._reader = StreamReader(self._source)

    def stop(self) -> None:
        self._reader.stop()


class TaskKills:
    """Use as a context manager; `finish` judges. Leaving it early ends everybody without a judgement."""

    def __init__(self, cluster: Cluster, seed: int, folder: Path) -> None:
        brokers = len(cluster.brokers)
        self.summary = Summary(f"tasks, {brokers} broker{'s' * (brokers > 1)}", seed)
        self._cluster, self._rng, self._folder = cluster, random.Random(seed), folder
        self._input, self._output, self._group = "kills-input", "kills-output", "kills-group"
        self._targets: list[str] = []
        self._began_s = time.monotonic()
        # Whom the driver knows no more, and when those of them that were stopped are woken.
        self._left: list[Attempt] = []
        self._stopped: list[tuple[float, Attempt]] = []
        self._away: int | None = None
        # How long the tasks of one took, the last time that none was struck.
        self._batch_s = 0.0

    def __enter__(self) -> TaskKills:
        for topic in (self._input, self._output):
            self._cluster.create_topic(topic, PARTITIONS)
        access = {"kafka.bootstrap.servers": self._cluster.bootstrap}
        source = {"subscribe": self._input, "startingOffsets": "earliest", "groupId": self._group}
        sink = access | {"topic": self._output, "checkpointLocation": "kills"}
        self._query = Query(access | source, sink, f"seed-{self.summary.seed}")
        self._executor = Executor(self._folder, SinkOptions.parse(sink))
        self._client = ClientCluster(self._cluster.bootstrap, timeout_s=5.0)
        self._filling = Filling(self._cluster.bootstrap, self._input)
        try:
            eventually(lambda: self.attempt() or self._query.batch_id, "the first batch", LIMIT_S)
        except BaseException:
            self._end(is_failed=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(is_failed=kind is not None)

    def _end(self, *, is_failed: bool) -> None:
        if is_failed:
            print(f"{self.summary}\n---- tasks\n{self._executor.complaints()}")
            self._filling.give_up()
        self._executor.close()
        self._query.stop()
        self._client.close()

    # -- batches ---------------------------------------------------------------------------------------------

    def attempt(self, target: str | None = None, death: str | None = None) -> bool:
        """One attempt at the batch that is due, if there is one. Whether the target was struck meanwhile.

        `death` is one of `DEATHS`, for a driver that dies when everything is written and at no other moment.
        """
        before = self.summary.strikes.total()
        try:
            self._run_batch(target, death)
        except TidemillError as failure:
            print(f"the driver failed: {failure}", flush=True)
            self.summary.ended_by_themselves += 1
            self._query.restart()
        return self.summary.strikes.total() > before

    def _run_batch(self, target: str | None, death: str | None) -> None:
        works = self._query.plan(self._rng.choice(BATCH_ROWS) if target else max(BATCH_ROWS))
        if not works:
            time.sleep(IDLE_S)
            return
        batch = Batch(self._rng.sample(works, len(works)))
        for number in range(len(works)):
            self._begin(batch, number)
        began_s = time.monotonic()
        # Now and then too late, so that it is seen how long a batch takes now.
        strike_s = began_s + self._rng.uniform(0.0, 1.25 * self._batch_s)
        if death is not None or (target == "driver" and self._rng.random() < 0.5):
            # Not before everything is written.
            strike_s = float("inf")
        is_struck = False
        while not batch.is_written:
            now_s = time.monotonic()
            assert now_s < began_s + LIMIT_S, (
                f"batch {self._query.batch_id} is not written, after {self.summary}"
            )
            if target is not None and not is_struck and now_s >= strike_s:
                is_struck = True
                self._strike(target, batch)
                if target == "driver":
                    return
            self._wake(now_s)
            self._gather(batch)
            time.sleep(POLL_S)
        if not is_struck:
            self._batch_s = time.monotonic() - began_s
        if target == "driver":
            self._end_driver(batch, death or self._rng.choice(DEATHS))
        else:
            self._query.commit_writer(batch.messages())
            self._query.go_on()

    def _begin(self, batch: Batch, number: int) -> None:
        attempt, batch.attempts = batch.attempts, batch.attempts + 1
        task = Task(self._query.query_id, self._query.batch_id, number, 0, attempt)
        batch.running[number] = self._executor.start(batch.works[number], task)

    def _gather(self, batch: Batch) -> None:
        """Takes the outcomes of tasks that are over. A task without one is started again."""
        for number, attempt in list(batch.running.items()):
            if not attempt.is_over:
                continue
            del batch.running[number]
            if (written := attempt.outcome()) is not None:
                batch.written[number] = written
            else:
                self.summary.ended_by_themselves += 1
                self._begin(batch, number)

    def _end_driver(self, batch: Batch, death: str) -> None:
        """The driver knows afterwards of nothing that was written, whether or not it had called the sink."""
        if death == "after":
            self._query.commit_writer(batch.messages())
        elif death != "before":
            self._query.die_committing(batch.messages(), death)
        self._strike("driver", batch)

    # -- strikes ---------------------------------------------------------------------------------------------

    def strike(self) -> None:
        """Runs batches until a task was struck in the middle of one."""
        if not self._targets:
            self._targets = self._rng.sample(TARGETS, len(TARGETS))
        target = self._targets.pop()
        eventually(lambda: self.attempt(target), f"a {target} to strike, after {self.summary}", LIMIT_S)

    def strike_driver(self, death: str) -> None:
        """The driver of the next batch dies at that point; the batch is repeated."""
        eventually(lambda: self.attempt("driver", death), f"a driver that dies {death}", LIMIT_S)

    def _strike(self, target: str, batch: Batch) -> None:
        self.summary.strikes[target] += 1
        passed_s = time.monotonic() - self._began_s
        kills, batch_id = self.summary.strikes.total(), self._query.batch_id
        print(f"{passed_s:.1f} s, kill {kills}: {target}, in batch {batch_id}", flush=True)
        match target:
            case "task":
                number = self._rng.choice(list(batch.running))
                batch.running[number].send(signal.SIGKILL)
                self._begin(batch, number)
            case "zombie":
                number = self._rng.choice(list(batch.running))
                self._stop(batch.running[number])
                self._begin(batch, number)
            case "twin":
                number = self._rng.choice(list(batch.running))
                self._left.append(batch.running[number])
                self._begin(batch, number)
            case "driver":
                self._strike_driver(batch)
            case "broker":
                self._strike_broker(self._rng.choice(self._cluster.brokers).id)

    def _stop(self, attempt: Attempt) -> None:
        attempt.send(signal.SIGSTOP)
        wake_s = time.monotonic() + self._rng.uniform(ZOMBIE_S_MIN, ZOMBIE_S_MAX)
        self._stopped.append((wake_s, attempt))

    def _wake(self, now_s: float) -> None:
        for wake_s, attempt in self._stopped:
            if now_s >= wake_s:
                attempt.send(signal.SIGCONT)
                self._left.append(attempt)
        self._stopped = [each for each in self._stopped if now_s < each[0]]

    def _strike_driver(self, batch: Batch) -> None:
        for attempt in batch.running.values():
            match self._rng.choice(("killed", "stopped", "left alone")):
                case "killed":
                    attempt.send(signal.SIGKILL)
                case "stopped":
                    self._stop(attempt)
                case "left alone":
                    self._left.append(attempt)
        self._query.restart()

    def _strike_broker(self, node_id: int) -> None:
        """The tasks go on meanwhile, as far as they can."""
        self._make_whole()
        self._cluster.kill(node_id)
        self._away = node_id
        if len(self._cluster.brokers) == 1 or self._rng.random() < 0.5:
            time.sleep(self._rng.uniform(0.0, AWAY_S_MAX))
            self._make_whole()

    def _make_whole(self) -> None:
        if self._away is None:
            return
        self._cluster.start(self._away)
        self._away = None
        self._cluster.await_up()
        for topic in (self._input, self._output, "__consumer_offsets", "__transaction_state"):
            self._cluster.await_in_sync(topic, PARTITIONS)

    # -- judgement -------------------------------------------------------------------------------------------

    def finish(self) -> Summary:
        self._make_whole()
        self._filling.stop()
        given, ends = read_topic(self._cluster.bootstrap, self._input, "read_uncommitted")

        def committed_by_another() -> dict[TopicPartition, int] | None:
            self.attempt()
            return self._committed()

        await_no_lag(committed_by_another, ends, LIMIT_S)
        self._wake(float("inf"))
        eventually(lambda: all(each.is_over for each in self._left), "the end of every task", LIMIT_S)
        # What the last of those have left open would hold the judge for as long as it may be open.
        two_phase.settle(self._client, self._query.query_id)
        judge(self._cluster.bootstrap, self._output, given, self.summary)
        assert self._committed() == ends, "the group's offsets moved when the query was over"
        return self.summary

    def _committed(self) -> dict[TopicPartition, int] | None:
        """The group's offsets; None when no broker answers."""
        try:
            return dict(GroupAdmin(self._client).committed(self._group))
        except TidemillError:
            return None
