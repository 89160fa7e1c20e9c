"""`docs/spark.md` is true: its snippets run in order, and its tables are those of the code.

Python runs in the session of the tests, a shell's commands in bash, except that `tidemill pipeline run` gets that same
session: a JVM for each of them would take minutes. `TIDEMILL_DOCS_PROCESSES=1` runs those, too, as a reader does.
Comments in the page steer this: `<!-- file: PATH -->` is a snippet that is a file, `<!-- not executed: REASON -->` one
that cannot run here.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyspark.sql import SparkSession

from tests.brokers import Broker
from tidemill.cli.main import main
from tidemill.client.cluster import Cluster
from tidemill.spark import options, session, sink_options
from tidemill.spark.options import Query, SourceOptions
from tidemill.spark.sink_options import SinkOptions

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "spark.md"
FOLDER = "/tmp/tidemill"
ADDRESS = "127.0.0.1:9092"
LIMIT_S = 600.0
ATTEMPTS = 4
WORKER_IS_LATE = "Python worker failed to connect back"
PIPELINE = "tidemill pipeline run "
_SNIPPET = re.compile(r"(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)```", re.DOTALL)


class Snippet(NamedTuple):
    line: int
    mark: str
    language: str
    text: str


def snippets() -> list[Snippet]:
    page = PAGE.read_text()
    return [
        Snippet(page.count("\n", 0, found.start()) + 1, found["mark"] or "", found["language"], found["text"])
        for found in _SNIPPET.finditer(page)
    ]


class Reader:
    """Does what the page says."""

    def __init__(self, bootstrap: str, folder: Path, spark: SparkSession) -> None:
        self._bootstrap = bootstrap
        self._folder = folder
        self._names: dict[str, Any] = {"__name__": "page"}
        self._spark = spark
        # An interpreter without Tidemill, whose packages are those of ours: what --py-files brings is all there is of it.
        self._bare_python = folder / "python-without-tidemill"
        self._bare_python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        self._bare_python.chmod(0o755)

    def run(self, snippet: Snippet) -> None:
        text = snippet.text.replace(ADDRESS, self._bootstrap).replace(FOLDER, str(self._folder))
        if snippet.mark.startswith("not executed: "):
            return
        if snippet.mark.startswith("file: "):
            Path(snippet.mark.removeprefix("file: ").replace(FOLDER, str(self._folder))).write_text(text)
        elif snippet.language == "python":
            code = compile(text, f"{PAGE.name}, line {snippet.line}", "exec")
            _patiently(lambda: exec(code, self._names))
        else:
            assert snippet.language == "sh"
            self._run_shell(text)

    def _run_shell(self, text: str) -> None:
        commands = re.split(r"^(?=tidemill pipeline run )", text.replace("\\\n", " "), flags=re.MULTILINE)
        for command in filter(str.strip, commands):
            if command.startswith(PIPELINE) and not os.environ.get("TIDEMILL_DOCS_PROCESSES"):
                first, _, rest = command.partition("\n")
                assert _patiently(functools.partial(main, shlex.split(first)[1:])) == 0
                command = rest
            self._run_process(command)

    def _run_process(self, text: str) -> None:
        if not text.strip():
            return
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self._folder,
            env=self._environment(is_bare="--py-files" in text),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"

    def _environment(self, is_bare: bool) -> dict[str, str]:
        tools = Path(sys.executable).parent
        environment = {
            **os.environ,
            "PATH": f"{tools}:{os.environ['PATH']}",
            "TIDEMILL_BOOTSTRAP": self._bootstrap,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        if is_bare:
            packages = next(path for path in sys.path if path.endswith("site-packages"))
            environment |= {
                "PYSPARK_PYTHON": str(self._bare_python),
                "PYSPARK_DRIVER_PYTHON": str(self._bare_python),
                "PYTHONPATH": packages,
                "SPARK_HOME": str(Path(packages) / "pyspark"),
            }
        return environment


def _patiently(action: Callable[[], Any]) -> Any:
    """Spark gives a new Python worker ten seconds to start, which a busy machine may exceed. Snippets can be repeated."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except Exception as error:
            if WORKER_IS_LATE not in str(error):
                raise
    return action()


@pytest.fixture
def reader(
    spark: SparkSession, start: Callable[[], Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Reader:
    broker = start()

    @contextlib.contextmanager
    def shared(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "open_session", shared)
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return Reader(broker.bootstrap, tmp_path, spark)


@pytest.mark.long
def test_every_snippet_runs(reader: Reader, tmp_path: Path) -> None:
    for snippet in snippets():
        try:
            reader.run(snippet)
        except BaseException as error:
            raise AssertionError(f"{PAGE.name}, line {snippet.line}: {error}") from error
    with Cluster(reader._bootstrap) as cluster:
        written = {topic.name for topic in cluster.load_metadata(None).topics}
    assert {"orders-again", "orders-once", "order-totals", "totals"} <= written
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_most_snippets_are_executed_and_the_others_say_why() -> None:
    marks = [snippet.mark for snippet in snippets()]
    assert len(marks) > 20
    skipped = [mark for mark in marks if mark.startswith("not executed: ")]
    assert len(skipped) <= 4
    assert {snippet.language for snippet in snippets()} == {"python", "sh"}
    assert all(mark.startswith(("not executed: ", "file: ")) or not mark for mark in marks)


def _table(mark: str) -> dict[str, str]:
    """The rows after a mark: the first cell's code, and the second cell."""
    after = PAGE.read_text().split(f"<!-- {mark} -->\n", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("|").split("|") for line in after.splitlines()[2:]]
    return {row[0].strip().strip("`"): row[1].strip() for row in rows}


def test_the_table_of_source_options_is_complete() -> None:
    assert set(_table("options: source")) == {*options._SOURCE, *options._KAFKA}


def test_the_table_of_sink_options_is_complete() -> None:
    assert set(_table("options: sink")) == set(sink_options._KNOWN)


@pytest.mark.parametrize("query", [Query.BATCH, Query.STREAM])
def test_a_source_option_with_its_default_changes_nothing(query: Query) -> None:
    given = {"kafka.bootstrap.servers": ADDRESS, "subscribe": "orders"}
    plain = SourceOptions.parse(given, query)
    tried = 0
    for name, default in _defaults("options: source").items():
        if query is Query.STREAM and name in options._BATCH_ONLY:
            continue
        assert SourceOptions.parse({**given, name: default}, query) == plain, name
        tried += 1
    assert tried >= 8


def test_a_sink_option_with_its_default_changes_nothing() -> None:
    given = {"kafka.bootstrap.servers": ADDRESS}
    defaults = _defaults("options: sink")
    for name, default in defaults.items():
        assert SinkOptions.parse({**given, name: default}) == SinkOptions.parse(given), name
    assert len(defaults) >= 10


def _defaults(mark: str) -> Mapping[str, str]:
    """Those that are a value; others are words."""
    return {
        name: default.strip("`")
        for name, default in _table(mark).items()
        if default.startswith("`") and default.endswith("`") and default.count("`") == 2
    }


def test_errors_are_quoted_as_the_code_has_them() -> None:
    texts = [
        node.value
        for path in (ROOT / "src" / "tidemill").rglob("*.py")
        if {"spark", "client"} & set(path.parts)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    said = PAGE.read_text().split("<!-- errors -->\n", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    quotes = [line.split(" | ")[0].strip("| ").strip("`") for line in said]
    assert len(quotes) >= 10
    for quote in quotes:
        for part in quote.split("…"):
            assert any(part.strip() in text for text in texts), quote


def test_options_of_spark_submit_exist() -> None:
    """Also of the commands that cannot run here."""
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    home = Path(packages) / "pyspark"
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    answer = subprocess.run(
        [str(home / "bin" / "spark-submit"), "--help"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    known = set(re.findall(r"--[a-z-]+", answer.stdout + answer.stderr))
    if "--py-files" not in known:
        pytest.skip("spark-submit does not run here: Java 17 is missing")
    commands = [
        snippet.text for snippet in snippets() if "spark-submit" in snippet.text and snippet.language == "sh"
    ]
    submitted = [
        line.split("spark-submit", 1)[1]
        for text in commands
        for line in text.replace("\\\n", " ").splitlines()
        if "spark-submit" in line
    ]
    used = {word for text in submitted for word in re.findall(r"(?<=\s)--[a-z-]+", text)}
    assert {"--archives", "--deploy-mode", "--py-files"} <= used
    assert used <= known
