"""The message browser: finding, reading on, looking at what is not text, following."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from playwright.sync_api import Route, expect

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
    """Returns the offsets of the rows on the screen, in their order."""
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
    expect(record.get_by_text("Only the first 64 KB.")).to_be_visible()
    expect(value).to_have_text("x" * 65_536)
    console.row(f"Messages of {topic}", "text").click()
    record.get_by_role("button", name="Copy the value").click()
    expect(console.page.get_by_text("Copied the value.")).to_be_visible()
    assert console.page.evaluate("navigator.clipboard.readText()") == "Zażółć gęślą jaźń"


def test_a_search_goes_on_by_itself_and_can_be_stopped(
    console: ConsolePage, kafka: Broker, topic: str
) -> None:
    make_topic(kafka, topic)
    write_orders(kafka, topic, 100)
    status = console.page.locator(".toolbar .status")
    progress = console.page.get_by_role("progressbar")
    rows = console.rows(f"Messages of {topic}")
    held: list[Route] = []
    is_held = False

    def in_small_steps(route: Route) -> None:
        """As the gateway answers of a topic that is too large for one question."""
        if is_held and "offsets:" in route.request.url:
            held.append(route)
        else:
            route.continue_(url=re.sub(r"max_scan=\d+", "max_scan=20", route.request.url))

    console.page.route(f"**/topics/{topic}/messages?*", in_small_steps)
    console.go(f"topics/{topic}/messages")
    find(console, start_from="Oldest", contains="order-97")
    expect(status).to_have_text("1 record of 100 read, to the end")
    expect(rows).to_have_count(1)
    expect(progress).to_be_hidden()
    expect(console.button("Stop")).to_be_hidden()

    # What is found is shown while the search goes on.
    is_held = True
    find(console, start_from="Oldest", contains="order-1")
    expect(status).to_have_text("Looking… 20 of 100 read, 11 found")
    expect(progress).to_be_visible()
    assert progress.evaluate("bar => bar.value / bar.max") == 0.2
    expect(rows).to_have_count(11)
    console.button("Stop").click()
    expect(status).to_have_text("11 records of 20 read, stopped")
    expect(progress).to_be_hidden()
    expect(console.button("Stop")).to_be_hidden()
    assert len(held) == 1
    # The browser has given this question up already, so that there is nothing to answer.
    is_held = False
    expect(console.button("Go on")).to_be_focused()
    console.page.keyboard.press("Enter")
    expect(status).to_have_text("11 records of 100 read, to the end")

    # Nothing found, and why.
    is_held = True
    find(console, start_from="Oldest", contains="nothing like it")
    expect(console.page.get_by_text("What matches appears here as it is found.")).to_be_visible()
    console.button("Stop").click()
    expect(console.page.get_by_text("Not everything was read: the search was stopped.")).to_be_visible()
    console.page.unroute_all(behavior="ignoreErrors")


def test_a_large_value_is_loaded_copied_and_downloaded_whole(
    open_console: Callable[..., ConsolePage], kafka: Broker, topic: str
) -> None:
    console = open_console(permissions=["clipboard-read", "clipboard-write"])
    make_topic(kafka, topic)
    text = json.dumps({"lines": [f"Zeile {number}" for number in range(10_000)]})
    noise = bytes(range(256)) * 400
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, text, key=b"json")
    producer.produce(topic, noise, key=b"noise")
    producer.produce(topic, b"short", key=b"k" * 70_000)
    assert producer.flush(30) == 0

    console.go(f"topics/{topic}/messages")
    record = console.page.get_by_role("complementary", name="Record")
    value = record.get_by_label("Value", exact=True)
    load = record.get_by_role("button", name="Load the whole value")
    console.row(f"Messages of {topic}", "json").click()
    expect(record.get_by_text("Only the first 64 KB.")).to_be_visible()
    # All of it is copied, although the beginning is shown.
    record.get_by_role("button", name="Copy the value").click()
    expect(console.page.get_by_text("Copied the value.")).to_be_visible()
    assert json.loads(console.page.evaluate("navigator.clipboard.readText()")) == json.loads(text)
    load.click()
    expect(value).to_contain_text("Zeile 9999")
    expect(value).to_be_focused()
    expect(load).to_be_hidden()
    with console.page.expect_download() as downloading:
        record.get_by_role("link", name="Download the value").click()
    assert downloading.value.suggested_filename == f"{topic}-0-0-value"
    assert downloading.value.path().read_bytes() == text.encode()

    console.row(f"Messages of {topic}", "noise").click()
    expect(value).to_contain_text("000010  10 11 12")
    load.click()
    expect(record.get_by_text("· binary")).to_be_visible()
    with console.page.expect_download() as downloading:
        record.get_by_role("link", name="Download the value").click()
    assert downloading.value.path().read_bytes() == noise

    console.row(f"Messages of {topic}", "short").click()
    record.get_by_role("button", name="Load the whole key").click()
    expect(record.get_by_label("Key", exact=True)).to_have_text("k" * 70_000)


def test_a_value_that_is_gone_says_so_and_can_be_tried_again(
    console: ConsolePage, kafka: Broker, topic: str
) -> None:
    console.expected_messages += ["status of 404"]
    make_topic(kafka, topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, "x" * 100_000)
    assert producer.flush(30) == 0
    console.go(f"topics/{topic}/messages")
    console.rows(f"Messages of {topic}").first.click()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.delete_records([TopicPartition(topic, 0, 1)])[TopicPartition(topic, 0)].result(30)
    record = console.page.get_by_role("complementary", name="Record")
    record.get_by_role("button", name="Load the whole value").click()
    expect(record.get_by_text(f"partition 0 of topic {topic} has no record at offset 0")).to_be_visible()
    record.get_by_role("button", name="Try again").click()
    expect(record.get_by_role("button", name="Load the whole value")).to_be_visible()


def test_the_space_bar_pauses(console: ConsolePage, kafka: Broker, topic: str) -> None:
    make_topic(kafka, topic)
    write_orders(kafka, topic, 1)
    console.go(f"topics/{topic}/messages")
    press = console.page.keyboard.press
    status = console.page.locator(".toolbar .status")
    # By mouse: the space bar must not press the same button once more.
    console.button("Follow live").click()
    expect(status).to_have_text("Following · 0 records so far")
    press(" ")
    expect(status).to_contain_text("Paused")
    press(" ")
    expect(status).to_contain_text("Following")
    # From a heading, a row or a link.
    write_orders(kafka, topic, 1)
    rows = console.rows(f"Messages of {topic}")
    for focused in (console.heading, rows.first, console.page.get_by_role("link", name="Configuration")):
        focused.focus()
        press(" ")
        expect(status).to_contain_text("Paused")
        press(" ")
        expect(status).to_contain_text("Following")
    # In a field it is a character, and a button is pressed by it.
    box = console.page.get_by_label("Contains", exact=True)
    box.focus()
    press("a")
    press(" ")
    expect(box).to_have_value("a ")
    expect(status).to_contain_text("Following")
    console.button("Stop following").focus()
    press(" ")
    expect(console.button("Follow live")).to_be_visible()
    press("?")
    expect(console.dialog.get_by_text("Space", exact=True)).to_be_visible()


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
