"""The processes of a Spark job: found by their command, killed by their number, started again.

A driver is the Python process and what it started: the JVM, executors that are JVMs of their own in a local cluster,
and the Python workers of them all.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Self

import pyspark

from tests.brokers import eventually

REPO = Path(__file__).resolve().parents[2]
EXECUTOR = "CoarseGrainedExecutorBackend"
WORKER = "pyspark.daemon"
# A driver with two executors starts in seconds, or takes more than three minutes where twenty processes wait for each core.
LIMIT_S = float(os.environ.get("TIDEMILL_SPARK_LIMIT_S", "600"))
STOP_LIMIT_S = 60.0
COMPLAINTS_MAX = 4_000
_MASTER = re.compile(r"spark://\S+:\d+")


@dataclass(frozen=True)
class Process:
    """A process that is not mistaken for another one that got its number later."""

    pid: int
    started: str
    command: str

    def send(self, number: signal.Signals) -> None:
        if process_of(self.pid) == self:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)


def process_of(pid: int) -> Process | None:
    """None when there is none, or none that still runs."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else Process(pid, fields[19], command)


def descendants(pid: int) -> list[Process]:
    """Parents before their children."""
    found = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    for child in children:
        if (process := process_of(child)) is not None:
            found += [process, *descendants(child)]
    return found


@dataclass
class Driver:
    """The query's processes, one life after the other."""

    arguments: list[str]
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    ends: int = 0
    # Executors that may have outlived their driver.
    left_alone: list[Process] = field(default_factory=list)

    def start(self) -> None:
        self.process = _start(self.arguments, self.log_path)

    def processes(self, part: str) -> list[Process]:
        """Those whose command says so."""
        assert self.process is not None
        return [each for each in descendants(self.process.pid) if part in each.command]

    def kill(self, *, with_executors: bool) -> None:
        if self.process is None:
            return
        family = descendants(self.process.pid)
        self.process.kill()
        for process in family:
            if with_executors or not self._is_of_an_executor(process):
                process.kill()
            else:
                self.left_alone.append(process)
        self.process.wait(STOP_LIMIT_S)
        self.process = None

    def _is_of_an_executor(self, process: Process) -> bool:
        return EXECUTOR in process.command or WORKER in process.command

    def wait(self, limit_s: float) -> int:
        """Waits until it ends, by itself or by a signal; returns its return code."""
        assert self.process is not None
        code = self.process.wait(limit_s)
        self.process = None
        return code

    @property
    def is_ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def restart_if_ended(self) -> None:
        if self.is_ended:
            self.ends += 1
            self.start()

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill(with_executors=True)
        self.process = None

    def clean_up(self) -> None:
        self.kill(with_executors=True)
        for process in self.left_alone:
            process.kill()

    def complaints(self) -> str:
        return self.log_path.read_text(errors="replace")[-COMPLAINTS_MAX:]


class Standalone:
    """Spark's own cluster manager: a master and workers of one core, each at an address of its own.

    A speculative attempt never runs on the host of the first one, and `local-cluster` has one host.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder, self._workers = folder, workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Self:
        try:
            log = self._start("master", "master.Master", "--host", "127.0.0.1", "--port", "0")
            found = eventually(lambda: _MASTER.search(log.read_text()), "the master's address", LIMIT_S)
            self.url = found[0]
            for index in range(self._workers):
                where = ("--host", f"127.0.0.{index + 2}", "--work-dir", str(self._folder / f"work-{index}"))
                size = ("--cores", "1", "--memory", "1g")
                self._start(f"worker-{index}", "worker.Worker", *where, *size, self.url)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self, name: str, role: str, *words: str) -> Path:
        home = Path(pyspark.__file__).parent
        log_path = self._folder / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", "--webui-port", "0"]
        settings = {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}
        self._processes.append(_start([*command, *words], log_path, settings))
        return log_path

    def _end(self) -> None:
        for process in self._processes:
            kill_family(process.pid)
            process.wait(STOP_LIMIT_S)


def _start(
    arguments: list[str], log_path: Path, settings: Mapping[str, str] = MappingProxyType({})
) -> subprocess.Popen[bytes]:
    # Executors work in folders of their own, and import what the driver imports.
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(REPO)])
    with log_path.open("ab") as log:
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=REPO,
            env=os.environ | {"PYTHONPATH": path, **settings},
            # A terminal sends Ctrl-C to a whole group, of which the tests are no part.
            start_new_session=True,
        )


def kill_family(pid: int) -> None:
    """A process and all that it started; ourselves last, when we are one of them."""
    family = [process for process in (process_of(pid), *descendants(pid)) if process is not None]
    for process in sorted(family, key=lambda each: each.pid == os.getpid()):
        process.kill()
