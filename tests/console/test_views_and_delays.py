"""Views and delayed messages in a real browser: seen, created, changed, cancelled, by keyboard and on a small screen."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import make_topic
from tidemill.client.admin.delays import DelayAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.views import ViewAdmin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import fetch_range
from tidemill.types import TopicPartition

DELAYS = {"tidemill.delays.enable": "true"}


@pytest.fixture
def later(kafka: Broker, topic: str) -> str:
    """A topic in which three messages wait, with the keys ann, bob and eve in the order of their times."""
    with Cluster(kafka.bootstrap) as cluster:
        Admin(cluster).create_topic(topic, partition_count=1, configs=DELAYS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b'{"mail": 1}', key="bob", headers={"tidemill-delay": "2h"})
    producer.produce(topic, b"tea", key="ann", headers={"tidemill-delay": "1h"})
    schedule: dict[str, str | bytes | None] = {
        "tidemill-schedule": "@every 10h",
        "tidemill-schedule-id": "report",
    }
    producer.produce(topic, b"report", key="eve", headers=schedule)
    assert producer.flush(30) == 0
    return topic


def waiting(kafka: Broker, topic: str) -> list[bytes | None]:
    with Cluster(kafka.bootstrap) as cluster:
        return [message.key for message in DelayAdmin(cluster).pending(topic).messages]


def test_what_waits_is_shown_on_a_time_line_and_cancelled(
    console: ConsolePage, kafka: Broker, later: str
) -> None:
    console.go(f"topics/{later}")
    console.page.get_by_role("link", name="Waiting").click()
    rows = console.rows(f"Waiting in {later}")
    expect(rows).to_have_count(3)
    for row, key in zip(rows.all(), ("ann", "bob", "eve"), strict=True):
        expect(row).to_contain_text(key)
    expect(rows.nth(2)).to_contain_text("@every 10h UTC")
    expect(rows.nth(2)).to_contain_text("report")
    expect(console.page.locator("figcaption")).to_contain_text("3 messages wait; the next is due in")
    assert console.page.locator(".time-bar[title]").count() == 3

    rows.nth(0).get_by_role("button", name="Cancel the message").click()
    expect(console.dialog).to_contain_text("ann")
    console.dialog.get_by_role("button", name="Cancel message", exact=True).click()
    expect(rows).to_have_count(2)
    assert waiting(kafka, later) == [b"bob", b"eve"]


def test_a_message_gets_another_time_by_keyboard_alone(
    console: ConsolePage, kafka: Broker, later: str
) -> None:
    console.go(f"topics/{later}")
    expect(console.page.get_by_role("link", name="Waiting")).to_be_visible()
    console.page.keyboard.press("5")
    rows = console.rows(f"Waiting in {later}")
    expect(rows).to_have_count(3)
    rows.first.focus()
    console.page.keyboard.press("Enter")
    expect(console.dialog.get_by_label("Deliver after")).to_be_focused()
    console.page.keyboard.type("soon")
    console.page.keyboard.press("Enter")
    console.expected_messages.append("400")
    expect(console.dialog.get_by_role("alert")).to_contain_text("tidemill-delay")
    console.dialog.get_by_label("Deliver after").fill("5d")
    console.page.keyboard.press("Enter")
    expect(console.dialog).to_have_count(0)
    expect(rows.nth(2)).to_contain_text("ann")
    assert waiting(kafka, later) == [b"bob", b"eve", b"ann"]


def test_a_topic_without_delays_has_no_such_tab(console: ConsolePage, kafka: Broker, topic: str) -> None:
    make_topic(kafka, topic)
    console.go(f"topics/{topic}")
    expect(console.rows(f"Partitions of {topic}")).to_have_count(1)
    expect(console.page.get_by_role("link", name="Waiting")).to_be_hidden()


def test_a_view_is_created_changed_and_deleted(console: ConsolePage, kafka: Broker, topic: str) -> None:
    make_topic(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for region in ("eu", "us", "us", "us"):
        producer.produce(topic, region.encode(), headers={"region": region})
    assert producer.flush(30) == 0
    view = f"{topic[:60]}-eu"
    console.go("views")
    console.page.keyboard.press("c")
    expect(console.dialog.get_by_label("Name")).to_be_focused()
    console.dialog.get_by_label("Name").fill(view)
    console.dialog.get_by_label("From the topic").fill(topic)
    console.dialog.get_by_label("Filter").fill("region =")
    console.expected_messages.append("400")
    console.dialog.get_by_role("button", name="Create view", exact=True).click()
    expect(console.dialog.get_by_role("alert")).not_to_be_empty()
    console.dialog.get_by_label("Filter").fill("region = 'eu'")
    console.dialog.get_by_role("button", name="Create view", exact=True).click()
    row = console.row("Views of topics", view)
    expect(row).to_contain_text("region = 'eu'")

    # What it looks through and shows.
    with Cluster(kafka.bootstrap) as cluster:
        list(fetch_range(cluster, TopicPartition(view, 0), 0, 4))
    expect(row).to_contain_text("1 (25 %)")

    row.get_by_role("button", name=f"Change the filter of {view}").click()
    expect(console.dialog.get_by_label("Filter")).to_have_value("region = 'eu'")
    console.dialog.get_by_label("Filter").fill("region exists")
    console.dialog.get_by_role("button", name="Save", exact=True).click()
    expect(row).to_contain_text("region exists")
    with Cluster(kafka.bootstrap) as cluster:
        assert ViewAdmin(Admin(cluster)).describe(view).filter == "region exists"

    row.get_by_role("link", name=view).click()
    expect(console.rows(f"Messages of {view}")).to_have_count(4)
    expect(console.page.locator(".figures")).to_contain_text(f"view of {topic}")

    console.go("views")
    row.get_by_role("button", name=f"Delete {view}").click()
    expect(console.dialog).to_contain_text("stay")
    console.dialog.get_by_role("button", name="Delete view", exact=True).click()
    expect(row).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_both_fit_a_small_screen(
    open_console: Callable[..., ConsolePage], kafka: Broker, later: str, theme: str
) -> None:
    with Cluster(kafka.bootstrap) as cluster:
        ViewAdmin(Admin(cluster)).create(
            f"{later[:60]}-view", later, "region = 'a very long name of a region'"
        )
    console = open_console(viewport={"width": 400, "height": 800}, color_scheme=theme)
    for place in ("views", f"topics/{later}/waiting"):
        console.go(place)
        rows = console.page.locator("main tbody tr:not(.spacer)")
        expect(rows.first).to_be_visible()
        assert console.page.evaluate("document.documentElement.scrollWidth") <= 400
        for button in rows.first.get_by_role("button").all():
            box = button.bounding_box()
            assert box is not None
            assert box["x"] + box["width"] <= 400
    rows.first.get_by_role("button", name="Cancel the message").click()
    box = console.dialog.bounding_box()
    assert box is not None
    assert 0 <= box["x"] <= box["x"] + box["width"] <= 400
