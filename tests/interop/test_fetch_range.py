"""Ranges of offsets read from a real broker, written by confluent-kafka."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.brokers import RunningBroker
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import OffsetsLost, TopicReplaced, fetch_range
from tidemill.protocol.isolation import READ_COMMITTED, READ_UNCOMMITTED
from tidemill.protocol.records import Record, iterate_records
from tidemill.types import TopicPartition


@pytest.fixture
def cluster(target: RunningBroker) -> Iterator[Cluster]:
    with Cluster(target.bootstrap) as cluster:
        yield cluster


@pytest.fixture
def partition(cluster: Cluster, topic: str) -> TopicPartition:
    Admin(cluster).create_topic(topic, partition_count=1)
    return TopicPartition(topic, 0)


def producer(target: RunningBroker, **settings: str | int) -> Producer:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": target.bootstrap, "linger.ms": 5, **named})


def produce(to: Producer, partition: TopicPartition, values: list[bytes]) -> None:
    for value in values:
        to.produce(partition.topic, value, partition=partition.partition)
    assert to.flush(30) == 0


def read(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, isolation_level: int = READ_UNCOMMITTED
) -> tuple[list[Record], int]:
    """The records within the range, and how many answers there were."""
    records, answers = [], 0
    for answer in fetch_range(
        cluster, partition, start, end, isolation_level=isolation_level, fetch_bytes=100_000
    ):
        answers += 1
        for header, view in answer.batches:
            records += [each for each in iterate_records(view, header) if start <= each.offset < end]
    return records, answers


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_every_codec_and_none(
    target: RunningBroker, cluster: Cluster, partition: TopicPartition, codec: str
) -> None:
    values = [b"%d " % each * 200 for each in range(3000)]
    produce(producer(target, batch_size=20_000), partition, values[:1000])
    produce(producer(target, compression_type=codec, batch_size=20_000), partition, values[1000:])
    records, answers = read(cluster, partition, 17, 2983)
    assert [each.offset for each in records] == list(range(17, 2983))
    assert [each.value for each in records] == values[17:2983]
    assert answers > 3


def test_a_batch_that_is_larger_than_an_answer(
    target: RunningBroker, cluster: Cluster, partition: TopicPartition
) -> None:
    values = [b"a" * 10, b"b" * 900_000, b"c" * 10]
    for value in values:
        produce(producer(target), partition, [value])
    assert [each.value for each in read(cluster, partition, 0, 3)[0]] == values


def test_transactions(target: RunningBroker, cluster: Cluster, partition: TopicPartition, topic: str) -> None:
    writing = producer(target, transactional_id=topic)
    writing.init_transactions(30)
    committed, everything = [], []
    for number in range(12):
        values = [b"%d-%d" % (number, each) for each in range(50)]
        writing.begin_transaction()
        produce(writing, partition, values)
        everything += values
        if number % 3:
            writing.commit_transaction(30)
            committed += values
        else:
            writing.abort_transaction(30)
    # Each transaction has a marker; that of the last may still be under way, and is waited for.
    end = 12 * 51
    assert [each.value for each in read(cluster, partition, 0, end, READ_COMMITTED)[0]] == committed
    assert [each.value for each in read(cluster, partition, 0, end)[0]] == everything


def test_offsets_that_were_deleted_meanwhile(
    target: RunningBroker, cluster: Cluster, partition: TopicPartition
) -> None:
    produce(producer(target, batch_size=20_000), partition, [b"v" * 1000] * 2000)
    answers = fetch_range(cluster, partition, 0, 2000, fetch_bytes=100_000)
    next(answers)
    with Cluster(target.bootstrap) as other:
        Admin(other).delete_records({partition: 1500})
    positions: list[int] = []
    with pytest.raises(OffsetsLost) as caught:
        positions.extend(answer.next_offset for answer in answers)
    # One answer was under way when they were deleted; after that they are missed.
    assert (caught.value.partition, caught.value.first_offset) == (partition, positions[-1])
    assert caught.value.end_offset == 1500


def test_a_topic_that_was_created_again(
    target: RunningBroker, cluster: Cluster, partition: TopicPartition
) -> None:
    produce(producer(target, batch_size=20_000), partition, [b"v" * 1000] * 2000)
    answers = fetch_range(cluster, partition, 0, 2000, fetch_bytes=100_000)
    next(answers)
    with Cluster(target.bootstrap) as other:
        Admin(other).delete_topic(partition.topic)
        Admin(other).create_topic(partition.topic, partition_count=1)
    with pytest.raises(TopicReplaced, match=partition.topic):
        for _ in answers:
            pass
