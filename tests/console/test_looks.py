"""Dark and light, wide and narrow, calm for those who want it, and words where there is nothing yet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Route, expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import make_topic, write_orders

_PLACES = ("overview", "brokers", "topics", "views", "groups", "rebalances")


def background(console: ConsolePage) -> int:
    """Returns the lightness of the page, from 0 to 765."""
    color = console.page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    return sum(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(","))


def test_system_decides_between_dark_and_light_until_the_user_does(
    open_console: Callable[..., ConsolePage],
) -> None:
    console = open_console(color_scheme="dark")
    console.go("overview")
    assert background(console) < 150
    console.page.emulate_media(color_scheme="light")
    expect(console.page.locator("html")).to_have_attribute("data-theme", "light")
    assert background(console) > 650

    console.button("Switch to dark colours").click()
    assert background(console) < 150
    console.page.reload()
    console.heading.wait_for()
    assert background(console) < 150
    console.page.keyboard.press("d")
    expect(console.page.locator("html")).to_have_attribute("data-theme", "light")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_is_readable(
    open_console: Callable[..., ConsolePage], theme: str, kafka: Broker, topic: str
) -> None:
    """Contrast of at least 4.5 to 1 (WCAG AA), of all text on the screen."""
    make_topic(kafka, topic)
    write_orders(kafka, topic, 3)
    console = open_console(color_scheme=theme)
    for place in ("overview", "topics", f"topics/{topic}/messages", f"topics/{topic}/config"):
        console.go(place)
        expect(console.page.locator("main table tbody tr").first).to_be_attached()
        if place.endswith("messages"):
            console.rows(f"Messages of {topic}").first.click()
        assert console.page.evaluate(_FAINT_TEXTS) == [], place


_FAINT_TEXTS = """() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const color = parts(getComputedStyle(at).backgroundColor);
            if (color.length === 3 || color[3] === 1) return color;
        }
        return [255, 255, 255];
    };
    const faint = [];
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const element = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
        if (element.closest(".unseen, .skip, svg, noscript, :disabled")) continue;
        const [a, b] = [light(parts(getComputedStyle(element).color)), light(ground(element))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) faint.push(`${texts.currentNode.data.trim()}: ${contrast.toFixed(2)}`);
    }
    return faint;
}"""


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_hangs_over_the_edge(
    open_console: Callable[..., ConsolePage], kafka: Broker, topic: str, width: int
) -> None:
    make_topic(kafka, topic)
    write_orders(kafka, topic, 3)
    console = open_console(viewport={"width": width, "height": 800})
    tabs = [f"topics/{topic}/{tab}" for tab in ("partitions", "messages", "config", "groups")]
    for place in (*_PLACES, *tabs):
        console.go(place)
        expect(console.page.locator("main .table-foot:not(:empty), main .empty").first).to_be_attached()
        assert console.page.evaluate("document.documentElement.scrollWidth") <= width
        heading = console.heading.bounding_box()
        assert heading is not None
        assert heading["x"] + heading["width"] <= width
    console.button("Produce").click()
    box = console.dialog.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_reduced_motion_stops_animations(open_console: Callable[..., ConsolePage]) -> None:
    console = open_console(reduced_motion="reduce")
    console.go("topics")
    console.page.evaluate(
        "document.getElementById('toasts').append(Object.assign(document.createElement('div'), {className: 'toast'}))"
    )
    assert (
        console.page.locator(".toast").evaluate("element => getComputedStyle(element).animationName")
        == "none"
    )


@pytest.fixture
def empty_cluster(console: ConsolePage) -> Iterator[ConsolePage]:
    """A gateway whose cluster has nothing in it: what the lists answer then."""

    def nothing(route: Route) -> None:
        route.fulfill(
            body=json.dumps({"total": 0, "items": [], "is_known": False}), content_type="application/json"
        )

    for name in ("topics", "groups", "rebalances"):
        console.page.route(f"**/console/api/{name}?*", nothing)
    yield console
    console.page.unroute_all()


def test_empty_places_say_what_to_do(empty_cluster: ConsolePage) -> None:
    console = empty_cluster
    console.go("topics")
    expect(console.page.get_by_text("tidemill topics create orders")).to_be_visible()
    console.button("Create a topic").click()
    expect(console.dialog.get_by_label("Name")).to_be_focused()
    console.page.keyboard.press("Escape")
    console.go("groups")
    expect(console.page.get_by_text("No consumer groups yet.")).to_be_visible()
    console.go("rebalances")
    expect(console.page.get_by_text("--status-url")).to_be_visible()
