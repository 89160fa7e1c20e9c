"""The checks of ports on this machine: which process listens, and whether an address can be bound."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from tidemill.cli.serving.addresses import bind_reason

_LISTEN = "0A"


def can_bind(host: str, port: int) -> str | None:
    """None when the address is free, otherwise the reason."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.create_server((host, port), family=family):
            return None
    except OSError as error:
        return bind_reason(error)


def owner_of(port: int) -> str | None:
    """The process that listens on the port; None when the system or the user's rights do not show it."""
    inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and _holds(process, inodes):
            return f"{_command_line(process)} (pid {process.name})"
    return "a process of another user"


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(fields[9])
    return inodes


def _holds(process: Path, inodes: set[str]) -> bool:
    try:
        return any(os.readlink(each) in inodes for each in (process / "fd").iterdir())
    except OSError:
        # The process has ended, or belongs to another user.
        return False


def _command_line(process: Path) -> str:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return "a process"
    text = " ".join(word.decode(errors="replace") for word in words if word)
    return text if len(text) <= 100 else f"{text[:97]}..."
