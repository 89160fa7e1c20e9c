"""Everything by keyboard, and always visible where the focus is."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import make_topic, write_orders


def press(console: ConsolePage, *keys: str) -> None:
    for key in keys:
        console.page.keyboard.press(key)


def stop_the_clock(console: ConsolePage) -> None:
    """Key presses are as far apart as the test says, however busy the machine is."""
    console.page.clock.install(time=0)
    console.page.clock.pause_at(1000)


def test_second_key_of_a_sequence_does_not_count_after_a_pause(console: ConsolePage) -> None:
    stop_the_clock(console)
    console.go("overview")
    press(console, "g")
    console.page.clock.run_for(1100)
    press(console, "b")
    expect(console.heading).to_have_text("Brokers")
    press(console, "g")
    console.page.clock.run_for(1300)
    press(console, "t", "g", "v")
    expect(console.heading).to_have_text("Views")
    console.page.go_back()
    expect(console.heading).to_have_text("Brokers")


def test_places_are_two_keys_away(console: ConsolePage) -> None:
    stop_the_clock(console)
    console.go("overview")
    for key, title in (
        ("b", "Brokers"),
        ("t", "Topics"),
        ("v", "Views"),
        ("g", "Groups"),
        ("r", "Rebalances"),
        ("o", "Overview"),
    ):
        press(console, "g", key)
        expect(console.heading).to_have_text(title)
        expect(console.heading).to_be_focused()
        assert console.page.title() == f"{title} · Tidemill"
        current = console.page.get_by_role("navigation", name="Views").locator("[aria-current=page]")
        expect(current).to_contain_text(title)


def test_from_the_search_to_a_record_without_a_mouse(console: ConsolePage, kafka: Broker, topic: str) -> None:
    make_topic(kafka, topic)
    write_orders(kafka, topic, 5)
    console.go("topics")
    press(console, "/")
    expect(console.page.get_by_label("Search topics")).to_be_focused()
    # Letters are text in a search, not commands.
    console.page.keyboard.type(f"gt{topic}")
    expect(console.page.get_by_text("No topic matches")).to_be_visible()
    console.page.get_by_label("Search topics").fill(topic)
    expect(console.rows("Topics")).to_have_count(1)
    press(console, "ArrowDown")
    focused = console.rows("Topics").first
    expect(focused).to_be_focused()
    assert focused.evaluate("row => getComputedStyle(row).outlineStyle") == "solid"
    press(console, "Enter")
    expect(console.heading).to_have_text(topic)

    press(console, "2")
    rows = console.rows(f"Messages of {topic}")
    expect(rows).to_have_count(5)
    rows.first.focus()
    press(console, "ArrowDown", "Enter")
    record = console.page.get_by_role("complementary", name="Record")
    expect(record.get_by_role("heading", level=2)).to_have_text("Partition 0, offset 3")
    press(console, "ArrowDown")
    expect(record.get_by_role("heading", level=2)).to_have_text("Partition 0, offset 2")
    press(console, "End")
    expect(record.get_by_role("heading", level=2)).to_have_text("Partition 0, offset 0")
    press(console, "Escape")
    expect(record).to_be_hidden()


def test_dialogs_keep_the_focus_and_give_it_back(console: ConsolePage) -> None:
    console.go("topics")
    console.button("Create topic").focus()
    press(console, "c")
    expect(console.dialog.get_by_label("Name")).to_be_focused()
    for _ in range(12):
        press(console, "Tab")
        # In the dialog, or in the browser's own frame around the page.
        assert console.page.evaluate(
            "document.activeElement.closest('dialog, body > *:not(.shell), html') !== null"
        )
        assert not console.page.evaluate("document.activeElement.closest('.shell') !== null")
    press(console, "Escape")
    expect(console.dialog).to_have_count(0)
    expect(console.button("Create topic")).to_be_focused()


def test_the_keys_are_listed(console: ConsolePage, kafka: Broker, topic: str) -> None:
    make_topic(kafka, topic)
    console.go(f"topics/{topic}/messages")
    press(console, "?")
    for text in ("Topics", "Search", "Produce a message", "Follow what arrives, or stop"):
        expect(console.dialog.get_by_text(text, exact=True)).to_be_visible()
    # Keys do nothing to the page below.
    press(console, "g", "t")
    expect(console.heading).to_have_text(topic)
    press(console, "Escape")
    expect(console.dialog).to_have_count(0)
