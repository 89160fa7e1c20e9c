"""Reports how far a pipeline is, in the form that the command displays.

`Progress` turns what Spark reports into a `Status` and passes that to the display. It shows the progress of a streaming
query (`follow`), the tasks done of batch jobs (`jobs`), or what the pipeline itself counts (`show`). It owns no thread
except while `jobs` is entered, and prints nothing.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.spark.behind import partition_lags
from tidemill.spark.session import is_late_worker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_S = 0.3
# How often a query is started whose reader is late.
STARTS_MAX = 10


@dataclass(frozen=True)
class Status:
    """One moment of a running pipeline; None where it is not known."""

    phase: str
    rows: int | None = None
    rows_per_s: float | None = None
    lag: int | None = None
    """Records that the topics hold and the query has not read."""
    batch: int | None = None
    share: float | None = None
    """The share that is done, from 0 to 1, where the end is known."""


class Totals(NamedTuple):
    """The totals of a query from its start to its end."""

    rows: int
    batches: int
    seconds: float
    last: Mapping[str, Any]
    """Spark's last progress report; empty when there was none."""
    observed: Mapping[str, int]
    """Sums of the integers that `DataFrame.observe` collected, by their names."""
    late: int
    """Records that came after the watermark had passed their time, which Spark drops."""


class Progress:
    def __init__(
        self,
        display: Callable[[Status], None] = lambda _: None,
        note: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._display = display
        self._clock = clock
        self.note = note
        """A line that stays, such as where the checkpoint lies."""
        self.is_interrupted = False
        """Ctrl-C ended a query that `follow` was following."""

    def show(
        self,
        phase: str,
        *,
        rows: int | None = None,
        rows_per_s: float | None = None,
        lag: int | None = None,
        share: float | None = None,
    ) -> None:
        self._display(Status(phase, rows=rows, rows_per_s=rows_per_s, lag=lag, share=share))

    def follow(self, start: Callable[[], StreamingQuery], phase: str) -> Totals:
        """Starts a query and shows its progress until it ends; Ctrl-C stops it. A failed query raises its exception.

        One whose reader was late has not begun, and is started again.
        """
        started_at = self._clock()
        for starts_left in reversed(range(STARTS_MAX)):
            counted = _Counted()
            try:
                query = start()
                is_interrupted = self._await_end(query, phase, counted)
                break
            except Exception as error:
                if not starts_left or not is_late_worker(error):
                    raise
                self.note("this machine is busy: the query's reader was late, and is started again")
        if is_interrupted:
            self.is_interrupted = True
            self._display(Status(f"{phase}: stopping"))
            query.stop()
        counted.take(query)
        seconds = self._clock() - started_at
        self._display(counted.status(phase))
        return Totals(
            counted.rows, counted.batches, seconds, counted.last, counted.observed(), counted.late()
        )

    def _await_end(self, query: StreamingQuery, phase: str, counted: _Counted) -> bool:
        """Returns whether Ctrl-C came before the end."""
        try:
            with _interrupts() as interrupted:
                while not interrupted.is_set() and not query.awaitTermination(POLL_S):  # type: ignore[arg-type]
                    counted.take(query)
                    self._display(counted.status(phase))
        except KeyboardInterrupt:
            interrupted.set()
        return interrupted.is_set()

    @contextmanager
    def jobs(self, spark: SparkSession, phase: str) -> Iterator[None]:
        """While batch jobs run inside of it: how many of the tasks of the running stages are done."""
        ended = threading.Event()
        tracker = spark.sparkContext.statusTracker()

        def watch() -> None:
            while not ended.wait(POLL_S):
                tasks, done = _tasks(tracker)
                if tasks:
                    self._display(Status(f"{phase}: {done} of {tasks} tasks", share=done / tasks))

        self._display(Status(phase))
        watcher = threading.Thread(target=watch, name="progress", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Ctrl-C is noted, not raised: it would come in the middle of a call to the JVM. A second one is raised."""
    noted = threading.Event()

    def note(number: int, frame: FrameType | None) -> None:
        if noted.is_set():
            signal.default_int_handler(number, frame)
        noted.set()

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    handler = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, handler)


class _Batch(NamedTuple):
    rows: int
    observed: Mapping[str, int]
    late: int

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> _Batch:
        observed = {
            name: value
            for metrics in (report.get("observedMetrics") or {}).values()
            for name, value in metrics.items()
            if isinstance(value, int)
        }
        late = sum(
            int(each.get("numRowsDroppedByWatermark") or 0) for each in report.get("stateOperators") or []
        )
        return cls(int(report.get("numInputRows") or 0), observed, late)


class _Counted:
    """Sums of a query's progress reports; Spark repeats earlier reports, and keeps only the last hundred."""

    def __init__(self) -> None:
        self.rows = 0
        self.batches = 0
        self.last: Mapping[str, Any] = {}
        self._reports: dict[int, _Batch] = {}
        # Of the last batch that had any: a stream that waits is not slow.
        self._rows_per_s: float | None = None

    def take(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            report = _as_mapping(progress)
            batch = self._reports[int(report["batchId"])] = _Batch.of(report)
            self.last = report
            if batch.rows:
                self._rows_per_s = float(report.get("processedRowsPerSecond") or 0.0)
        self.rows = sum(batch.rows for batch in self._reports.values())
        self.batches = sum(1 for batch in self._reports.values() if batch.rows)

    def observed(self) -> dict[str, int]:
        sums: Counter[str] = Counter()
        for batch in self._reports.values():
            sums.update(batch.observed)
        return dict(sums)

    def late(self) -> int:
        return sum(batch.late for batch in self._reports.values())

    def status(self, phase: str) -> Status:
        if not self.last:
            return Status(phase)
        return Status(
            phase,
            rows=self.rows,
            rows_per_s=self._rows_per_s,
            lag=_lag(self.last),
            batch=int(self.last["batchId"]),
        )


def _as_mapping(progress: Any) -> Mapping[str, Any]:
    """As plain JSON; the classes that Spark has for it hold rows and UUIDs."""
    values: Mapping[str, Any] = json.loads(progress.json)
    return values


def _lag(report: Mapping[str, Any]) -> int | None:
    """Latest less end offsets of all sources."""
    lags = [sum(behind) for behind in partition_lags(report) if behind]
    return sum(lags) if lags else None


def _tasks(tracker: Any) -> tuple[int, int]:
    tasks = done = 0
    for stage_id in tracker.getActiveStageIds():
        stage = tracker.getStageInfo(stage_id)
        if stage is not None:
            tasks += stage.numTasks
            done += stage.numCompletedTasks
    return tasks, done
