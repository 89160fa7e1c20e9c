"""`Client.publish`: where records go, what comes back, and what happens when the brokers do not keep up."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest

from tidemill import Client, Delivery, NewRecord, to_json
from tidemill.sdk.errors import (
    Closed,
    DeliveryFailed,
    InvalidSetting,
    QueueFull,
    TopicExists,
    UnknownTopic,
    Unreachable,
)
from tidemill.testing import InProcessBroker, InProcessCluster

NOWHERE = "127.0.0.1:1"


def test_a_record_is_where_its_delivery_says(shared: InProcessBroker, client: Client, name: str) -> None:
    client.create_topic(name, partitions=3)
    delivery = client.publish(
        name, "paid", key="7", headers={"trace": "a1", "none": None}, partition=2, timestamp_ms=1_000
    ).result()
    assert delivery == Delivery(name, 2, 0, 1_000)
    (record,) = shared.records(name)
    assert (record.partition, record.offset, record.timestamp_ms) == (2, 0, 1_000)
    assert (record.key, record.value) == (b"7", b"paid")
    assert record.headers == (("trace", b"a1"), ("none", None))


def test_keys_go_where_kafkas_own_client_sends_them(
    shared: InProcessBroker, client: Client, name: str
) -> None:
    client.create_topic(name, partitions=7)
    keys = [f"customer-{number}".encode() for number in range(50)]
    deliveries = client.publish_many(name, (NewRecord("x", key) for key in keys))
    assert [each.partition for each in deliveries] == [confluent_kafka.murmur2(key, 7) for key in keys]


def test_many_are_delivered_in_their_order(shared: InProcessBroker, client: Client, topic: str) -> None:
    deliveries = client.publish_many(topic, (str(number) for number in range(1_000)))
    assert [each.offset for each in deliveries] == list(range(1_000))
    assert [record.value for record in shared.records(topic)] == [
        str(number).encode() for number in range(1_000)
    ]


def test_values_are_bytes_text_or_what_a_serializer_makes_of_them(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    client.publish_many(topic, [b"\x00", "ä", bytearray(b"b"), None])
    client.publish(topic, {"id": 7}, serializer=to_json).result()
    with Client(shared.bootstrap, serializer=to_json) as json_client:
        json_client.publish(topic, "text").result()
        json_client.publish(topic, None).result()
    values = [record.value for record in shared.records(topic)]
    assert values == [b"\x00", "ä".encode(), b"b", None, b'{"id":7}', b'"text"', None]
    with pytest.raises(InvalidSetting, match=r"a dict is neither bytes nor str; give a serializer"):
        client.publish(topic, {"id": 7})


@pytest.mark.parametrize(
    "given",
    [
        {"key": "\udcff"},
        {"headers": {"\udcff": "1"}},
        {"headers": {"trace": "\udcff"}},
        {"timestamp_ms": 1 << 70},
        {"partition": 1 << 40},
    ],
)
def test_records_that_cannot_be_encoded_are_refused(
    client: Client, topic: str, given: dict[str, Any]
) -> None:
    with pytest.raises(InvalidSetting, match=f"publish to {topic}"):
        client.publish(topic, "value", **given)


def test_topics_are_created_and_deleted(shared: InProcessBroker, client: Client, name: str) -> None:
    client.create_topic(name, partitions=2, configs={"cleanup.policy": "compact"})
    assert name in shared.topics()
    with pytest.raises(TopicExists, match=f"create topic {name}") as raised:
        client.create_topic(name)
    assert raised.value.code == "TOPIC_ALREADY_EXISTS"
    client.create_topic(name, exist_ok=True)
    client.delete_topic(name)
    assert name not in shared.topics()
    with pytest.raises(UnknownTopic, match=f"delete topic {name}"):
        client.delete_topic(name)


def test_refusals_of_the_broker_say_what_to_do(shared: InProcessBroker, client: Client, name: str) -> None:
    client.create_topic(name, configs={"max.message.bytes": 1_000})
    with pytest.raises(DeliveryFailed, match=rf"publish to {name}: .*max\.message\.bytes"):
        client.publish(name, b"x" * 2_000).result()
    with pytest.raises(UnknownTopic, match=f"publish to {name}: .*a partition that it has"):
        client.publish(name, b"x", partition=5).result()


def test_settings_are_checked() -> None:
    with pytest.raises(
        InvalidSetting, match=r"enable\.auto\.commit cannot be set: choose consume\(guarantee"
    ):
        Client(NOWHERE, enable_auto_commit=True)
    with Client(NOWHERE, no_such_thing=1) as client, pytest.raises(InvalidSetting, match=r"no\.such\.thing"):
        client.publish("orders", "paid")


def test_flush_raises_an_unseen_failure(client: Client, name: str) -> None:
    client.create_topic(name, configs={"max.message.bytes": 1_000})
    client.publish(name, b"x" * 2_000)
    with pytest.raises(DeliveryFailed):
        client.flush()
    client.flush()
    seen = client.publish(name, b"x" * 2_000)
    assert isinstance(seen.exception(), DeliveryFailed)
    client.flush()


def test_end_of_the_block_raises_an_unseen_failure(
    shared: InProcessBroker, client: Client, name: str
) -> None:
    client.create_topic(name, configs={"max.message.bytes": 1_000})
    with pytest.raises(DeliveryFailed), Client(shared.bootstrap) as other:
        other.publish(name, b"x" * 2_000)
    with pytest.raises(Closed, match="the client is closed"):
        other.publish(name, "paid")


def test_leaving_the_block_delivers_even_when_it_fails(shared: InProcessBroker, topic: str) -> None:
    def fail() -> None:
        with Client(shared.bootstrap, linger_ms=500) as client:
            client.publish(topic, "before")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [record.value for record in shared.records(topic)] == [b"before"]


def test_a_lost_ack_makes_no_duplicate(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    tidemill_broker.faults.lose_next_ack(topic="orders")
    with Client(tidemill_broker.bootstrap) as client:
        assert client.publish("orders", "paid").result().offset == 0
    assert len(tidemill_broker.records("orders")) == 1


def test_nothing_is_lost_or_doubled_when_the_leader_changes(tidemill_cluster: InProcessCluster) -> None:
    with Client(tidemill_cluster.bootstrap) as client:
        client.create_topic("orders", replication_factor=3)
        for number in range(100):
            client.publish("orders", str(number))
            if number == 50:
                tidemill_cluster.elect_another_leader("orders")
    found = [int(record.value or b"") for record in tidemill_cluster.records("orders")]
    assert found == list(range(100))


def test_a_full_queue_makes_the_publisher_wait(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    with Client(tidemill_broker.bootstrap, queue_buffering_max_messages=10, linger_ms=1) as client:
        with tidemill_broker.faults.slow("orders", 0.05):
            publications = [client.publish("orders", str(number)) for number in range(100)]
            # The last ten at most can still be under way: the others had to leave first.
            assert sum(each.done() for each in publications) >= 90
        assert [each.result().offset for each in publications] == list(range(100))


def test_a_queue_that_stays_full_is_an_error_and_not_a_wait_without_end(
    tidemill_broker: InProcessBroker,
) -> None:
    tidemill_broker.create_topic("orders")
    client = Client(
        tidemill_broker.bootstrap, timeout_s=0.5, queue_buffering_max_messages=5, message_timeout_ms=60_000
    )
    with tidemill_broker.faults.slow("orders", 3_600):
        with pytest.raises(QueueFull, match=r"5 records wait already, .*queue_buffering_max_messages"):
            client.publish_many("orders", map(str, range(100)))
        with pytest.raises(Unreachable, match="5 records are not delivered"):
            client.flush(0.1)
        with pytest.raises(Unreachable):
            client.close()


def test_unreachable_brokers_raise_an_error() -> None:
    with Client(NOWHERE, timeout_s=0.5) as client:
        with pytest.raises(
            Unreachable, match=r"create topic orders: no answer from 127\.0\.0\.1:1 within 0\.5 s"
        ):
            client.create_topic("orders")
        with pytest.raises(DeliveryFailed, match=r"no answer from 127\.0\.0\.1:1 .*Connection refused"):
            client.publish("orders", "paid").result()
        with pytest.raises(Unreachable, match="consume orders as billing"):
            next(client.consume("orders", group="billing"))
