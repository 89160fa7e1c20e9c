"""Requirements and failures of a session, without a session: Java is a script here, and failures are texts."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tidemill.spark import session
from tidemill.spark.packaging import package_zip
from tidemill.spark.session import Java, SparkUnavailable, find_java, java_warning, line_of

STREAM_FAILED = """[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: Job aborted due to stage failure
{trace}
 SQLSTATE: 38000 SQLSTATE: XXKST
=== Streaming Query ===
Identifier: dedupe [id = 1-2, runId = 3-4]
Current State: ACTIVE
"""


def java(directory: Path, version: str, code: int = 0) -> Path:
    """A program `java` that says it is of this version."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-01' >&2\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "expected"), [("17.0.15", 17), ("21", 21), ("25.0.1", 25), ("26-ea", 26)]
)
def test_java_is_found_in_its_home_and_on_the_path(tmp_path: Path, version: str, expected: int) -> None:
    path = java(tmp_path, version)
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) == Java(str(path), expected)
    assert find_java({"PATH": str(path.parent)}) == Java(str(path), expected)


def test_the_home_is_taken_before_the_path(tmp_path: Path) -> None:
    java(tmp_path / "home", "21.0.2")
    on_path = java(tmp_path / "other", "17.0.1")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_java(environment).version == 21


def test_missing_java_is_an_error_with_the_install_command(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable) as refused:
        find_java({"PATH": str(tmp_path)})
    text = str(refused.value)
    assert "\n" not in text
    for way in ("Java 17", "apt install", "brew install", "conda install", "JAVA_HOME"):
        assert way in text


@pytest.mark.parametrize(("version", "told"), [("11.0.2", "Java 11"), ("1.8.0_402", "Java 8")])
def test_an_old_java_is_named(tmp_path: Path, version: str, told: str) -> None:
    path = java(tmp_path, version)
    with pytest.raises(SparkUnavailable, match=told) as refused:
        find_java({"PATH": str(path.parent)})
    assert str(path) in str(refused.value)


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(SparkUnavailable, match="JAVA_HOME="):
        find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""})
    # As the stub of macOS, which only says that there is no Java.
    stub = java(tmp_path, "none", code=1)
    with pytest.raises(SparkUnavailable, match="is none"):
        find_java({"PATH": str(stub.parent)})


def test_a_java_that_is_too_new_is_only_warned_of() -> None:
    assert java_warning(Java("/usr/bin/java", 25)) is None
    warning = java_warning(Java("/usr/bin/java", 26))
    assert warning is not None
    assert "Java 26" in warning
    assert "JAVA_HOME" in warning


def test_missing_packages_give_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    session.check_packages()
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pyarrow" else found(name))
    with pytest.raises(SparkUnavailable, match=r"pyarrow .*pip install 'tidemill\[spark\]'"):
        session.check_packages()


def test_logs_of_earlier_runs_are_deleted_but_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    directory = tmp_path / "tidemill" / "logs"
    directory.mkdir(parents=True)
    for number in range(30):
        path = directory / f"run-{number}.log"
        path.touch()
        os.utime(path, (time.time(), 1000 + number))
    path = session.new_log_path("my pipeline")
    path.touch()
    left = {each.name for each in directory.iterdir()}
    assert left == {path.name, *(f"run-{number}.log" for number in range(11, 30))}
    assert path.name.startswith("my_pipeline-")


def test_a_state_directory_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tidemill").write_text("in the way")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailable, match="XDG_STATE_HOME"):
        session.new_log_path("x")


def test_the_package_holds_both_modules(tmp_path: Path) -> None:
    with zipfile.ZipFile(package_zip(tmp_path)) as package:
        names = set(package.namelist())
    assert {
        "pyspark_tidemill/__init__.py",
        "tidemill/spark/data_source.py",
        "tidemill/client/cluster.py",
    } <= names
    assert all(name.endswith(".py") for name in names)


# --- failures ---


def test_our_own_error_is_found_within_a_trace() -> None:
    trace = """Traceback (most recent call last):
  File "/x/tidemill/client/cluster.py", line 7, in topic
    raise UnknownTopic(f"there is no topic {name}")
tidemill.client.retry.UnknownTopic: there is no topic orders: create it
	at org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""
    assert line_of(STREAM_FAILED.format(trace=trace)) == "there is no topic orders: create it"


def test_our_own_error_stands_above_what_wraps_it() -> None:
    trace = """Traceback (most recent call last):
  File "/x/tidemill/spark/work.py", line 7, in read
    raise OffsetsLost(partition)
tidemill.client.fetch.OffsetsLost: offsets 0 to 9 of orders-1 are gone

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/pyspark/worker.py", line 70, in main
    raise RuntimeError("failed")
RuntimeError: failed
"""
    assert line_of(STREAM_FAILED.format(trace=trace)) == "offsets 0 to 9 of orders-1 are gone"


def test_an_error_of_the_users_function_keeps_its_class() -> None:
    trace = """Traceback (most recent call last):
  File "/home/me/totals.py", line 12, in convert
    return 1 / zero
           ~~^~~~~~
ZeroDivisionError: division by zero
"""
    assert line_of(STREAM_FAILED.format(trace=trace)) == "ZeroDivisionError: division by zero"


def test_sparks_error_condition_is_shown_without_its_codes() -> None:
    text = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `amout` cannot be resolved. SQLSTATE: 42703;
'Project ['amout]
+- Range (0, 3, step=1)
"""
    assert line_of(text) == "A column with name `amout` cannot be resolved."


def test_prefixes_of_py4j_and_queries_are_removed() -> None:
    text = """An error occurred while calling o86.load.
: org.apache.spark.SparkClassNotFoundException: [DATA_SOURCE_NOT_FOUND] Failed to find nosuch. SQLSTATE: 42K02
	at org.apache.spark.sql.Errors$.notFound(Errors.scala:1)
Caused by: java.lang.ClassNotFoundException: nosuch.DefaultSource
"""
    assert line_of(text) == "Failed to find nosuch."
    text = "[STREAM_FAILED] Query [id = 1] terminated with exception: [NO_SPACE] The disk is full. SQLSTATE: 58030"
    assert line_of(text) == "The disk is full."


def test_the_innermost_cause_of_a_jvm_failure() -> None:
    text = """An error occurred while calling None.JavaSparkContext.
: org.apache.spark.SparkException: Could not parse Master URL
	at org.apache.spark.SparkContext$.create(SparkContext.scala:1)
Caused by: java.io.IOException: wrapped
	at x.Y.z(Y.java:1)
Caused by: java.net.ConnectException: Connection refused: spark:7077
	... 12 more
"""
    assert line_of(text) == "ConnectException: Connection refused: spark:7077"
    assert line_of("\n\n") == "Spark failed and gave no reason"


@pytest.mark.parametrize(
    "trace",
    [
        "Python worker failed to connect back.\n\tat org.apache.spark.api.python.PythonWorkerFactory",
        "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the Python worker to connect back",
    ],
)
def test_a_late_worker_is_a_line_that_says_what_to_do(trace: str) -> None:
    line = line_of(STREAM_FAILED.format(trace=trace))
    assert "ten seconds" in line
    assert "run it again" in line


@pytest.mark.parametrize(("reused", "is_frozen"), [({"SPARK_REUSE_WORKER": "1"}, True), ({}, False)])
def test_only_a_reused_worker_leaves_imports_out_of_garbage_collections(
    reused: dict[str, str], is_frozen: bool
) -> None:
    program = (
        "import gc; from tidemill.spark import freeze_imports as f; f(); print(gc.get_freeze_count() > 0)"
    )
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment | reused,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == str(is_frozen)
