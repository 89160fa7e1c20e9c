"""The way of a first day: create a topic, produce, browse, watch a group's lag fall, configure, delete."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer
from playwright.sync_api import Route, expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import read, write


@pytest.fixture
def consumer(kafka: Broker, topic: str) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": f"{topic}-readers",
            "client.id": "reader-1",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    yield consumer
    consumer.close()


def create(console: ConsolePage, topic: str, partitions: int = 1) -> None:
    console.go("topics")
    console.button("Create topic").click()
    dialog = console.dialog
    dialog.get_by_label("Name").fill(topic)
    dialog.get_by_label("Partitions").fill(str(partitions))
    dialog.get_by_role("button", name="Add a configuration").click()
    dialog.get_by_label("Configuration", exact=True).fill("retention.ms")
    dialog.get_by_label("Value", exact=True).fill("86400000")
    dialog.get_by_role("button", name="Create topic").click()
    expect(console.heading).to_have_text(topic)


def test_create_produce_and_browse(console: ConsolePage, topic: str) -> None:
    create(console, topic, partitions=3)
    assert console.place == f"topics/{topic}/messages"
    expect(console.page.get_by_text("No records here yet.")).to_be_visible()

    order = {"order_id": 9007199254740993, "items": [{"sku": "A-1", "n": 2}], "paid": True, "note": None}
    console.button("Produce").click()
    console.dialog.get_by_label("Key", exact=True).fill("order-1017")
    console.dialog.get_by_label("Value", exact=True).fill(json.dumps(order))
    console.dialog.get_by_role("button", name="Add a header").click()
    console.dialog.get_by_label("Header", exact=True).fill("trace-id")
    console.dialog.get_by_label("Value", exact=True).last.fill("4bf92f35")
    console.dialog.get_by_role("button", name="Produce").click()
    expect(console.page.get_by_text(re.compile(r"Written to partition \d at offset 0\."))).to_be_visible()

    # The record that was written is opened, as it is in the log.
    record = console.page.get_by_role("complementary", name="Record")
    expect(record.get_by_label("Key", exact=True)).to_have_text("order-1017")
    assert record.get_by_label("Value", exact=True).text_content() == json.dumps(order, indent=2)
    expect(record.get_by_role("row", name="trace-id")).to_contain_text("4bf92f35")

    # A reload keeps the place, and the partition that got it is found in the partitions' table.
    console.page.reload()
    expect(console.rows(f"Messages of {topic}")).to_have_count(1)
    console.page.get_by_role("link", name="Partitions", exact=True).click()
    expect(console.rows(f"Partitions of {topic}")).to_have_count(3)
    console.page.go_back()
    expect(console.rows(f"Messages of {topic}")).to_have_count(1)


def test_the_lag_of_a_group_falls_while_it_is_watched(
    console: ConsolePage, kafka: Broker, topic: str, consumer: Consumer
) -> None:
    create(console, topic)
    write(kafka, topic, [b"%d" % number for number in range(40)])
    consumer.subscribe([topic])
    read(consumer, 10)

    group = f"{topic}-readers"
    console.go(f"groups?q={group}")
    expect(console.row("Consumer groups", group)).to_contain_text("30")
    console.row("Consumer groups", group).get_by_role("link").click()
    lag = console.page.locator("[data-lag]")
    expect(lag).to_have_text("30")
    expect(console.row(f"Lag of {group} by partition", topic)).to_contain_text("reader-1")
    expect(console.row(f"Members of {group}", "reader-1")).to_contain_text(f"{topic} 0")
    expect(console.row(f"Rebalances of {group}", "joined")).to_be_visible()

    console.page.evaluate("window.isTheSamePage = true")
    read(consumer, 30)
    expect(lag).to_have_text("0")
    write(kafka, topic, [b"late"] * 7)
    expect(lag).to_have_text("7")
    assert console.page.evaluate("window.isTheSamePage")
    expect(console.page.get_by_role("img", name=re.compile("^Lag: records behind 7"))).to_be_visible()

    console.go("rebalances")
    expect(console.row("Rebalances", group).first).to_contain_text("joined")
    console.go(f"topics/{topic}/groups")
    expect(console.row(f"Groups of {topic}", group)).to_be_visible()


def test_configuration_is_changed_refused_and_reset(console: ConsolePage, topic: str) -> None:
    create(console, topic)
    console.page.get_by_role("link", name="Configuration", exact=True).click()
    console.page.get_by_label("Search configuration").fill("retention.ms")
    row = console.rows(f"Configuration of {topic}").filter(
        has=console.page.get_by_text("retention.ms", exact=True)
    )
    expect(row).to_contain_text("86400000")
    expect(row).to_contain_text("this topic")

    # What the broker refuses is said in the dialog, in its words.
    console.expected_messages.append("status of 4")
    console.button("Edit retention.ms").click()
    value = console.dialog.get_by_label("Value")
    expect(value).to_have_value("86400000")
    value.fill("soon")
    console.dialog.get_by_role("button", name="Save").click()
    expect(console.dialog.get_by_role("alert")).to_contain_text("retention.ms")
    value.fill("3600000")
    console.dialog.get_by_role("button", name="Save").click()
    expect(console.dialog).to_have_count(0)
    expect(row).to_contain_text("3600000")

    console.button("Reset retention.ms").click()
    console.dialog.get_by_role("button", name="Reset").click()
    expect(row).to_contain_text("604800000")
    expect(row).to_contain_text("default")


def test_a_topic_is_deleted_by_typing_its_name(console: ConsolePage, topic: str) -> None:
    create(console, topic)
    console.button("Delete…").click()
    confirm = console.dialog.get_by_role("button", name="Delete topic")
    expect(confirm).to_be_disabled()
    console.dialog.get_by_role("textbox").fill(topic[:-1])
    expect(confirm).to_be_disabled()
    console.dialog.get_by_role("textbox").fill(topic)
    confirm.click()
    expect(console.heading).to_have_text("Topics")
    console.page.get_by_label("Search topics").fill(topic)
    expect(console.page.get_by_text(f"No topic matches “{topic}”.")).to_be_visible()


def test_page_of_topic_reads_nothing_while_topic_is_deleted(console: ConsolePage, topic: str) -> None:
    """The change of the topics reaches the page before the response to its DELETE does."""
    create(console, topic)
    page = console.page
    read: list[str] = []

    def delete(route: Route) -> None:
        if route.request.method != "DELETE":
            route.continue_()
            return
        page.on("request", lambda request: read.append(f"{request.method} {request.url}"))
        answer = route.fetch()
        page.evaluate(
            "import('./live.js').then(({ live }) => live.dispatchEvent(new CustomEvent('topics', { detail: {} })))"
        )
        route.fulfill(response=answer)

    page.route(f"**/topics/{topic}", delete)
    console.button("Delete…").click()
    console.dialog.get_by_role("textbox").fill(topic)
    console.dialog.get_by_role("button", name="Delete topic").click()
    expect(console.heading).to_have_text("Topics")
    assert [each for each in read if topic in each] == []


def test_a_topic_that_cannot_be_created_says_why(console: ConsolePage, topic: str) -> None:
    create(console, topic)
    console.expected_messages.append("status of 4")
    console.go("topics")
    console.button("Create topic").click()
    console.dialog.get_by_label("Name").fill(topic)
    console.dialog.get_by_role("button", name="Create topic").click()
    expect(console.dialog.get_by_role("alert")).to_contain_text("exists")
    console.dialog.get_by_label("Name").fill("not a name!")
    console.dialog.get_by_role("button", name="Create topic").click()
    expect(console.dialog.get_by_role("alert")).to_contain_text("not a name!")
    console.page.keyboard.press("Escape")
    expect(console.dialog).to_have_count(0)
    expect(console.button("Create topic")).to_be_focused()
