"""Options of the source: accepted values, and one-line errors for wrong ones."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from tidemill.errors import ConfigError
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.spark import java_client
from tidemill.spark.data_source import TidemillDataSource
from tidemill.spark.sink.options import SinkOptions
from tidemill.spark.source.offsets import AtOffsets, AtTimestamp, AtTimestamps, Earliest, Latest, Subscription
from tidemill.spark.source.options import COLUMNS, Query, SourceOptions
from tidemill.types import TopicPartition

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
MINIMAL = {**BROKER, "subscribe": "orders"}
ORDERS_0 = TopicPartition("orders", 0)


def parse(query: Query = Query.BATCH, **options: str) -> SourceOptions:
    return SourceOptions.parse({**MINIMAL, **options}, query)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    batch, stream = parse(), parse(Query.STREAM)
    assert (batch.starting, batch.ending) == (Earliest(), Latest())
    assert stream.starting == Latest()
    assert batch.columns == COLUMNS[:-1]
    assert batch.fail_on_data_loss
    assert batch.access.isolation_level == READ_UNCOMMITTED
    assert (batch.partition_count_min, batch.offsets_per_trigger_max) == (0, None)
    assert batch.subscription == Subscription(topics=("orders",))
    assert batch.is_plain
    assert batch.has_brokers


def test_names_are_taken_in_any_case() -> None:
    told = {
        "FAILONDATALOSS": "false",
        "minpartitions": "7",
        "KAFKA.isolation.LEVEL": "READ_COMMITTED",
        "kafka.Fetch.Max.Bytes": "1000",
    }
    options = SourceOptions.parse({**MINIMAL, **told})
    assert not options.fail_on_data_loss
    assert options.partition_count_min == 7
    assert options.access.isolation_level == READ_COMMITTED
    assert options.access.fetch_bytes == 1000


def test_positions() -> None:
    told = '{"orders":{"0":-2,"1":5}}'
    assert parse(startingOffsets=" Earliest ").starting == Earliest()
    assert parse(startingOffsets=told).starting == AtOffsets({ORDERS_0: -2, TopicPartition("orders", 1): 5})
    assert parse(endingOffsetsByTimestamp='{"orders":{"0":7}}').ending == AtTimestamps({ORDERS_0: 7})
    assert parse(startingTimestamp="99", startingOffsets=told).starting == AtTimestamp(99)
    assert parse(Query.STREAM, startingOffsets="latest").starting == Latest()


def test_subscriptions() -> None:
    assigned = SourceOptions.parse({**BROKER, "assign": '{"b":[1,0],"a":[2]}'}, Query.BATCH)
    assert assigned.subscription.partitions == (
        TopicPartition("a", 2),
        TopicPartition("b", 0),
        TopicPartition("b", 1),
    )
    assert assigned.subscription.topic_names == ("a", "b")
    matched = SourceOptions.parse({**BROKER, "subscribePattern": "orders-.*"}, Query.BATCH)
    assert matched.subscription == Subscription(pattern="orders-.*")
    java = SourceOptions.parse({**BROKER, "subscribePattern": r"^\p{Alpha}+$"}, Query.BATCH).subscription
    assert java.has_topic("orders")
    assert not java.has_topic("orders-1")
    assert parse(subscribe="a, b,,a").subscription.topics == ("a", "b")


def test_columns_and_headers() -> None:
    assert parse(includeHeaders="true").columns == COLUMNS
    assert parse(columns="OFFSET,timestamptype, headers").columns == ("offset", "timestampType", "headers")


def test_limits() -> None:
    options = parse(
        Query.STREAM,
        maxOffsetsPerTrigger="10",
        minOffsetsPerTrigger="5",
        maxTriggerDelay="2m",
        groupId="g",
        **{"fetchOffset.numRetries": "9", "fetchOffset.retryIntervalMs": "0"},
    )
    assert (options.offsets_per_trigger_max, options.offsets_per_trigger_min) == (10, 5)
    assert options.trigger_delay_ms_max == 120_000
    assert options.group_id == "g"
    assert (options.offset_retries, options.offset_retry_interval_ms) == (9, 0)


def test_files_can_do_without_brokers() -> None:
    options = SourceOptions.parse({"subscribe": "orders", "archive": "/archive"}, Query.BATCH)
    assert not options.has_brokers
    assert not options.is_plain
    assert options.archive == "/archive"
    assert parse(scan="segments", segmentsPath="/data").segments_path == "/data"


def test_a_store_of_large_payloads_may_have_other_names() -> None:
    assert parse(largePayloads="/here").large_payloads_aliases == ()
    named = parse(largePayloads="/here", largePayloadsAliases="file:///there, s3://b/p ")
    assert named.large_payloads_aliases == ("file:///there", "s3://b/p")


def test_a_read_with_an_archive_is_of_committed_records_throughout() -> None:
    assert parse(archive="/archive").access.isolation_level == READ_COMMITTED
    told = {**MINIMAL, "archive": "/archive", "kafka.isolation.level": "read_uncommitted"}
    with pytest.raises(ConfigError, match="level=read_uncommitted is not possible with archive"):
        SourceOptions.parse(told)


def test_secrets_reach_tasks_and_no_text() -> None:
    security = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.username": "reader",
        "kafka.sasl.password": "hunter2",
    }
    options: SourceOptions = pickle.loads(pickle.dumps(SourceOptions.parse({**MINIMAL, **security})))
    assert options.access.security["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribe": ""}, "subscribe is empty"),
        ({"subscribe": " , "}, "names no topic"),
        (
            {"assign": '{"a":[0]}'},
            "one of subscribe, subscribePattern and assign .* subscribe and assign is set",
        ),
        ({"kafka.bootstrap.servers": "nowhere:x"}, "'nowhere:x' is not an address"),
        ({"startingOffset": "earliest"}, "startingOffset is not an option .* did you mean startingOffsets?"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
        ({"kafka.isolation.leve": "x"}, "did you mean kafka.isolation.level?"),
        ({"zzz": "1"}, "zzz is not an option of this source$"),
        ({"kafka.auto.offset.reset": "latest"}, "startingOffsets says where a query starts"),
        ({"kafka.value.deserializer": "x"}, "keys and values are bytes"),
        ({"path": "/x"}, "topics are named by subscribe"),
        ({"startingOffsets": "first"}, "'first' is not understood; it should be earliest, latest or {"),
        ({"startingOffsets": '{"orders":{"0":-3}}'}, "-3 is not an offset of orders-0"),
        ({"startingOffsets": '{"orders":{"zero":3}}'}, "is not understood"),
        ({"startingOffsets": '{"orders":[3]}'}, "is not understood"),
        ({"startingOffsets": '{"orders":{"0":true}}'}, "is not understood"),
        ({"startingOffsets": "{}"}, "is not understood"),
        (
            {"startingTimestamp": "noon"},
            "startingTimestamp=noon is not understood; it should be a whole number",
        ),
        ({"startingOffsetsByTimestamp": '{"orders":{"0":-5}}'}, "-5 is not a time of orders-0"),
        ({"startingOffsetsByTimestampStrategy": "skip"}, "it should be error or latest"),
        ({"endingOffsets": "earliest"}, "cannot end at the earliest offset"),
        ({"minPartitions": "0"}, "minPartitions=0 is not allowed"),
        ({"minPartitions": "-4"}, "minPartitions=-4 is not understood"),
        ({"maxRecordsPerPartition": "many"}, "should be a whole number"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger=9 is larger"),
        ({"maxTriggerDelay": "soon"}, "a time such as 30s or 15m"),
        ({"includeHeaders": "yes"}, "includeHeaders=yes is not understood; it should be true or false"),
        ({"kafka.isolation.level": "serializable"}, "it should be read_uncommitted or read_committed"),
        ({"columns": "value,colour"}, "'colour' is not a column; there are key, value, topic"),
        ({"columns": "value,Value"}, "'Value' is there twice"),
        ({"columns": "value", "includeHeaders": "true"}, "columns=value contradicts includeHeaders=true"),
        ({"scan": "files"}, "scan=files is not understood; it should be broker or segments"),
        ({"segmentsPath": "/x"}, "segmentsPath has no effect without scan=segments"),
        (
            {"startingTimestamp": "9", "endingTimestamp": "8"},
            r"start at 9 \(startingTimestamp\) and end before, at 8 \(endingTimestamp\)",
        ),
        (
            {"startingOffsets": '{"orders":{"0":9}}', "endingOffsets": '{"orders":{"0":8}}'},
            "orders-0 would start at 9",
        ),
        ({"kafka.security.protocol": "TLS"}, "security.protocol=TLS is not known"),
        ({"kafka.sasl.kerberos.service.name": "kafka"}, "Kerberos is not supported"),
    ],
)
def test_wrong_option_is_an_error_of_one_line(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as failure:
        SourceOptions.parse({**MINIMAL, **options})
    assert "\n" not in str(failure.value)


TUNING = {
    "kafka.max.poll.records": "5",
    "kafka.fetch.min.bytes": "1",
    "kafka.session.timeout.ms": "45000",
    "KAFKA.GROUP.ID": "g",
    "groupIdPrefix": "p",
    "kafka.linger.ms": "5",
}


@pytest.mark.parametrize("parse_options", [SourceOptions.parse, SinkOptions.parse])
def test_settings_of_a_java_client_are_warned_of_once(
    parse_options: Callable[[dict[str, str]], object],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(java_client, "_warned", set())
    where = {**BROKER, "subscribe": "orders"} if parse_options == SourceOptions.parse else BROKER
    assert parse_options({**where, **TUNING}) == parse_options(where)
    parse_options({**where, **TUNING})
    assert len(caplog.messages) == len(TUNING)
    assert (
        "kafka.fetch.min.bytes has no effect: it tunes Kafka's Java client, which is not used"
        in caplog.messages
    )
    assert any("kafka.group.id has no effect: the source joins no" in each for each in caplog.messages)


# The options of a whole job of Spark's Kafka connector, which its reader and its writer share.
OF_SINK = {
    "kafka.acks": "1",
    "Kafka.Compression.Type": "lz4",
    "kafka.transactional.id": "job",
    "kafka.key.serializer": "org.apache.kafka.common.serialization.ByteArraySerializer",
    "checkpointLocation": "/checkpoints/job",
}
OF_SOURCE = {
    "kafka.isolation.level": "read_committed",
    "kafka.auto.offset.reset": "earliest",
    "kafka.max.partition.fetch.bytes": "1000",
    "startingOffsets": "earliest",
    "FailOnDataLoss": "false",
}
VALUE = StructType([StructField("value", BinaryType())])


def make_source(options: dict[str, str]) -> object:
    return TidemillDataSource({**MINIMAL, **options}).schema()


def make_batch_sink(options: dict[str, str]) -> object:
    return TidemillDataSource({**BROKER, "topic": "orders", **options}).writer(VALUE, False)


def make_stream_sink(options: dict[str, str]) -> object:
    return TidemillDataSource({**BROKER, "topic": "orders", **options}).streamWriter(VALUE, False)


@pytest.mark.parametrize(
    ("make", "foreign", "end"),
    [
        (make_source, OF_SINK, "sink"),
        (make_batch_sink, OF_SOURCE, "source"),
        (make_stream_sink, OF_SOURCE, "source"),
    ],
)
def test_connector_options_of_the_other_end_are_warned_of(
    make: Callable[[dict[str, str]], object],
    foreign: dict[str, str],
    end: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(java_client, "_warned", set())
    make(foreign)
    assert sorted(each.partition(" ")[0] for each in caplog.messages) == sorted(foreign)
    assert all(f"has no effect: it is an option of the {end}" in each for each in caplog.messages)


def test_reader_of_a_stream_leaves_out_what_its_schema_warned_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_client, "_warned", set())
    source = TidemillDataSource({**MINIMAL, **OF_SINK})
    schema = TidemillDataSource(MINIMAL).schema()
    source.reader(schema)
    source.streamReader(schema)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (make_source, "exactlyOnce"),
        (make_source, "kafka.ack"),
        (make_source, "kafka.isolation.levle"),
        (make_source, "failOnDataLos"),
        (make_batch_sink, "columns"),
        (make_batch_sink, "groupId"),
        (make_batch_sink, "exactlyOnc"),
        (make_stream_sink, "kafka.isolation.levle"),
    ],
)
def test_misspelled_options_and_our_own_of_the_other_end_are_refused(
    make: Callable[[dict[str, str]], object], name: str
) -> None:
    with pytest.raises(ConfigError, match=f"{name} is not an option of this s"):
        make({name: "x"})


@pytest.mark.parametrize("name", ["kafka.acks=1", "kafka.acks=0", "kafka.enable.idempotence=false"])
def test_sink_that_gives_more_than_is_asked_for_warns(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java_client, "_warned", set())
    key, _, value = name.partition("=")
    assert SinkOptions.parse({**BROKER, key: value}) == SinkOptions.parse(BROKER)
    (line,) = caplog.messages
    assert line.startswith(f"{name} has no effect: the sink ")


@pytest.mark.parametrize(
    ("query", "options", "message"),
    [
        (Query.STREAM, {"endingOffsets": "latest"}, "endingOffsets is not an option of a streaming query"),
        (Query.STREAM, {"endingTimestamp": "5"}, "endingTimestamp is not an option of a streaming query"),
        (Query.STREAM, {"archive": "/x"}, "archive is not an option of a streaming query"),
        (Query.BATCH, {"groupId": "g"}, "groupId is not an option of a batch query"),
        (Query.BATCH, {"startingOffsets": "latest"}, "a batch query cannot start at the latest offset"),
        (Query.BATCH, {"startingOffsets": '{"orders":{"0":-1}}'}, "cannot start at the latest offset"),
    ],
)
def test_option_of_the_other_kind_of_query_is_refused(
    query: Query, options: dict[str, str], message: str
) -> None:
    SourceOptions.parse({**MINIMAL, **options}, Query.ANY)
    with pytest.raises(ConfigError, match=message):
        SourceOptions.parse({**MINIMAL, **options}, query)


def test_missing_option_is_named() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        SourceOptions.parse({"subscribe": "orders"})
    with pytest.raises(ConfigError, match="says what to read; none is set"):
        SourceOptions.parse(BROKER)
    with pytest.raises(ConfigError, match=r"subscribePattern=a\(: it is not a regular expression"):
        SourceOptions.parse({**BROKER, "subscribePattern": "a("})
    with pytest.raises(ConfigError, match=r"assign: '\[0\]' does not name partitions"):
        SourceOptions.parse({**BROKER, "assign": "[0]"})
