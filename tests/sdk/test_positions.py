"""Seeking by offset and by time, pausing, lag."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from confluent_kafka import Producer

from tidemill import Batches, Client
from tidemill.sdk.consuming.guarantees import GuaranteeName
from tidemill.sdk.errors import InvalidSetting, NotAssigned
from tidemill.testing import InProcessBroker
from tidemill.types import TopicPartition

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000


@pytest.fixture
def hourly(shared: InProcessBroker, topic: str) -> str:
    """Ten records, an hour apart."""
    for number in range(10):
        shared.produce(topic, str(number), timestamp_ms=START_MS + number * HOUR_MS)
    return topic


def first_of(batches: Batches) -> int:
    return next(batches)[0].offset


def test_a_group_begins_at_an_offset(client: Client, hourly: str) -> None:
    with client.consume(hourly, group=hourly) as batches:
        batches.seek(7)
        assert [record.offset for record in next(batches)] == [7, 8, 9]


@pytest.mark.parametrize(
    "moment", [START_MS + 4 * HOUR_MS - 1, datetime.fromtimestamp(START_MS / 1000 + 4 * 3600, UTC)]
)
def test_a_group_begins_at_a_time(client: Client, hourly: str, moment: int | datetime) -> None:
    with client.consume(hourly, group=hourly) as batches:
        batches.seek_to_time(moment)
        assert first_of(batches) == 4


def test_a_time_after_the_last_record_is_the_end(
    shared: InProcessBroker, client: Client, hourly: str
) -> None:
    with client.consume(hourly, group=hourly, idle_timeout_s=1) as batches:
        batches.seek_to_time(START_MS + 100 * HOUR_MS)
        assert list(batches) == []
        shared.produce(hourly, "new")
        assert first_of(batches) == 10


def test_seeking_on_the_way(shared: InProcessBroker, client: Client, hourly: str) -> None:
    with client.consume(hourly, group=hourly, max_batch=2, linger_s=10) as batches:
        assert first_of(batches) == 0
        batches.seek(6, partition=0)
        assert first_of(batches) == 6
        # The batch before the seek was done when the next one was asked for.
        assert shared.committed(hourly) == {(hourly, 0): 2}
        batches.seek("earliest")
        assert first_of(batches) == 0
        batches.seek_to_time(START_MS + 8 * HOUR_MS)
        assert first_of(batches) == 8
        batches.seek("latest")
        shared.produce(hourly, "new", timestamp_ms=START_MS)
        shared.produce(hourly, "new", timestamp_ms=START_MS)
        assert first_of(batches) == 10


def test_an_aborted_batch_goes_back_to_where_it_was_sought_and_not_to_what_is_committed(
    client: Client, hourly: str
) -> None:
    with client.consume(hourly, group=hourly, guarantee="exactly-once", max_batch=2, linger_s=10) as batches:
        next(batches)
        batches.commit()
        batches.seek(6)
        assert first_of(batches) == 6
        batches.rewind()
        assert first_of(batches) == 6


def test_lag_falls_to_nothing(shared: InProcessBroker, client: Client, hourly: str) -> None:
    with client.consume(hourly, group=hourly, max_batch=4, linger_s=0.5, idle_timeout_s=0.2) as batches:
        lags = []
        for _ in batches:
            lags.append(batches.lag()[hourly, 0])  # type: ignore[index]
        assert lags == [6, 2, 0]


def test_lag_of_an_unread_partition(shared: InProcessBroker, client: Client, name: str) -> None:
    topic = shared.create_topic(name, partitions=2)
    for _ in range(3):
        shared.produce(topic, "x", partition=1)
    with client.consume(topic, group=name, max_batch=1) as batches:
        next(batches)
        assert batches.lag() == {(topic, 0): 0, (topic, 1): 2}


def test_a_paused_partition_is_not_read(shared: InProcessBroker, client: Client, name: str) -> None:
    topic = shared.create_topic(name, partitions=2)
    shared.produce(topic, "first", partition=0)
    with client.consume(topic, group=name, idle_timeout_s=1.5) as batches:
        next(batches)
        batches.pause(partition=0)
        shared.produce(topic, "paused", partition=0)
        shared.produce(topic, "not paused", partition=1)
        assert [record.text() for batch in batches for record in batch] == ["not paused"]
        assert batches.lag() == {(topic, 0): 1, (topic, 1): 0}
        batches.resume(partition=0)
        assert next(batches)[0].text() == "paused"


def test_seek_in_an_unassigned_partition_is_refused(client: Client, hourly: str) -> None:
    with client.consume(hourly, group=hourly) as batches:
        with pytest.raises(InvalidSetting, match="neither an offset nor 'earliest' or 'latest'"):
            batches.seek("yesterday")  # type: ignore[arg-type]
        with pytest.raises(NotAssigned, match=f"seek in {hourly}-3"):
            batches.seek(0, partition=3)
        next(batches)
        with pytest.raises(NotAssigned, match=f"pause in {hourly}-3: this member has {hourly}-0"):
            batches.pause(partition=3)


@pytest.mark.parametrize("guarantee", ["at-least-once", "at-most-once", "exactly-once"])
def test_trailing_markers_and_aborted_records_are_committed_over(
    shared: InProcessBroker, client: Client, topic: str, guarantee: GuaranteeName
) -> None:
    producer = Producer({"bootstrap.servers": shared.bootstrap, "transactional.id": topic})
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"value")
        producer.flush()
        end()
    group = f"{topic}-{guarantee}"
    with client.consume(topic, group=group, guarantee=guarantee, instance=group, idle_timeout_s=2) as batches:
        assert [record.offset for batch in batches for record in batch] == [0]
    # One record, its marker, an aborted record, its marker.
    place = TopicPartition(topic, 0)
    shared.wait_until(lambda: shared.committed(group).get(place) == 4, f"{group} has committed the end")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_rewind_at_the_end_of_a_partition_hands_the_batch_out_again(
    shared: InProcessBroker, client: Client, topic: str, guarantee: GuaranteeName
) -> None:
    for number in range(3):
        shared.produce(topic, str(number))
    seen: list[list[int]] = []
    with client.consume(
        topic, group=topic, guarantee=guarantee, instance=topic, linger_s=1, idle_timeout_s=2
    ) as batches:
        for batch in batches:
            seen.append([record.offset for record in batch])
            if len(seen) == 1:
                batches.rewind()
    assert seen[0][0] == 0
    assert [offset for offsets in seen[1:] for offset in offsets] == [0, 1, 2]
