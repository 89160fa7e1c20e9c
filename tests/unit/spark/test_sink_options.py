"""Options of the sink have an effect or are refused by name; columns are checked before a task runs."""

from __future__ import annotations

import pytest
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
from tidemill.protocol.compression import CompressionType
from tidemill.spark.sink.options import SinkOptions, check_schema
from tidemill.spark.sink.writers import BatchWriter, StreamWriter

SERVERS = {"kafka.bootstrap.servers": "broker:9092"}


def parse(**options: str) -> SinkOptions:
    return SinkOptions.parse(SERVERS | {name.replace("_", "."): value for name, value in options.items()})


def schema(columns: dict[str, DataType]) -> StructType:
    return StructType([StructField(name, found) for name, found in columns.items()])


def headers(value: DataType) -> ArrayType:
    return ArrayType(schema({"key": StringType(), "value": value}))


class TestOptions:
    def test_defaults(self) -> None:
        options = parse()
        assert (options.topic, options.exactly_once, options.codec) == (None, True, CompressionType.NONE)
        assert (options.batch_bytes, options.batch_bytes_max) == (512 << 10, 1 << 20)
        assert options.access.bootstrap == "broker:9092"

    def test_names_are_taken_as_spark_gives_them(self) -> None:
        options = SinkOptions.parse(
            {"KAFKA.bootstrap.servers": "broker:9092", "exactlyonce": "FALSE", "TOPIC": "orders"}
        )
        assert (options.topic, options.exactly_once) == ("orders", False)

    def test_producer_options_of_the_sink(self) -> None:
        options = parse(
            kafka_acks="all",
            kafka_compression_type="lz4",
            kafka_batch_size="1000",
            kafka_max_request_size="5000",
            kafka_transaction_timeout_ms="1500",
            kafka_delivery_timeout_ms="2500",
            kafka_request_timeout_ms="500",
            kafka_linger_ms="5",
        )
        assert (options.codec, options.batch_bytes, options.batch_bytes_max) == (
            CompressionType.LZ4,
            1000,
            5000,
        )
        assert (options.transaction_timeout_ms, options.delivery_timeout_s) == (1500, 2.5)
        assert options.access.timeout_s == 0.5

    def test_security_goes_to_the_client_without_its_prefix(self) -> None:
        options = parse(
            kafka_security_protocol="SASL_SSL",
            kafka_sasl_mechanism="PLAIN",
            kafka_sasl_username="spark",
            kafka_sasl_password="secret",
        )
        assert options.access.security["security.protocol"] == "SASL_SSL"
        assert options.access.security["sasl.password"] == "secret"
        assert "secret" not in repr(options)

    @pytest.mark.parametrize(
        ("name", "value", "error"),
        [
            ("kafka.acks", "2", "kafka.acks=2 is not understood; it should be 0 or 1 or all or -1"),
            ("kafka.enable.idempotence", "no", "kafka.enable.idempotence=no is not understood"),
            ("kafka.compression.type", "brotli", "compression.type=brotli is not one of none, gzip"),
            ("kafka.batch.size", "-1", "kafka.batch.size=-1 is not understood; .* whole number"),
            (
                "kafka.transactional.id",
                "x",
                "kafka.transactional.id is not an option of this sink: each task",
            ),
            (
                "kafka.key.serializer",
                "x",
                "kafka.key.serializer is not an option .*: keys and values are bytes",
            ),
            ("exactlyOnce", "maybe", "exactlyOnce=maybe is not understood; it should be true or false"),
            ("topics", "orders", "topics is not an option of this sink; did you mean topic?"),
            ("kafka.bootstrap.servers", "broker:x", "'broker:x' is not an address"),
            ("path", "/orders", "path is not an option of this sink: the topic is an option"),
        ],
    )
    def test_refused_option_is_named(self, name: str, value: str, error: str) -> None:
        with pytest.raises(ConfigError, match=error) as refused:
            SinkOptions.parse(SERVERS | {name: value})
        assert "\n" not in str(refused.value)

    def test_bootstrap_servers_are_required(self) -> None:
        with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
            SinkOptions.parse({"topic": "orders"})


class TestColumns:
    @pytest.mark.parametrize(
        "columns",
        [
            {"value": StringType()},
            {"value": BinaryType(), "key": StringType()},
            {
                "key": BinaryType(),
                "value": StringType(),
                "partition": IntegerType(),
                "timestamp": TimestampType(),
                "headers": headers(BinaryType()),
            },
            {"value": StringType(), "offset": LongType(), "whatever": LongType()},
        ],
    )
    def test_columns_that_can_be_records_are_accepted(self, columns: dict[str, DataType]) -> None:
        check_schema(schema(columns), parse(topic="orders"))

    def test_the_topic_may_be_a_column(self) -> None:
        check_schema(schema({"value": StringType(), "topic": StringType()}), parse())

    @pytest.mark.parametrize(
        ("name", "found", "error"),
        [
            ("value", IntegerType(), "the column value is int; it should be string or binary: cast it"),
            ("key", LongType(), "the column key is bigint; it should be string or binary"),
            ("topic", BinaryType(), "the column topic is binary; it should be string"),
            ("partition", LongType(), "the column partition is bigint; it should be int"),
            ("timestamp", LongType(), "the column timestamp is bigint; it should be timestamp"),
            ("headers", StringType(), "the column headers is string; it should be array<struct<key:string"),
            (
                "headers",
                headers(StringType()),
                "the column headers is array<struct<key:string,value:string>>",
            ),
        ],
    )
    def test_columns_that_cannot_be_records_are_refused(self, name: str, found: DataType, error: str) -> None:
        with pytest.raises(ConfigError, match=error) as refused:
            check_schema(schema({"value": StringType(), name: found}), parse(topic="orders"))
        assert "\n" not in str(refused.value)

    def test_value_column_is_required(self) -> None:
        with pytest.raises(ConfigError, match="there is no column value, only key; select one as value"):
            check_schema(schema({"key": StringType()}), parse(topic="orders"))

    def test_topic_is_an_option_or_a_column(self) -> None:
        with pytest.raises(ConfigError, match="set the option topic or select a column topic"):
            check_schema(schema({"value": StringType()}), parse())


def test_a_topic_is_not_overwritten() -> None:
    with pytest.raises(ConfigError, match=r"use mode\('append'\)"):
        BatchWriter(schema({"value": StringType()}), SERVERS | {"topic": "orders"}, overwrite=True)


def test_a_stream_writes_complete_results() -> None:
    StreamWriter(schema({"value": StringType()}), SERVERS | {"topic": "orders"}, overwrite=True)
