"""`docs/spark.md` is true: its snippets run in order, and its tables are those of the code.

Python runs in the session of the tests, a shell's commands in bash, except that `tidemill pipeline run` gets that same
session: a JVM for each of them would take minutes. `TIDEMILL_DOCS_PROCESSES=1` runs those, too, as a reader does.
How snippets are read and marked: `tests/snippets.py`.
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
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.brokers import Broker
from tests.snippets import ROOT, Page, Reader, SnippetFailedError
from tidemill.cli.main import main
from tidemill.client.cluster import Cluster
from tidemill.spark import session
from tidemill.spark.sink import options as sink_options
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.source import options
from tidemill.spark.source.options import Query, SourceOptions

PAGE = Page("docs/spark.md")
FOLDER = "/tmp/tidemill"
ADDRESS = "127.0.0.1:9092"
LIMIT_S = 600.0
ATTEMPTS = 10
PIPELINE = "tidemill pipeline run "


class SparkReader(Reader):
    """Does what the page says, in the session of the tests."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap = bootstrap
        self._names: dict[str, Any] = {"__name__": "page"}
        # An interpreter without Tidemill, whose packages are those of ours: what --py-files brings is all there is of it.
        self._bare_python = folder / "python-without-tidemill"
        self._bare_python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
        self._bare_python.chmod(0o755)
        environment = {
            "TIDEMILL_BOOTSTRAP": bootstrap,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        super().__init__(folder, {ADDRESS: bootstrap, FOLDER: str(folder)}, environment, LIMIT_S)

    def run_python(self, place: str, text: str) -> None:
        code = compile(text, place, "exec")
        _patiently(lambda: exec(code, self._names))

    def run_shell(self, place: str, text: str, fails: str | None = None) -> None:
        commands = re.split(r"^(?=tidemill pipeline run )", text.replace("\\\n", " "), flags=re.MULTILINE)
        for command in filter(str.strip, commands):
            if command.startswith(PIPELINE) and not os.environ.get("TIDEMILL_DOCS_PROCESSES"):
                first, _, rest = command.partition("\n")
                assert main(shlex.split(first)[1:]) == 0
                command = rest
            if "--py-files" in command:
                before, _, words = command.rpartition("spark-submit ")
                super().run_shell(place, f"({self._exports()}\n{before}\n)", fails)
                exports = [line for line in before.splitlines() if line.startswith("export ")]
                submit = "\n".join([self._exports(), *exports, f"spark-submit {words}"])
                _patiently(functools.partial(super().run_shell, place, f"({submit}\n)", fails))
            else:
                super().run_shell(place, command, fails)

    def _exports(self) -> str:
        """For commands that are to run without Tidemill installed."""
        packages = next(path for path in sys.path if path.endswith("site-packages"))
        variables = {
            "PYSPARK_PYTHON": str(self._bare_python),
            "PYSPARK_DRIVER_PYTHON": str(self._bare_python),
            "PYTHONPATH": packages,
            "SPARK_HOME": str(Path(packages) / "pyspark"),
        }
        return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def _patiently(action: Callable[[], Any]) -> Any:
    """Spark gives a new Python worker ten seconds to start, which a busy machine may exceed. Snippets can be repeated."""
    for _ in range(ATTEMPTS - 1):
        try:
            return action()
        except (StreamingQueryException, SnippetFailedError) as error:
            if not session.is_late_worker(error):
                raise
    return action()


@pytest.fixture
def reader(
    spark: SparkSession, start: Callable[[], Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkReader]:
    broker = start()

    @contextlib.contextmanager
    def shared(*_: object, **__: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr(session, "open_session", shared)
    monkeypatch.setenv("TIDEMILL_BOOTSTRAP", broker.bootstrap)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    with SparkReader(broker.bootstrap, tmp_path) as reader:
        yield reader


@pytest.mark.long
def test_every_snippet_runs(reader: SparkReader, tmp_path: Path) -> None:
    reader.run_page(PAGE)
    with Cluster(reader.bootstrap) as cluster:
        written = {topic.name for topic in cluster.load_metadata(None).topics}
    assert {"orders-again", "orders-once", "order-totals", "totals"} <= written
    assert "</html>" in (tmp_path / "report.html").read_text()


def test_most_snippets_are_executed_and_the_others_say_why() -> None:
    assert len(PAGE.snippets) > 20
    assert len(PAGE.left_out) <= 4
    assert {snippet.language for snippet in PAGE.snippets} == {"python", "sh"}


def _table(mark: str) -> dict[str, str]:
    """The rows after a mark: the first cell's code, and the second cell."""
    after = PAGE.text.split(f"<!-- {mark} -->\n", 1)[1].split("\n\n", 1)[0]
    rows = [line.strip("|").split("|") for line in after.splitlines()[2:]]
    return {row[0].strip().strip("`"): row[1].strip() for row in rows}


def test_the_table_of_source_options_is_complete() -> None:
    assert set(_table("options: source")) == {*options._OF_CONNECTOR, *options._KAFKA, *options._OWN}


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
    said = PAGE.text.split("<!-- errors -->\n", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
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
        snippet.text
        for snippet in PAGE.snippets
        if "spark-submit" in snippet.text and snippet.language == "sh"
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
