"""Rows that fail or wait in the middle of their task, and what a reader sees of them in the end.

What a test waits for is a file that a row touches: the folder of a `Gate` is seen by the test and by the workers. Each
of its methods that returns a function makes one that Spark calls for every row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pyspark import TaskContext

from tests.brokers import eventually
from tests.spark.processes import LIMIT_S
from tests.spark.sinks import read, values

ROWS = 40_000
# Where it fails: when two of four Arrow batches have reached the sink.
FATAL_ROW = 25_000
# Enough that half of the rows are more than the sink gathers before it writes.
PADDING = "x" * 600
# Where a task is held that gets half of the rows.
HELD_AT = 6_000
EXPECTED = sorted(f"{number:06d}" for number in range(ROWS))


class Gate:
    """A row that fails or waits, known by the files in a folder that the workers see, too."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder

    def reached(self) -> None:
        eventually((self.folder / "reached").exists, "the fatal row", LIMIT_S)

    def open(self) -> None:
        (self.folder / "open").touch()

    def touched(self, beginning: str) -> list[str]:
        return sorted(each.name for each in self.folder.glob(f"{beginning}*"))

    def fails(self, *, always: bool) -> Callable[[str], str]:
        folder = str(self.folder)

        def fail(value: str) -> str:
            is_first = not os.path.exists(f"{folder}/reached")
            if int(value[:6]) == FATAL_ROW and not os.path.exists(f"{folder}/open") and (is_first or always):
                Path(f"{folder}/reached").touch()
                raise ValueError("a malformed row")
            return value

        return fail

    def waits(self, *, first_attempt_only: bool = False) -> Callable[[str], str]:
        folder = str(self.folder)

        def wait(value: str) -> str:
            if int(value[:6]) == FATAL_ROW:
                attempt = _task().attemptNumber()
                Path(f"{folder}/attempt-{attempt}").touch()
                if not (first_attempt_only and attempt):
                    Path(f"{folder}/reached").touch()
                    eventually(lambda: os.path.exists(f"{folder}/open"), "the gate", LIMIT_S)
            return value

        return wait

    def waits_unless_first(self) -> Callable[[str], str]:
        """The first attempt goes on when there is a second one, which waits."""
        folder = str(self.folder)

        def wait(value: str) -> str:
            if int(value[:6]) == FATAL_ROW:
                attempt = _task().attemptNumber()
                Path(f"{folder}/attempt-{attempt}").touch()
                awaited = "open" if attempt else "attempt-1"
                eventually(lambda: os.path.exists(f"{folder}/{awaited}"), awaited, LIMIT_S)
            return value

        return wait

    def holds_tasks(self) -> Callable[[str], str]:
        """Every task waits at its row of this number."""
        folder, count = str(self.folder), 0

        def hold(value: str) -> str:
            nonlocal count
            count += 1
            if count == HELD_AT:
                Path(f"{folder}/task-{_task().partitionId()}").touch()
                eventually(lambda: os.path.exists(f"{folder}/open"), "the gate", LIMIT_S)
            return value

        return hold


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


def seen(bootstrap: str, topic: str) -> list[str]:
    return [each[:6] for each in values(read(bootstrap, topic))]
