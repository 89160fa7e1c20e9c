"""REST Proxy v2's topics and partitions: what there is, and producing in each format."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.gateway.conftest import Gateway
from tests.gateway.v2_caller import BINARY, JSON, TEXT, V2, RestConsumer, error_of, post, until


def written(answer: httpx.Response) -> list[tuple[int, int]]:
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["key_schema_id"] is None
    assert body["value_schema_id"] is None
    assert all(each["error_code"] is None and each["error"] is None for each in body["offsets"])
    return [(each["partition"], each["offset"]) for each in body["offsets"]]


def read_with_kafka(gateway: Gateway, topic: str, count: int, partition: int = 0) -> list[Any]:
    """Returns the records that an unmodified Kafka client reads."""
    consumer = Consumer(
        {"bootstrap.servers": gateway.broker.bootstrap, "group.id": "reader", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        return [message for message in consumer.consume(count, 10.0) if message.error() is None]
    finally:
        consumer.close()


def test_topics_are_listed_without_internal_ones(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=2, configs={"retention.ms": 1234567})
    consumer = RestConsumer(gateway.client).subscribe(topic)
    until(consumer.partitions, "a group, and with it the topic of its offsets")
    names = gateway.client.get("/topics").json()
    assert topic in names
    assert not [name for name in names if name.startswith("__")]
    assert gateway.client.get("/brokers").json() == {"brokers": [1]}

    found = gateway.client.get(f"/topics/{topic}")
    assert found.headers["content-type"] == V2
    replica = {"broker": 1, "leader": True, "in_sync": True}
    partitions = [{"partition": i, "leader": 1, "replicas": [replica]} for i in (0, 1)]
    assert found.json() == {"name": topic, "configs": {"retention.ms": "1234567"}, "partitions": partitions}
    assert gateway.client.get(f"/topics/{topic}/partitions").json() == partitions
    assert gateway.client.get(f"/topics/{topic}/partitions/1").json() == partitions[1]


def test_offsets_tell_where_a_partition_begins_and_ends(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    path = f"/topics/{topic}/partitions/0/offsets"
    assert gateway.client.get(path).json() == {"beginning_offset": 0, "end_offset": 0}
    gateway.broker.produce(topic, "one")
    assert gateway.client.get(path).json() == {"beginning_offset": 0, "end_offset": 1}


@pytest.mark.parametrize(
    ("media_type", "record", "key", "value"),
    [
        (BINARY, {"key": "AP8=", "value": "/wAB"}, b"\x00\xff", b"\xff\x00\x01"),
        (V2, {"value": "AAE="}, None, b"\x00\x01"),
        ("application/json", {"value": ""}, None, b""),
        (
            JSON,
            {"key": "k", "value": {"b": [1, 2.5, None], "a": "ü€"}},
            b'"k"',
            '{"b":[1,2.5,null],"a":"ü€"}'.encode(),
        ),
        (JSON, {"key": None, "value": False}, None, b"false"),
        (TEXT, {"key": "ключ", "value": "plain \U0001f30a"}, "ключ".encode(), "plain \U0001f30a".encode()),
        (TEXT, {"key": "gone", "value": None}, b"gone", None),
    ],
)
def test_a_kafka_client_sees_what_was_produced(
    gateway: Gateway,
    topic: str,
    media_type: str,
    record: dict[str, Any],
    key: bytes | None,
    value: bytes | None,
) -> None:
    gateway.broker.create_topic(topic)
    assert written(post(gateway.client, f"/topics/{topic}", {"records": [record]}, media_type)) == [(0, 0)]
    (message,) = read_with_kafka(gateway, topic, 1)
    assert (message.key(), message.value()) == (key, value)


def test_every_byte_survives(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    values = [bytes(range(256)), b"\xff" * 300_000]
    records = [{"value": base64.b64encode(value).decode()} for value in values]
    written(post(gateway.client, f"/topics/{topic}", {"records": records}, BINARY))
    assert [message.value() for message in read_with_kafka(gateway, topic, 2)] == values


def test_records_of_one_request_keep_their_order(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    records = [{"value": number} for number in range(500)]
    assert written(post(gateway.client, f"/topics/{topic}", {"records": records}, JSON)) == [
        (0, i) for i in range(500)
    ]
    assert [record.value for record in gateway.broker.records(topic)] == [
        b"%d" % number for number in range(500)
    ]


def test_partition_and_key_decide_where_a_record_goes(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=4)
    client = gateway.client
    assert written(post(client, f"/topics/{topic}/partitions/3", {"records": [{"value": 1}]}, JSON)) == [
        (3, 0)
    ]
    both = {
        "records": [
            {"value": 1, "partition": 2},
            {"value": 1, "partition": 1, "timestamp": 1_600_000_000_000},
        ]
    }
    assert written(post(client, f"/topics/{topic}", both, JSON)) == [(2, 0), (1, 0)]
    (record,) = gateway.broker.records(topic, partition=1)
    assert record.timestamp_ms == 1_600_000_000_000
    # Kafka's own partitioner: the client of the tests puts a key where Java's would.
    same = [{"key": "some-key", "value": "x"} for _ in range(3)]
    partitions = {
        partition for partition, _ in written(post(client, f"/topics/{topic}", {"records": same}, TEXT))
    }
    assert partitions == {gateway.broker.produce(topic, "x", key="some-key").partition}


def test_one_record_that_is_refused_does_not_hold_up_the_others(gateway: Gateway, topic: str) -> None:
    # A producer sends the records of a partition together, so the large one has a partition of its own.
    gateway.broker.create_topic(topic, partitions=2, configs={"max.message.bytes": 1000})
    records = [{"value": "small", "partition": 0}, {"value": "x" * 5000, "partition": 1}]
    answer = post(gateway.client, f"/topics/{topic}", {"records": records}, TEXT)
    assert answer.status_code == 200
    good, bad = answer.json()["offsets"]
    assert good == {"partition": 0, "offset": 0, "error_code": None, "error": None}
    assert (bad["partition"], bad["offset"], bad["error_code"]) == (None, None, 1)
    assert "max.message.bytes" in bad["error"]


def test_unknown_topics_and_partitions_are_404(gateway: Gateway, topic: str) -> None:
    client = gateway.client
    gateway.broker.create_topic(topic, partitions=2)
    for path in ("", "/partitions", "/partitions/0", "/partitions/0/offsets"):
        assert error_of(client.get(f"/topics/{topic}-not{path}")) == (404, 40401)
    for path in (
        "/partitions/2",
        "/partitions/2/offsets",
        "/partitions/-1",
        "/partitions/x",
        "/partitions/99999999999",
    ):
        assert error_of(client.get(f"/topics/{topic}{path}")) == (404, 40402)
    one = {"records": [{"value": "AAAA"}]}
    assert error_of(post(client, f"/topics/{topic}-not", one)) == (404, 40401)
    assert error_of(post(client, f"/topics/{topic}/partitions/2", one)) == (404, 40402)
    assert error_of(post(client, f"/topics/{topic}", {"records": [{"value": "AAAA", "partition": 7}]})) == (
        404,
        40402,
    )
    assert gateway.broker.topics().count(f"{topic}-not") == 0


@pytest.mark.parametrize(
    ("body", "media_type", "expected"),
    [
        ({"records": []}, JSON, (422, 42206)),
        ({}, JSON, (422, 42206)),
        ({"records": {}}, JSON, (422, 42206)),
        ({"records": ["x"]}, JSON, (422, 42206)),
        ({"records": [{"value": "AAAA"}, {"value": "no base64"}]}, BINARY, (422, 42206)),
        ({"records": [{"value": {"a": 1}}]}, BINARY, (422, 42206)),
        ({"records": [{"value": 1}]}, TEXT, (422, 42206)),
        ({"records": [{"value": 1, "partition": "0"}]}, JSON, (422, 42206)),
        ({"records": [{"value": 1, "partition": True}]}, JSON, (422, 42206)),
        ({"records": [{"value": 1, "partition": -1}]}, JSON, (422, 42206)),
        ([], JSON, (400, 400)),
        ({"records": [{"value": 1}]}, "text/html", (415, 415)),
        ({"records": [{"value": 1}]}, "application/vnd.kafka.v3+json", (415, 415)),
        # Formats with schemas: what is missing, and then that there is no registry.
        ({"records": [{"key": 1}]}, "application/vnd.kafka.avro.v2+json", (422, 42201)),
        ({"records": [{"value": 1}]}, "application/vnd.kafka.protobuf.v2+json", (422, 42202)),
        (
            {"records": [{"value": 1}], "value_schema_id": 4},
            "application/vnd.kafka.jsonschema.v2+json",
            (408, 40801),
        ),
    ],
)
def test_a_wrong_body_is_refused_and_nothing_is_written(
    gateway: Gateway, topic: str, body: Any, media_type: str, expected: tuple[int, int]
) -> None:
    gateway.broker.create_topic(topic)
    assert error_of(post(gateway.client, f"/topics/{topic}", body, media_type)) == expected
    assert gateway.broker.records(topic) == []


def test_answer_has_the_media_type_of_accept(gateway: Gateway) -> None:
    def accept(value: str) -> httpx.Response:
        return gateway.client.get("/topics", headers={"Accept": value})

    assert accept("*/*").headers["content-type"] == V2
    assert accept("application/json").headers["content-type"] == "application/json"
    assert accept("application/*").headers["content-type"] == V2
    assert accept(f"{V2};q=0.5, application/json;q=0.9").headers["content-type"] == "application/json"
    assert accept(f"text/html, {V2};q=0.1").headers["content-type"] == V2
    assert accept("application/json;q=0, */*").headers["content-type"] == V2
    assert error_of(accept("text/html")) == (406, 406)
    assert error_of(accept(f"{V2};q=0")) == (406, 406)
