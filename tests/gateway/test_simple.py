"""`POST /v1/topics/{topic}/produce` in all its media types, with good, wrong, huge and slow bodies."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.v2_caller import error_of
from tidemill.gateway.settings import Limits, Settings

NDJSON = "application/x-ndjson"


def produce(gateway: Gateway, topic: str, body: Any, **query: Any) -> httpx.Response:
    return gateway.client.post(f"/v1/topics/{topic}/produce", json=body, params=query)


def produce_bytes(
    gateway: Gateway, topic: str, content: bytes | Iterator[bytes], media_type: str, **query: Any
) -> httpx.Response:
    headers = {"Content-Type": media_type}
    return gateway.client.post(f"/v1/topics/{topic}/produce", content=content, headers=headers, params=query)


def stored(gateway: Gateway, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in gateway.broker.records(topic)]


def test_healthz_answers(gateway: Gateway) -> None:
    assert gateway.client.get("/healthz").json()["status"] == "ok"


def test_one_record_is_enough(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=2)
    record = {
        "key": "user-7",
        "value": {"total": 12.5, "who": "ü"},
        "headers": {"source": "web", "tags": ["a", "b"], "nothing": None},
        "partition": 1,
        "timestamp_ms": 1_600_000_000_000,
    }
    answer = produce(gateway, topic, record)
    offset = {"partition": 1, "offset": 0, "timestamp_ms": 1_600_000_000_000}
    assert (answer.status_code, answer.json()) == (200, {"written": 1, "offsets": [offset]})
    (found,) = gateway.broker.records(topic)
    assert (found.partition, found.key, found.timestamp_ms) == (1, b"user-7", 1_600_000_000_000)
    assert found.value == '{"total":12.5,"who":"ü"}'.encode()
    assert found.headers == (("source", b"web"), ("tags", b"a"), ("tags", b"b"), ("nothing", None))


@pytest.mark.parametrize(
    ("record", "key", "value"),
    [
        ({"value": "text"}, None, b'"text"'),
        ({"value": "text", "format": "text"}, None, b"text"),
        ({"value": "AP8=", "format": "binary"}, None, b"\x00\xff"),
        ({"key": "k", "value": None}, b"k", None),
        ({"key": 7}, b"7", None),
        ({"key": "k", "key_format": "json"}, b'"k"', None),
        ({"key": "AP8=", "key_format": "binary"}, b"\x00\xff", None),
        ({"value": [1, {"a": None}]}, None, b'[1,{"a":null}]'),
    ],
)
def test_formats(gateway: Gateway, topic: str, record: Any, key: bytes | None, value: bytes | None) -> None:
    gateway.broker.create_topic(topic)
    assert produce(gateway, topic, record).status_code == 200
    assert stored(gateway, topic) == [(key, value)]


def test_several_records_keep_their_order(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    answer = produce(gateway, topic, {"records": [{"value": number} for number in range(100)]}).json()
    assert answer["written"] == 100
    assert [each["offset"] for each in answer["offsets"]] == list(range(100))
    assert [value for _, value in stored(gateway, topic)] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/octet-stream", "text/plain; charset=utf-8"]
)
def test_a_plain_body_is_the_value(gateway: Gateway, topic: str, media_type: str) -> None:
    gateway.broker.create_topic(topic, partitions=3)
    content = bytes(range(256))
    answer = produce_bytes(
        gateway, topic, content, media_type, key="ключ", partition=2, timestamp_ms=1_600_000_000_000
    )
    assert answer.json()["offsets"] == [{"partition": 2, "offset": 0, "timestamp_ms": 1_600_000_000_000}]
    assert stored(gateway, topic) == [("ключ".encode(), content)]
    for query in ({"partition": "x"}, {"partition": -1}, {"timestamp_ms": "now"}):
        assert error_of(produce_bytes(gateway, topic, b"", media_type, **query)) == (400, 400)
    assert error_of(produce_bytes(gateway, topic, b"", media_type, partition=3)) == (404, 40402)


def lines(records: list[Any]) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def test_lines_are_written_as_they_come(gateway: Gateway, topic: str) -> None:
    """More records than may wait for their acknowledgement, in pieces that end anywhere."""
    gateway.broker.create_topic(topic, partitions=2)
    body = lines([{"value": number, "partition": number % 2} for number in range(2500)])
    pieces = (body[i : i + 1013] for i in range(0, len(body), 1013))
    answer = produce_bytes(gateway, topic, pieces, NDJSON)
    ranges = [{"partition": i, "first_offset": 0, "records": 1250, "last_offset": 1249} for i in (0, 1)]
    assert (answer.status_code, answer.json()) == (200, {"written": 2500, "offsets": ranges})
    for partition in (0, 1):
        found = [record.value for record in gateway.broker.records(topic, partition=partition)]
        assert found == [b"%d" % number for number in range(partition, 2500, 2)]


def test_a_caller_that_streams_sees_its_records_before_it_ends(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)

    def body() -> Iterator[bytes]:
        yield b'{"value": 1}\n{"val'
        gateway.broker.records(topic, count=1)
        yield b'ue": 2}\r\n\n'
        gateway.broker.records(topic, count=2)
        yield b'{"value": 3}'

    assert produce_bytes(gateway, topic, body(), NDJSON).json()["written"] == 3
    assert [value for _, value in stored(gateway, topic)] == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (b"{", (400, 400)),
        (b"\xff", (400, 400)),
        (b"[1]", (422, 42206)),
        (b"{}", (422, 42206)),
        (b'{"value": 1, "partition": 9}', (404, 40402)),
        (b'{"value": 1, "colour": "red"}', (422, 42206)),
    ],
)
def test_the_first_bad_line_is_named(
    gateway: Gateway, topic: str, bad: bytes, expected: tuple[int, int]
) -> None:
    gateway.broker.create_topic(topic)
    content = b'{"value": 1}\n\n{"value": 2}\n' + bad + b'\n{"value": 3}\n'
    refused = produce_bytes(gateway, topic, content, NDJSON)
    assert error_of(refused) == expected
    assert (refused.json()["line"], refused.json()["written"]) == (4, 2)
    assert refused.json()["message"].startswith("line 4: ")
    assert [value for _, value in stored(gateway, topic)] == [b"1", b"2"]


def test_an_empty_record_is_refused_although_the_query_has_a_key(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    assert error_of(produce_bytes(gateway, topic, b"{}", NDJSON, key="k")) == (422, 42206)
    assert error_of(produce(gateway, topic, {}, key="k")) == (422, 42206)
    assert stored(gateway, topic) == []


def test_a_line_that_the_cluster_refuses_is_named(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=2, configs={"max.message.bytes": 1000})
    content = lines([{"value": "a", "partition": 0}, {"value": "b" * 5000, "partition": 1}])
    refused = produce_bytes(gateway, topic, content, NDJSON)
    assert error_of(refused) == (413, 413)
    assert (refused.json()["line"], refused.json()["written"]) == (2, 1)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (422, 42206)),
        ({"records": []}, (422, 42206)),
        ({"records": [{}]}, (422, 42206)),
        ({"records": [1]}, (422, 42206)),
        ({"records": [{"value": 1}], "key": "x"}, (422, 42206)),
        ({"value": 1, "values": 2}, (422, 42206)),
        ({"value": 1, "format": "xml"}, (422, 42206)),
        ({"value": 1, "format": "text"}, (422, 42206)),
        ({"value": "!", "format": "binary"}, (422, 42206)),
        ({"value": 1, "headers": []}, (422, 42206)),
        ({"value": 1, "headers": {"a": 1}}, (422, 42206)),
        ({"value": 1, "partition": 1.5}, (422, 42206)),
        ({"value": 1, "timestamp_ms": -1}, (422, 42206)),
        ([], (400, 400)),
        ({"value": 1, "partition": 1}, (404, 40402)),
    ],
)
def test_wrong_records_are_refused_and_nothing_is_written(
    gateway: Gateway, topic: str, body: Any, expected: tuple[int, int]
) -> None:
    gateway.broker.create_topic(topic)
    assert error_of(produce(gateway, topic, body)) == expected
    assert stored(gateway, topic) == []


def test_answer_has_offsets_of_written_records_although_another_failed(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=2, configs={"max.message.bytes": 1000})
    records = [{"value": "small", "partition": 0}, {"value": "x" * 5000, "partition": 1}]
    refused = produce(gateway, topic, {"records": records})
    assert error_of(refused) == (413, 413)
    good, bad = refused.json()["offsets"]
    assert (good["partition"], good["offset"]) == (0, 0)
    assert (bad["partition"], bad["offset"]) == (None, None)
    assert "max.message.bytes" in bad["error"]
    assert len(stored(gateway, topic)) == 1


def test_unknown_topics_and_media_types_are_refused(gateway: Gateway, topic: str) -> None:
    assert error_of(produce(gateway, topic, {"value": 1})) == (404, 40403)
    assert error_of(produce_bytes(gateway, topic, b"x", "text/plain")) == (404, 40403)
    assert error_of(produce_bytes(gateway, topic, b"{}", NDJSON)) == (404, 40403)
    assert error_of(produce_bytes(gateway, topic, b"<x/>", "application/xml")) == (415, 415)
    assert error_of(produce_bytes(gateway, topic, b"{}", "application/json; charset=utf-16")) == (415, 415)
    assert topic not in gateway.broker.topics()


def test_huge_and_slow_bodies_are_refused_and_what_came_before_stays(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    limits = Limits(body_bytes_max=10_000, record_bytes_max=5000, body_pause_s=0.3, stream_pause_s=0.3)
    with start_gateway(Settings(bootstrap=gateway.broker.bootstrap, limits=limits), gateway.broker) as strict:
        huge = b'{"value": "' + b"x" * 20_000 + b'"}'
        assert error_of(produce_bytes(strict, topic, huge, "application/json")) == (413, 413)
        assert error_of(produce_bytes(strict, topic, iter([huge]), "text/plain")) == (413, 413)
        # The body is small enough, the record is not.
        assert error_of(produce_bytes(strict, topic, b"x" * 6000, "text/plain")) == (413, 413)
        refused = produce_bytes(strict, topic, b'{"value": 1}\n' + huge, NDJSON)
        assert error_of(refused) == (413, 413)
        assert (refused.json()["line"], refused.json()["written"]) == (2, 1)
        # As many lines as one likes, though.
        assert produce_bytes(strict, topic, b'{"value": 2}\n' * 1000, NDJSON).json()["written"] == 1000
        with socket.create_connection((strict.host, strict.port)) as connection:
            head = (
                f"POST /v1/topics/{topic}/produce HTTP/1.1\r\nHost: localhost\r\nContent-Type: {NDJSON}\r\n"
            )
            connection.sendall(f"{head}Content-Length: 1000\r\n\r\n".encode() + b'{"value": 3}\n{"value":')
            connection.settimeout(10)
            answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.rpartition(b"\r\n")[2])["line"] == 2
    assert [value for _, value in stored(gateway, topic)] == [b"1", *[b"2"] * 1000, b"3"]
