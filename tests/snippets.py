"""Reads the snippets of a page of the docs, and does what they say.

    from tests.snippets import Page, Reader

    def test_every_snippet_of_the_page_runs(tidemill_broker, tmp_path):
        replaced = {"127.0.0.1:9092": tidemill_broker.bootstrap, "127.0.0.1:8080": gateway.address}
        with Reader(tmp_path, replaced) as reader:
            reader.run_page(Page("docs/sdk.md"))

A page is read from top to bottom, as a person does, and a failure names the page and the line. What a fenced block is, its
language says:

    ```python       runs in one interpreter for the whole page: what a snippet defines, the next ones have
    ```sh           runs in bash with -euo pipefail; the folder and exported variables are kept for the next one
    ```console      lines with `$ ` are commands (a `> ` continues one), what follows each is what it prints, where `…`
                    stands for anything within a line, and a line of nothing but `…` for any lines
    others          are looked at, not run

A comment in the line before a block changes that; such marks are invisible to readers:

    <!-- output -->             the block is what the snippet before it printed, with `…` as above
    <!-- fails: TEXT -->        the commands end with an error, and print TEXT
    <!-- file: PATH -->         the block is a file, written where the snippets run
    <!-- background: TEXT -->   the commands go on running when they have printed TEXT, until the page ends
    <!-- not run: REASON -->    it cannot run here; to be used rarely, and `tests/docs/test_snippets.py` counts it

Hidden set-up is a comment of its own, and runs like a block:

    <!-- set-up: python
    from confluent_kafka import Producer
    -->

The folder that the snippets run in is the reader's. `tidemill` and `python` are those of the tests. Addresses and
folders that a page names are replaced by real ones. Everything that was started is ended with the reader.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import pytest

from tests.brokers import readable
from tidemill.testing.ports import HOST, HeldPort

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 60.0
END_LIMIT_S = 20.0
ANYTHING = "…"
MARKS = ("output", "fails", "file", "background", "not run")
RUN_LANGUAGES = ("python", "sh", "console")

_BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- (?P<mark>[^\n]*?) -->\n\s*)?```(?P<language>[\w+-]+)[^\n]*\n(?P<text>.*?)^\s*```[ \t]*$"
    r"|^ *<!-- set-up: (?P<set_up>\w+)\n(?P<hidden>.*?)^ *-->[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)

# Runs what it is sent, one line of JSON each, and answers each with a byte: what it printed is in its output.
_INTERPRETER = """
import json, linecache, os, sys, traceback
replies, names = int(sys.argv[1]), {"__name__": "__main__"}
for line in sys.stdin:
    name, text = json.loads(line)
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        exec(compile(text, name, "exec"), names)
        reply = b"."
    except BaseException:
        traceback.print_exc()
        reply = b"!"
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(replies, reply)
"""


class Snippet(NamedTuple):
    page: str
    line: int
    # The second-level heading that it stands under.
    section: str
    mark: str
    language: str
    text: str
    is_hidden: bool = False

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line}"

    @property
    def is_run(self) -> bool:
        """As code, now: not left out, and not a file or an output."""
        if self.language not in RUN_LANGUAGES:
            return False
        return not self.mark.startswith(("not run", "file", "output"))


class Page:
    def __init__(self, path: str | Path) -> None:
        """A path within the repository, or any other."""
        self.path = ROOT / path
        self.text = self.path.read_text(encoding="utf-8")
        self.snippets = list(self._read())

    def _read(self) -> Sequence[Snippet]:
        found = []
        for match in _BLOCK.finditer(self.text):
            before = self.text[: match.start()]
            sections = _SECTION.findall(before)
            is_hidden = match["set_up"] is not None
            snippet = Snippet(
                self.path.name,
                before.count("\n") + 1,
                sections[-1] if sections else "",
                match["mark"] or "",
                match["set_up"] or match["language"],
                textwrap.dedent(match["hidden"] if is_hidden else match["text"]),
                is_hidden,
            )
            if snippet.mark and snippet.mark.partition(":")[0] not in MARKS:
                raise AssertionError(f"{snippet.place}: {snippet.mark!r} is no mark")
            found.append(snippet)
        return found

    @property
    def left_out(self) -> list[Snippet]:
        return [snippet for snippet in self.snippets if snippet.mark.startswith("not run")]


@contextlib.contextmanager
def free_ports(*numbers: int) -> Iterator[dict[str, str]]:
    """Addresses with free ports for those that pages name, as `Reader` replaces them. They are reserved for the block."""
    ports = {number: HeldPort() for number in numbers}
    try:
        yield {f"{HOST}:{number}": f"{HOST}:{port.number}" for number, port in ports.items()}
    finally:
        for port in ports.values():
            port.release()


class SnippetFailedError(AssertionError):
    """A snippet did not do what its page says."""


class Reader:
    """Runs snippets in `folder`. Use as a context manager; leaving it ends what was started.

    `replaced` maps what pages name (addresses, folders) to what is here; `environment` is added to that of the commands.
    """

    def __init__(
        self,
        folder: Path,
        replaced: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        limit_s: float = LIMIT_S,
    ) -> None:
        self._folder = folder
        self._replaced = dict(replaced or {})
        self._limit_s = limit_s
        self._output = ""
        self._own = folder / ".snippets"
        self._own.mkdir(parents=True, exist_ok=True)
        self._environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(self._own / "state"),
            "XDG_CONFIG_HOME": str(self._own / "config"),
            "PYTHONUNBUFFERED": "1",
            "NO_COLOR": "1",
            "TERM": "dumb",
            **(environment or {}),
        }
        self._shells: list[subprocess.Popen[bytes]] = []
        self._interpreter: _Interpreter | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._interpreter is not None:
            self._interpreter.close()
        for shell in reversed(self._shells):
            _end(shell)

    def run_page(self, page: Page) -> None:
        for snippet in page.snippets:
            self.run(snippet)

    def run(self, snippet: Snippet) -> None:
        kind, _, said = (part.strip() for part in snippet.mark.partition(":"))
        text = self.replace(snippet.text)
        if kind == "not run":
            return
        if kind == "output":
            check_output(snippet.place, expected=text, printed=self._output)
        elif kind == "file":
            path = self._folder / self.replace(said)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif snippet.language == "python":
            self.run_python(snippet.place, text)
        elif snippet.language == "console":
            for command, expected in _transcript(text):
                self.run_shell(snippet.place, command)
                check_output(snippet.place, expected=expected, printed=self._output)
        elif snippet.language == "sh" and kind == "background":
            self._run_in_background(snippet.place, text, self.replace(said))
        elif snippet.language == "sh":
            self.run_shell(snippet.place, text, fails=self.replace(said) if kind == "fails" else None)

    def replace(self, text: str) -> str:
        for named, real in self._replaced.items():
            text = text.replace(named, real)
        return text

    def run_python(self, place: str, text: str) -> None:
        if self._interpreter is None:
            self._interpreter = _Interpreter(self._folder, self._environment, self._own / "python.output")
        self._output = self._interpreter.run(place, text, self._limit_s)

    def run_shell(self, place: str, text: str, fails: str | None = None) -> None:
        shell, output = self._start_shell(text)
        try:
            code = shell.wait(self._limit_s)
        except subprocess.TimeoutExpired:
            code = None
        self._output = output.read_text(errors="replace")
        if code is None:
            raise SnippetFailedError(
                f"{place}: not done within {self._limit_s:g} s\n{text}\n{self._output[-4000:]}"
            )
        if fails is None and code != 0:
            raise SnippetFailedError(f"{place}: exit {code}\n{text}\n{self._output[-4000:]}")
        if fails is not None and (code == 0 or fails not in self._output):
            raise SnippetFailedError(
                f"{place}: exit {code}, and should have failed: {fails}\n{self._output[-4000:]}"
            )

    def _run_in_background(self, place: str, text: str, awaited: str) -> None:
        shell, output = self._start_shell(text, is_last=False)
        deadline = time.monotonic() + self._limit_s
        while awaited not in output.read_text(errors="replace"):
            if shell.poll() is not None or time.monotonic() > deadline:
                printed = output.read_text(errors="replace")
                raise SnippetFailedError(f"{place}: never printed {awaited!r}\n{text}\n{printed[-4000:]}")
            time.sleep(0.02)
        self._output = output.read_text(errors="replace")

    def _start_shell(self, text: str, *, is_last: bool = True) -> tuple[subprocess.Popen[bytes], Path]:
        """Folder and variables are those that the last shell left. One in the background leaves none: it may end at any
        time, while another is writing down its own."""
        if re.search(r"\bcurl\b", text) and shutil.which("curl") is None:
            pytest.skip("the page goes on with curl, which is not installed: apt-get install curl")
        kept = self._own / "shell"
        keep = f"{{ declare -px | grep -v '^declare -[a-z]*r'; printf 'cd %q\\n' \"$PWD\"; }} > {kept}.new"
        script = f". {kept} 2>/dev/null || true\nset -euo pipefail\n{text}\n"
        if is_last:
            script += f"{keep}\nmv {kept}.new {kept}\n"
        output = self._own / f"{len(self._shells)}.output"
        with output.open("wb") as file:
            shell = subprocess.Popen(
                ["bash", "-c", script],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._shells.append(shell)
        return shell, output


class _Interpreter:
    """A process, so that a snippet that never ends can be ended."""

    def __init__(self, folder: Path, environment: Mapping[str, str], output: Path) -> None:
        self._replies, replying = os.pipe()
        self._path, self._seen = output, 0
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER, str(replying)],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=(replying,),
                start_new_session=True,
            )
        os.close(replying)

    def run(self, place: str, text: str, limit_s: float) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([place, text]).encode() + b"\n")
        self._process.stdin.flush()
        reply = os.read(self._replies, 1) if readable([self._replies], limit_s) else None
        everything = self._path.read_bytes()
        printed = everything[self._seen :].decode(errors="replace")
        self._seen = len(everything)
        if reply is None:
            raise SnippetFailedError(f"{place}: not done within {limit_s:g} s\n{text}\n{printed[-4000:]}")
        if reply != b".":
            raise SnippetFailedError(f"{place}: failed\n{text}\n{printed[-4000:]}")
        return printed

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        os.close(self._replies)
        _end(self._process)


def check_output(place: str, *, expected: str, printed: str) -> None:
    """`…` in what is expected stands for anything; spaces at the ends of lines do not count."""
    pattern = ""
    for line in textwrap.dedent(expected).strip("\n").splitlines():
        if line.strip() == ANYTHING:
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*?".join(map(re.escape, line.rstrip().split(ANYTHING))) + r"[ \t]*\n"
    lines = "".join(f"{line.rstrip()}\n" for line in printed.strip("\n").splitlines())
    if not re.fullmatch(pattern, lines):
        raise SnippetFailedError(f"{place}: it says\n{expected}\nand this was printed\n{printed}")


def _transcript(text: str) -> list[tuple[str, str]]:
    """Each command with what it prints."""
    parts: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            parts.append((line[2:] + "\n", ""))
        elif line.startswith("> ") and parts and not parts[-1][1]:
            parts[-1] = (parts[-1][0] + line[2:] + "\n", "")
        else:
            assert parts, "a console block begins with a command: $ …"
            parts[-1] = (parts[-1][0], parts[-1][1] + line + "\n")
    return parts


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process and those it started: they share its session, and each may have something of its own to end."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + END_LIMIT_S
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.02)
        except ProcessLookupError:
            break
    process.wait(END_LIMIT_S)
