"""Loads, each in a process of its own.

A load is a frozen dataclass of plain values with a `run` method that returns numbers. `measure` starts
`python -m bench.load MODULE:CLASS`, writes the fields to its standard input as JSON, reads the numbers from
its standard output, and ends it when it takes too long. So a load never shares an interpreter with the
measuring side or with another load, and the client's CPU time is that of its process.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.processes import Metrics

REPO = Path(__file__).resolve().parent.parent
TIMEOUT_S = 180.0


class LoadFailedError(Exception):
    """A load process failed or timed out."""


@dataclass(frozen=True)
class Load:
    bootstrap: str
    broker_pids: tuple[int, ...]

    def run(self) -> Metrics:
        raise NotImplementedError


def measure(load: Load, timeout_s: float = TIMEOUT_S) -> Metrics:
    name = f"{type(load).__module__}:{type(load).__qualname__}"
    command = [sys.executable, "-m", "bench.load", name]
    try:
        done = subprocess.run(
            command,
            input=json.dumps(asdict(load)),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd=REPO,
        )
    except subprocess.TimeoutExpired:
        raise LoadFailedError(f"{name} did not end within {timeout_s:.0f} s") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise LoadFailedError(f"{name}: {lines[-1] if lines else f'status {done.returncode}'}")
    metrics: Metrics = json.loads(done.stdout)
    return metrics


def main() -> None:
    module_name, _, class_name = sys.argv[1].partition(":")
    load = getattr(importlib.import_module(module_name), class_name)(**json.load(sys.stdin))
    json.dump(load.run(), sys.stdout)


if __name__ == "__main__":
    main()
