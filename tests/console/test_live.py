"""What happens elsewhere is seen at once; what cannot be seen is said; ten thousand partitions are as quick as ten."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Route, expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage, Gateway
from tests.console.kafka_side import make_topic, write_orders
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.testing import InProcessBroker


@pytest.fixture
def own_gateway(kafka: Broker) -> Iterator[Gateway]:
    gateway = Gateway(kafka.bootstrap)
    gateway.start()
    yield gateway
    gateway.stop()


def test_topic_created_elsewhere_appears(console: ConsolePage, kafka: Broker, topic: str) -> None:
    console.go("topics")
    expect(console.page.get_by_role("status").filter(has_text="Live")).to_be_visible()
    expect(console.row("Topics", topic)).to_have_count(0)
    make_topic(kafka, topic, partitions=5)
    expect(console.row("Topics", topic)).to_contain_text("5")
    write_orders(kafka, topic, 1234)
    expect(console.row("Topics", topic)).to_contain_text("1,234")


def test_a_gateway_that_goes_and_comes_back(
    open_console: Callable[..., ConsolePage], own_gateway: Gateway, kafka: Broker, topic: str
) -> None:
    console = open_console()
    console.url = own_gateway.url
    console.expected_messages += [
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED_ENCODING",
        "ERR_EMPTY_RESPONSE",
        "ERR_CONNECTION_RESET",
    ]
    console.go("topics")
    expect(console.page.get_by_text("Live", exact=True)).to_be_visible()
    own_gateway.stop()
    banner = console.page.get_by_role("alert").filter(has_text="The gateway does not answer.")
    expect(banner).to_be_visible()
    expect(console.page.get_by_text("Reconnecting…")).to_be_visible()
    expect(banner).to_contain_text(re.compile(r"Trying again"))

    # Made meanwhile, seen afterwards, without a reload.
    make_topic(kafka, topic)
    console.page.evaluate("window.isTheSamePage = true")
    own_gateway.start()
    expect(banner).to_be_hidden()
    expect(console.row("Topics", topic)).to_be_visible()
    assert console.page.evaluate("window.isTheSamePage")


def test_an_error_can_be_tried_again(console: ConsolePage) -> None:
    console.expected_messages += ["status of 503", "ERR_FAILED"]
    # With its stream of events the page asks again by itself, every few seconds. Here only the button does.
    console.page.route("**/console/api/live*", lambda route: route.abort())
    is_down = True

    def answer(route: Route) -> None:
        if is_down:
            body = '{"error_code": 50301, "message": "the cluster does not answer"}'
            route.fulfill(status=503, body=body, content_type="application/json")
        else:
            route.continue_()

    console.page.route("**/console/api/brokers?*", answer)
    console.go("brokers")
    expect(console.page.get_by_text("the cluster does not answer")).to_be_visible()
    is_down = False
    console.button("Try again").click()
    expect(console.rows("Brokers")).to_have_count(1)
    console.page.unroute_all()


@pytest.fixture
def large_cluster(tidemill_broker: InProcessBroker, topic: str) -> Iterator[Gateway]:
    """A gateway before a broker with 10,000 partitions, which takes its time to make and end them; so not the shared one."""
    # A topic and 10,000 partitions are one record more than an operation may write, as in Kafka.
    tidemill_broker.create_topic(topic, partitions=5_000)
    with Cluster(tidemill_broker.bootstrap) as cluster:
        Admin(cluster).create_partitions(topic, 10_000)
    gateway = Gateway(tidemill_broker.bootstrap)
    gateway.start()
    yield gateway
    gateway.stop()
    tidemill_broker.crash()


def test_ten_thousand_partitions(large_cluster: Gateway, console: ConsolePage, topic: str) -> None:
    console.url = large_cluster.url
    console.go(f"topics?q={topic}")
    link = console.row("Topics", topic).get_by_role("link")
    expect(link).to_be_visible()
    begun_s = time.monotonic()
    link.click()
    rows = console.rows(f"Partitions of {topic}")
    expect(rows.first).to_contain_text("ok")
    took_s = time.monotonic() - begun_s
    print(f"10,000 partitions: rows after {took_s:.2f} s")

    # Only what is on the screen is in the page, and the end is one key away.
    assert rows.count() < 100
    expect(console.table(f"Partitions of {topic}")).to_have_attribute("aria-rowcount", "10001")
    rows.first.focus()
    begun_s = time.monotonic()
    console.page.keyboard.press("End")
    expect(rows.last).to_contain_text("9,999")
    expect(rows.last).to_contain_text("ok")
    print(f"10,000 partitions: the end after {time.monotonic() - begun_s:.2f} s")
    console.page.get_by_role("button", name="Under-replicated").click()
    expect(console.page.get_by_text("No partition is in this state.")).to_be_visible()
