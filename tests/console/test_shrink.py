"""Fewer partitions in a real browser: begun with a warning, watched, and done."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer
from playwright.sync_api import expect

from tests.brokers import Broker
from tests.console.conftest import ConsolePage
from tests.console.kafka_side import make_topic
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.types import TopicPartition


@pytest.fixture
def orders(kafka: Broker, topic: str) -> str:
    """Four partitions with one record each, kept for ever."""
    make_topic(kafka, topic, partitions=4)
    with Cluster(kafka.bootstrap) as cluster:
        Admin(cluster).alter_configs(ResourceType.TOPIC, topic, changes={"retention.ms": "-1"})
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for partition in range(4):
        producer.produce(topic, b"old", partition=partition)
    assert producer.flush(30) == 0
    return topic


def test_partitions_are_taken_away_and_their_end_is_watched(
    console: ConsolePage, kafka: Broker, orders: str
) -> None:
    console.go(f"topics/{orders}")
    console.button("Fewer partitions…").click()
    expect(console.dialog).to_contain_text("keeps its records for ever")
    expect(console.dialog).to_contain_text("A key keeps its partition with 1, 2.")
    number = console.dialog.get_by_label("Partitions that stay")
    number.fill("3")
    go = console.dialog.get_by_role("button", name="Take partitions away")
    console.expected_messages.append("400")
    go.click()
    expect(console.dialog.get_by_role("alert")).to_contain_text("does not divide")
    number.fill("2")
    go.click()
    rows = console.rows(f"Partitions of {orders} that go")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("Partition 3")
    expect(rows.nth(1)).to_contain_text("1 record")
    expect(console.page.locator(".shrinking")).to_contain_text("On its way from 4 to 2 partitions")
    expect(console.page.locator(".shrinking")).to_contain_text("keeps its records for ever")
    with Cluster(kafka.bootstrap) as cluster:
        Admin(cluster).delete_records({TopicPartition(orders, index): 1 for index in (2, 3)})
    expect(console.page.locator(".shrinking")).to_be_hidden(timeout=60_000)
    expect(console.rows(f"Partitions of {orders}")).to_have_count(2)


def test_a_shrink_is_taken_back(console: ConsolePage, orders: str) -> None:
    console.go(f"topics/{orders}")
    console.button("Fewer partitions…").click()
    console.dialog.get_by_label("Partitions that stay").fill("2")
    console.dialog.get_by_role("button", name="Take partitions away").click()
    console.button("Keep them…").click()
    console.dialog.get_by_role("button", name="Keep the partitions").click()
    expect(console.page.locator(".shrinking")).to_be_hidden()
    expect(console.rows(f"Partitions of {orders}")).to_have_count(4)
