"""Kafka clients of other languages, each a small program that `make interop-others` builds.

    PROGRAM BOOTSTRAP TOPIC group GROUP COUNT     reads so many records as a member of the group, commits them and ends
    PROGRAM BOOTSTRAP TOPIC since MS COUNT        reads so many records of partition 0 from a time on
    PROGRAM BOOTSTRAP TOPIC feed AGE_MS           sends a record for each line `KEY VALUE` of its input
    PROGRAM BOOTSTRAP TOPIC follow GROUP AGE_MS   reads as a member of the group until its input has a line or ends

Each value that it reads is a line of the output. A feed answers `flush` with `flushed` when all records before it are
acknowledged, and `partitions` with how many partitions it knows. It ends with an error when a record has failed.
AGE_MS is how old its metadata may get.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.interop.clients import ClientError

_FOLDER = Path(__file__).parent / "others"
_LIMIT_S = 120.0


class Conversation:
    """A program that runs beside the test. One thread talks with it."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.decode().rstrip("\n")

    def ask(self, line: str) -> str:
        """The line that it answers. `ClientError` when it has ended instead."""
        self.tell(line)
        for answer in self.lines():
            return answer
        raise self._failed()

    def end(self) -> None:
        """Ends its input and waits for its end."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            if self._process.wait(_LIMIT_S) != 0:
                raise self._failed()
        finally:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Gives its output and its errors back, once nothing reads them any more."""
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._errors.close()

    def _failed(self) -> ClientError:
        self._process.wait(_LIMIT_S)
        self._errors.seek(0)
        return ClientError(-1, f"{self.name}: {self._errors.read().decode(errors='replace')[-3000:]}")


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

    def start(self, *arguments: str) -> Conversation:
        return Conversation(self.name, [*self.command, *arguments], self.folder)


KAFKAJS = Program(
    "kafkajs",
    "npm",
    "Node.js 20 or newer with npm",
    ("npm", "install", "--no-audit", "--no-fund"),
    "node_modules/kafkajs",
    ("node", "read.js"),
)
_GO = ("go", "Go 1.23 or newer", ("go", "build", "-o", "reader", "."), "reader", ("./reader",))
KAFKA_GO = Program("kafka-go", *_GO)
SARAMA = Program("sarama", *_GO)
PROGRAMS = (KAFKAJS, KAFKA_GO, SARAMA)


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
