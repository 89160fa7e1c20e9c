"""Celery workers as processes, and the journal that their tasks write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from celery import Celery
from tests.brokers import eventually
from tests.celery import jobs

ROOT = Path(__file__).resolve().parents[2]
START_LIMIT_S = 60.0


class Journal:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def lines(self, *beginning: str) -> list[list[str]]:
        """The words of the lines that begin so."""
        words = [line.split() for line in self.path.read_text().splitlines()]
        return [each for each in words if each[: len(beginning)] == list(beginning)]

    def wait(self, *beginning: str, count: int = 1, limit_s: float = 60.0) -> list[list[str]]:
        def found() -> list[list[str]] | None:
            lines = self.lines(*beginning)
            return lines if len(lines) >= count else None

        return eventually(found, f"{count} lines {beginning} in the journal", limit_s)


class Worker:
    """`celery worker` on a queue of the application `tests.celery.jobs`."""

    def __init__(
        self,
        url: str,
        journal: Journal,
        queue: str,
        *,
        name: str = "one",
        pool: str = "prefork",
        concurrency: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.node = f"{name}@test"
        self._log_path = journal.path.with_name(f"worker-{name}.log")
        arguments = [
            *(sys.executable, "-m", "celery", "--app", "tests.celery.jobs", "worker"),
            *("--queues", queue, "--hostname", self.node, "--pool", pool, "--concurrency", str(concurrency)),
        ]
        with self._log_path.open("ab") as log:
            self.process = subprocess.Popen(
                arguments,
                cwd=ROOT,
                env={
                    **os.environ,
                    jobs.BROKER: url,
                    jobs.JOURNAL: str(journal.path),
                    # A worker that is killed leaves the folders of its pool's processes behind.
                    "TMPDIR": str(journal.path.parent),
                    **(environment or {}),
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.log()[-8000:])
        self.stop()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, self.log()
            return " ready." in self.log()

        eventually(is_ready, "the worker is ready", START_LIMIT_S)

    def stop(self) -> int:
        """A warm shutdown, which tasks under way may finish."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the worker did not stop\n{self.log()[-8000:]}") from None

    def kill(self) -> None:
        """`kill -9` of the worker and its pool, as when a machine goes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)


def application(url: str) -> Celery:
    """The application as a producer has it."""
    app = Celery("jobs", broker=url, set_as_current=False)
    app.conf.update(task_ignore_result=True)
    return app


def send(app: Celery, task: str, *args: object, queue: str, **options: object) -> None:
    app.send_task(task, args=args, queue=queue, **options)
