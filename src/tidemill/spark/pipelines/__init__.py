"""The pipelines: each is a module of this package with the members of `Pipeline`, and one command.

`tidemill pipeline run NAME` parses the pipeline's own options together with those that all have (see `connecting`),
makes a session, and calls `run`. Meanwhile it shows what `run` passes to `Progress`. In the end it prints the `Summary`
that `run` returns, as text or as JSON. A pipeline prints nothing itself and raises `TidemillError` for what a user can
put right.

A module imports pyspark, pyarrow and numpy inside its functions: its name, its summary and its options must be there
without them. A pipeline that Ctrl-C stops returns its summary as usual; `Progress.is_interrupted` tells it and the command.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from tidemill.errors import TidemillError
from tidemill.spark.pipelines.reporting import Progress, Status

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["MODULES", "Bytes", "Pipeline", "PipelineError", "Progress", "Status", "Summary", "Table", "load"]

# By name, as users write it.
MODULES: Mapping[str, str] = {
    "archive": "tidemill.spark.pipelines.archive",
    "replay": "tidemill.spark.pipelines.replay",
    "dedupe": "tidemill.spark.pipelines.dedupe",
    "aggregate": "tidemill.spark.pipelines.aggregate",
    "dead-letters": "tidemill.spark.pipelines.dead_letters",
    "report": "tidemill.spark.pipelines.report",
}


class PipelineError(TidemillError):
    """One line for the user: what happened, to which topic, and what to do about it."""


class Bytes(int):
    """A size; shown with a unit, in JSON a number."""


Value = str | int | float | bool | None


@dataclass
class Table:
    """Numbers stay numbers: the command aligns and formats them."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[Value]]


@dataclass
class Summary:
    """The results of a run: names with their values, then tables. Names are words, such as "records written"."""

    fields: list[tuple[str, Value]] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)

    def add(self, name: str, value: Value) -> None:
        self.fields.append((name, value))

    def add_table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Value]]) -> None:
        self.tables.append(Table(title, columns, list(rows)))

    def as_json(self) -> dict[str, Any]:
        """Fields by name, tables by title as lists of objects; spaces become underscores."""
        values: dict[str, Any] = {_key(name): value for name, value in self.fields}
        for table in self.tables:
            keys = [_key(column) for column in table.columns]
            values[_key(table.title)] = [dict(zip(keys, row, strict=True)) for row in table.rows]
        return values


class Pipeline(Protocol):
    """A module fits. It may also have `EXAMPLES`, lines of commands that are shown under its help, and `check(options)`,
    which raises what is wrong before a session is started for it."""

    NAME: str
    SUMMARY: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, spark: SparkSession, options: argparse.Namespace, report: Progress) -> Summary: ...


def load(name: str) -> Pipeline:
    if name not in MODULES:
        raise PipelineError(
            f"there is no pipeline {name}; there are {', '.join(MODULES)}, and any file that ends in .py"
        )
    return cast(Pipeline, importlib.import_module(MODULES[name]))


def _key(name: str) -> str:
    return name.lower().replace(" ", "_").replace("-", "_")
