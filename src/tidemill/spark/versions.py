"""Hides the differences between the versions of Spark from 4.0 on for a Python data source.

    4.0    batches and streams, both ways; Arrow batches, though a stream's writer has to say so in its own way
    4.1    `DataSourceStreamArrowWriter`
    4.2    a stream's reader gets the start of a batch, a limit, and the trigger AvailableNow

Source and sink are written for the newest version. What an older one has not is defined here under the same name, or
refused with the version that has it (`SparkTooOld`). No other module asks which version it runs on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)

from tidemill.errors import TidemillError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "VERSION",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "ReadMinRows",
    "SparkTooOld",
    "SupportsTriggerAvailableNow",
    "require",
    "stream_reader",
]

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])

_HAS_STREAM_ARROW_WRITER = VERSION >= (4, 1)
_HAS_READ_LIMITS = VERSION >= (4, 2)


class SparkTooOld(TidemillError):
    """The requested feature needs a newer Spark; the message names it."""


def require(version: tuple[int, int], what: str) -> None:
    if version > VERSION:
        raise SparkTooOld(f"{what} needs Spark {version[0]}.{version[1]}, and this is {pyspark.__version__}")


if TYPE_CHECKING or _HAS_STREAM_ARROW_WRITER:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """Spark 4.0 hands Arrow batches to every writer that is a `DataSourceArrowWriter`, a stream's too."""


if TYPE_CHECKING or _HAS_READ_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        ReadMinRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        pass

    class ReadAllAvailable(ReadLimit):
        pass

    @dataclass
    class ReadMaxRows(ReadLimit):
        max_rows: int

    @dataclass
    class ReadMinRows(ReadLimit):
        min_rows: int

    class SupportsTriggerAvailableNow:
        pass


def stream_reader(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """The reader as this version of Spark calls one."""
    return reader if _HAS_READ_LIMITS else _UnlimitedStreamReader(reader)


class _UnlimitedStreamReader(DataSourceStreamReader):
    """A reader of Spark 4.2 for versions that call `latestOffset` without an argument.

    The start is known nevertheless. A batch that was planned is finished before Spark requests the end of the next one.
    A query that is started again plans an empty range first, at the end of its last batch (Spark does that for readers
    which prefetch). One that has planned nothing is new.

    Limits are refused. These versions run a query with the trigger AvailableNow as one batch, and the reader does not
    learn its trigger. With a limit such a query would silently leave the rest.
    """

    def __init__(self, reader: DataSourceStreamReader) -> None:
        if not isinstance(reader.getDefaultReadLimit(), ReadAllAvailable):
            require((4, 2), "a limit on what a trigger reads (maxOffsetsPerTrigger, minOffsetsPerTrigger)")
        self._reader = reader
        self._planned_end: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802
        start = self._reader.initialOffset() if self._planned_end is None else self._planned_end
        return self._reader.latestOffset(start, ReadAllAvailable())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._planned_end = end
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._reader.commit(end)

    def stop(self) -> None:
        self._reader.stop()
