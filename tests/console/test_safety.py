"""What others wrote stays text, whatever it is: no part of a record, a name or an error becomes part of the page."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import Consumer, Producer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage, Gateway
from tests.console.kafka_side import make_topic, read

ATTACK = "<img src=x onerror='window.isOwned=1'><script>window.isOwned=1</script>"


@pytest.fixture
def attacked(kafka: Broker, topic: str) -> Iterator[str]:
    """A topic and a group that are full of markup."""
    make_topic(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, ATTACK, key=ATTACK, headers=[(ATTACK, ATTACK.encode())])
    producer.produce(topic, '{"' + ATTACK.replace('"', "") + '": ["' + ATTACK + '"]}', key=b"json")
    assert producer.flush(30) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": f"{topic}{ATTACK}",
            "client.id": ATTACK,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    read(consumer, 1)
    yield topic
    consumer.close()


def check_untouched(console: ConsolePage) -> None:
    assert console.page.evaluate("window.isOwned") is None
    assert console.page.locator("main img, main script, dialog img, dialog script").count() == 0


def test_markup_in_records_and_names_is_text(console: ConsolePage, attacked: str) -> None:
    console.go(f"topics/{attacked}/messages")
    rows = console.rows(f"Messages of {attacked}")
    expect(rows).to_have_count(2)
    rows.filter(has_text="json").click()
    record = console.page.get_by_role("complementary", name="Record")
    expect(record.get_by_label("Value", exact=True)).to_contain_text(ATTACK)
    rows.last.click()
    expect(record.get_by_label("Value", exact=True)).to_have_text(ATTACK)
    expect(record.get_by_label("Key", exact=True)).to_have_text(ATTACK)
    expect(record.locator("th")).to_have_text(ATTACK)
    check_untouched(console)

    console.go("groups")
    link = console.row("Consumer groups", attacked).get_by_role("link")
    expect(link).to_have_text(attacked + ATTACK)
    link.click()
    expect(console.heading).to_have_text(attacked + ATTACK)
    expect(console.row(f"Members of {attacked}{ATTACK}", ATTACK)).to_be_visible()
    check_untouched(console)


def test_markup_in_addresses_and_errors_is_text(console: ConsolePage, topic: str) -> None:
    console.expected_messages.append("status of 4")
    console.go("overview")
    for place in (f"topics/{ATTACK}", f"groups/{ATTACK}", f"{ATTACK}/x"):
        console.page.evaluate(
            "place => { location.hash = '#/' + place.split('/').map(encodeURIComponent).join('/') }", place
        )
        expect(console.page.locator("main .problem, main .empty").first).to_be_visible()
        check_untouched(console)
    console.go("topics")
    console.button("Create topic").click()
    console.dialog.get_by_label("Name").fill(ATTACK)
    console.dialog.get_by_role("button", name="Create topic").click()
    expect(console.dialog.get_by_role("alert")).to_contain_text("<img")
    check_untouched(console)


def test_content_security_policy_allows_only_own_files(console: ConsolePage, gateway: Gateway) -> None:
    answer = httpx.get(gateway.url)
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    console.go("overview")
    console.expected_messages.append("Content Security Policy")
    console.page.evaluate(
        """() => {
            const script = document.createElement("script");
            script.textContent = "window.isOwned = 1";
            document.body.append(script);
        }"""
    )
    assert console.page.evaluate("window.isOwned") is None
