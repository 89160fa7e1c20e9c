"""The machine of the measurements: its facts, and its memory, which is touched before anything is timed."""

from __future__ import annotations

import mmap
import os
import platform
from importlib.metadata import version
from pathlib import Path

CHUNK_BYTES = 1 << 22


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise ValueError(f"/proc/meminfo has no {name}")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def facts() -> dict[str, str | float]:
    return {
        "cores": os.cpu_count() or 0,
        "cpu": _cpu_model(),
        "memory_bytes": _meminfo_bytes("MemTotal"),
        "kernel": platform.release(),
        "load_average": os.getloadavg()[0],
        "python": platform.python_version(),
        "confluent_kafka": version("confluent-kafka"),
    }


def busy_warning() -> str | None:
    """One line when other work competes for the cores, or None."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if load < cores / 2:
        return None
    return f"the machine is busy (load average {load:.1f} on {cores} cores): figures will vary"


def touch_memory(size: int) -> None:
    """Write to that much memory, or to half of what is available, and give it back."""
    chunks = min(size, _meminfo_bytes("MemAvailable") // 2) // CHUNK_BYTES
    if not chunks:
        return
    chunk = b"\1" * CHUNK_BYTES
    with mmap.mmap(-1, chunks * CHUNK_BYTES) as memory:
        for _ in range(chunks):
            memory.write(chunk)
