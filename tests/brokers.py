"""Starts brokers for tests the way a user starts one: the console script, its own process, a port the kernel chooses.

`Broker` owns the process and its files: what it printed, what it logged, how much memory it holds.
`RunningBroker` is a broker that somebody else started; tests that only speak the protocol accept either, so that
the same expectations can be proved against Apache Kafka (see `conftest.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

START_LIMIT_S = 30.0
STOP_LIMIT_S = 30.0
# For a broker that lives as long as the tests. They write records with times of their own, years ago: retention, whose
# first round comes five minutes after the start, would rightly delete them in the middle of some test.
KEEPS_EVERYTHING = {"log.retention.check.interval.ms": str(24 * 3600 * 1000)}
LISTENS = re.compile(r"listens on (?P<host>\S+):(?P<port>\d+)")

Value = TypeVar("Value")
Source = TypeVar("Source", bound="FileDescriptorLike")


def readable(sources: Sequence[Source], limit_s: float) -> list[Source]:
    """Those that have something to read, or have ended, once one has. `select` knows no descriptor above 1,023."""
    with selectors.DefaultSelector() as selector:
        for source in sources:
            selector.register(source, selectors.EVENT_READ, source)
        # A limit that has passed asks once.
        return [key.data for key, _ in selector.select(max(0.0, limit_s))]


def eventually(probe: Callable[[], Value | None], what: str, limit_s: float = 30.0) -> Value:
    """The first true value of `probe`; fails with `what` when the limit passes."""
    deadline = time.monotonic() + limit_s
    while not (value := probe()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.01)
    return value


def command() -> list[str]:
    script = Path(sys.executable).with_name("tidemill")
    return [str(script)] if script.exists() else [sys.executable, "-m", "tidemill"]


def serve_arguments(
    data_dir: Path, settings: Mapping[str, str] | None = None, config: Path | None = None
) -> list[str]:
    arguments = [*command(), "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    if config is not None:
        arguments += ["--config", str(config)]
    for key, value in (settings or {}).items():
        arguments += ["--set", f"{key}={value}"]
    return arguments


class BrokerFailedError(AssertionError):
    """The broker ended, or did not begin to listen."""


@dataclass
class RunningBroker:
    host: str
    port: int

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def connect(self, timeout_s: float = 30.0) -> socket.socket:
        return socket.create_connection((self.host, self.port), timeout=timeout_s)


@dataclass
class Broker(RunningBroker):
    """A process under test. Use as a context manager; leaving it stops the process."""

    process: subprocess.Popen[bytes]
    data_dir: Path
    log_path: Path
    # What it said on standard output when it began to listen.
    printed: str = ""

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Ends the process cleanly and returns its exit code."""
        if self.is_alive:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailedError(
                f"the broker did not stop within {STOP_LIMIT_S:g} s\n{self.log()}"
            ) from None
        finally:
            self._close_stdout()

    def kill(self) -> None:
        """`kill -9`."""
        self.process.kill()
        self.process.wait(STOP_LIMIT_S)
        self._close_stdout()

    def _close_stdout(self) -> None:
        if self.process.stdout is not None:
            self.process.stdout.close()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def rss_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status")
        if status.exists():
            return int(status.read_text().split("VmRSS:")[1].split()[0]) * 1024
        ps = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], capture_output=True, check=True)
        return int(ps.stdout) * 1024

    def open_files(self) -> int | None:
        """Returns the number of open descriptors of the process; None where the system does not report it."""
        directory = Path(f"/proc/{self.pid}/fd")
        return len(os.listdir(directory)) if directory.exists() else None


def spawn(arguments: Sequence[str], log_path: Path) -> subprocess.Popen[bytes]:
    with log_path.open("ab") as log:
        return subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)


def read_banner(process: subprocess.Popen[bytes]) -> str:
    """Everything printed until the line that names the address; shorter when the process ended."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    printed = b""
    deadline = time.monotonic() + START_LIMIT_S
    while not LISTENS.search(printed.decode(errors="replace")) or not printed.endswith(b"\n"):
        chunk = os.read(descriptor, 65536) if readable([descriptor], deadline - time.monotonic()) else b""
        if not chunk:
            break
        printed += chunk
    return printed.decode(errors="replace")


def start_broker(
    data_dir: Path,
    *,
    settings: Mapping[str, str] | None = None,
    config: Path | None = None,
    log_path: Path | None = None,
) -> Broker:
    """Returns when the broker has said where it listens."""
    log_path = log_path or data_dir.with_name(data_dir.name + ".stderr")
    process = spawn(serve_arguments(data_dir, settings, config), log_path)
    printed = read_banner(process)
    address = LISTENS.search(printed)
    if address is None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        log = log_path.read_text(errors="replace")
        raise BrokerFailedError(f"the broker did not listen (exit {process.returncode})\n{printed}\n{log}")
    return Broker(address["host"], int(address["port"]), process, data_dir, log_path, printed)


def run_to_end(arguments: Sequence[str], limit_s: float = START_LIMIT_S) -> subprocess.CompletedProcess[str]:
    """For commands that should refuse to start: a process that stays alive is a failure."""
    process = subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
        raise AssertionError(f"still running after {limit_s:g} s\n{stdout}\n{stderr}") from None
    return subprocess.CompletedProcess(list(arguments), process.returncode, stdout, stderr)


def raise_descriptor_limit(wanted: int) -> int:
    """Lifts the soft limit of open files as far as the hard one allows and returns what it is now.

    Child processes inherit it.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
