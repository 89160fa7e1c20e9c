"""`AsyncClient`: what `Client` does, on an event loop that is never held up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import confluent_kafka
import pytest

from tidemill import AsyncClient, Delivery, HotKeys, LargePayloads, NewRecord, to_json
from tidemill.claims.errors import ClaimStoreDown
from tidemill.sdk.consuming.guarantees import GuaranteeName
from tidemill.sdk.errors import Closed, DeliveryFailed, InvalidSetting, QueueFull, TopicExists, Unreachable
from tidemill.sdk.publishing import async_publisher as async_publishing
from tidemill.testing import InProcessBroker
from tidemill.types import TopicPartition

LIMIT_S = 60.0


@pytest.fixture
async def client(shared: InProcessBroker) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(shared.bootstrap, timeout_s=20, fetch_wait_max_ms=50) as client:
        yield client


def fill(broker: InProcessBroker, topic: str, count: int) -> None:
    for number in range(count):
        broker.produce(topic, str(number))


async def test_topics_and_deliveries(shared: InProcessBroker, client: AsyncClient, name: str) -> None:
    await client.create_topic(name, partitions=2)
    with pytest.raises(TopicExists):
        await client.create_topic(name)
    delivery = await client.publish(name, "paid", key="7", partition=1, timestamp_ms=1_000)
    assert delivery == Delivery(name, 1, 0, 1_000)
    together = await asyncio.gather(*(client.publish(name, str(n), partition=1) for n in range(100)))
    assert [each.offset for each in together] == list(range(1, 101))
    with pytest.raises(InvalidSetting, match="neither bytes nor str"):
        client.publish(name, {"id": 7})
    await client.delete_topic(name)
    assert name not in shared.topics()


async def test_many_from_either_kind_of_iterable(
    shared: InProcessBroker, client: AsyncClient, topic: str
) -> None:
    async def lines() -> AsyncIterator[str]:
        for number in range(50):
            yield str(number)

    assert len(await client.publish_many(topic, lines())) == 50
    assert len(await client.publish_many(topic, [NewRecord(str(n), "k") for n in range(50, 100)])) == 50
    assert [int(record.value or b"") for record in shared.records(topic)] == list(range(100))


async def test_flush_raises_a_failure_that_was_not_awaited(client: AsyncClient, name: str) -> None:
    await client.create_topic(name, configs={"max.message.bytes": 1_000})
    client.publish(name, b"x" * 2_000)
    with pytest.raises(DeliveryFailed):
        await client.flush()
    await client.flush()
    with pytest.raises(DeliveryFailed):
        await client.publish(name, b"x" * 2_000)
    await client.flush()


async def test_a_full_queue_keeps_the_order_and_lets_the_loop_run(tidemill_broker: InProcessBroker) -> None:
    tidemill_broker.create_topic("orders")
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    counting = asyncio.create_task(count_turns())
    async with AsyncClient(tidemill_broker.bootstrap, queue_buffering_max_messages=10) as client:
        with tidemill_broker.faults.slow("orders", 0.05):
            publications = [client.publish("orders", str(number)) for number in range(50)]
            assert not publications[-1].done()
            # There is room again, but it is for those who wait already.
            await publications[0]
            publications += [client.publish("orders", str(number)) for number in range(50, 100)]
            deliveries = await asyncio.gather(*publications)
    counting.cancel()
    assert [each.offset for each in deliveries] == list(range(100))
    assert [record.value for record in tidemill_broker.records("orders")] == [b"%d" % n for n in range(100)]
    # Ten rounds of the queue with 50 ms each, in none of which a loop that was held up would have turned.
    assert turns > 20


async def test_publishing_without_awaiting_is_limited(
    tidemill_broker: InProcessBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_publishing, "BACKLOG_MAX", 20)
    tidemill_broker.create_topic("orders")
    async with AsyncClient(tidemill_broker.bootstrap, queue_buffering_max_messages=10) as client:
        with tidemill_broker.faults.slow("orders", 0.1):
            taken = [client.publish("orders", str(number)) for number in range(30)]
            with pytest.raises(QueueFull, match="20 records wait for room already; await some of them first"):
                client.publish("orders", "too many")
            assert len(await asyncio.gather(*taken)) == 30


async def test_hot_keys(shared: InProcessBroker, name: str) -> None:
    topic = shared.create_topic(name, partitions=12)
    rule = HotKeys(share=0.5, window=20, spread=3)
    async with AsyncClient(shared.bootstrap, hot_keys=rule) as client:
        deliveries = await client.publish_many(topic, [NewRecord("x", "hot")] * 100)
        assert {each.partition for each in deliveries} == set(rule.partitions_of("hot", 12))
        cold = await client.publish(topic, "x", key="cold")
    assert cold.partition == confluent_kafka.murmur2(b"cold", 12)


class Failure(Exception):
    pass


@pytest.mark.parametrize(
    ("guarantee", "results"), [("at-least-once", 10 + 2), ("at-most-once", 5 + 2), ("exactly-once", 10)]
)
async def test_an_exception_in_the_middle_of_a_batch(
    shared: InProcessBroker, client: AsyncClient, topic: str, guarantee: GuaranteeName, results: int
) -> None:
    output = shared.create_topic(f"{topic}-out")
    fill(shared, topic, 10)
    failures = 1
    for _ in range(2):
        try:
            async with client.consume(
                topic,
                group=topic,
                guarantee=guarantee,
                max_batch=5,
                linger_s=10,
                idle_timeout_s=0.2,
                instance="one",
            ) as batches:
                async for batch in batches:
                    for number, record in enumerate(batch):
                        if failures and batch[0].offset == 5 and number == 2:
                            failures -= 1
                            raise Failure
                        batch.publish(output, record.value)
        except Failure:
            continue
    await client.flush()
    await asyncio.to_thread(
        shared.wait_until, lambda: shared.committed(topic) == {(topic, 0): 10}, "all is committed"
    )
    assert len(shared.records(output, count=results)) == results


async def test_a_result_that_cannot_be_delivered_is_raised_by_the_loop(
    shared: InProcessBroker, client: AsyncClient, topic: str
) -> None:
    output = shared.create_topic(f"{topic}-out", **{"max.message.bytes": 1_000})
    fill(shared, topic, 2)
    async with client.consume(topic, group=topic, max_batch=2, linger_s=10) as batches:
        batch = await anext(batches)
        batch.publish(output, b"x" * 2_000)
        with pytest.raises(DeliveryFailed):
            await anext(batches)
        assert [record.offset for record in await anext(batches)] == [0, 1]
        with pytest.raises(Closed, match="its batch is over"):
            batch.publish(output, "late")


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
async def test_a_result_that_fails_while_it_waits_keeps_its_batch_from_being_committed(
    shared: InProcessBroker, topic: str, guarantee: GuaranteeName, tmp_path: Path
) -> None:
    output = shared.create_topic(f"{topic}-out")
    fill(shared, topic, 2)
    store = LargePayloads(str(tmp_path / "missing"), threshold_bytes=1_000)
    async with (
        AsyncClient(shared.bootstrap, fetch_wait_max_ms=50, large_payloads=store) as client,
        client.consume(topic, group=topic, guarantee=guarantee, max_batch=2, linger_s=10) as batches,
    ):
        batch = await anext(batches)
        batch.publish(output, "small")
        batch.publish(output, b"x" * 2_000)
        with pytest.raises(ClaimStoreDown):
            await anext(batches)
        assert shared.committed(topic) == {}
        assert [record.offset for record in await anext(batches)] == [0, 1]
        await batches.rewind()


async def test_at_most_once_a_lost_result_is_raised_by_flush(
    shared: InProcessBroker, client: AsyncClient, topic: str
) -> None:
    output = shared.create_topic(f"{topic}-out", **{"max.message.bytes": 1_000})
    fill(shared, topic, 2)
    async with client.consume(
        topic, group=topic, guarantee="at-most-once", max_batch=1, idle_timeout_s=0.2
    ) as batches:
        batch = await anext(batches)
        batch.publish(output, b"x" * 2_000)
        assert [record.offset for record in await anext(batches)] == [1]
    with pytest.raises(DeliveryFailed):
        await client.flush()


async def test_a_record_that_cannot_be_encoded_stops_no_other(shared: InProcessBroker, name: str) -> None:
    async with AsyncClient(shared.bootstrap, hot_keys=HotKeys(), serializer=to_json) as client:
        await client.create_topic(name)
        # Hot keys have to learn the number of partitions first, so these records wait.
        with pytest.raises(TypeError, match="set"):
            client.publish(name, {1}, key="k")
        unsendable = client.publish(name, 1, key="k", timestamp_ms=1 << 70)
        delivery = await asyncio.wait_for(client.publish(name, 2, key="k"), LIMIT_S)
        assert delivery.offset == 0
        with pytest.raises(InvalidSetting):
            await unsendable


async def test_cancelled_read_loses_no_record(
    shared: InProcessBroker, client: AsyncClient, topic: str
) -> None:
    fill(shared, topic, 1)
    async with client.consume(topic, group=topic, max_batch=1) as batches:
        assert (await anext(batches))[0].offset == 0
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(batches), 0.01)
        await asyncio.to_thread(fill, shared, topic, 3)
        assert [(await anext(batches))[0].offset for _ in range(3)] == [1, 2, 3]


async def test_records_read_for_a_cancelled_task_are_not_committed(
    shared: InProcessBroker, client: AsyncClient, topic: str
) -> None:
    fill(shared, topic, 1)
    async with client.consume(topic, group=topic) as batches:
        await anext(batches)
        # A step goes on for a tenth of a second when no caller waits for it any more, and reads what comes.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(batches), 0.005)
        shared.produce(topic, "nobody's")
    assert shared.committed(topic) == {(topic, 0): 1}


async def test_seek_commit_pause_and_lag(shared: InProcessBroker, client: AsyncClient, topic: str) -> None:
    place = TopicPartition(topic, 0)
    for number in range(10):
        shared.produce(topic, str(number), timestamp_ms=1_700_000_000_000 + number)
    async with client.consume(topic, group=topic, max_batch=2, linger_s=0.3, idle_timeout_s=1.5) as batches:
        await batches.seek_to_time(1_700_000_000_004)
        assert (await anext(batches))[0].offset == 4
        assert await batches.lag() == {place: 4}
        assert batches.assignment == {place}
        await batches.commit()
        assert shared.committed(topic) == {place: 6}
        await batches.seek(8)
        batch = await anext(batches)
        assert [record.offset for record in batch] == [8, 9]
        await batches.rewind()
        assert (await anext(batches))[0].offset == 8
        await batches.pause()
        shared.produce(topic, "paused")
        assert [batch async for batch in batches] == []
        await batches.resume()
        assert (await anext(batches))[0].text() == "paused"


async def test_unreachable_brokers_raise_an_error() -> None:
    async with asyncio.timeout(LIMIT_S), AsyncClient("127.0.0.1:1", timeout_s=0.5) as client:
        with pytest.raises(DeliveryFailed, match="no answer"):
            await client.publish("orders", "paid")
        with pytest.raises(Unreachable):
            await anext(client.consume("orders", group="billing"))
