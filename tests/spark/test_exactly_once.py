"""A streaming query writes every input exactly once, whatever fails meanwhile, and its group shows no lag at the end.

With `TIDEMILL_SPARK_KILLS=60` for the long run, on one broker and on three, with executors that are processes of their own;
`TIDEMILL_SPARK_SEED` for another one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster
from tests.spark.chaos import COMMON, EXECUTORS, ONE, ONE_PROCESS, TARGETS, THREE, Chaos
from tidemill.spark.session import SparkUnavailable, find_java

KILLS = int(os.environ.get("TIDEMILL_SPARK_KILLS", "0"))
# One of each kind.
KILLS_SHORT = len(TARGETS)
MASTER = os.environ.get("TIDEMILL_SPARK_MASTER", EXECUTORS if KILLS else ONE_PROCESS)
SEED = int(os.environ.get("TIDEMILL_SPARK_SEED", "1"))


@pytest.fixture(autouse=True)
def _java() -> None:
    try:
        find_java()
    except SparkUnavailable as missing:
        pytest.skip(str(missing))


def run(brokers: int, settings: dict[str, str], folder: Path) -> None:
    with (
        Cluster(brokers, folder, settings=COMMON | settings) as cluster,
        Chaos(cluster, MASTER, SEED, folder) as chaos,
    ):
        for _ in range(KILLS or KILLS_SHORT):
            chaos.strike()
        print(chaos.finish())


@pytest.mark.long
def test_one_broker(tmp_path: Path) -> None:
    run(1, ONE, tmp_path)


@pytest.mark.skipif(not KILLS, reason="takes minutes: make spark-kills, or TIDEMILL_SPARK_KILLS=60")
def test_three_brokers(tmp_path: Path) -> None:
    run(3, THREE, tmp_path)
