"""v3: producing over HTTP, one record and streams of them. What is reported is looked for in the log."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import HTTP_TIMEOUT_S, Gateway, start_gateway
from tidemill.gateway.settings import Limits, Settings
from tidemill.testing import InProcessBroker

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def records(gateway: Gateway, topic: str) -> str:
    """The path that records of a topic with two partitions are sent to."""
    gateway.broker.create_topic(topic, 2)
    return f"{gateway.v3}/topics/{topic}/records"


def text_record(value: str, **more: object) -> dict[str, object]:
    return {"value": {"type": "STRING", "data": value}, **more}


def lines(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in response.text.splitlines()]


def test_all_that_a_record_has(client: httpx.Client, gateway: Gateway, records: str, topic: str) -> None:
    sent = client.post(
        records,
        json={
            "partition_id": 1,
            "key": {"type": "BINARY", "data": base64.b64encode(b"\x00key").decode()},
            "value": {"type": "JSON", "data": {"price": 1.5, "name": "Käse"}},
            "headers": [{"name": "trace", "value": "AQI="}, {"name": "trace", "value": None}],
            "timestamp": "2026-02-05T19:14:42.123Z",
        },
    )
    assert sent.status_code == 200
    value = '{"price":1.5,"name":"Käse"}'.encode()
    assert sent.json() == {
        "error_code": 200,
        "cluster_id": gateway.cluster_id,
        "topic_name": topic,
        "partition_id": 1,
        "offset": 0,
        "timestamp": "2026-02-05T19:14:42.123Z",
        "key": {"type": "BINARY", "size": 4},
        "value": {"type": "JSON", "size": len(value)},
    }
    (record,) = gateway.broker.records(topic)
    assert (record.partition, record.offset, record.key) == (1, 0, b"\x00key")
    assert record.value == value
    assert record.headers == (("trace", b"\x01\x02"), ("trace", None))
    assert record.timestamp_ms == 1770318882123


def test_a_record_may_be_empty(client: httpx.Client, gateway: Gateway, records: str, topic: str) -> None:
    sent = client.post(records, json={}).json()
    assert (sent["error_code"], sent["key"], sent["value"]) == (200, None, None)
    client.post(records, json={"value": {"type": "JSON", "data": None}})
    assert [(each.key, each.value) for each in gateway.broker.records(topic)] == [(None, None)] * 2


def test_keys_choose_partitions_as_java_does(client: httpx.Client, gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, 7)
    for number in range(20):
        key = {"type": "STRING", "data": f"key-{number}"}
        by_gateway = client.post(f"{gateway.v3}/topics/{topic}/records", json={"key": key}).json()
        assert by_gateway["partition_id"] == gateway.broker.produce(topic, "v", key=f"key-{number}").partition


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"value": "text"}, "value"),
        ({"value": {"data": 1}}, "value.type"),
        ({"value": {"type": "XML", "data": 1}}, "value.type"),
        ({"value": {"type": ["JSON"], "data": 1}}, "value.type"),
        ({"value": {"type": "AVRO", "data": 1}}, "schema registry"),
        ({"value": {"schema_id": 1, "data": 1}}, "schema registry"),
        ({"key": {"type": "BINARY", "data": "!"}}, "key.data"),
        ({"key": {"type": "STRING", "data": 1}}, "key.data"),
        ({"partition_id": "1"}, "partition_id"),
        ({"partition_id": -1}, "partition_id"),
        ({"partition_id": 2**31}, "partition_id"),
        ({"headers": {}}, "headers"),
        ({"headers": [{"value": "AQI="}]}, "headers[0].name"),
        ({"headers": [{"name": "a", "value": "?"}]}, "headers[0].value"),
        ({"timestamp": "yesterday"}, "timestamp"),
        ({"timestamp": "2026-02-05T19:14:42"}, "timestamp"),
        ({"timestamp": 1770318882123}, "timestamp"),
        ({"partition": 1}, "partition"),
        ({"value": {"type": "JSON", "data": 1, "extra": 1}}, "extra"),
    ],
)
def test_a_wrong_record_is_refused(
    client: httpx.Client, gateway: Gateway, records: str, topic: str, body: object, where: str
) -> None:
    refused = client.post(records, json=body)
    assert refused.status_code == 422
    assert refused.json()["error_code"] == 42206
    assert where in refused.json()["message"]
    assert gateway.broker.records(topic) == []


def test_produce_to_missing_topic_or_partition_is_404(
    client: httpx.Client, gateway: Gateway, records: str
) -> None:
    unknown = client.post(f"{gateway.v3}/topics/none/records", json={})
    assert (unknown.status_code, unknown.json()["error_code"]) == (404, 40403)
    beyond = client.post(records, json={"partition_id": 2})
    assert (beyond.status_code, beyond.json()["error_code"]) == (404, 40402)
    assert "none" not in gateway.broker.topics()


def test_a_record_too_large_for_the_topic(client: httpx.Client, gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, configs={"max.message.bytes": 1000})
    refused = client.post(f"{gateway.v3}/topics/{topic}/records", json=text_record("x" * 2000))
    assert refused.status_code == 413
    assert "max.message.bytes" in refused.json()["message"]


# --- streams ---


def test_records_one_after_the_other(
    client: httpx.Client, gateway: Gateway, records: str, topic: str
) -> None:
    values = [f'{number} {"{" * (number % 3)}\\ " ' for number in range(200)]
    body = "".join(json.dumps(text_record(value, partition_id=0)) for value in values)
    reports = lines(client.post(records, content=body, headers=JSON))
    assert [(each["error_code"], each["offset"]) for each in reports] == [(200, n) for n in range(200)]
    stored = gateway.broker.records(topic, partition=0)
    assert [each.value.decode() for each in stored if each.value is not None] == values


def test_a_stream_of_any_pieces(client: httpx.Client, gateway: Gateway, records: str, topic: str) -> None:
    value = 'brackets }]{[ quotes " backslashes \\ \\" and Käse'
    body = b" \r\n".join(json.dumps(text_record(value, partition_id=0)).encode() for _ in range(3))

    def bytewise() -> Iterator[bytes]:
        for position in range(len(body)):
            yield body[position : position + 1]

    reports = lines(client.post(records, content=bytewise(), headers=JSON))
    assert [each["error_code"] for each in reports] == [200, 200, 200]
    assert [each.value for each in gateway.broker.records(topic)] == [value.encode()] * 3


def test_a_wrong_record_in_a_stream_does_not_stop_it(
    client: httpx.Client, gateway: Gateway, records: str, topic: str
) -> None:
    sent = [
        text_record("a", partition_id=0),
        {"partition_id": 9},
        {"value": 1},
        text_record("b", partition_id=0),
    ]
    response = client.post(records, content="\n".join(map(json.dumps, sent)), headers=JSON)
    assert response.status_code == 200
    assert [each["error_code"] for each in lines(response)] == [200, 40402, 42206, 200]
    assert [each.value for each in gateway.broker.records(topic)] == [b"a", b"b"]


@pytest.mark.parametrize("is_chunked", [False, True])
def test_records_before_broken_json_are_written(
    client: httpx.Client, gateway: Gateway, records: str, topic: str, is_chunked: bool
) -> None:
    body = json.dumps(text_record("kept")).encode() + b' nonsense {"value": null}'
    response = client.post(records, content=iter([body]) if is_chunked else body, headers=JSON)
    first, last = lines(response)
    assert (first["error_code"], last["error_code"]) == (200, 400)
    assert "not JSON" in last["message"]
    assert [each.value for each in gateway.broker.records(topic)] == [b"kept"]


def test_a_stream_is_answered_while_it_is_sent(gateway: Gateway, records: str) -> None:
    connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=HTTP_TIMEOUT_S)
    connection.putrequest("POST", records)
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()

    def send(number: int) -> None:
        piece = json.dumps(text_record(str(number), partition_id=0)).encode()
        connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))

    send(0)
    response = connection.getresponse()
    assert response.status == 200
    for number in range(1, 4):
        # The next record is sent when the one before it is known to be written.
        assert json.loads(response.readline())["offset"] == number - 1
        send(number)
    connection.send(b"0\r\n\r\n")
    assert json.loads(response.readline())["offset"] == 3
    assert response.readline() == b""
    connection.close()


def test_a_stream_whose_caller_is_gone_keeps_what_it_got(gateway: Gateway, records: str, topic: str) -> None:
    with socket.create_connection((gateway.host, gateway.port), HTTP_TIMEOUT_S) as connection:
        head = f"POST {records} HTTP/1.1\r\nHost: {gateway.host}\r\nContent-Type: application/json\r\n"
        piece = json.dumps(text_record("alone")).encode()
        connection.sendall(head.encode() + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    assert gateway.broker.records(topic, count=1)[0].value == b"alone"


def test_a_stopping_gateway_reports_what_it_took(gateway_broker: InProcessBroker, topic: str) -> None:
    gateway_broker.create_topic(topic)
    answer: list[bytes] = []
    with start_gateway(Settings(bootstrap=gateway_broker.bootstrap), gateway_broker) as gateway:
        connection = http.client.HTTPConnection(gateway.host, gateway.port, timeout=HTTP_TIMEOUT_S)
        connection.putrequest("POST", f"{gateway.v3}/topics/{topic}/records")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Transfer-Encoding", "chunked")
        connection.endheaders()
        piece = json.dumps(text_record("last")).encode()
        connection.send(b"%x\r\n%s\r\n" % (len(piece), piece))
        response = connection.getresponse()
        answer.append(response.readline())
        reader = threading.Thread(target=lambda: answer.append(response.read()))
        reader.start()
    # The block has ended, so the gateway has stopped, although the stream was never ended by its sender.
    reader.join(HTTP_TIMEOUT_S)
    connection.close()
    assert json.loads(answer[0])["offset"] == 0
    assert answer[1] == b""


def test_many_at_once_are_all_in_the_log(
    client: httpx.Client, gateway: Gateway, records: str, topic: str
) -> None:
    reported: list[tuple[int, int, str]] = []

    def send(sender: int) -> None:
        with httpx.Client(base_url=gateway.url, timeout=HTTP_TIMEOUT_S) as own:
            for number in range(25):
                report = own.post(records, json=text_record(f"{sender}-{number}")).json()
                reported.append((report["partition_id"], report["offset"], f"{sender}-{number}"))

    senders = [threading.Thread(target=send, args=(number,)) for number in range(4)]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    stored = [
        (each.partition, each.offset, (each.value or b"").decode()) for each in gateway.broker.records(topic)
    ]
    assert sorted(reported) == sorted(stored)
    assert len(stored) == 100


def test_full_queue_is_an_error_and_nothing_else_is_lost(topic: str) -> None:
    limits = Limits(records_pending_max=10, stream_records_pending_max=50)
    with (
        InProcessBroker() as broker,
        start_gateway(Settings(bootstrap=broker.bootstrap, limits=limits), broker) as gateway,
    ):
        broker.create_topic(topic)
        path = f"{gateway.v3}/topics/{topic}/records"
        broker.faults.slow(topic, seconds=1)
        body = "".join(json.dumps(text_record(str(number))) for number in range(40))
        reports = lines(gateway.client.post(path, content=body, headers=JSON))
        codes = [each["error_code"] for each in reports]
        assert codes == [200] * 10 + [50301] * 30
        assert [each.value for each in broker.records(topic)] == [b"%d" % number for number in range(10)]


# --- a cluster in trouble ---


def test_a_lost_acknowledgement_writes_nothing_twice(
    client: httpx.Client, gateway: Gateway, records: str, topic: str
) -> None:
    with gateway.broker.faults.lose_next_ack(topic):
        assert client.post(records, json=text_record("once", partition_id=0)).json()["offset"] == 0
    assert [each.value for each in gateway.broker.records(topic)] == [b"once"]


def test_a_producer_that_the_cluster_lost_track_of_is_replaced(
    client: httpx.Client, gateway: Gateway, records: str, topic: str
) -> None:
    with gateway.broker.faults.refuse_next("Produce", "OUT_OF_ORDER_SEQUENCE_NUMBER", topic):
        refused = client.post(records, json=text_record("refused"))
    assert (refused.status_code, refused.json()["error_code"]) == (503, 50003)
    assert client.post(records, json=text_record("written")).status_code == 200
    assert [each.value for each in gateway.broker.records(topic)] == [b"written"]


def test_reported_records_survive_a_crash_of_the_broker(topic: str) -> None:
    with (
        InProcessBroker() as broker,
        start_gateway(Settings(bootstrap=broker.bootstrap, timeout_s=20.0), broker) as gateway,
    ):
        broker.create_topic(topic)
        path = f"{gateway.v3}/topics/{topic}/records"
        crashed = threading.Event()

        def numbers() -> Iterator[bytes]:
            for number in range(300):
                if number == 150:
                    broker.records(topic, count=150)
                    broker.crash()
                    broker.start()
                    crashed.set()
                yield json.dumps(text_record(str(number))).encode()

        reports = lines(gateway.client.post(path, content=numbers(), headers=JSON))
        assert crashed.is_set()
        assert len(reports) == 300
        stored = {each.offset: each.value for each in broker.records(topic)}
        for number, report in enumerate(reports):
            if report["error_code"] == 200:
                assert stored[report["offset"]] == b"%d" % number
        assert sum(report["error_code"] == 200 for report in reports) >= 150
        assert gateway.client.post(path, json=text_record("after")).json()["error_code"] == 200
