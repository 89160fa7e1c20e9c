"""The brokers that are measured: each has an address, a process, and a start time."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from bench.apache_kafka import ApacheKafka
from bench.connection import answers_api_versions
from bench.processes import stop_processes

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
LOG_TAIL_LINES = 20
_LISTENS = re.compile(r"listens on (\S+:\d+)")


class BrokerFailedError(RuntimeError):
    """The broker did not come up; the message ends with the tail of its log."""


class Broker(Protocol):
    @property
    def bootstrap(self) -> str: ...
    @property
    def pid(self) -> int: ...
    @property
    def pids(self) -> tuple[int, ...]: ...
    @property
    def started_seconds(self) -> float: ...


@dataclass(frozen=True)
class Target:
    name: str
    version: str
    start: Callable[[Path], AbstractContextManager[Broker]]


class Tidemill:
    """`tidemill serve`, as a user starts it, alive inside its `with` block."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.bootstrap = ""
        self.started_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @staticmethod
    def command() -> str:
        return str(Path(sys.executable).with_name("tidemill"))

    @property
    def program(self) -> list[str]:
        return [self.command()]

    @property
    def options(self) -> list[str]:
        return []

    @staticmethod
    def version() -> str:
        shown = subprocess.run([Tidemill.command(), "--version"], capture_output=True, text=True, timeout=30)
        return shown.stdout.strip().rpartition(" ")[2] or "unknown"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def pids(self) -> tuple[int, ...]:
        return (self.pid,)

    def __enter__(self) -> Self:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [
            *self.program,
            "serve",
            "--data-dir",
            str(self.log_dir),
            "--listen",
            "127.0.0.1:0",
            *self.options,
        ]
        started_s = time.monotonic()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        with ExitStack() as on_failure:
            on_failure.callback(self.stop)
            self.bootstrap = self._endpoint(self._await_address(started_s + START_SECONDS_MAX))
            while not answers_api_versions(self.bootstrap):
                self._check(started_s + START_SECONDS_MAX)
                time.sleep(0.005)
            on_failure.pop_all()
        self.started_seconds = time.monotonic() - started_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """A clean stop; what does not stop in time is killed."""
        process, self._process = self._process, None
        if process is not None:
            stop_processes([process], STOP_SECONDS_MAX)

    @property
    def _log_path(self) -> Path:
        return self.data_dir / "server.log"

    def _endpoint(self, address: str) -> str:
        """What loads connect to when the broker listens there."""
        return address

    def _await_address(self, deadline_s: float) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        shown = b""
        while True:
            ready, _, _ = select.select([self._process.stdout], [], [], 0.1)
            shown += os.read(self._process.stdout.fileno(), 4096) if ready else b""
            if match := _LISTENS.search(shown.decode(errors="replace")):
                return match.group(1)
            self._check(deadline_s)

    def _check(self, deadline_s: float) -> None:
        assert self._process is not None
        if self._process.poll() is not None or time.monotonic() > deadline_s:
            tail = self._log_path.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
            raise BrokerFailedError("\n".join(["tidemill serve did not come up:", *tail]))


def tidemill_target() -> Target:
    return Target("tidemill", Tidemill.version(), Tidemill)


def apache_kafka_target() -> Target:
    return Target("kafka", ApacheKafka.version(), ApacheKafka)
