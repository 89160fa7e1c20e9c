"""A key that is too large a share of a topic is spread; all others stay where Kafka's own client sends them."""

from __future__ import annotations

import random
from collections import Counter

import confluent_kafka
import pytest

from tidemill import Client, HotKeys, NewRecord
from tidemill.sdk.errors import DeliveryFailed, InvalidSetting
from tidemill.sdk.publishing.hot_keys import HotKeySpreader
from tidemill.testing import InProcessBroker

PARTITIONS = 12


def keys(seed: int, count: int, hot_share: float) -> list[bytes]:
    draw = random.Random(seed)
    return [b"hot" if draw.random() < hot_share else b"key-%d" % draw.randrange(1_000) for _ in range(count)]


def test_a_hot_key_is_spread_evenly_and_others_stay_home() -> None:
    rule = HotKeys(share=0.2, window=100, spread=4)
    spreader = HotKeySpreader(rule)
    used: Counter[int] = Counter()
    for key in keys(1, 5_000, hot_share=0.5):
        partition = spreader.partition("orders", key, PARTITIONS)
        if key == b"hot" and partition is not None:
            used[partition] += 1
        elif key != b"hot":
            assert partition is None
    assert set(used) == set(rule.partitions_of("hot", PARTITIONS))
    assert len(used) == 4
    assert max(used.values()) - min(used.values()) <= 1
    assert rule.partitions_of("hot", PARTITIONS)[0] == confluent_kafka.murmur2(b"hot", PARTITIONS)


def test_a_key_is_hot_from_its_share_of_the_window_on_and_no_longer_than_that() -> None:
    spreader = HotKeySpreader(HotKeys(share=0.5, window=10, spread=2))

    def send(key: bytes, count: int) -> list[bool]:
        return [spreader.partition("orders", key, PARTITIONS) is not None for _ in range(count)]

    assert send(b"a", 4) == [False] * 4
    assert send(b"a", 1) == [True]
    # Each of these pushes nothing out of the window yet.
    send(b"b", 1), send(b"c", 4)
    # The window is now a a a a a b c c c c: one more `a` pushes the first one out and is the fifth again.
    assert send(b"a", 1) == [True]
    send(b"d", 9)
    assert send(b"a", 1) == [False]


def test_topics_are_counted_apart() -> None:
    spreader = HotKeySpreader(HotKeys(share=1.0, window=2, spread=2))
    for topic in ("one", "two"):
        assert spreader.partition(topic, b"a", PARTITIONS) is None
    assert spreader.partition("one", b"a", PARTITIONS) is not None


def test_the_same_keys_go_to_the_same_partitions() -> None:
    def run() -> list[int | None]:
        spreader = HotKeySpreader(HotKeys(share=0.3, window=50))
        return [spreader.partition("orders", key, PARTITIONS) for key in keys(7, 2_000, hot_share=0.4)]

    assert run() == run()


@pytest.mark.parametrize(("partition_count", "spread"), [(1, 4), (2, 4), (7, 4), (12, 5), (3, 3)])
def test_the_partitions_of_a_key_are_different_ones(partition_count: int, spread: int) -> None:
    found = HotKeys(spread=spread).partitions_of("hot", partition_count)
    assert len(set(found)) == len(found) == min(partition_count, spread)
    assert all(0 <= each < partition_count for each in found)


def test_published_with_hot_keys(shared: InProcessBroker, name: str) -> None:
    topic = shared.create_topic(name, partitions=PARTITIONS)
    rule = HotKeys(share=0.5, window=100, spread=3)
    sent = keys(3, 1_000, hot_share=0.8)
    with Client(shared.bootstrap, hot_keys=rule) as client:
        deliveries = client.publish_many(topic, (NewRecord("x", key) for key in sent))
    hot = Counter(each.partition for key, each in zip(sent, deliveries, strict=True) if key == b"hot")
    assert set(hot) == set(rule.partitions_of("hot", PARTITIONS))
    for key, delivery in zip(sent, deliveries, strict=True):
        if key != b"hot":
            assert delivery.partition == confluent_kafka.murmur2(key, PARTITIONS)
    # The key itself is untouched.
    assert Counter(record.key for record in shared.records(topic)) == Counter(sent)


def test_a_topic_that_publishing_creates_is_waited_for(shared: InProcessBroker, name: str) -> None:
    """Brokers answer that it is unknown while they create it."""
    with Client(shared.bootstrap, hot_keys=HotKeys(share=0.5)) as client:
        delivery = client.publish(name, "x", key="hot").result(30)
    assert (delivery.topic, delivery.offset) == (name, 0)


def test_a_failed_record_leaves_others_of_its_topic_publishable(shared: InProcessBroker, name: str) -> None:
    with Client(shared.bootstrap, hot_keys=HotKeys()) as client:
        client.create_topic(name, configs={"max.message.bytes": 1_000})
        publisher = client._core.publisher()
        small, large = NewRecord("small", "k"), NewRecord(b"x" * 2_000, "k")
        publisher.learn(name)
        assert not publisher.needs_partition_count(name, small)
        with pytest.raises(DeliveryFailed):
            publisher.publish(name, large).result()
        # The failure has made it forget the number of partitions, after it was asked whether that is known.
        publication = publisher.try_publish(name, small)
        assert publication is not None
        assert publication.result().offset == 0


def test_hot_keys_are_off_by_default(client: Client, shared: InProcessBroker, name: str) -> None:
    topic = shared.create_topic(name, partitions=PARTITIONS)
    deliveries = client.publish_many(topic, [NewRecord("x", "hot")] * 300)
    assert {each.partition for each in deliveries} == {confluent_kafka.murmur2(b"hot", PARTITIONS)}


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidSetting, match="share is 0"):
        HotKeys(share=0)
    with pytest.raises(InvalidSetting, match="spread 0"):
        HotKeys(spread=0)
