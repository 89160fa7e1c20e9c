"""Buckets, against an S3 server on this machine. `make object-store` installs what it needs."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from tidemill.claims.claim import Claim, Place
from tidemill.claims.errors import ClaimCorrupt, ClaimMissing
from tidemill.claims.large_payloads import LargePayloads
from tidemill.claims.sweep import Standing, Sweep
from tidemill.errors import ConfigError
from tidemill.objects.opening import open_store
from tidemill.objects.store import ObjectNotFound, ObjectStore, StoreUnavailable

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'tidemill[claims]'")

KEY = "orders/2026-11-17/" + "ab" * 32
MIB = 1024 * 1024
PLACE = Place("orders", 3, 17)


def bucket(endpoint: str, name: str) -> ObjectStore:
    return open_store(
        f"s3://{name}",
        endpoint=endpoint,
        access_key_id="test",
        secret_access_key="test",
        region="us-east-1",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    pytest.importorskip("moto.server", reason="no S3 server on this machine: make object-store")
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    client = boto3.client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="test",
        aws_secret_access_key="test",
    )
    client.create_bucket(Bucket="claims")
    yield url
    server.stop()


@pytest.fixture
def store(endpoint: str, request: pytest.FixtureRequest) -> ObjectStore:
    return bucket(endpoint, f"claims/{request.node.name}")


def content(store: ObjectStore, key: str = KEY) -> bytes:
    with store.open(key) as found:
        data = b"".join(found.chunks)
        assert found.size == len(data)
        return data


def test_put_object_is_read_listed_and_deleted(store: ObjectStore) -> None:
    assert store.put_if_absent(KEY, [b"one", b"two"])
    assert content(store) == b"onetwo"
    assert store.size(KEY) == 6
    assert [(each.key, each.size) for each in store.list()] == [(KEY, 6)]
    assert [each.key for each in store.list("orders/2026-11-17")] == [KEY]
    assert list(store.list("others")) == []
    store.delete(KEY)
    store.delete(KEY)
    assert list(store.list()) == []
    with pytest.raises(ObjectNotFound), store.open(KEY):
        pass
    with pytest.raises(ObjectNotFound):
        store.size(KEY)


@pytest.mark.parametrize("size", [10, 9 * MIB])
def test_second_put_leaves_the_first_object_also_in_parts(store: ObjectStore, size: int) -> None:
    assert store.put_if_absent(KEY, (b"1" * 10 for _ in range(size // 10)))
    assert not store.put_if_absent(KEY, (b"2" * 10 for _ in range(size // 10)))
    assert content(store) == b"1" * (size // 10 * 10)


def test_of_two_writers_at_once_one_puts_and_both_read_the_same(store: ObjectStore) -> None:
    results: list[bool] = []
    start = threading.Barrier(4)

    def put() -> None:
        start.wait()
        results.append(store.put_if_absent(KEY, [b"same"]))

    writers = [threading.Thread(target=put) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(results) == 4
    assert any(results)
    assert content(store) == b"same"


def test_bucket_that_is_not_there_and_a_server_that_is_down_are_unavailable(endpoint: str) -> None:
    with pytest.raises(StoreUnavailable):
        bucket("http://127.0.0.1:1", "claims").put_if_absent(KEY, [b"x"])
    with pytest.raises(StoreUnavailable), bucket("http://127.0.0.1:1", "claims").open(KEY):
        pass
    with pytest.raises((StoreUnavailable, ObjectNotFound)):
        bucket(endpoint, "no-such-bucket").put_if_absent(KEY, [b"x"])


# What large payloads make of a bucket.


def test_payload_in_a_bucket_is_read_back_and_a_missing_or_changed_object_is_named(
    store: ObjectStore,
) -> None:
    large = LargePayloads(store, threshold_bytes=0)
    claim = large.put("orders", b"x" * 1000)
    assert large.put("orders", b"x" * 1000) == claim
    assert large.read(claim, PLACE) == b"x" * 1000
    key = claim.uri.removeprefix(f"{store.uri}/")
    store.delete(key)
    with pytest.raises(ClaimMissing, match="orders-3 at offset 17"):
        large.read(claim, PLACE)
    for content, problem in ((b"y" * 1000, "SHA-256"), (b"x" * 999, "has 999 bytes")):
        store.put_if_absent(key, [content])
        with pytest.raises(ClaimCorrupt, match=problem):
            large.read(claim, PLACE)
        store.delete(key)


def test_stream_of_several_parts_is_put_and_read_back(store: ObjectStore) -> None:
    large = LargePayloads(store)
    claim = large.put_stream("orders", (bytes([number]) * MIB for number in range(20)))
    assert isinstance(claim, Claim)
    assert claim.size == 20 * MIB
    assert sum(len(chunk) for chunk in large.chunks(claim, PLACE)) == 20 * MIB


def test_sweep_of_a_bucket_finds_what_no_record_refers_to(store: ObjectStore) -> None:
    large = LargePayloads(store, wall_ms=lambda: 0)
    kept, gone = large.put("orders", b"kept"), large.put("orders", b"gone")
    later_ms = int(time.time() * 1000) + 10 * 24 * 3_600_000
    sweep = Sweep(topics={"orders"}, wall_ms=later_ms)
    for each in store.list():
        assert sweep.consider(each) is Standing.CANDIDATE
    sweep.refer(kept.headers())
    for each in sweep.removable:
        store.delete(each.key)
    assert large.read(kept, PLACE) == b"kept"
    with pytest.raises(ClaimMissing):
        large.read(gone, PLACE)


class _Ranges(http.server.BaseHTTPRequestHandler):
    """An object of several parts. The time of a request is over, as it were, when two parts of it were sent."""

    protocol_version = "HTTP/1.1"
    part, content = 8 * MIB, bytes(20 * MIB)

    def do_GET(self) -> None:
        first, end = 0, len(self.content)
        if wanted := self.headers["range"]:
            first, last = map(int, wanted.removeprefix("bytes=").split("-"))
            end = last + 1
        self.send_response(206 if wanted else 200)
        self.send_header("content-length", str(end - first))
        self.send_header("content-range", f"bytes {first}-{end - 1}/{len(self.content)}")
        self.send_header("etag", '"1"')
        self.send_header("last-modified", "Tue, 17 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.close_connection = True
        with contextlib.suppress(ConnectionError):
            self.wfile.write(self.content[first : min(end, first + 2 * self.part)])

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("recorder", [_Ranges], indirect=True)
def test_large_object_is_read_although_no_request_lasts_for_all_of_it(
    recorder: http.server.ThreadingHTTPServer,
) -> None:
    store = bucket(f"http://127.0.0.1:{recorder.server_port}", "claims")
    sha256 = hashlib.sha256(_Ranges.content).hexdigest()
    claim = Claim(f"{store.uri}/orders/2026-11-17/{sha256}", len(_Ranges.content), sha256)
    assert sum(len(chunk) for chunk in LargePayloads(store).chunks(claim, PLACE)) == len(_Ranges.content)


@pytest.mark.parametrize("recorder", [_Ranges], indirect=True)
def test_environment_says_how_a_bucket_is_reached(
    recorder: http.server.ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line, the gateway and Spark have no other place for options."""
    environment = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{recorder.server_port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with open_store("s3://claims").open(KEY) as found:
        assert found.size == len(_Ranges.content)


# Google Cloud Storage and Azure: no server of theirs runs here, so this is what goes over the wire.


class _Recorder(http.server.BaseHTTPRequestHandler):
    """Takes the first put, and answers that a second one finds the object there."""

    puts: ClassVar[list[dict[str, str]]]

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.puts.append({name.lower(): value for name, value in self.headers.items()})
        self.send_response(201 if len(self.puts) == 1 else 412)
        self.send_header("etag", '"1"')
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def recorder(request: pytest.FixtureRequest) -> Iterator[http.server.ThreadingHTTPServer]:
    handler = type("Recorder", (getattr(request, "param", _Recorder),), {"puts": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _google(url: str) -> ObjectStore:
    account = {
        "gcs_base_url": url,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return open_store("gs://claims/prefix", service_account_key=json.dumps(account), **_LOCAL)


def _azure(url: str) -> ObjectStore:
    key = base64.b64encode(b"key").decode()
    return open_store(
        "az://claims/prefix", endpoint=f"{url}/account", account_name="account", account_key=key, **_LOCAL
    )


_LOCAL = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}


@pytest.mark.parametrize(
    ("opened", "header", "value"),
    [(_google, "x-goog-if-generation-match", "0"), (_azure, "if-none-match", "*")],
)
def test_put_to_google_and_azure_is_conditional_on_the_absence_of_the_object(
    recorder: http.server.ThreadingHTTPServer, opened: Callable[[str], ObjectStore], header: str, value: str
) -> None:
    store = opened(f"http://127.0.0.1:{recorder.server_port}")
    assert store.put_if_absent(KEY, [b"x"])
    assert not store.put_if_absent(KEY, [b"x"])
    puts = recorder.RequestHandlerClass.puts  # type: ignore[attr-defined]
    assert [put[header] for put in puts] == [value, value]


def test_locations_of_google_and_azure_are_taken_without_a_connection() -> None:
    assert open_store("gs://claims/prefix").uri == "gs://claims/prefix"
    assert open_store("az://claims/prefix", account_name="account").uri == "az://claims/prefix"
    abfss = "abfss://claims@account.dfs.core.windows.net/prefix"
    assert open_store(abfss).uri == abfss
    with pytest.raises(ConfigError, match=r"object store az://claims/prefix: .*Account must be specified"):
        open_store("az://claims/prefix")


def test_options_that_obstore_does_not_know_are_refused() -> None:
    with pytest.raises(ConfigError, match="object store s3://claims"):
        open_store("s3://claims", no_such_option="x")
