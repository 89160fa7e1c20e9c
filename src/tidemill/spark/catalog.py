"""A table of Spark's catalog: `CREATE TABLE t USING tidemill OPTIONS (…)`, and how its options come back to the source.

**What Spark gives.** When a table is created, Spark requests the source's columns and passes it the options. Each comes
as it is and again under `option.`, among properties of Spark's own (`provider`, `owner`, `path`, …). When the table is
read or inserted into, the source gets no options at all (PySpark 4.3), only the columns as the catalog keeps them. So
the columns carry the options, in the metadata of `offset`; secrets stay out, because metadata goes into whatever is
made of the table.

**What that means for INSERT.** Spark gives the rows the metadata of the table that they go to, unless they have its very
columns already: rows of `SELECT * FROM other` come with the options of `other`. They also come with offsets. A row that is
inserted has none, since the broker decides on it, so a row with an offset is refused before it can go to the wrong topic.

**Two directions, one definition.** The options of a table are those of the source and of the sink together. A
definition with `topic` is written to, and then the source accepts options of the sink. One that says what to read is
read, and then the sink accepts options of the source. Without `topic` rows go to the one topic of `subscribe`; where
that names several, to the topic that the row has in its column. A temporary view has its options at hand, and the same
rules.

**One direction, the options of both.** Spark's own connector takes no notice of options that belong to the other end.
Such options, as far as that connector has them, are left out and warned of, so that a job of that connector goes on.
Options that only Tidemill has are refused at the wrong end: no earlier job has them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from tidemill.errors import ConfigError
from tidemill.spark.java_client import warn_of_no_effect
from tidemill.spark.sink import options as sink
from tidemill.spark.source import options as source

if TYPE_CHECKING:
    import pyarrow as pa

_KEY = "tidemill.options"
_CARRIER = "offset"
_PROVIDER = "provider"
_OPTION_PREFIX = "option."
_BOOTSTRAP = "kafka.bootstrap.servers"
_TOPIC = "topic"
_SECRETS = ("password", "jaas", "secret", ".key.pem", ".keystore.key", "certificate.pem")


def defined(options: Mapping[str, str]) -> dict[str, str] | None:
    """The user's options where a table is being created, None everywhere else."""
    if _PROVIDER not in options:
        return None
    return {
        name[len(_OPTION_PREFIX) :]: value
        for name, value in options.items()
        if name.lower().startswith(_OPTION_PREFIX)
    }


def carrying(schema: StructType, definition: Mapping[str, str]) -> StructType:
    """The columns of a table with this definition, for the catalog to keep."""
    for name in definition:
        if any(part in name.lower() for part in _SECRETS):
            raise ConfigError(
                f"{name} cannot be an option of a table, whose options are seen by everything that is made of it; use "
                "CREATE TEMPORARY VIEW, or give it to each read: SELECT … FROM t WITH (…)"
            )
    if any(name.lower() == _BOOTSTRAP for name in definition):
        sink.SinkOptions.parse(of_sink(definition))
    if _CARRIER not in schema.names:
        raise ConfigError(f"a table needs the column {_CARRIER}: name it in columns")
    metadata = {_KEY: json.dumps(dict(definition))}
    return StructType(
        [
            StructField(each.name, each.dataType, each.nullable, metadata if each.name == _CARRIER else None)
            for each in schema.fields
        ]
    )


def plain(schema: StructType) -> StructType:
    """The columns without what they carry."""
    return StructType([StructField(each.name, each.dataType, each.nullable) for each in schema.fields])


def with_table(schema: StructType, options: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """All options of a query, and whether some are of a table. Those of the query count before the table's."""
    carried = {}
    if not any(name.lower() == _BOOTSTRAP for name in options):
        for each in schema.fields:
            if each.name == _CARRIER and _KEY in each.metadata:
                carried = json.loads(each.metadata[_KEY])
    named = {name.lower() for name in options}
    merged = {name: value for name, value in carried.items() if name.lower() not in named}
    return {**merged, **options}, bool(carried)


def of_source(options: Mapping[str, str], query: source.Query) -> dict[str, str]:
    """Without what only the sink understands: all of it where the options also say what to write to."""
    _check_any(options)
    named = {name.lower() for name in options}
    if _TOPIC not in named or named.isdisjoint(each.lower() for each in source.STRATEGIES):
        foreign = [name for name in options if sink.is_of_connector(name) and not source.is_known(name)]
        # The schema is asked for first; what is planned and run later is the same query.
        if query is source.Query.ANY:
            warn_of_no_effect(dict.fromkeys(foreign, "it is an option of the sink, and this is a source"))
        return {name: value for name, value in options.items() if name not in foreign}
    return {
        name: value for name, value in options.items() if source.is_known(name) or not sink.is_known(name)
    }


def of_sink(options: Mapping[str, str]) -> dict[str, str]:
    """Without what only the source understands: all of it where the options also say what to read."""
    _check_any(options)
    by_lower = {name.lower(): value for name, value in options.items()}
    if by_lower.keys().isdisjoint(each.lower() for each in source.STRATEGIES):
        foreign = [name for name in options if source.is_of_connector(name) and not sink.is_known(name)]
        warn_of_no_effect(dict.fromkeys(foreign, "it is an option of the source, and this is a sink"))
        return {name: value for name, value in options.items() if name not in foreign}
    kept = {
        name: value for name, value in options.items() if sink.is_known(name) or not source.is_known(name)
    }
    topics = [each.strip() for each in by_lower.get("subscribe", "").split(",") if each.strip()]
    if _TOPIC not in by_lower and len(set(topics)) == 1:
        kept[_TOPIC] = topics[0]
    return kept


def _check_any(options: Mapping[str, str]) -> None:
    if all(sink.is_of_spark(name) for name in options):
        raise ConfigError(
            "Spark gave no options: of a table a Python source gets them only if it was created without a list of columns "
            "and without AS SELECT, and a stream cannot write to it; set kafka.bootstrap.servers and what to read or write"
        )


class TableWriter(DataSourceArrowWriter):
    """Another writer, for the rows of an INSERT."""

    def __init__(self, writer: DataSourceArrowWriter) -> None:
        self._writer = writer

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(_without_offsets(iterator))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)


def _without_offsets(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        offsets = batch.column(_CARRIER)
        if offsets.null_count < len(offsets):
            raise ConfigError(
                "a row that is inserted has an offset, which the broker decides on; name the columns to insert: "
                "INSERT INTO t (key, value) SELECT key, value FROM …"
            )
        yield batch
