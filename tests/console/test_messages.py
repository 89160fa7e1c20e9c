"""The message browser: finding, reading on, looking at what is not text, following."""

from __future__ import annotations

from collections.abc import Callable

from confluent_kafka import Producer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import make_topic, write_orders


def find(console: ConsolePage, **fields: str) -> None:
    form = console.page.get_by_role("form", name="Find messages")
    for label, value in fields.items():
        box = form.get_by_label(label.replace("_", " ").capitalize(), exact=True)
        if label == "start_from":
            box.select_option(label=value)
        else:
            box.fill(value)
    form.get_by_role("button", name="Find").click()


def offsets(console: ConsolePage, topic: str) -> list[int]:
    """Of the rows on the screen, in their order."""
    expect(console.page.get_by_role("status").filter(has_text="Looking")).to_have_count(0)
    cells = console.rows(f"Messages of {topic}").locator("td:nth-child(2)").all_text_contents()
    return [int(text.replace(",", "")) for text in cells]


def test_messages_are_found_by_offset_time_key_and_text(
    open_console: Callable[..., ConsolePage], kafka: Broker, topic: str
) -> None:
    console = open_console(timezone_id="UTC")
    make_topic(kafka, topic)
    write_orders(kafka, topic, 60)
    console.go(f"topics/{topic}/messages")
    rows = console.rows(f"Messages of {topic}")

    # The newest first, without being asked.
    expect(rows.first).to_contain_text("order-59")

    find(console, start_from="Offset", offset="57")
    expect(rows).to_have_count(3)
    assert offsets(console, topic) == [57, 58, 59]
    assert "from=offset%3A57" in console.place

    find(console, start_from="Time", time="2026-03-01T10:55:30.000")
    expect(rows).to_have_count(4)
    assert offsets(console, topic) == [56, 57, 58, 59]

    find(console, start_from="Oldest", key_equals="order-31")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text('{"order": 31, "city": "Emden"}')

    find(console, start_from="Oldest", key_equals="", contains="husum")
    expect(rows.first).to_contain_text("order-2")
    assert offsets(console, topic)[:3] == [2, 5, 8]
    expect(console.page.get_by_text("20 records of 60 read, to the end")).to_be_visible()

    # Each search is a step back, and a reload asks the same again.
    console.page.go_back()
    expect(rows).to_have_count(1)
    console.page.reload()
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text("order-31")

    find(console, key_equals="nobody")
    expect(console.page.get_by_text("No record matches.")).to_be_visible()


def test_reading_on_goes_to_the_end_in_either_direction(
    console: ConsolePage, kafka: Broker, topic: str
) -> None:
    make_topic(kafka, topic)
    write_orders(kafka, topic, 60)
    ways = (("latest", "Older records", range(59, -1, -1)), ("earliest", "Further records", range(60)))
    for start, button, expected in ways:
        console.go(f"topics/{topic}/messages?from={start}&limit=25")
        status = console.page.locator(".toolbar .status")
        expect(status).to_have_text("25 records")
        console.button(button).click()
        expect(status).to_have_text("50 records")
        console.button(button).click()
        expect(status).to_have_text("60 records, to the end")
        expect(console.button(button)).to_be_hidden()
        first = console.rows(f"Messages of {topic}").first
        first.focus()
        expect(first).to_contain_text(f"order-{expected[0]}")
        console.page.keyboard.press("End")
        last = console.rows(f"Messages of {topic}").last
        expect(last).to_be_focused()
        expect(last).to_contain_text(f"order-{expected[-1]}")


def test_bytes_that_are_no_text_are_shown_as_bytes(
    open_console: Callable[..., ConsolePage], kafka: Broker, topic: str
) -> None:
    console = open_console(permissions=["clipboard-read", "clipboard-write"])
    make_topic(kafka, topic, partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, bytes(range(256)), key=b"\xff\xfe", partition=1)
    producer.produce(topic, None, key=b"gone", partition=0)
    producer.produce(topic, "Zażółć gęślą jaźń", key=b"text", partition=0)
    producer.produce(topic, "x" * 100_000, key=b"long", partition=0)
    assert producer.flush(30) == 0

    console.go(f"topics/{topic}/messages?partition=1")
    console.rows(f"Messages of {topic}").first.click()
    record = console.page.get_by_role("complementary", name="Record")
    value = record.get_by_label("Value", exact=True)
    expect(value).to_contain_text("000040  40 41 42 43 44 45 46 47 48 49 4a 4b 4c 4d 4e 4f  @ABCDEFGHIJKLMNO")
    console.page.keyboard.press("Escape")
    expect(record).to_be_hidden()

    console.go(f"topics/{topic}/messages?partition=0")
    console.row(f"Messages of {topic}", "gone").click()
    expect(value).to_have_text("null")
    console.row(f"Messages of {topic}", "text").click()
    expect(value).to_have_text("Zażółć gęślą jaźń")
    console.row(f"Messages of {topic}", "long").click()
    expect(record.get_by_text("Only the beginning is shown")).to_be_visible()
    expect(value).to_have_text("x" * 65_536)
    console.row(f"Messages of {topic}", "text").click()
    record.get_by_role("button", name="Copy the value").click()
    expect(console.page.get_by_text("Copied the value.")).to_be_visible()
    assert console.page.evaluate("navigator.clipboard.readText()") == "Zażółć gęślą jaźń"


def test_following_shows_what_arrives_and_can_be_paused(
    console: ConsolePage, kafka: Broker, topic: str
) -> None:
    make_topic(kafka, topic)
    console.go(f"topics/{topic}/messages")
    console.button("Follow live").click()
    status = console.page.locator(".toolbar .status")
    expect(status).to_have_text("Following · 0 records so far")
    rows = console.rows(f"Messages of {topic}")

    write_orders(kafka, topic, 3)
    expect(rows).to_have_count(3)
    expect(rows.first).to_contain_text("order-2")

    console.button("Pause").click()
    write_orders(kafka, topic, 2)
    expect(status).to_have_text("Paused: 2 new records waiting · 5 records so far")
    expect(rows).to_have_count(3)
    console.button("Go on").click()
    expect(rows).to_have_count(5)

    # Its own address: a reload goes on following.
    assert console.place.endswith("tail=true")
    console.page.reload()
    expect(status).to_have_text("Following · 0 records so far")
    console.button("Stop following").click()
    expect(status).to_have_text("5 records, to the end")
