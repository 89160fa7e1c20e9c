"""Divides the tests among the workers of pytest-xdist, so that a run is short.

A worker takes one file after the other (`--dist loadfile`), because fixtures of a module are then made once. Four things
differ from xdist's own order:

* The files that use the Spark session are one unit. A session is a JVM that needs a minute to get warm, and three of them
  would share two cores.
* The console's tests are one unit, with one browser, broker and gateway: to start them costs as much as two tests.
* Each test of the simulator and of the docs is a unit. These files are long and have no fixtures that tests could share.
* Folders whose tests start processes come first, and plain unit tests last. Otherwise the slowest files, which have few
  tests, would begin when everything else is done, and one worker would run alone at the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any

SPARK_SESSION = "tests/spark"
CONSOLE = "tests/console"
APART = ("tests/sim", "tests/docs")
# Files in tests/spark that start drivers of their own, or need no Spark.
_WITHOUT_SESSION = {
    "test_declarative.py",
    "test_demo.py",
    "test_driver_failures.py",
    "test_exactly_once.py",
    "test_python.py",
    "test_rights.py",
    "test_table.py",
    "test_task_kills.py",
    "test_two_phase.py",
}
_SLOWEST_FIRST = (
    "spark",
    "console",
    "cluster",
    "cli",
    "sim",
    "testing",
    "docs",
    "examples",
    "interop",
    "gateway",
)


def unit_of(node_id: str) -> str:
    """The unit that one worker runs without interruption: a file, one test of a folder in `APART`, or a whole folder."""
    path = PurePosixPath(node_id.partition("::")[0])
    if path.parent.as_posix() in APART:
        return node_id
    if path.parent.as_posix() == CONSOLE:
        return CONSOLE
    if path.parent.as_posix() == SPARK_SESSION and path.name not in _WITHOUT_SESSION:
        return SPARK_SESSION
    return path.as_posix()


def rank_of(node_id: str) -> tuple[int, bool]:
    """Sorts tests by the cost of their folder; within tests/spark the session's files come first."""
    folders = PurePosixPath(node_id.partition("::")[0]).parts[1:]
    folder = folders[0] if folders else ""
    rank = _SLOWEST_FIRST.index(folder) if folder in _SLOWEST_FIRST else len(_SLOWEST_FIRST)
    return rank + (folder == "unit"), unit_of(node_id) != SPARK_SESSION


def repeated_id(node_ids: Iterable[str]) -> str | None:
    """Returns an id that several tests have. By file, xdist would run the first of them and leave out the others."""
    return next((node_id for node_id, count in Counter(node_ids).items() if count > 1), None)


def scheduler(config: Any, log: Any) -> Any:
    from xdist.scheduler import LoadFileScheduling

    class UnitScheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

    # The order in which they were collected: xdist would sort by the number of tests.
    config.option.loadscopereorder = False
    return UnitScheduling(config, log)
