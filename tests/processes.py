"""The processes of this machine, as the kernel lists them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")


class Process(NamedTuple):
    pid: int
    parent_pid: int
    arguments: str


def living_processes() -> Iterator[Process]:
    """Every process that runs. One that has ended, and waits for its parent to take note, is none."""
    # Small machines have no `ps`, and others no /proc.
    return _from_proc() if _PROC.joinpath("self", "stat").exists() else _from_ps()


def is_alive(pid: int) -> bool:
    return any(process.pid == pid for process in living_processes())


def _from_proc() -> Iterator[Process]:
    for folder in _PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # The name in parentheses may contain blanks and parentheses.
            state, parent_pid = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            arguments = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        if state != "Z":
            text = arguments.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
            yield Process(int(folder.name), int(parent_pid), text)


def _from_ps() -> Iterator[Process]:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,args="], capture_output=True, check=True, text=True
    )
    for line in listed.stdout.splitlines():
        pid, parent_pid, state, arguments = line.split(None, 3)
        if not state.startswith("Z"):
            yield Process(int(pid), int(parent_pid), arguments)
