"""Overview and lists: what they tell, how they are sorted, searched and kept in the address."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from confluent_kafka import Consumer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import make_topic, read, write_orders, writing


def names(console: ConsolePage) -> list[str]:
    return console.rows("Topics").locator("td:first-child a").all_text_contents()


def test_topics_are_sorted_searched_and_found_again(console: ConsolePage, kafka: Broker, topic: str) -> None:
    for letter, partitions in (("a", 2), ("b", 11), ("c", 5)):
        make_topic(kafka, f"{topic}-{letter}", partitions)
    console.go("topics")
    console.page.get_by_label("Search topics").fill(topic.upper())
    expect(console.rows("Topics")).to_have_count(3)
    assert names(console) == [f"{topic}-{letter}" for letter in "abc"]

    header = console.table("Topics").get_by_role("columnheader", name="Partitions")
    header.get_by_role("button").click()
    expect(console.rows("Topics").first).to_contain_text("-b")
    expect(header).to_have_attribute("aria-sort", "descending")
    assert names(console) == [f"{topic}-{letter}" for letter in "bca"]
    console.page.reload()
    expect(console.rows("Topics")).to_have_count(3)
    assert names(console) == [f"{topic}-{letter}" for letter in "bca"]
    header.get_by_role("button").click()
    expect(console.rows("Topics").first).to_contain_text("-a")

    # A group's first commit makes the topic of offsets, which is listed when it is asked for.
    write_orders(kafka, f"{topic}-a", 1)
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe([f"{topic}-a"])
    read(consumer, 1)
    consumer.close()
    console.page.get_by_label("Search topics").fill("__")
    expect(console.page.get_by_text("No topic matches “__”.")).to_be_visible()
    console.page.get_by_label("Internal topics").check()
    expect(console.row("Topics", "__consumer_offsets")).to_contain_text("internal")


def test_overview_shows_the_health_of_the_cluster(console: ConsolePage, kafka: Broker, topic: str) -> None:
    make_topic(kafka, topic, partitions=4)
    console.go("overview")
    expect(console.page.get_by_text("All is well.")).to_be_visible()
    expect(console.page.locator(".tile", has_text="Brokers").locator(".tile-value")).to_have_text("1")
    expect(console.page.locator(".tile", has_text="Offline").locator(".tile-value")).to_have_text("0")
    quorum = console.table("Members of the metadata quorum")
    expect(quorum.get_by_role("row").nth(1)).to_contain_text("leader")

    # Records that are written are seen in the chart, with its value at the last point.
    chart = console.page.get_by_role("img", name=re.compile("^Records written a second"))
    with writing(kafka, topic):
        expect(console.row("Busiest topics", topic)).to_contain_text(re.compile(r"[1-9][\d,.]*/s"))
    chart.focus()
    console.page.keyboard.press("ArrowLeft")
    tip = chart.locator("..").locator(".chart-tip")
    expect(tip).to_contain_text(re.compile(r"\d\d:\d\d:\d\din"))
    console.page.get_by_role("link", name=re.compile("^Brokers")).first.click()
    expect(console.row("Brokers", f"127.0.0.1:{kafka.port}")).to_contain_text("controller")


def test_problems_are_shown_in_words(console: ConsolePage) -> None:
    """The overview of a cluster that is not well, as the gateway would send it."""
    text = "2 partitions of payments are under-replicated: broker 3 is out of sync."
    overview = {
        "cluster_id": "x",
        "controller_id": 1,
        "totals": {"under_replicated": 2, "partitions": 30},
        "quorum": None,
        "problems": [{"severity": "warning", "text": text}],
        "as_of_ms": 1,
    }
    event = f"event: overview\ndata: {json.dumps(overview)}\n\n"
    console.page.route(
        "**/console/api/live", lambda route: route.fulfill(content_type="text/event-stream", body=event)
    )
    console.page.route("**/console/api/overview", lambda route: route.fulfill(json=overview))
    console.go("overview")
    expect(console.page.get_by_text(text)).to_be_visible()
    expect(console.page.locator(".tile[data-tone=warn] .tile-value")).to_have_text("2")
    # A cluster without a quorum to ask, such as one with ZooKeeper, has no such table.
    expect(console.table("Members of the metadata quorum")).to_have_count(0)
    console.page.unroute_all()


def test_topics_can_be_read_on_a_narrow_screen(
    open_console: Callable[..., ConsolePage], kafka: Broker, topic: str
) -> None:
    console = open_console(viewport={"width": 400, "height": 800})
    make_topic(kafka, topic)
    write_orders(kafka, topic, 1234)
    console.go(f"topics?q={topic}")
    row = console.row("Topics", "1,234")
    expect(row).to_be_visible()
    # Half of the table is for the name, all columns are within the screen, and nothing has to be moved sideways.
    name = row.locator("td:first-child").bounding_box()
    health = row.locator("td:last-child").bounding_box()
    assert name is not None
    assert health is not None
    assert name["width"] > 180
    assert health["x"] + health["width"] <= 400
    expect(row.locator(".badge")).to_have_text("ok")
    assert console.page.evaluate("document.documentElement.scrollWidth") == 400
    for link in console.page.get_by_role("navigation", name="Views").get_by_role("link").all():
        box = link.bounding_box()
        assert box is not None
        assert box["x"] + box["width"] <= 400
    row.get_by_role("link").click()
    expect(console.heading).to_have_text(topic)
    assert console.page.evaluate("document.documentElement.scrollWidth") == 400
