"""The project of `examples/spark/declarative`, run by Spark's own `spark-pipelines`, as its README says.

That command needs `pyspark[pipelines]`, which Tidemill does not. It is looked for in this Python, and in the one that
`TIDEMILL_SPARK_PIPELINES_PYTHON` names.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.brokers import RunningBroker
from tests.spark.conftest import Fed, Feed
from tests.spark.test_pipeline_dead_letters import records_of
from tidemill.client.admin.topics import Admin

PROJECT = Path(__file__).resolve().parents[2] / "examples" / "spark" / "declarative"
VARIABLE = "TIDEMILL_SPARK_PIPELINES_PYTHON"
MISSING = (
    "spark-pipelines needs 'pyspark[pipelines]' (pandas, grpcio and others): run `make spark-declarative`, which makes an "
    f"environment for it, or name the Python of one that also has Tidemill in {VARIABLE}"
)
LIMIT_S = 600.0


@pytest.fixture(scope="module")
def python() -> str:
    chosen = os.environ.get(VARIABLE, sys.executable)
    needs = "import grpc, grpc_status, pandas, yaml, pyspark, tidemill"
    if subprocess.run([chosen, "-c", needs], capture_output=True, check=False).returncode:
        pytest.skip(MISSING)
    return chosen


def order(number: int, customer: str, amount: float) -> Fed:
    value = {"id": str(number), "customer": customer, "amount": amount}
    return Fed(json.dumps(value).encode(), customer.encode(), 0)


def test_the_example_runs_and_goes_on(
    python: str, target: RunningBroker, admin: Admin, feed: Feed, topic: str, tmp_path: Path
) -> None:
    project = tmp_path / "declarative"
    shutil.copytree(PROJECT, project, ignore=shutil.ignore_patterns("__pycache__"))
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/tidemill-orders", tmp_path.as_uri()))
    admin.create_topic(topic, partition_count=1)
    admin.create_topic(f"{topic}-large", partition_count=1)

    def pipelines(verb: str) -> str:
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
            "TIDEMILL_BOOTSTRAP": target.bootstrap,
            "ORDERS_TOPIC": topic,
            "LARGE_ORDERS_TOPIC": f"{topic}-large",
        }
        words = [
            str(Path(sys.executable).with_name("spark-pipelines")),
            verb,
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            "spark.sql.catalogImplementation=hive",
        ]
        done = subprocess.run(
            words, cwd=project, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    pipelines("dry-run")
    assert records_of(target, f"{topic}-large") == []
    feed(topic, [order(1, "ann", 250), order(2, "bob", 5), order(3, "ann", 100)])
    pipelines("run")
    feed(topic, [order(4, "cem", 99.5), order(5, "dee", 1000)])
    pipelines("run")
    found = records_of(target, f"{topic}-large")
    assert [(each.key(), json.loads(each.value() or b"")["id"]) for each in found] == [
        (b"ann", "1"),
        (b"ann", "3"),
        (b"dee", "5"),
    ]
    # Spark's streaming table has the same orders, in Parquet.
    assert list(tmp_path.rglob("large_orders/**/*.parquet"))
