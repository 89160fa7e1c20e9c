"""The source and the sink without Spark: tasks, driver and brokers are killed or stopped, and every input is written once.

With `TIDEMILL_TASK_KILLS=40` for the long run, on one broker and on three; `TIDEMILL_SPARK_SEED` for another one.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster
from tests.spark.chaos import COMMON, ONE, THREE
from tests.spark.task_kills import TARGETS, TaskKills
from tests.spark.test_exactly_once import SEED
from tidemill.spark.commits import Commits

KILLS = int(os.environ.get("TIDEMILL_TASK_KILLS", "0"))
KILLS_SHORT = 2 * len(TARGETS)
# A batch is repeated after one in four of them, mostly with tasks that had written.
KILLS_NOTICED = 4 * len(TARGETS)


def run(
    brokers: int,
    settings: dict[str, str],
    folder: Path,
    kills: int = KILLS or KILLS_SHORT,
) -> None:
    with (
        Cluster(brokers, folder, settings=COMMON | settings) as cluster,
        TaskKills(cluster, SEED, folder) as query,
    ):
        for _ in range(kills):
            query.strike()
        summary = query.finish()
    print(summary)
    # In a short run it may be that nobody was struck in the middle of a transaction.
    assert summary.aborted_records or not KILLS


def test_one_broker(tmp_path: Path) -> None:
    run(1, ONE, tmp_path)


@pytest.mark.skipif(not KILLS, reason="takes minutes: make spark-kills, or TIDEMILL_TASK_KILLS=40")
def test_three_brokers(tmp_path: Path) -> None:
    run(3, THREE, tmp_path)


@pytest.mark.long
def test_a_driver_that_does_not_read_decisions_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Commits, "_last_before", lambda *_: None)
    with pytest.raises(AssertionError, match="nothing_is_transformed_twice"):
        run(1, ONE, tmp_path, KILLS_NOTICED)
