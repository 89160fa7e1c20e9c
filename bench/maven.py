"""Jars from Maven Central: what a folder's `pom.xml` names, copied once into the folder's `target/jars`.

A copy of the pom beside the jars says what they are. As long as it equals the pom, Maven is not asked; so what is
there is used without a network, and a changed version is fetched anew. One process fetches at a time.
"""

from __future__ import annotations

import fcntl
import re
import shutil
import subprocess
from pathlib import Path

STAMP = "jars.pom.xml"


class JarsMissingError(RuntimeError):
    """The jars are not here and cannot be fetched; the message says what to do."""


def has_jars(folder: Path) -> bool:
    """Whether the jars of this pom are present. No network access."""
    stamp = folder / "target" / STAMP
    return stamp.exists() and stamp.read_text() == (folder / "pom.xml").read_text()


def jars(folder: Path, what: str) -> Path:
    """The folder of the jars, which are fetched when they are missing; `what` names them in messages."""
    target = folder / "target"
    if has_jars(folder):
        return target / "jars"
    if shutil.which("mvn") is None:
        raise JarsMissingError(f"{what} comes from Maven Central: install Maven (mvn)")
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not has_jars(folder):
            _copy(folder, what)
            (target / STAMP).write_text((folder / "pom.xml").read_text())
    return target / "jars"


def _copy(folder: Path, what: str) -> None:
    destination = folder / "target" / "jars"
    shutil.rmtree(destination, ignore_errors=True)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={destination}"]
    done = subprocess.run(
        ["mvn", "-q", "-B", "-ntp", "-f", str(folder / "pom.xml"), *goal], capture_output=True
    )
    if done.returncode != 0:
        lines = [line for line in done.stdout.decode(errors="replace").splitlines() if "ERROR" in line]
        raise JarsMissingError(f"Maven cannot download {what}: {lines[0] if lines else 'no reason given'}")


def property_of(folder: Path, name: str) -> str:
    """A `<name>` of the pom's properties, such as a version."""
    match = re.search(rf"<{re.escape(name)}>(.+?)</", (folder / "pom.xml").read_text())
    return match.group(1) if match else "unknown"
