"""Queues and dead letters in a real browser: what is in flight, why letters were given up, and their replay."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import make_topic, write
from tidemill.client.admin.share_groups import ShareGroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.session import Acknowledge
from tidemill.types import TopicPartition

LIMIT_S = 30.0


@contextlib.contextmanager
def working(kafka: Broker, group: str, topic: str) -> Iterator[None]:
    """A member that holds three records; one of them is in its second delivery."""
    with Cluster(kafka.bootstrap) as cluster:
        ShareGroupAdmin(cluster).prepare(group, "earliest")
    with contextlib.closing(ShareConsumer(Cluster(kafka.bootstrap), group, [topic], capacity=3)) as consumer:
        taken = [consumer.take(LIMIT_S) for _ in range(3)]
        assert taken[0] is not None
        consumer.acknowledge(taken[0], Acknowledge.RELEASE).result(LIMIT_S)
        again = consumer.take(LIMIT_S)
        assert again is not None
        assert again.delivery_count == 2
        yield


def test_queue_is_among_the_groups_with_what_is_in_flight(
    console: ConsolePage, kafka: Broker, topic: str
) -> None:
    make_topic(kafka, topic)
    write(kafka, topic, [b"%d" % number for number in range(5)])
    group = f"{topic[:60]}-workers"
    with working(kafka, group, topic):
        console.go("groups")
        row = console.row("Consumer groups", group)
        expect(row).to_contain_text("stable")
        expect(row).to_contain_text("queue")
        expect(row.get_by_title("Deliveries: 1×2 2×1")).to_have_text("3")
        row.get_by_role("link", name=group).click()
        expect(console.page.locator("[data-in-flight]")).to_have_text("3")
        expect(console.page.locator("[data-lag]")).to_have_text("5")
        (jobs,) = console.rows(f"Jobs of {group} by partition").all()
        expect(jobs).to_contain_text("1×2 2×1")
        expect(console.page.get_by_role("heading", name="Lag by partition")).to_be_hidden()
        expect(console.rows(f"Members of {group}")).to_have_count(1)
        console.go(f"topics/{topic}/groups")
        expect(console.row(f"Groups of {topic}", group)).to_be_visible()
    console.go(f"groups/{group}")
    # What the member held comes again.
    expect(console.page.locator("[data-in-flight]")).to_have_text("0")


@pytest.fixture
def letters(kafka: Broker, topic: str) -> tuple[str, str]:
    """A topic, and its dead-letter topic with a letter of a share group and one of Spring."""
    dead = f"{topic[:60]}-dlq"
    make_topic(kafka, topic)
    make_topic(kafka, dead)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    share = {"topic": topic, "partition": "0", "offset": "7", "group": "cashiers", "delivery.count": "5"}
    headers: dict[str, str | bytes | None] = {
        **{f"__dlq.errors.{name}": value for name, value in share.items()},
        "__dlq.errors.message": "declined",
    }
    producer.produce(dead, b"12 Euro", key="ann", headers=headers, timestamp=1_772_359_200_000)
    spring: dict[str, str | bytes | None] = {
        "kafka_dlt-original-topic": topic,
        "kafka_dlt-exception-fqcn": "java.lang.IllegalStateException",
        "kafka_dlt-exception-message": "no such account",
    }
    producer.produce(dead, b"15 Euro", key="bob", headers=spring, timestamp=1_772_359_300_000)
    assert producer.flush(LIMIT_S) == 0
    return topic, dead


def records(kafka: Broker, topic: str) -> int:
    place = TopicPartition(topic, 0)
    with Cluster(kafka.bootstrap) as cluster:
        # Each replay is a transaction: its marker has an offset, too.
        return Admin(cluster).end_offsets([place])[place] // 2


def test_letters_are_shown_with_their_reasons_and_replayed_once(
    console: ConsolePage, kafka: Broker, letters: tuple[str, str]
) -> None:
    topic, dead = letters
    console.go(f"topics/{dead}")
    console.page.get_by_role("link", name="Dead letters").click()
    rows = console.rows(f"Dead letters of {dead}")
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("java.lang.IllegalStateException: no such account")
    expect(rows.nth(1)).to_contain_text("declined")
    expect(rows.nth(1)).to_contain_text("cashiers")
    expect(console.page.locator(".toolbar [role=status]")).to_contain_text("2 letters not replayed")

    replay = rows.nth(1).get_by_role("button", name="Replay the letter at partition 0, offset 0")
    replay.click()
    expect(console.dialog).to_contain_text("ann")
    expect(console.dialog).to_contain_text(topic)
    console.dialog.get_by_role("button", name="Cancel", exact=True).click()
    expect(console.dialog).to_have_count(0)
    assert records(kafka, topic) == 0
    replay.click()
    console.dialog.get_by_role("button", name="Replay", exact=True).click()
    expect(rows.nth(1)).to_contain_text("replayed")
    expect(replay).to_have_count(0)
    assert records(kafka, topic) == 1

    for published in (2, 2):
        console.page.get_by_role("button", name="Replay all").click()
        console.dialog.get_by_role("button", name="Replay all", exact=True).click()
        expect(console.dialog).to_have_count(0)
        expect(console.page.locator(".toolbar [role=status]")).to_contain_text("0 letters not replayed")
        assert records(kafka, topic) == published


def test_topic_without_letters_has_no_such_tab(console: ConsolePage, kafka: Broker, topic: str) -> None:
    name = f"{topic[:20]}-plain".replace("dead", "").replace("letter", "")
    make_topic(kafka, name)
    console.go(f"topics/{name}")
    expect(console.rows(f"Partitions of {name}")).to_have_count(1)
    expect(console.page.get_by_role("link", name="Dead letters")).to_be_hidden()


def test_letters_and_queues_fit_a_small_screen(
    open_console: Callable[..., ConsolePage], kafka: Broker, letters: tuple[str, str]
) -> None:
    topic, dead = letters
    write(kafka, topic, [b"a", b"b", b"c"])
    group = f"{topic[:60]}-workers"
    with working(kafka, group, topic):
        console = open_console(viewport={"width": 400, "height": 800}, color_scheme="dark")
        for place in (f"topics/{dead}/dead-letters", f"groups/{group}"):
            console.go(place)
            expect(console.page.locator("main tbody tr:not(.spacer)").first).to_be_visible()
            assert console.page.evaluate("document.documentElement.scrollWidth") <= 400
