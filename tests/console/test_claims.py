"""Large payloads in a real browser: where they are, how large, and loaded when a user wants to see them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage, Gateway
from tests.console.kafka_side import make_topic
from tidemill.claims.claim import Claim
from tidemill.claims.large_payloads import LargePayloads


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> LargePayloads:
    return LargePayloads(str(tmp_path_factory.mktemp("store")))


@pytest.fixture(scope="module")
def gateway(kafka: Broker, large: LargePayloads) -> Iterator[Gateway]:
    gateway = Gateway(kafka.bootstrap, large_payloads=large)
    gateway.start()
    yield gateway
    gateway.stop()


def publish(kafka: Broker, topic: str, key: str, claim: Claim) -> None:
    headers: list[tuple[str, str | bytes | None]] = list(claim.headers())
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"", key=key, headers=headers)
    assert producer.flush(30) == 0


def test_a_claim_says_where_its_payload_is_and_loads_it_on_demand(
    console: ConsolePage, kafka: Broker, topic: str, large: LargePayloads
) -> None:
    make_topic(kafka, topic)
    claim = large.put(topic, b"all of the scan " * 5_000)
    publish(kafka, topic, "scan", claim)
    console.go(f"topics/{topic}/messages")
    rows = console.rows(f"Messages of {topic}")
    expect(rows.first).to_contain_text("claim: 78.1 KB in an object store")
    rows.first.click()
    note = console.page.locator(".cut-note")
    expect(note).to_contain_text(f"The payload is in an object store: {claim.uri}")
    expect(console.page.locator(".part-head").filter(has_text="Value")).to_contain_text("78.1 KB")
    note.get_by_role("button", name="Load the whole value").click()
    expect(console.page.locator(".payload").last).to_contain_text("all of the scan all of the scan")
    expect(note).to_have_count(0)


def test_a_claim_whose_object_is_gone_is_named_where_it_is_opened(
    console: ConsolePage, kafka: Broker, topic: str, large: LargePayloads
) -> None:
    make_topic(kafka, topic)
    claim = large.put(topic, b"gone " * 1_000)
    Path(claim.uri.removeprefix("file://")).unlink()
    publish(kafka, topic, "scan", claim)
    console.go(f"topics/{topic}/messages")
    console.rows(f"Messages of {topic}").first.click()
    console.expected_messages.append("409")
    console.button("Load the whole value").click()
    expect(console.page.locator(".problem")).to_contain_text(f"{topic}-0 at offset 0: {claim.uri} is gone")


def test_a_claim_that_does_not_parse_is_named_and_not_shown_as_empty(
    console: ConsolePage, kafka: Broker, topic: str
) -> None:
    make_topic(kafka, topic)
    publish(kafka, topic, "scan", Claim("s3://elsewhere", 5, "no hash"))
    console.go(f"topics/{topic}/messages")
    rows = console.rows(f"Messages of {topic}")
    expect(rows.first).to_contain_text("claim that cannot be resolved")
    rows.first.click()
    expect(console.page.locator(".cut-note")).to_contain_text(f"{topic}-0 at offset 0: the header")
