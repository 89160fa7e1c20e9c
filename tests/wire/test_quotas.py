"""Throttled clients on the wire: `throttle_time_ms`, and a connection that is not read for that long (KIP-219)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from tests.brokers import RunningBroker, eventually
from tests.wire import messages
from tests.wire.batches import encode
from tests.wire.connection import Connection, fetch_fields, produce_fields

INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, THROTTLING_QUOTA_EXCEEDED = 38, 39, 89
RATE = 10_000
# Ten seconds and a half at that rate: half a second has to be waited for.
BATCH = encode([b"x" * (RATE * 21 // 2)])


class NamedClient(Connection):
    """A client with an id of its own."""

    def __init__(self, broker: RunningBroker, client_id: str) -> None:
        super().__init__(broker)
        self.client_id = client_id

    def start(self, api: str, version: int, **fields: Any) -> int:
        self._correlation_id += 1
        header = messages.request_header(api, version, self._correlation_id, self.client_id)
        self.send(messages.frame(header + messages.request_body(api, version, **fields)))
        return self._correlation_id


def set_quota(connection: Connection, client_id: str, key: str, value: float | None) -> None:
    change = {
        "entity": [{"entity_type": "client-id", "entity_name": client_id}],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None}],
    }
    (entry,) = connection.request("alter_client_quotas", 1, entries=[change], validate_only=False).entries
    assert entry.error_code == 0, entry.error_message
    component = {"entity_type": "client-id", "match_type": 0, "match": client_id}

    def is_known() -> bool:
        entries = connection.request("describe_client_quotas", 1, components=[component]).entries or ()
        found = {each.key: each.value for entry in entries for each in entry.values}
        return found.get(key) == value

    eventually(is_known, f"the quota of {client_id}")


@pytest.fixture
def client(target: RunningBroker, connection: Connection, topic: str) -> Iterator[NamedClient]:
    connection.create_topic(topic)
    client = NamedClient(target, topic)
    with client:
        yield client


@pytest.fixture
def limited(connection: Connection, client: NamedClient) -> Iterator[str]:
    """The key of a quota that the client has."""
    yield from _limited(connection, client, "producer_byte_rate")


@pytest.fixture
def limited_fetch(connection: Connection, client: NamedClient) -> Iterator[str]:
    yield from _limited(connection, client, "consumer_byte_rate")


def _limited(connection: Connection, client: NamedClient, key: str) -> Iterator[str]:
    set_quota(connection, client.client_id, key, RATE)
    yield key
    set_quota(connection, client.client_id, key, None)


def ms(duration: Any) -> float:
    return float(duration.total_seconds() * 1000)


@pytest.mark.parametrize("version", [3, 9])
@pytest.mark.usefixtures("limited")
def test_produce_over_quota_is_kept_and_mutes_the_connection(
    client: NamedClient, connection: Connection, topic: str, version: int
) -> None:
    began_s = time.monotonic()
    response = client.request("produce", version, **produce_fields(topic, BATCH))
    assert response.responses[0].partition_responses[0].error_code == 0
    assert 0 < ms(response.throttle_time) <= 1_000
    assert connection.end_offset(topic) == 1
    client.request("api_versions", 0)
    assert (time.monotonic() - began_s) * 1000 >= ms(response.throttle_time)


@pytest.mark.usefixtures("limited")
def test_produce_without_acks_over_quota_mutes_the_connection(
    client: NamedClient, connection: Connection, topic: str
) -> None:
    began_s = time.monotonic()
    client.start("produce", 9, **produce_fields(topic, BATCH, acks=0))
    assert client.end_offset(topic) == 1
    # The same amount with an answer says how long this was.
    assert (time.monotonic() - began_s) * 1000 >= 500


@pytest.mark.usefixtures("limited_fetch")
def test_fetch_over_quota_is_answered_without_records(
    client: NamedClient, connection: Connection, topic: str
) -> None:
    connection.produce(topic, BATCH)
    first = client.request("fetch", 12, **fetch_fields(topic, 0))
    assert ms(first.throttle_time) == 0
    assert len(first.responses[0].partitions[0].records) >= len(BATCH)
    second = client.request("fetch", 12, **fetch_fields(topic, 0, session_epoch=0))
    assert ms(second.throttle_time) > 0
    assert (second.responses, second.session_id, second.error_code) == ((), 0, 0)
    assert len(connection.fetch(topic, 0).records) >= len(BATCH)


def test_topics_over_the_mutation_quota_are_refused(
    client: NamedClient, connection: Connection, topic: str
) -> None:
    set_quota(connection, client.client_id, "controller_mutation_rate", 1)
    new = [
        {"name": f"{topic}-{number}", "num_partitions": count, "replication_factor": 1}
        for number, count in enumerate((11, 1, 1))
    ]
    response = client.request("create_topics", 7, topics=new, timeout=20_000)
    assert [each.error_code for each in response.topics] == [0, 0, THROTTLING_QUOTA_EXCEEDED]
    assert ms(response.throttle_time) > 0
    set_quota(connection, client.client_id, "controller_mutation_rate", None)


def test_topics_that_are_refused_cost_nothing_of_the_mutation_quota(
    client: NamedClient, connection: Connection, topic: str
) -> None:
    set_quota(connection, client.client_id, "controller_mutation_rate", 1)
    new = [
        {"name": f"{topic}-{number}", "num_partitions": count, "replication_factor": factor}
        for number, (count, factor) in enumerate(((5_000, 7), (1, 1)))
    ]
    response = client.request("create_topics", 7, topics=new, timeout=20_000)
    assert [each.error_code for each in response.topics] == [INVALID_REPLICATION_FACTOR, 0]
    assert ms(response.throttle_time) == 0
    more = {"count": 1_000, "assignments": [{"broker_ids": [1]}]}
    response = client.request("create_partitions", 3, topics=[{"name": topic, **more}], timeout=20_000)
    assert [each.error_code for each in response.results] == [INVALID_REPLICA_ASSIGNMENT]
    assert ms(response.throttle_time) == 0
    last = {"name": f"{topic}-last", "num_partitions": 1, "replication_factor": 1}
    response = client.request("create_topics", 7, topics=[last], timeout=20_000)
    assert [each.error_code for each in response.topics] == [0]
    set_quota(connection, client.client_id, "controller_mutation_rate", None)


def test_removed_quota_throttles_no_longer(
    client: NamedClient, connection: Connection, limited: str, topic: str
) -> None:
    set_quota(connection, client.client_id, limited, None)
    for _ in range(3):
        response = client.request("produce", 9, **produce_fields(topic, BATCH))
        assert ms(response.throttle_time) == 0


# -- a stock client ------------------------------------------------------------------------------------------

STEADY_RATE = 1_000_000
VALUE = bytes(10_000)
REQUEST_BYTES = 5 * len(VALUE)
# What a greedy client may use comes once in eleven seconds: the measured time is two such rounds, begun within one.
WARM_UP_S, MEASURED_S = 6.0, 22.0


def measured_rate(move_some: Callable[[], int]) -> float:
    """Bytes a second that `move_some` reports, over the measured time."""
    began_s = time.monotonic()
    while time.monotonic() - began_s < WARM_UP_S:
        move_some()
    moved, began_s = 0, time.monotonic()
    while time.monotonic() - began_s < MEASURED_S:
        moved += move_some()
    return moved / (time.monotonic() - began_s)


@pytest.mark.long
def test_producer_and_consumer_are_held_to_their_rates(
    client: NamedClient, connection: Connection, target: RunningBroker, topic: str
) -> None:
    for key in ("producer_byte_rate", "consumer_byte_rate"):
        set_quota(connection, client.client_id, key, STEADY_RATE)
    settings = {"bootstrap.servers": target.bootstrap, "client.id": client.client_id}
    with ThreadPoolExecutor() as threads:
        produced = threads.submit(_produced_rate, settings, topic)
        consumed = threads.submit(_consumed_rate, settings, target, f"{topic}-stored", connection)
        assert produced.result() == pytest.approx(STEADY_RATE, rel=0.05)
        assert consumed.result() == pytest.approx(STEADY_RATE, rel=0.05)
    for key in ("producer_byte_rate", "consumer_byte_rate"):
        set_quota(connection, client.client_id, key, None)


def _produced_rate(settings: dict[str, Any], topic: str) -> float:
    delivered = 0

    def count(error: Any, message: Any) -> None:
        nonlocal delivered
        if error is None:
            delivered += len(message.value())

    producer = Producer({**settings, "batch.size": REQUEST_BYTES, "linger.ms": 100})

    def produce_some() -> int:
        nonlocal delivered
        before = delivered
        # A queue that is never empty, and never long.
        while len(producer) < 50:
            producer.produce(topic, VALUE, on_delivery=count)
        producer.poll(0.01)
        return delivered - before

    rate = measured_rate(produce_some)
    producer.purge()
    producer.flush(10)
    return rate


def _consumed_rate(
    settings: dict[str, Any], target: RunningBroker, topic: str, connection: Connection
) -> float:
    connection.create_topic(topic)
    producer = Producer({"bootstrap.servers": target.bootstrap, "batch.size": REQUEST_BYTES})
    for _ in range(60 * STEADY_RATE // len(VALUE)):
        producer.produce(topic, VALUE)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            **settings,
            "group.id": topic,
            "fetch.message.max.bytes": REQUEST_BYTES,
            "fetch.max.bytes": REQUEST_BYTES,
            "message.max.bytes": REQUEST_BYTES,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])

    def consume_some() -> int:
        return sum(len(message.value() or b"") for message in consumer.consume(1000, 0.01))

    try:
        return measured_rate(consume_some)
    finally:
        consumer.close()
