"""`GET /v1/topics/{topic}/records`: reading without a group, by positions that the caller keeps."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.v2_caller import error_of


def get(gateway: Gateway, topic: str, **query: Any) -> httpx.Response:
    return gateway.client.get(f"/v1/topics/{topic}/records", params=query)


def test_a_caller_reads_on_where_it_was(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=2)
    for number in range(10):
        gateway.broker.produce(topic, f"{number}", partition=number % 2)
    found: list[Any] = []
    position = "earliest"
    for _ in range(4):
        page = get(gateway, topic, **{"from": position, "limit": 3}).json()
        assert len(page["records"]) <= 3
        found += [(each["partition"], each["offset"], each["value"]) for each in page["records"]]
        position = page["next"]
    assert sorted(found) == sorted((number % 2, number // 2, number) for number in range(10))
    assert position == "0:5,1:5"
    assert get(gateway, topic, **{"from": position}).json() == {"records": [], "next": position}
    # One partition of them, and from where one likes.
    page = get(gateway, topic, partition=1, **{"from": "1:3"}).json()
    assert [each["value"] for each in page["records"]] == [7, 9]
    assert page["next"] == "1:5"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"k", b'{"a": 1.10}'),
        (None, b"plain"),
        (b"\xff", b"\xff\x00"),
        (b"7", None),
        (b"", b""),
        (None, b"null"),
        (None, b"NaN"),
    ],
)
def test_records_that_are_read_can_be_produced_again(
    gateway: Gateway, topic: str, key: bytes | None, value: bytes | None
) -> None:
    gateway.broker.create_topic(topic)
    gateway.broker.produce(topic, value, key=key, headers=[("h", b"1"), ("h", b"2"), ("n", None)])
    (record,) = get(gateway, topic).json()["records"]
    assert record.pop("offset") == 0
    answer = gateway.client.post(f"/v1/topics/{topic}/produce", json=record)
    assert answer.status_code == 200, answer.text
    first, second = gateway.broker.records(topic)
    assert (second.key, second.headers, second.timestamp_ms) == (first.key, first.headers, first.timestamp_ms)
    if value != b'{"a": 1.10}':
        assert second.value == first.value


def test_a_busy_partition_does_not_hide_the_others(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic, partitions=3)
    for _ in range(20):
        gateway.broker.produce(topic, "busy", partition=0)
    gateway.broker.produce(topic, "seldom", partition=2)
    page = get(gateway, topic, limit=4).json()
    assert [each["partition"] for each in page["records"]] == [0, 0, 2]
    assert page["next"] == "0:2,1:0,2:1"


def test_waiting_ends_with_the_first_record(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    pages: list[Any] = []
    path, query = f"{gateway.url}/v1/topics/{topic}/records", {"from": "latest", "wait_ms": "20000"}
    waiting = threading.Thread(target=lambda: pages.append(httpx.get(path, params=query, timeout=30).json()))
    waiting.start()
    # Until the caller has found its place, what is written is before it.
    while waiting.is_alive() and not pages:
        gateway.broker.produce(topic, "1")
        waiting.join(0.05)
    assert pages[0]["records"][0]["value"] == 1
    assert get(gateway, topic, **{"from": "latest", "wait_ms": 50}).json()["records"] == []


def test_a_time_is_a_position(gateway: Gateway, topic: str) -> None:
    for number in (1000, 2000, 3000):
        gateway.broker.produce(topic, f"{number}", timestamp_ms=number)
    page = get(gateway, topic, **{"from": "time:1500"}).json()
    assert [each["timestamp_ms"] for each in page["records"]] == [2000, 3000]


def test_wrong_parameters_are_refused_with_a_reason(gateway: Gateway, topic: str) -> None:
    assert error_of(get(gateway, topic)) == (404, 40403)
    gateway.broker.produce(topic, "1")
    assert error_of(get(gateway, topic, partition=1)) == (404, 40402)
    assert error_of(get(gateway, topic, **{"from": "3:0"})) == (404, 40402)
    assert error_of(get(gateway, topic, **{"from": "0:7"})) == (400, 40002)
    for query in (
        {"from": "middle"},
        {"from": "0:-1"},
        {"limit": 0},
        {"limit": 10_001},
        {"wait_ms": "x"},
        {"partition": -1},
    ):
        assert error_of(get(gateway, topic, **query)) == (400, 400)
