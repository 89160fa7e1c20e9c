"""The source and the sink without Spark: tasks, driver and brokers are killed or stopped, and every input is written once.

With `TIDEMILL_TASK_KILLS=40` for the long run, on one broker and on three; `TIDEMILL_SPARK_SEED` for another one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster
from tests.spark.chaos import COMMON, ONE, THREE
from tests.spark.task_kills import DEATHS, TARGETS, TaskKills
from tests.spark.test_exactly_once import SEED
from tidemill.spark.sink.commits import Commits

KILLS = int(os.environ.get("TIDEMILL_TASK_KILLS", "0"))
KILLS_SHORT = 2 * len(TARGETS)


@contextmanager
def query_on(brokers: int, settings: dict[str, str], folder: Path) -> Iterator[TaskKills]:
    with (
        Cluster(brokers, folder, settings=COMMON | settings) as cluster,
        TaskKills(cluster, SEED, folder) as query,
    ):
        yield query


def run(brokers: int, settings: dict[str, str], folder: Path) -> None:
    with query_on(brokers, settings, folder) as query:
        for _ in range(KILLS or KILLS_SHORT):
            query.strike()
        summary = query.finish()
    print(summary)
    # In a short run it may be that no task was struck in the middle of a transaction.
    assert summary.aborted_records or not KILLS


@pytest.mark.long
def test_one_broker(tmp_path: Path) -> None:
    run(1, ONE, tmp_path)


@pytest.mark.skipif(not KILLS, reason="takes minutes: make spark-kills, or TIDEMILL_TASK_KILLS=40")
def test_three_brokers(tmp_path: Path) -> None:
    run(3, THREE, tmp_path)


def repeat_batches(folder: Path) -> None:
    """A driver dies at each point of a commit; the last one has committed, and its batch is repeated."""
    with query_on(1, ONE, folder) as query:
        for death in DEATHS:
            query.strike_driver(death)
        query.finish()


@pytest.mark.long
def test_a_batch_is_written_once_whenever_its_driver_dies(tmp_path: Path) -> None:
    repeat_batches(tmp_path)


@pytest.mark.long
def test_a_driver_that_does_not_read_decisions_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Commits, "_last_before", lambda *_: None)
    with pytest.raises(AssertionError, match="nothing_is_transformed_twice"):
        repeat_batches(tmp_path)
