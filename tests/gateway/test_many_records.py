"""Many records in one request, and many bodies that do not come: other requests go on, and both have limits."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator

import httpx
import pytest

from tests.gateway.conftest import HTTP_TIMEOUT_S, Gateway, start_gateway
from tests.gateway.raw import RawConnection
from tidemill.gateway.settings import Limits, Settings
from tidemill.gateway.turns import Turns
from tidemill.testing import InProcessBroker

MANY = 20_000
JSON = "application/json"
V2_JSON = "application/vnd.kafka.json.v2+json"
NDJSON = "application/x-ndjson"


def v2_body(count: int) -> bytes:
    return b'{"records":[' + b",".join([b'{"value":1}'] * count) + b"]}"


# Path, Content-Type, and a body of so many records.
ROUTES = {
    "v2": ("/topics/{topic}", V2_JSON, v2_body),
    "simple": ("/v1/topics/{topic}/produce", JSON, v2_body),
    "v3": ("{v3}/topics/{topic}/records", JSON, lambda count: b"{}" * count),
    "lines": ("/v1/topics/{topic}/produce", NDJSON, lambda count: b'{"value":1}\n' * count),
}


def post(gateway: Gateway, route: str, topic: str, count: int) -> httpx.Response:
    path, media_type, body = ROUTES[route]
    with httpx.Client(base_url=gateway.url, timeout=2 * HTTP_TIMEOUT_S) as client:
        return client.post(
            path.format(v3=gateway.v3, topic=topic),
            content=body(count),
            headers={"Content-Type": media_type},
        )


def end_offset(gateway: Gateway, topic: str) -> int:
    found: int = gateway.client.get(f"/topics/{topic}/partitions/0/offsets").json()["end_offset"]
    return found


@pytest.mark.parametrize("route", ROUTES)
def test_other_requests_are_answered_while_one_has_many_records(
    gateway: Gateway, topic: str, route: str
) -> None:
    gateway.broker.create_topic(topic)
    answers: list[httpx.Response] = []
    sender = threading.Thread(target=lambda: answers.append(post(gateway, route, topic, MANY)))
    sender.start()
    while sender.is_alive():
        assert gateway.client.get("/healthz").status_code == 200
    sender.join()
    assert answers[0].status_code == 200
    assert end_offset(gateway, topic) == MANY


@pytest.mark.parametrize(("route", "steps"), [("v2", 3), ("simple", 3), ("v3", 1), ("lines", 1)])
def test_the_event_loop_is_given_back_between_any_two_records(
    gateway: Gateway, topic: str, route: str, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When every turn is over at once: records are read, handed over and waited for, which are three steps."""
    gateway.broker.create_topic(topic)
    gave_way = 0
    wait = Turns.wait

    async def counted(turns: Turns) -> None:
        nonlocal gave_way
        gave_way += 1
        await wait(turns)

    monkeypatch.setattr(Turns, "wait", counted)
    monkeypatch.setattr("tidemill.gateway.turns.TURN_S", 0.0)
    assert post(gateway, route, topic, 300).status_code == 200
    assert gave_way >= 300 * steps


def test_one_pass_of_the_loop_resumes_one_of_those_that_gave_way() -> None:
    async def main() -> list[str]:
        turns = Turns()
        seen: list[str] = []

        async def work(name: str) -> None:
            turn = turns.begin()
            for _ in range(3):
                await turn.give_way()
                seen.append(name)

        async def look() -> None:
            while len(seen) < 9:
                seen_before = len(seen)
                await asyncio.sleep(0)
                assert len(seen) <= seen_before + 1

        await asyncio.gather(work("a"), work("b"), work("c"), look())
        return seen

    assert asyncio.run(main()) == ["a", "b", "c"] * 3


@pytest.mark.parametrize("route", ["v2", "simple"])
def test_too_many_records_are_refused_before_any_is_written(
    gateway_broker: InProcessBroker, topic: str, route: str
) -> None:
    gateway_broker.create_topic(topic)
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(request_records_max=100))
    with start_gateway(settings, gateway_broker) as gateway:
        refused = post(gateway, route, topic, 101)
        assert (refused.status_code, refused.json()["error_code"]) == (413, 413)
        assert "more than 100 records" in refused.json()["message"]
        assert end_offset(gateway, topic) == 0
        assert post(gateway, route, topic, 100).status_code == 200
        assert end_offset(gateway, topic) == 100


@pytest.mark.parametrize("route", ["v3", "lines"])
def test_a_stream_may_have_any_number_of_records(
    gateway_broker: InProcessBroker, topic: str, route: str
) -> None:
    gateway_broker.create_topic(topic)
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(request_records_max=10))
    with start_gateway(settings, gateway_broker) as gateway:
        assert post(gateway, route, topic, 200).status_code == 200
        assert end_offset(gateway, topic) == 200


# --- the walk through the body ---


@pytest.mark.parametrize("size", [1, 1000, 65_530, 65_536, 70_000, 200_000])
def test_records_of_any_size_are_read_whole(
    client: httpx.Client, gateway: Gateway, topic: str, size: int
) -> None:
    """The text is looked at through a window of 65,536 characters, which cuts records."""
    gateway.broker.create_topic(topic)
    values: list[object] = [
        "x" * size,
        12345678,
        '\\"é' * (size // 8),
        [True, None, -1.5e-7] * (size // 20),
        {"a": {}},
    ]
    body = {"records": [{"value": value} for value in values], "key_schema": "x" * size}
    for text in (json.dumps(body), json.dumps(body, indent=3, ensure_ascii=False)):
        sent = client.post(f"/topics/{topic}", content=text.encode(), headers={"Content-Type": V2_JSON})
        assert sent.status_code == 200, sent.text[:300]
    stored = [json.loads(each.value or b"") for each in gateway.broker.records(topic, partition=0)]
    assert stored == values * 2


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"records":[{"value":1},]}', "line 1, column 25"),
        (b'{"records":[{"value":1} {"value":1}]}', "Expecting ',' delimiter at line 1, column 25"),
        (b'{"records":[{"value":1}],}', "line 1, column 26"),
        (b'{"records":[{"value":1}] "a":1}', "Expecting ',' delimiter"),
        (b'{"records" [1]}', "Expecting ':' delimiter at line 1, column 12"),
        (b"{records:[1]}", "Expecting property name enclosed in double quotes at line 1, column 2"),
        (b'{"records":[{"value":1}', "line 1, column 24"),
        (b'{"records":[{"value":1}]} {}', "Extra data"),
        (b'{"records":[' + b"1," * 50_000 + b"oops]}", "line 1, column 100013"),
        (b'{"records":[{"value":"\\ud800"}]}', "surrogate"),
        (b'{"records":[{"value":NaN}]}', "NaN"),
        (b'{"records":[' + b"[" * 100_000, "nested too deeply"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[1]", "should be a JSON object, not an array"),
        (b" ", "empty"),
    ],
)
def test_broken_json_is_refused_with_line_and_column(
    client: httpx.Client, gateway: Gateway, topic: str, body: bytes, words: str
) -> None:
    gateway.broker.create_topic(topic)
    refused = client.post(f"/v1/topics/{topic}/produce", content=body, headers={"Content-Type": JSON})
    # A record that is no object is reported before the bytes after it are read.
    if refused.status_code == 422:
        assert "records[0] should be an object, not a number" in refused.json()["message"]
        assert body.startswith(b'{"records":[1,')
        return
    assert refused.status_code == 400
    assert words in refused.json()["message"]
    assert end_offset(gateway, topic) == 0


def test_a_record_whose_json_is_too_large(gateway_broker: InProcessBroker, topic: str) -> None:
    gateway_broker.create_topic(topic)
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(record_bytes_max=20_000))
    with start_gateway(settings, gateway_broker) as gateway:
        for text in (
            '{"records":[{"value":[' + "1," * 200_000 + "1]}]}",
            '{"records":[{"value":"' + "x" * 300_000 + '"}]}',
        ):
            refused = gateway.client.post(
                f"/topics/{topic}", content=text.encode(), headers={"Content-Type": V2_JSON}
            )
            assert refused.status_code == 413
            assert "120000" in refused.json()["message"]


# --- bodies that do not come ---


@contextlib.contextmanager
def slow_bodies(gateway: Gateway, count: int, path: str) -> Iterator[list[RawConnection]]:
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(gateway)) for _ in range(count)]
        for connection in connections:
            connection.begin(path, "Content-Length: 1000", "Expect: 100-continue")
            # It is asked to go on, so the gateway waits for it.
            assert connection.more().startswith(b"HTTP/1.1 100")
        yield connections


def test_slow_bodies_keep_no_one_out(gateway_broker: InProcessBroker, topic: str) -> None:
    gateway_broker.create_topic(topic)
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(requests_max=20))
    with start_gateway(settings, gateway_broker) as gateway:
        path = f"{gateway.v3}/topics"
        with slow_bodies(gateway, 30, path) as connections:
            assert gateway.client.get("/healthz").status_code == 200
            assert gateway.client.get("/v3/clusters").status_code == 200
            written = gateway.client.post(f"{path}/{topic}/records", json={})
            assert (written.status_code, written.json()["offset"]) == (200, 0)
            # Those that waited longest gave way to those that came after them.
            for connection in connections[:20]:
                status, body = connection.response()
                assert (status, body["error_code"]) == (503, 50301)
                assert "waited longest" in str(body["message"])


def test_a_body_that_makes_progress_does_not_give_way(gateway_broker: InProcessBroker, topic: str) -> None:
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(requests_max=4))
    with start_gateway(settings, gateway_broker) as gateway:
        path = f"{gateway.v3}/topics"
        document = json.dumps({"topic_name": topic}).encode()
        with RawConnection(gateway) as lively, contextlib.ExitStack() as stack:
            lively.begin(path, f"Content-Length: {len(document)}", "Expect: 100-continue")
            assert lively.more().startswith(b"HTTP/1.1 100")
            for byte in document:
                connections = stack.enter_context(slow_bodies(gateway, 1, path))
                assert len(connections) == 1
                lively.send(bytes([byte]))
                # The gateway has read the byte when it answers a request that was sent after it.
                gateway.client.get("/healthz")
            assert lively.response()[0] == 201


def test_health_checks_are_answered_while_all_requests_are_taken(gateway_broker: InProcessBroker) -> None:
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(requests_max=1))
    with start_gateway(settings, gateway_broker) as gateway, slow_bodies(gateway, 1, f"{gateway.v3}/topics"):
        assert gateway.client.get("/v3/clusters").status_code == 503
        assert gateway.client.get("/healthz").status_code == 200


def test_bodies_in_memory_are_bounded(gateway_broker: InProcessBroker) -> None:
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(bodies_bytes_max=1500))
    with start_gateway(settings, gateway_broker) as gateway:
        path = f"{gateway.v3}/topics"
        with RawConnection(gateway) as first:
            first.begin(path, "Content-Length: 2000", "Expect: 100-continue")
            assert first.more().startswith(b"HTTP/1.1 100")
            first.send(b" " * 1600)
            status, body = first.response()
            assert (status, body["error_code"]) == (503, 50301)
        # What the first one held is free again.
        refused = gateway.client.post(path, content=b" " * 1400, headers={"Content-Type": JSON})
        assert refused.status_code == 400


def test_a_silent_connection_is_closed_for_a_new_one(gateway_broker: InProcessBroker) -> None:
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(requests_max=2, header_s=300.0))
    with start_gateway(settings, gateway_broker) as gateway, contextlib.ExitStack() as stack:
        silent = [stack.enter_context(RawConnection(gateway)) for _ in range(10)]
        with httpx.Client(base_url=gateway.url, timeout=HTTP_TIMEOUT_S) as client:
            assert client.get("/healthz").status_code == 200
        assert all(connection.is_closed_by_the_gateway() for connection in silent[:6])
