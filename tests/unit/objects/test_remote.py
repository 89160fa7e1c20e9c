"""Buckets, against an S3 server on this machine. `make object-store` installs what it needs."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tidemill.errors import ConfigError
from tidemill.objects.store import ObjectNotFound, ObjectStore, StoreUnavailable, open_store

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'tidemill[claims]'")

KEY = "orders/2026-11-17/" + "ab" * 32
MIB = 1024 * 1024


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


def test_options_that_obstore_does_not_know_are_refused() -> None:
    with pytest.raises(ConfigError, match="object store s3://claims"):
        open_store("s3://claims", no_such_option="x")
