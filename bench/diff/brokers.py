"""The two brokers, pair by pair: given by address, or started here, Tidemill as a user starts it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.apache_kafka import ApacheKafka
from bench.diff.script import USUAL
from bench.processes import stop_processes

Address = tuple[str, int]
STOP_SECONDS_MAX = 15.0
START_SECONDS_MAX = 30.0
# For both: scripts about groups wait for rebalances and for sessions to end, those about transactions for time-outs and
# for transactional ids to be forgotten.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "300",
    "group.min.session.timeout.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "1000",
    "transactional.id.expiration.ms": "8000",
    # No broker reads it; a plug-in might.
    "some.plugin.setting": "1",
}
TWO_PHASE, NO_TWO_PHASE = "two-phase", "no two-phase"
_TWO_PHASE_KEY = "transaction.two.phase.commit.enable"
# The additional settings of each pair. Version 6 of InitProducerId is unstable in Kafka and enabled only there.
PAIRS: dict[str, dict[str, str]] = {
    USUAL: {},
    TWO_PHASE: {_TWO_PHASE_KEY: "true"},
    NO_TWO_PHASE: {_TWO_PHASE_KEY: "false"},
}
_UNSTABLE = {"unstable.api.versions.enable": "true"}
LISTENS = re.compile(r"listens on (\S+):(\d+)")


class NotStartedError(RuntimeError):
    """Tidemill ended or stayed silent before it said where it listens."""


def parse_address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


@contextmanager
def apache_kafka(address: str | None, data_dir: Path, pair: str = USUAL) -> Iterator[Address]:
    if address is not None:
        yield parse_address(address)
        return
    unstable = {} if pair == USUAL else _UNSTABLE
    with ApacheKafka(data_dir, {**SETTINGS, **PAIRS[pair], **unstable}) as kafka:
        yield parse_address(kafka.bootstrap)


@contextmanager
def tidemill(address: str | None, data_dir: Path, pair: str = USUAL) -> Iterator[Address]:
    if address is not None:
        yield parse_address(address)
        return
    arguments = ["--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    arguments += [f"--set={key}={value}" for key, value in (SETTINGS | PAIRS[pair]).items()]
    with serving(arguments, data_dir.with_suffix(".log")) as (listener,):
        yield listener


@contextmanager
def serving(arguments: Sequence[str], log_path: Path, listeners: int = 1) -> Iterator[list[Address]]:
    """`tidemill serve` with these arguments, and the addresses of its listeners."""
    command = [str(Path(sys.executable).with_name("tidemill")), "serve", *arguments]
    with log_path.open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        yield _addresses(process, log_path, listeners)
    finally:
        stop_processes([process], STOP_SECONDS_MAX)


def _addresses(process: subprocess.Popen[bytes], log_path: Path, count: int) -> list[Address]:
    """The addresses in the broker's output. A silent broker is ended, which ends the reading."""
    assert process.stdout is not None
    silence = threading.Timer(START_SECONDS_MAX, process.kill)
    silence.start()
    found: list[Address] = []
    try:
        for line in process.stdout:
            match = LISTENS.search(line.decode(errors="replace"))
            found += [(match.group(1), int(match.group(2)))] if match else []
            if len(found) == count:
                threading.Thread(target=process.stdout.read, daemon=True).start()
                return found
    finally:
        silence.cancel()
    raise NotStartedError(f"tidemill serve did not start:\n{log_path.read_text(errors='replace')[-2000:]}")
