"""Topics and their configuration through stock clients."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.brokers import Broker, RunningBroker, eventually
from tests.interop.clients import (
    INVALID_CONFIG,
    INVALID_PARTITIONS,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_OR_PARTITION,
    Client,
    ClientError,
    Message,
)
from tests.interop.kafka_python_client import KafkaPythonClient
from tests.interop.table import with_clients
from tests.wire.connection import Connection


@with_clients()
def test_metadata_names_the_address_that_was_dialled(client: Client, target: RunningBroker) -> None:
    assert client.brokers() == {target.bootstrap}


@with_clients("create_topic", "delete_topic")
def test_create_list_and_delete(client: Client, topic: str) -> None:
    client.create_topic(topic, partitions=3)
    eventually(lambda: client.partitions(topic) == {0, 1, 2}, "three partitions")
    assert topic in client.list_topics()
    client.delete_topic(topic)
    eventually(lambda: topic not in client.list_topics(), "the topic is gone")


@with_clients()
def test_topics_and_partitions_are_listed(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, partitions=2)
    eventually(lambda: client.partitions(topic) == {0, 1}, "two partitions")
    assert topic in client.list_topics()


@with_clients("create_topic")
def test_a_second_topic_of_the_same_name_is_refused(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    with pytest.raises(ClientError) as refused:
        client.create_topic(topic)
    assert refused.value.code == TOPIC_ALREADY_EXISTS


@with_clients("create_topic", "describe_configs")
def test_configs_given_at_creation_are_described(client: Client, topic: str) -> None:
    client.create_topic(topic, configs={"retention.ms": "3600000", "cleanup.policy": "compact"})
    eventually(lambda: client.partitions(topic) == {0}, "the new topic")
    described = client.describe_configs(topic)
    assert described["retention.ms"] == "3600000"
    assert described["cleanup.policy"] == "compact"
    assert described["max.message.bytes"] == "1048588"


@with_clients("create_topic")
def test_a_bad_config_creates_nothing(client: Client, topic: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.create_topic(topic, configs={"retention.ms": "soon"})
    assert refused.value.code == INVALID_CONFIG
    assert topic not in client.list_topics()


@with_clients("alter_configs", "describe_configs")
def test_configs_change_one_by_one(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, configs={"retention.ms": "1000000", "segment.ms": "2000000"})
    client.alter_configs(topic, {"retention.bytes": "5000000", "segment.ms": None})
    eventually(lambda: client.describe_configs(topic)["retention.bytes"] == "5000000", "the new config")
    described = client.describe_configs(topic)
    assert described["retention.ms"] == "1000000"
    assert described["segment.ms"] == "604800000"


@with_clients("alter_configs", "describe_configs")
def test_a_bad_config_changes_nothing(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, configs={"retention.ms": "1000000"})
    before = client.describe_configs(topic)
    with pytest.raises(ClientError) as refused:
        client.alter_configs(topic, {"retention.ms": "2000000", "cleanup.policy": "burn"})
    assert refused.value.code == INVALID_CONFIG
    assert client.describe_configs(topic) == before


@with_clients("replace_configs", "describe_configs")
def test_configs_are_replaced(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, configs={"retention.ms": "1000000", "segment.ms": "2000000"})
    client.replace_configs(topic, {"retention.bytes": "5000000"})
    eventually(lambda: client.describe_configs(topic)["retention.bytes"] == "5000000", "the new config")
    described = client.describe_configs(topic)
    assert described["retention.ms"] == "604800000"
    assert described["segment.ms"] == "604800000"


@with_clients("create_partitions")
def test_partitions_are_added_and_old_records_stay(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    other.produce(topic, [Message(b"old", partition=0)])
    client.create_partitions(topic, 3)
    eventually(lambda: client.partitions(topic) == {0, 1, 2}, "three partitions")
    client.produce(topic, [Message(b"new", partition=2)])
    assert client.fetch(topic, 0, 0, 1)[0].value == b"old"
    assert client.fetch(topic, 2, 0, 1)[0].value == b"new"


@with_clients("create_partitions")
def test_partitions_are_never_taken_away(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, partitions=3)
    with pytest.raises(ClientError) as refused:
        client.create_partitions(topic, 2)
    assert refused.value.code == INVALID_PARTITIONS


@with_clients()
def test_failure_21_a_recreated_topic_starts_anew(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    client.produce(topic, [Message(b"old %d" % number) for number in range(10)])
    other.delete_topic(topic)
    eventually(lambda: topic not in other.list_topics(), "the topic is gone")
    other.create_topic(topic)
    eventually(lambda: client.partitions(topic) == {0}, "the new topic")
    assert client.end_offset(topic, 0) == 0
    client.produce(topic, [Message(b"new")])
    with client.reader(topic, 0, 7, reset="earliest") as reader:
        record = reader.next()
    assert (record.offset, record.value) == (0, b"new")


@with_clients("delete_topic")
def test_deleting_a_missing_topic_is_refused(client: Client, topic: str) -> None:
    with pytest.raises(ClientError) as refused:
        client.delete_topic(topic)
    assert refused.value.code == UNKNOWN_TOPIC_OR_PARTITION


@with_clients()
def test_metadata_of_missing_topic_does_not_create_it(client: Client, other: Client, topic: str) -> None:
    assert client.partitions(topic) == set()
    assert topic not in other.list_topics()


@with_clients()
def test_producing_creates_a_missing_topic(client: Client, other: Client, topic: str) -> None:
    """The first metadata answer does not know the topic yet: the client asks again by itself."""
    client.produce(topic, [Message(b"first")])
    assert other.fetch(topic, 0, 0, 1)[0].value == b"first"


def test_without_auto_creation_a_missing_topic_stays_missing(
    start: Callable[..., Broker], topic: str
) -> None:
    broker = start({"auto.create.topics.enable": "false"})
    client = KafkaPythonClient(broker.bootstrap)
    try:
        assert client.partitions(topic) == set()
        assert topic not in client.list_topics()
    finally:
        client.close()
    with Connection(broker) as connection:
        assert connection.metadata(topic, create=True).error_code == UNKNOWN_TOPIC_OR_PARTITION
