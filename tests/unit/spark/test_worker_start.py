"""What a Python worker of Spark costs before it works: what it imports, and from where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyspark

from tidemill.spark.session import lean_spark_home

TASKS = """
import sys
import pyspark_tidemill
import tidemill.spark.sink.writers
from tidemill.protocol.records import Record, build_batch, header_at
from tidemill.spark.arrow.decode import SCHEMA, Decoder
from tidemill.types import TopicPartition

data = build_batch([Record(0, 1, b"k", b"v")])
decoder = Decoder(TopicPartition("orders", 3), 0, 9, SCHEMA.names)
rows = decoder.decode([(header_at(data), memoryview(data))])
assert rows.num_rows == 1
print(*sorted({"pandas", "tidemill.config"} & sys.modules.keys()))
"""


def test_a_worker_that_reads_or_commits_imports_neither_pandas_nor_the_settings_of_brokers() -> None:
    done = subprocess.run([sys.executable, "-c", TASKS], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_workers_find_the_installed_pyspark_and_no_archive_of_its_sources(tmp_path: Path) -> None:
    environment = {"PYSPARK_PYTHON": sys.executable}
    installed = Path(pyspark.__file__).parent
    with lean_spark_home(tmp_path, environment):
        home = Path(environment["SPARK_HOME"])
        assert (home / "bin" / "spark-submit").samefile(installed / "bin" / "spark-submit")
        assert (home / "jars").samefile(installed / "jars")
        assert not (home / "python").exists()
    assert "SPARK_HOME" not in environment


def test_spark_stays_where_the_user_says_and_as_another_python_needs_it(tmp_path: Path) -> None:
    for environment in (
        {"PYSPARK_PYTHON": sys.executable, "SPARK_HOME": "/opt/spark"},
        {"PYSPARK_PYTHON": "/usr/bin/python3"},
    ):
        before = dict(environment)
        with lean_spark_home(tmp_path, environment):
            assert environment == before
        assert environment == before
    assert list(tmp_path.iterdir()) == []
