"""`format("tidemill")`: the readers and writers that Spark asks a data source for.

A data source is made anew in every process: to tell the schema, to plan a batch, to drive a stream, to read in a task.
What needs no broker is checked when Spark asks for the schema, that is at `load()`; the rest when the query is planned.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemill.errors import ConfigError
from tidemill.spark import catalog
from tidemill.spark.source.options import Query, SourceOptions
from tidemill.spark.source.readers import BatchReader, StreamReader
from tidemill.spark.versions import stream_reader

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())])),
}


class TidemillDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "tidemill"

    def schema(self) -> StructType:
        definition = catalog.defined(self.options)
        told = self.options if definition is None else definition
        schema = _schema(SourceOptions.parse(catalog.of_source(told, Query.ANY)).columns)
        return schema if definition is None else catalog.carrying(schema, definition)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(self._checked(schema, Query.BATCH))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return stream_reader(StreamReader(self._checked(schema, Query.STREAM)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidemill.spark.sink.writers import BatchWriter

        options, is_table = catalog.with_table(schema, self.options)
        writer = BatchWriter(schema, catalog.of_sink(options), overwrite)
        return catalog.TableWriter(writer) if is_table else writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from tidemill.spark.sink.writers import StreamWriter

        # The columns of a stream carry the options of the table that it reads, never of one that it writes to.
        return StreamWriter(schema, catalog.of_sink(self.options), overwrite)

    def _checked(self, schema: StructType, query: Query) -> SourceOptions:
        told, _ = catalog.with_table(schema, self.options)
        options = SourceOptions.parse(catalog.of_source(told, query), query)
        if catalog.plain(schema) != _schema(options.columns):
            raise ConfigError(
                "the columns of this source are fixed and schema() cannot change them; "
                "choose some of them with the option columns, and convert them with DataFrame functions"
            )
        return options


def _schema(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name]) for name in columns])
