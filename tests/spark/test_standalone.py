"""A standalone cluster whose worker has a Python without a single package, and what `tidemill pipeline package` gives it.

Driver and executors call their Python `python3`; PATH says which one that is, as on different machines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from tests.brokers import RunningBroker, eventually
from tests.spark.conftest import JAVA_MISSING, Fed, Feed
from tests.spark.sinks import create, read, values
from tidemill.cli.main import main
from tidemill.spark.session import SparkUnavailable, find_java

HOME = Path(pyspark.__file__).parent
LIMIT_S = 300.0
JOB = """
import sys
from pyspark.sql import SparkSession

bootstrap, source, target, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
kafka = {"kafka.bootstrap.servers": bootstrap}
reader = spark.readStream.format("tidemill").options(**kafka).option("subscribe", source)
rows = reader.option("startingOffsets", "earliest").load().selectExpr("key", "upper(string(value)) AS value")
writer = rows.writeStream.format("tidemill").options(**kafka).option("topic", target)
writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
"""


@contextmanager
def daemon(words: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=environment, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(LIMIT_S)


def logged(log: Path, pattern: str) -> str:
    found = eventually(lambda: re.search(pattern, log.read_text()), f"{pattern} in {log}", LIMIT_S)
    assert found is not None
    return found[0]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with one worker."""
    try:
        java = Path(find_java().path)
    except SparkUnavailable:
        pytest.skip(JAVA_MISSING)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    environment = {
        "PATH": f"{bare / 'bin'}:{java.parent}:/usr/bin:/bin",
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
    }
    packages = (
        "import importlib.util as u; print([n for n in ('tidemill', 'pyarrow', 'numpy') if u.find_spec(n)])"
    )
    seen = subprocess.run(["python3", "-c", packages], env=environment, capture_output=True, check=True)
    assert seen.stdout.strip() == b"[]"
    start = [str(HOME / "bin" / "spark-class")]
    of_master, of_worker = tmp_path / "master.log", tmp_path / "worker.log"
    ports = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with daemon([*start, "org.apache.spark.deploy.master.Master", *ports], environment, of_master):
        address = logged(of_master, r"spark://127\.0\.0\.1:\d+")
        size = ["--cores", "2", "--memory", "1g", "--work-dir", str(tmp_path / "work")]
        words = [*start, "org.apache.spark.deploy.worker.Worker", *ports, *size, address]
        with daemon(words, environment, of_worker):
            logged(of_worker, "Successfully registered with master")
            yield address


def submit(master: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": "python3",
        "PYSPARK_DRIVER_PYTHON": "python3",
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    submitted = [str(HOME / "bin" / "spark-submit"), "--master", master, "--executor-memory", "512m"]
    submitted += ["--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    return subprocess.run(
        [*submitted, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.long
def test_executors_with_nothing_but_python_run_what_the_archive_brings(
    master: str, target: RunningBroker, feed: Feed, topic: str, tmp_path: Path
) -> None:
    out = f"{topic}-out"
    create(target.bootstrap, topic, 2)
    create(target.bootstrap, out, 2)
    feed(topic, [Fed(b"v%d" % number) for number in range(200)])
    job = tmp_path / "job.py"
    job.write_text(JOB)
    arguments = [str(job), target.bootstrap, topic, out, str(tmp_path / "checkpoint")]

    without = submit(master, tmp_path, *arguments)
    assert without.returncode != 0
    assert "No module named" in without.stdout + without.stderr
    assert values(read(target.bootstrap, out)) == []

    shutil.rmtree(tmp_path / "checkpoint")
    assert main(["pipeline", "package", str(tmp_path / "tidemill.zip")]) == 0
    sent = ["--archives", "tidemill.zip#tidemill", "--conf", "spark.executorEnv.PYTHONPATH=tidemill"]
    with_archive = submit(master, tmp_path, *sent, *arguments)
    assert with_archive.returncode == 0, with_archive.stdout + with_archive.stderr
    assert values(read(target.bootstrap, out)) == sorted(f"V{number}" for number in range(200))
