"""The archive pipeline in processes that kill themselves: tasks run in them, and a fork costs no imports.

`python -m tests.spark.archive_process` reads lines of JSON, [step, delay in seconds, HOST:PORT, options of the
pipeline...], and runs each in a fork: at the step-th file that it opens or renames under the archive's root, and
the delay later, it is killed as by `kill -9`. It answers with a line, how the fork ended: 0, or the negative number
of the signal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

# What the pipeline imports when it runs; the forks have it then.
import pandas  # type: ignore[import-untyped]  # noqa: F401

import tidemill.config
import tidemill.spark.arrow.decode
import tidemill.spark.source.table  # noqa: F401
from tidemill.spark.pipelines import Progress, archive


class InProcess:
    """As much of a session as the pipeline needs."""

    @property
    def sparkContext(self) -> InProcess:  # noqa: N802
        return self

    def statusTracker(self) -> InProcess:  # noqa: N802
        return self

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return []

    def parallelize(self, numbers: Iterable[int], _: int) -> Mapped:
        return Mapped(numbers)


class Mapped:
    def __init__(self, numbers: Iterable[int]) -> None:
        self._numbers = numbers
        self._task: Callable[[Iterable[int]], Iterator[Any]] = iter

    def mapPartitions(self, task: Callable[[Iterable[int]], Iterator[Any]]) -> Mapped:  # noqa: N802
        self._task = task
        return self

    def collect(self) -> list[Any]:
        return [result for number in self._numbers for result in self._task([number])]


def parse(pipeline: Any, bootstrap: str, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    pipeline.add_arguments(parser)
    options = parser.parse_args(words)
    options.bootstrap = bootstrap
    return options


def kill_at(step: int, delay_s: float, root: str) -> None:
    """Arms the process: the audit hook sees every open and rename before it happens."""
    steps = itertools.count(1)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "os.rename") and str(arguments[0]).startswith(root) and next(steps) == step:
            if not delay_s:
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()

    sys.addaudithook(watch)


def main() -> None:
    for line in sys.stdin:
        step, delay_s, *words = json.loads(line)
        child = os.fork()
        if not child:
            options = parse(archive, *words)
            kill_at(step, delay_s, options.archive)
            archive.run(cast(Any, InProcess()), options, Progress())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
