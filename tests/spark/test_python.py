"""Which Python Spark's workers run, when `python3` on PATH is one without Tidemill."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tests.brokers import RunningBroker
from tests.spark.conftest import JAVA_MISSING, Fed, Feed
from tidemill.client.admin.topics import Admin
from tidemill.spark import use_this_python
from tidemill.spark.session import SparkUnavailable, find_java, line_of

LIMIT_S = 300.0
PROGRAM = """
import sys
sys.path.insert(0, SOURCES)
FIRST
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
THEN
options = {"kafka.bootstrap.servers": sys.argv[1], "subscribe": sys.argv[2]}
print("rows", spark.read.format("tidemill").options(**options).load().count())
"""


def test_what_is_unset_is_set_and_nothing_else() -> None:
    fresh: dict[str, str] = {}
    use_this_python(fresh)
    assert fresh == {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    given = {"PYSPARK_PYTHON": "/opt/python"}
    use_this_python(given)
    assert given["PYSPARK_PYTHON"] == "/opt/python"
    submitted = {"PYSPARK_GATEWAY_PORT": "1"}
    use_this_python(submitted)
    assert submitted == {"PYSPARK_GATEWAY_PORT": "1"}


def test_the_line_names_the_cause() -> None:
    text = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: tidemill. Make sure the provider name is correct"
    assert "that Python does not have Tidemill; set PYSPARK_PYTHON" in line_of(text)
    assert "tidemill" not in line_of(text.replace("tidemill", "tidal")).lower()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """As in a shell where no virtual environment is active: `python3` is an interpreter that has no packages."""
    try:
        find_java()
    except SparkUnavailable:
        pytest.skip(JAVA_MISSING)
    bare = tmp_path / "python3"
    bare.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S "$@"\n')
    bare.chmod(0o755)
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYSPARK") and name != "PYTHONPATH"
    }
    return {**inherited, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.mark.long
@pytest.mark.parametrize("is_first", [True, False])
def test_a_program_whose_environment_is_not_activated(
    target: RunningBroker,
    feed: Feed,
    admin: Admin,
    topic: str,
    environment: dict[str, str],
    is_first: bool,
) -> None:
    admin.create_topic(topic, partition_count=1)
    feed(topic, [Fed(b"x"), Fed(b"y")])
    place = "FIRST" if is_first else "THEN"
    sources = str(Path(tidemill.__file__).parents[1])
    program = PROGRAM.replace("SOURCES", repr(sources)).replace(place, "import tidemill.spark")
    program = program.replace("FIRST", "").replace("THEN", "")
    done = subprocess.run(
        [sys.executable, "-c", program, target.bootstrap, topic],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if is_first:
        assert "rows 2" in done.stdout, done.stderr
    else:
        assert "DATA_SOURCE_NOT_FOUND" in done.stderr
        assert "import tidemill.spark first, or set PYSPARK_PYTHON" in done.stderr
