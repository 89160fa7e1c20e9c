"""Large payloads over HTTP: stored on the way in, resolved on the way out, refused by name when that is not possible."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.conftest import HTTP_TIMEOUT_S, Gateway, start_gateway
from tidemill import Client
from tidemill.claims.claim import Claim
from tidemill.claims.large_payloads import LargePayloads
from tidemill.gateway.settings import Settings
from tidemill.objects.folder import FolderStore
from tidemill.objects.store import OpenObject
from tidemill.testing import InProcessBroker

LARGE = "large " * 50


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    root.mkdir()
    return root


@pytest.fixture
def large(root: Path) -> LargePayloads:
    return LargePayloads(str(root), threshold_bytes=100, limit_bytes=1000)


@pytest.fixture(scope="module")
def broker() -> Iterator[InProcessBroker]:
    with InProcessBroker() as broker:
        yield broker


@pytest.fixture
def storing(broker: InProcessBroker, large: LargePayloads) -> Iterator[Gateway]:
    with start_gateway(Settings(bootstrap=broker.bootstrap, large_payloads=large), broker) as gateway:
        yield gateway


@pytest.fixture
def scans(broker: InProcessBroker, request: pytest.FixtureRequest) -> str:
    return broker.create_topic(request.node.name[:200])


def read(gateway: Gateway, topic: str, start: str = "earliest", status: int = 200) -> Any:
    answer = gateway.client.get(f"/v1/topics/{topic}/records", params={"from": start})
    assert answer.status_code == status, answer.text
    return answer.json()


def produce(gateway: Gateway, topic: str, *records: object) -> None:
    answer = gateway.client.post(f"/v1/topics/{topic}/produce", json={"records": list(records)})
    assert answer.status_code == 200, answer.text


def publish_claims(broker: InProcessBroker, topic: str, *claims: Claim) -> None:
    with Client(broker.bootstrap) as client:
        for claim in claims:
            client.publish(topic, b"", headers=claim.headers())


class _SilentStore(FolderStore):
    """Gives no answer to reads until it is released."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.answers = threading.Event()
        self.asked = threading.Semaphore(0)

    @contextmanager
    def open(self, key: str) -> Iterator[OpenObject]:
        self.asked.release()
        self.answers.wait()
        with super().open(key) as found:
            yield found


def test_store_that_gives_no_answer_holds_up_no_other_requests(
    broker: InProcessBroker, scans: str, root: Path
) -> None:
    store, other = _SilentStore(root), broker.create_topic("without-claims")
    settings = Settings(
        bootstrap=broker.bootstrap, large_payloads=LargePayloads(store, threshold_bytes=100, limit_bytes=1000)
    )
    with start_gateway(settings, broker) as gateway, ThreadPoolExecutor(30) as callers:
        produce(gateway, scans, {"value": "small"}, {"value": LARGE})
        produce(gateway, other, {"value": "small"})
        reads = [callers.submit(read, gateway, scans) for _ in range(2 * settings.limits.asks_max)]
        paths = [f"/console/api/topics/{scans}/messages/0/1/value"] * 8
        downloads = [callers.submit(gateway.client.get, path) for path in paths]
        try:
            for _ in range(4):
                assert store.asked.acquire(timeout=HTTP_TIMEOUT_S)
            assert [each["value"] for each in read(gateway, other)["records"]] == ["small"]
        finally:
            store.answers.set()
        for answer in reads:
            assert [each["value"] for each in answer.result()["records"]] == ["small", LARGE]
        assert {answer.result().json() for answer in downloads} == {LARGE}


def test_value_above_the_threshold_is_stored_and_read_back_in_order_with_its_headers(
    storing: Gateway, broker: InProcessBroker, scans: str, root: Path
) -> None:
    values = ["small", LARGE, "small again"]
    produce(storing, scans, *({"key": "k", "value": each, "headers": {"trace": "1"}} for each in values))
    records = read(storing, scans)["records"]
    assert [each["value"] for each in records] == values
    assert {str(each["headers"]) for each in records} == {"{'trace': '1'}"}
    assert len([path for path in root.rglob("*") if path.is_file()]) == 1
    metrics = storing.client.get("/metrics").text
    assert "tidemill_gateway_payloads_stored_total 1\n" in metrics
    assert "tidemill_gateway_payloads_read_total 1\n" in metrics


def test_v3_and_v2_store_and_v2_consumers_resolve(storing: Gateway, scans: str, root: Path) -> None:
    value = {"type": "STRING", "data": LARGE}
    answer = storing.client.post(f"{storing.v3}/topics/{scans}/records", json={"value": value})
    assert answer.status_code == 200, answer.text
    v2 = {"Content-Type": "application/vnd.kafka.json.v2+json"}
    answer = storing.client.post(f"/topics/{scans}", json={"records": [{"value": LARGE + "2"}]}, headers=v2)
    assert answer.status_code == 200, answer.text
    assert len([path for path in root.rglob("*") if path.is_file()]) == 2
    plain = {"Content-Type": "application/vnd.kafka.v2+json"}
    created = storing.client.post(
        f"/consumers/{scans}",
        json={"name": "one", "format": "binary", "auto.offset.reset": "earliest"},
        headers=plain,
    ).json()["base_uri"]
    storing.client.post(f"{created}/subscription", json={"topics": [scans]}, headers=plain)
    records: list[Any] = []
    accept = {"Accept": "application/vnd.kafka.binary.v2+json"}
    for _ in range(50):
        records += storing.client.get(f"{created}/records?timeout=500", headers=accept).json()
        if len(records) == 2:
            break
    import base64

    texts = [base64.b64decode(each["value"]).decode() for each in records]
    assert texts == [LARGE, f'"{LARGE}2"']
    storing.client.delete(created, headers=plain)


def test_bad_claim_is_refused_by_name_after_the_records_before_it_and_the_next_offset_can_be_read(
    storing: Gateway, broker: InProcessBroker, scans: str, large: LargePayloads
) -> None:
    good, gone = large.put(scans, b"good" * 50), large.put(scans, b"gone" * 50)
    Path(gone.uri.removeprefix("file://")).unlink()
    forged = Claim(f"https://evil.example/{good.uri[-80:]}", good.size, good.sha256)
    huge = Claim(good.uri, 5 * 1024**3, good.sha256)
    publish_claims(broker, scans, good, gone, forged, huge, good)
    page = read(storing, scans)
    assert [each["offset"] for each in page["records"]] == [0]
    assert page["next"] == "0:1"
    for offset, status, text in (
        (1, 409, "is gone"),
        (2, 409, "nothing was fetched"),
        (3, 413, "5368709120"),
    ):
        problem = read(storing, scans, f"0:{offset}", status)
        assert problem["message"].startswith(f"{scans}-0 at offset {offset}: ")
        assert text in problem["message"]
    assert len(read(storing, scans, "0:4")["records"]) == 1


def test_console_shows_claims_and_loads_payloads_on_demand(
    storing: Gateway, broker: InProcessBroker, scans: str, large: LargePayloads
) -> None:
    good, gone = large.put(scans, b"good" * 50), large.put(scans, b"gone" * 50)
    Path(gone.uri.removeprefix("file://")).unlink()
    publish_claims(broker, scans, good, gone)
    path = f"/console/api/topics/{scans}/messages"
    rows = storing.client.get(path, params={"from": "earliest"}).json()["items"]
    first = next(each for each in rows if each["offset"] == 0)
    assert (first["claim"]["uri"], first["value"]["kind"], first["value_bytes"]) == (good.uri, "cut", 200)
    assert storing.client.get(f"{path}/0/0/value").content == b"good" * 50
    refused = storing.client.get(f"{path}/0/1/value")
    assert refused.status_code == 409
    assert f"{scans}-0 at offset 1: " in refused.json()["message"]


def test_gateway_without_a_store_refuses_a_claim_and_never_shows_it_as_empty(
    broker: InProcessBroker, scans: str, large: LargePayloads
) -> None:
    publish_claims(broker, scans, large.put(scans, b"x" * 200))
    with start_gateway(Settings(bootstrap=broker.bootstrap), broker) as gateway:
        assert "--large-payloads" in read(gateway, scans, status=409)["message"]


def test_store_that_is_down_is_503_at_produce_and_at_read(
    storing: Gateway, scans: str, root: Path, tmp_path: Path
) -> None:
    produce(storing, scans, {"value": LARGE})
    root.rename(tmp_path / "unmounted")
    answer = storing.client.post(f"/v1/topics/{scans}/produce", json={"value": LARGE})
    assert answer.status_code == 503
    assert "its record not sent" in answer.json()["message"]
    read(storing, scans, status=503)
    (tmp_path / "unmounted").rename(root)
    assert len(read(storing, scans)["records"]) == 1


def test_headers_of_claims_are_refused_beside_a_large_value(storing: Gateway, scans: str) -> None:
    record = {"value": LARGE, "headers": {"tidemill-claim-size": "5"}}
    assert storing.client.post(f"/v1/topics/{scans}/produce", json=record).status_code == 400
