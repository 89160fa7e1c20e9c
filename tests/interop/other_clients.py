"""Kafka clients of other languages, each a small program that reads a topic. `make interop-others` builds them.

    PROGRAM BOOTSTRAP TOPIC group GROUP COUNT     reads so many records as a member of the group, commits them and ends
    PROGRAM BOOTSTRAP TOPIC since MS COUNT        reads so many records of partition 0 from a time on

Each value is a line of the output.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent / "others"
_LIMIT_S = 120.0


class Program(NamedTuple):
    name: str
    # The tool that builds it, and what to install where that is missing.
    tool: str
    install: str
    build: tuple[str, ...]
    # What the build leaves behind.
    made: str
    command: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return _FOLDER / self.name.replace("-", "_")

    def missing(self) -> str | None:
        """None when the program can run; else one line that says what to do."""
        if shutil.which(self.tool) is None:
            return f"{self.name} needs {self.install}"
        made = self.folder / self.made
        return None if made.exists() else f"{self.name} is not built: `make interop-others` does it"

    def run(self, *arguments: str) -> list[str]:
        done = subprocess.run(
            [*self.command, *arguments], cwd=self.folder, capture_output=True, timeout=_LIMIT_S
        )
        assert done.returncode == 0, f"{self.name} {arguments}\n{done.stderr.decode()[-3000:]}"
        return done.stdout.decode().split()


PROGRAMS = (
    Program(
        "kafkajs",
        "npm",
        "Node.js 20 or newer with npm",
        ("npm", "install", "--no-audit", "--no-fund"),
        "node_modules/kafkajs",
        ("node", "read.js"),
    ),
    Program(
        "kafka-go", "go", "Go 1.23 or newer", ("go", "build", "-o", "reader", "."), "reader", ("./reader",)
    ),
    Program(
        "sarama", "go", "Go 1.23 or newer", ("go", "build", "-o", "reader", "."), "reader", ("./reader",)
    ),
)


def main() -> int:
    for program in PROGRAMS:
        if shutil.which(program.tool) is None:
            print(f"{program.name} is left out: it needs {program.install}", file=sys.stderr)
            continue
        if program.tool == "go":
            subprocess.run(("go", "mod", "tidy"), cwd=program.folder, check=True)
        subprocess.run(program.build, cwd=program.folder, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
