"""A data source whose driver dies where a test says: `format("tidemill")` in everything else.

A test names the point by a file in the folder of `TIDEMILL_FAULTS`, and the first commit that comes there takes the
file away and kills the driver, the Python process and everything that it started:

    before     every transaction is taken over, nothing is decided
    between    the batch is decided, and one of its transactions is committed
    after      everything is committed, and Spark does not know it

The sink itself knows nothing of this: the commit of a `FaultyStreamWriter` patches what it calls.
"""

from __future__ import annotations

import os
import time
import unittest.mock
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tests.spark.processes import kill_family
from tidemill.spark.data_source import TidemillDataSource
from tidemill.spark.sink import two_phase
from tidemill.spark.sink.commits import Commits
from tidemill.spark.sink.writers import StreamWriter

POINTS = {
    "before": "driver before its decision",
    "between": "driver between decision and commits",
    "after": "driver after its commits",
}
FOLDER, DRIVER = "TIDEMILL_FAULTS", "TIDEMILL_FAULTS_DRIVER"
FORMAT = "tidemill_faulty"


def announce_driver(folder: Path) -> None:
    """Puts the driver's identity into the environment, which the committing workers inherit."""
    os.environ[FOLDER], os.environ[DRIVER] = str(folder), str(os.getpid())


class FaultySource(TidemillDataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        return FaultyStreamWriter(schema, self.options, overwrite)


class FaultyStreamWriter(StreamWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        with (
            unittest.mock.patch.object(Commits, "decide", _dying("before", Commits.decide)),
            unittest.mock.patch.object(two_phase, "_commit", _dying("between", two_phase._commit, after=1)),
        ):
            super().commit(messages, batchId)
        _die_at("after")


def _dying(point: str, real: Callable[..., Any], after: int = 0) -> Callable[..., Any]:
    """Dies instead of the call after so many."""
    calls = 0

    def call(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > after:
            _die_at(point)
        return real(*args)

    return call


def _die_at(point: str) -> None:
    try:
        (Path(os.environ[FOLDER]) / point).unlink()
    except FileNotFoundError:
        return
    kill_family(int(os.environ[DRIVER]))
    # Nothing more is done here, however long a signal takes.
    while True:
        time.sleep(1)
