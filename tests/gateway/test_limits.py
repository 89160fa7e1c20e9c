"""What the gateway refuses, and how it says so: sizes, times, media types, JSON, callers, browsers, an absent cluster."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import httpx
import pytest
from starlette.datastructures import Headers
from starlette.types import Scope

from tests.gateway.conftest import HTTP_TIMEOUT_S, Gateway, start_gateway
from tests.gateway.raw import RawConnection
from tidemill.errors import ConfigError
from tidemill.gateway.problems import Problem
from tidemill.gateway.settings import Limits, Settings, load_authenticate
from tidemill.testing import InProcessBroker

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def small(gateway_broker: InProcessBroker) -> Iterator[Gateway]:
    """A gateway with little patience."""
    limits = Limits(
        body_bytes_max=4096,
        record_bytes_max=1024,
        header_bytes_max=2048,
        body_pause_s=0.3,
        body_bytes_per_s_min=1000,
        stream_pause_s=1.0,
        header_s=0.5,
    )
    with start_gateway(
        Settings(bootstrap=gateway_broker.bootstrap, limits=limits), gateway_broker
    ) as started:
        gateway_broker.create_topic("orders")
        yield started


def message_of(response: httpx.Response) -> str:
    body = response.json()
    assert body.keys() == {"error_code", "message"}
    assert str(body["error_code"]).startswith(str(response.status_code))
    text: str = body["message"]
    return text


# --- sizes ---


def test_a_body_that_is_too_large(small: Gateway) -> None:
    body = b'{"topic_name": "' + b"x" * 5000 + b'"}'
    for content in (body, iter([body[:100], body[100:]])):
        refused = small.client.post(f"{small.v3}/topics", content=content, headers=JSON)
        assert refused.status_code == 413
        assert "4096" in message_of(refused)


# Two bytes each of the body, and hundreds of megabytes of memory all together if they were parsed.
EMPTY_ARRAYS = b",".join([b"[]"] * 200_000)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/views"),
        ("POST", "/v1/queues/g/workers"),
        ("POST", "/v3/clusters/{cluster}/topics"),
        ("PUT", "/v3/clusters/{cluster}/topics/orders/configs/retention.ms"),
        ("POST", "/v3/clusters/{cluster}/topics/orders/configs:alter"),
        ("POST", "/consumers/g"),
    ],
)
def test_a_document_is_small(gateway: Gateway, method: str, path: str) -> None:
    cluster = gateway.v3.rpartition("/")[2]
    media_type = "application/vnd.kafka.v2+json" if path.startswith("/consumers") else "application/json"
    refused = gateway.client.request(
        method,
        path.format(cluster=cluster),
        content=b'{"a":[%b]}' % EMPTY_ARRAYS,
        headers={"Content-Type": media_type},
    )
    assert refused.status_code == 413
    assert "524288 bytes" in message_of(refused)


def test_a_record_of_very_many_arrays_is_refused(gateway: Gateway) -> None:
    gateway.client.post(f"{gateway.v3}/topics", json={"topic_name": "orders"})
    record = b'{"value":[%b]}' % EMPTY_ARRAYS
    posted = {
        "/v1/topics/orders/produce": (b'{"records":[%b]}' % record, "application/json"),
        "/topics/orders": (b'{"records":[%b]}' % record, "application/vnd.kafka.json.v2+json"),
    }
    for path, (body, media_type) in posted.items():
        refused = gateway.client.post(path, content=body, headers={"Content-Type": media_type})
        assert refused.status_code == 413, (path, refused.text)
        assert "100000 arrays and objects" in message_of(refused)
    lines = gateway.client.post(
        "/v1/topics/orders/produce", content=record + b"\n", headers={"Content-Type": "application/x-ndjson"}
    )
    assert "100000 arrays and objects" in lines.text
    streamed = gateway.client.post(
        f"{gateway.v3}/topics/orders/records",
        content=b'{"value":{"type":"JSON","data":[%b]}}' % EMPTY_ARRAYS,
        headers=JSON,
    )
    assert "100000 arrays and objects" in streamed.text


def test_brackets_in_texts_are_no_arrays(gateway: Gateway) -> None:
    gateway.client.post(f"{gateway.v3}/topics", json={"topic_name": "orders"})
    record = {"value": "[" * 150_000 + '\\"{'}
    written = gateway.client.post("/v1/topics/orders/produce", json={"records": [record, record]})
    assert written.status_code == 200, written.text


def test_a_body_that_says_it_is_too_large_is_not_read(small: Gateway) -> None:
    with RawConnection(small) as connection:
        connection.begin(f"{small.v3}/topics", "Content-Length: 100000000000")
        status, body = connection.response()
    assert (status, body["error_code"]) == (413, 413)


def test_a_large_body_is_refused_in_a_way_that_its_sender_can_read(small: Gateway) -> None:
    # Much more than what fits into buffers on the way.
    refused = small.client.post(f"{small.v3}/topics", content=b"x" * 20_000_000, headers=JSON)
    assert refused.status_code == 413
    assert small.client.get(small.v3).status_code == 200


def test_a_record_that_is_too_large(small: Gateway) -> None:
    record = {"value": {"type": "STRING", "data": "x" * 2000}}
    path = f"{small.v3}/topics/orders/records"
    refused = small.client.post(path, json=record)
    assert refused.status_code == 413
    assert "1024" in message_of(refused)
    stream = small.client.post(path, content=iter([json.dumps(record).encode()]), headers=JSON)
    assert (stream.status_code, stream.json()["error_code"]) == (200, 413)


def test_headers_that_are_too_large(small: Gateway) -> None:
    refused = small.client.get("/v3/clusters", headers={"X-Large": "x" * 3000})
    assert refused.status_code == 431
    assert "2048" in message_of(refused)


def test_headers_without_an_end(small: Gateway) -> None:
    with RawConnection(small) as connection:
        connection.send(b"GET /v3/clusters HTTP/1.1\r\nX-Endless: " + b"x" * 10_000)
        assert connection.response()[0] == 431
        assert connection.is_closed_by_the_gateway()


# --- times ---


def test_a_body_that_stops_to_come(small: Gateway) -> None:
    with RawConnection(small) as connection:
        connection.begin(f"{small.v3}/topics", "Content-Length: 1000")
        connection.send(b'{"topic_name"')
        assert connection.response()[0] == 408


def test_a_body_that_comes_too_slowly(small: Gateway) -> None:
    """It never pauses for long, but at this rate it would take for ever."""
    with RawConnection(small) as connection:
        connection.begin(f"{small.v3}/topics", "Content-Length: 1000")
        stop = connection.drip(b" ", every_s=0.1)
        assert connection.response()[0] == 408
        stop.set()


def test_a_stream_that_stops_within_a_record(small: Gateway) -> None:
    with RawConnection(small) as connection:
        connection.begin(f"{small.v3}/topics/orders/records", "Content-Length: 1000")
        connection.send(b'{"value": ')
        assert connection.response()[0] == 408


def test_headers_that_come_too_slowly(small: Gateway) -> None:
    with RawConnection(small) as connection:
        connection.send(b"GET /v3/clusters HTTP/1.1\r\n")
        stop = connection.drip(b"X-More: 1\r\n", every_s=0.1)
        assert connection.response()[0] == 408
        stop.set()


def test_a_connection_without_a_request_is_closed(small: Gateway) -> None:
    with RawConnection(small) as connection:
        assert connection.is_closed_by_the_gateway()


# --- media types and JSON ---


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/xml",
        "application/json; charset=latin-1",
        "application/vnd.kafka.json.v2+json",
        "",
    ],
)
def test_an_unknown_media_type(client: httpx.Client, gateway: Gateway, content_type: str) -> None:
    refused = client.post(f"{gateway.v3}/topics", content=b"{}", headers={"Content-Type": content_type})
    assert refused.status_code == 415
    assert "application/json" in message_of(refused) or "utf-8" in message_of(refused)


def test_a_compressed_body(client: httpx.Client, gateway: Gateway) -> None:
    headers = {**JSON, "Content-Encoding": "gzip"}
    refused = client.post(f"{gateway.v3}/topics", content=gzip.compress(b"{}"), headers=headers)
    assert refused.status_code == 415
    assert "gzip" in message_of(refused)


def test_no_media_type(gateway: Gateway) -> None:
    refused = httpx.post(f"{gateway.url}{gateway.v3}/topics", content=b"{}")
    assert refused.status_code == 415


@pytest.mark.parametrize("content_type", ["application/json; charset=UTF-8", "Application/JSON"])
def test_other_ways_to_write_the_media_type(
    client: httpx.Client, gateway: Gateway, content_type: str
) -> None:
    accepted = client.post(f"{gateway.v3}/topics", content=b"{}", headers={"Content-Type": content_type})
    assert accepted.status_code == 422


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json", 200),
        ("*/*", 200),
        ("text/html, application/*;q=0.5", 200),
        ("text/html", 406),
        ("application/json;q=0", 406),
        ("application/xml, text/*", 406),
    ],
)
def test_accept(client: httpx.Client, accept: str, status: int) -> None:
    assert client.get("/v3/clusters", headers={"Accept": accept}).status_code == status


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (b"  \n ", "empty"),
        (b'{"topic_name": "a",\n oops}', "line 2, column 2"),
        (b'{"topic_name": "a"', "line 1, column 19"),
        (b'{"topic_name": "\xff"}', "UTF-8"),
        (b'{"partitions_count": NaN}', "NaN"),
        (b'{"partitions_count": 1e999}', "1e999"),
        (b'{"topic_name": "a"} {}', "Extra data"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"topic_name": "\\ud800"}', "surrogate"),
        (b"[1]", "should be a JSON object, not an array"),
        (b"null", "should be a JSON object, not null"),
        (b"1" * 5000, "not"),
    ],
)
def test_bad_json(client: httpx.Client, gateway: Gateway, body: bytes, words: str) -> None:
    refused = client.post(f"{gateway.v3}/topics", content=body, headers=JSON)
    assert refused.status_code == 400
    assert words in message_of(refused)


# --- paths and methods ---


def test_unknown_paths(client: httpx.Client) -> None:
    for path in ("/v9/clusters", "/v3/", "/v3/clusters/", "/%2e%2e/%2e%2e/etc/passwd"):
        for method in ("GET", "POST", "DELETE"):
            refused = client.request(method, path)
            assert refused.status_code == 404, (method, path)
            message_of(refused)


def test_wrong_methods(client: httpx.Client, gateway: Gateway) -> None:
    refused = client.put(f"{gateway.v3}/topics")
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, HEAD, POST"
    assert "PUT" in message_of(refused)


def test_head_is_get_without_the_body(client: httpx.Client) -> None:
    response = client.head("/v3/clusters")
    assert (response.status_code, response.content) == (200, b"")


def test_bytes_that_are_not_http(gateway: Gateway) -> None:
    with RawConnection(gateway) as connection:
        connection.send(b"\x00\x00\x00\x12 this is another protocol\r\n\r\n")
        status, body = connection.response()
    assert (status, body["error_code"]) == (400, 400)


def test_a_name_with_a_slash(client: httpx.Client, gateway: Gateway) -> None:
    found = client.get(f"{gateway.v3}/consumer-groups/a%2Fb%20c")
    assert found.status_code == 404
    assert "a/b c" in message_of(found)


# --- load ---


def test_too_many_requests_at_once(gateway_broker: InProcessBroker) -> None:
    settings = Settings(bootstrap=gateway_broker.bootstrap, limits=Limits(requests_max=1))
    with start_gateway(settings, gateway_broker) as gateway:
        v3 = gateway.v3
        with RawConnection(gateway) as slow:
            slow.begin(f"{v3}/topics", "Content-Length: 1000", "Expect: 100-continue")
            # It is asked to go on, so it is under way.
            assert slow.more().startswith(b"HTTP/1.1 100")
            refused = gateway.client.get("/v3/clusters")
        assert (refused.status_code, refused.json()["error_code"]) == (503, 50301)
        assert int(refused.headers["retry-after"]) > 0


# --- callers ---


def check_token(headers: Headers, scope: Scope) -> str:
    match headers.get("authorization"):
        case None:
            raise Problem(401, 40101, "say who you are", {"WWW-Authenticate": "Bearer"})
        case "Bearer good":
            return "alice"
        case "Bearer broken":
            raise RuntimeError("the directory of users is gone")
    raise Problem(403, 40301, f"you may not do {scope['method']}")


async def check_token_later(headers: Headers, scope: Scope) -> str:
    return check_token(headers, scope)


@pytest.mark.parametrize("name", ["check_token", "check_token_later"])
def test_the_authentication_hook(gateway_broker: InProcessBroker, name: str) -> None:
    hook = load_authenticate(f"{__name__}:{name}")
    with start_gateway(
        Settings(bootstrap=gateway_broker.bootstrap, authenticate=hook), gateway_broker
    ) as gateway:
        client = gateway.client
        unknown = client.get("/v3/clusters")
        assert (unknown.status_code, unknown.headers["www-authenticate"]) == (401, "Bearer")
        assert message_of(unknown) == "say who you are"
        assert client.get("/v3/clusters", headers={"Authorization": "Bearer bad"}).status_code == 403
        assert client.get("/v3/clusters", headers={"Authorization": "Bearer good"}).status_code == 200
        assert client.get("/").status_code == 401
        broken = client.get("/v3/clusters", headers={"Authorization": "Bearer broken"})
        assert broken.status_code == 500
        assert "directory" not in message_of(broken)


@pytest.mark.parametrize("name", ["nothing", "no.such.module:check", f"{__name__}:no_such_function"])
def test_an_authentication_hook_that_is_not_there(name: str) -> None:
    with pytest.raises(ConfigError, match=name.partition(":")[2] or "MODULE:FUNCTION"):
        load_authenticate(name)


# --- browsers ---


def test_pages_of_other_sites_may_not_change_anything(
    client: httpx.Client, gateway: Gateway, topic: str
) -> None:
    path, body = f"{gateway.v3}/topics", {"topic_name": topic}
    for headers in (
        {"Origin": "https://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": f"http://{gateway.host}:1"},
        {"Sec-Fetch-Site": "cross-site"},
    ):
        refused = client.post(path, json=body, headers=headers)
        assert refused.status_code == 403, headers
        message_of(refused)
    assert client.get(f"{path}/{topic}").status_code == 404
    assert client.post(path, json=body, headers={"Origin": gateway.url}).status_code == 201


def test_another_name_for_this_machine_is_refused(client: httpx.Client) -> None:
    """DNS rebinding: a name of the attacker's that points at 127.0.0.1."""
    refused = client.get("/v3/clusters", headers={"Host": "elsewhere.example:8080"})
    assert refused.status_code == 403
    for host in ("localhost:8080", "127.0.0.1", "[::1]:8080"):
        assert client.get("/v3/clusters", headers={"Host": host}).status_code == 200


def test_cors_is_off_by_default(client: httpx.Client, gateway_broker: InProcessBroker) -> None:
    origin = "https://app.example"
    assert "access-control-allow-origin" not in client.get("/v3/clusters", headers={"Origin": origin}).headers
    settings = Settings(bootstrap=gateway_broker.bootstrap, allow_origins=(origin,), authenticate=check_token)
    with start_gateway(settings, gateway_broker) as gateway:
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        assert (
            gateway.client.options("/v3/clusters", headers=asked).headers["access-control-allow-origin"]
            == origin
        )
        good = {"Origin": origin, "Authorization": "Bearer good"}
        allowed = gateway.client.post("/v3/clusters/none/topics", json={}, headers=good)
        assert allowed.status_code == 404
        assert allowed.headers["access-control-allow-origin"] == origin
        other = {**good, "Origin": "https://elsewhere.example"}
        assert gateway.client.post("/v3/clusters/none/topics", json={}, headers=other).status_code == 403


def test_an_origin_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"app\.example"):
        Settings(allow_origins=("app.example",))


# --- the cluster is not there ---


def test_absent_cluster_is_an_error_at_once_and_found_again(topic: str) -> None:
    with (
        InProcessBroker() as broker,
        # A caller that had to wait for the whole timeout would give up before.
        start_gateway(Settings(bootstrap=broker.bootstrap, timeout_s=10 * HTTP_TIMEOUT_S), broker) as gateway,
    ):
        broker.create_topic(topic)
        v3, client = gateway.v3, gateway.client
        records = f"{v3}/topics/{topic}/records"
        assert client.post(records, json={}).json()["offset"] == 0
        broker.stop()
        for method, path in (("GET", "/v3/clusters"), ("GET", f"{v3}/topics"), ("POST", records)):
            refused = client.request(method, path, json={})
            assert (refused.status_code, refused.json()["error_code"]) == (503, 50301)
            assert "retry-after" in refused.headers
            assert broker.bootstrap in message_of(refused)
        broker.start()
        assert client.get(f"{v3}/topics/{topic}").status_code == 200
        assert client.post(records, json={}).json()["offset"] == 1


def test_a_gateway_may_start_before_its_cluster() -> None:
    with InProcessBroker() as broker:
        broker.stop()
        with start_gateway(Settings(bootstrap=broker.bootstrap), broker) as gateway:
            assert gateway.client.get("/v3/clusters").status_code == 503
            broker.start()
            assert gateway.client.get("/v3/clusters").status_code == 200
            assert gateway.client.post(f"{gateway.v3}/topics", json={"topic_name": "late"}).status_code == 201
