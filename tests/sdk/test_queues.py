"""Queues: jobs that are done, retried, failed, lost and given back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import eventually
from tidemill import AsyncClient, AsyncJob, Client, Job, Queue
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.client.delayed_retries import Origin, retry_headers
from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.deliveries import ShareDelivery
from tidemill.client.share.session import Acknowledge
from tidemill.dead_letters import Header, failure_of
from tidemill.delays.requests import DELAY
from tidemill.sdk.errors import ClientError, Closed, InvalidSetting, JobLost, JobSettled, UnknownTopic
from tidemill.sdk.publishing.publisher import Publication, Publisher
from tidemill.testing import InProcessBroker

WORKER = Path(__file__).with_name("queue_worker.py")
# Shorter than a lock lasts, which is 30 s: what comes within it was released, and has not expired.
LIMIT_S = 20.0


def fill(broker: InProcessBroker, topic: str, count: int) -> None:
    for number in range(count):
        broker.produce(topic, str(number))


def get(queue: Queue, limit_s: float = LIMIT_S) -> Job:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        job = queue.get(0.5)
        if job is not None:
            return job
    raise AssertionError(f"no job came within {limit_s:g} s")


def is_empty(queue: Queue) -> bool:
    return all(queue.get(0.3) is None for _ in range(3))


def test_every_job_is_done_once_by_one_of_two_workers(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 40)
    seen: list[str] = []
    with (
        client.queue(topic, group=topic, prefetch=3) as one,
        client.queue(topic, group=topic, prefetch=3) as two,
    ):
        while len(seen) < 40:
            for queue in (one, two):
                job = queue.get(0.5)
                if job is not None:
                    seen.append(job.text())
                    job.done()
        assert is_empty(one)
    assert sorted(seen, key=int) == [str(number) for number in range(40)]


def test_a_job_that_is_acknowledged_twice_raises_job_settled(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 1)
    with client.queue(topic, group=topic) as queue:
        job = get(queue)
        job.done()
        for again in (job.done, job.retry, job.fail, job.extend):
            with pytest.raises(JobSettled):
                again()
        assert is_empty(queue)


def test_a_lock_lost_while_working_raises_job_lost_and_costs_no_other_job_its_own(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 1)
    with (
        client.queue(topic, group=topic, prefetch=0) as slow,
        client.queue(topic, group=topic) as other,
    ):
        job = get(slow)
        shared.clock.advance(seconds=31)
        again = get(other)
        assert (again.text(), again.attempt) == ("0", 2)
        for call in (job.extend, job.done):
            with pytest.raises(JobLost):
                call()
        again.done()


def test_extend_begins_the_time_of_the_lock_anew(shared: InProcessBroker, client: Client, topic: str) -> None:
    fill(shared, topic, 1)
    with client.queue(topic, group=topic) as queue, client.queue(topic, group=topic) as other:
        job = get(queue)
        for _ in range(3):
            shared.clock.advance(seconds=20)
            job.extend()
        assert is_empty(other)
        job.done()
        assert is_empty(other)


def test_a_poison_job_is_attempted_up_to_the_limit_of_the_group(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 1)
    attempts = []
    with client.queue(topic, group=topic) as queue:
        for _ in range(5):
            job = get(queue)
            attempts.append(job.attempt)
            job.retry()
        assert attempts == [1, 2, 3, 4, 5]
        assert is_empty(queue)


def test_a_job_retried_after_a_time_of_its_own_counts_its_attempts(
    shared: InProcessBroker, client: Client, name: str
) -> None:
    topic = shared.create_topic(name, configs={"tidemill.delays.enable": "true"})
    letters = shared.create_topic(f"{name}-dlq")
    client.publish(topic, "poison", key="k", headers={"trace": "t"}).result()
    attempts = []
    with client.queue(topic, group=topic, dead_letters=letters) as queue:
        for number in range(5):
            job = get(queue)
            attempts.append(job.attempt)
            assert (job.key, job.value, job.record.headers) == (b"k", b"poison", (("trace", b"t"),))
            # Both ways of a retry count.
            job.retry(after="10ms", why="no") if number % 2 == 0 else job.retry()
        assert attempts == [1, 2, 3, 4, 5]
        assert is_empty(queue)
    (letter,) = shared.records(letters)
    assert failure_of([Header(*each) for each in letter.headers]).attempts == 5


def test_a_retry_of_one_group_is_no_job_of_another(
    shared: InProcessBroker, client: Client, name: str
) -> None:
    topic = shared.create_topic(name, configs={"tidemill.delays.enable": "true"})
    client.publish(topic, "once").result()
    with client.queue(topic, group=f"{name}-a") as queue:
        get(queue).retry(after=0)
        again = get(queue)
        assert again.attempt == 2
        again.done()
    with client.queue(topic, group=f"{name}-b") as other:
        get(other).done()
        assert is_empty(other)


def test_a_retry_after_a_time_is_refused_in_a_topic_without_delays(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 1)
    with client.queue(topic, group=topic) as queue:
        job = get(queue)
        with pytest.raises(InvalidSetting, match=r"tidemill\.delays\.enable=true"):
            job.retry(after=5)
        job.done()


def test_a_failed_job_is_a_dead_letter_with_its_reason(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    letters = shared.create_topic(f"{topic}-dlq")
    client.publish(topic, "v", key="k", headers={"trace": "t"}, timestamp_ms=1_700_000_000_000).result()
    with client.queue(topic, group=topic, dead_letters=letters) as queue:
        get(queue).fail(ValueError("no amount"))
        assert is_empty(queue)
    (letter,) = shared.records(letters)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", b"v", 1_700_000_000_000)
    failure = failure_of([Header(*each) for each in letter.headers])
    assert (failure.topic, failure.group, failure.message) == (topic, topic, "ValueError: no amount")


@pytest.fixture
def small_client(shared: InProcessBroker) -> Iterator[Client]:
    """Its producer refuses records of more than a thousand bytes before it sends them."""
    with Client(shared.bootstrap, timeout_s=20, message_max_bytes=1000) as client:
        yield client


def test_a_job_whose_dead_letter_cannot_be_sent_stays_with_its_worker(
    shared: InProcessBroker, small_client: Client, topic: str
) -> None:
    letters = shared.create_topic(f"{topic}-dlq")
    shared.produce(topic, "x" * 5000)
    with small_client.queue(topic, group=topic, dead_letters=letters) as queue:
        job = get(queue)
        with pytest.raises(ClientError):
            job.fail("no such address")
        job.done()
        assert is_empty(queue)


def test_a_job_without_attempts_whose_dead_letter_cannot_be_sent_ends_no_worker(
    shared: InProcessBroker, small_client: Client, topic: str
) -> None:
    letters = shared.create_topic(f"{topic}-dlq")
    headers = retry_headers([], Origin(topic, 0, 0, 0), 6, topic, "1s", "declined")
    shared.produce(topic, "x" * 5000, headers=[each for each in headers if each[0] != DELAY])
    shared.produce(topic, "next")
    with small_client.queue(topic, group=topic, dead_letters=letters) as queue:
        assert get(queue).text() == "next"


def test_a_failed_job_without_a_dead_letter_topic_is_gone(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 1)
    with client.queue(topic, group=topic) as queue:
        get(queue).fail("no")
        assert is_empty(queue)


def test_no_more_jobs_are_in_hand_than_concurrency_allows(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 5)
    with client.queue(topic, group=topic, concurrency=2) as queue:
        first, _second = get(queue), get(queue)
        assert is_empty(queue)
        first.done()
        get(queue)
        assert is_empty(queue)


def test_shutdown_with_100_prefetched_jobs_releases_them_at_once(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    client.publish_many(topic, [str(number) for number in range(100)])
    with client.queue(topic, group=topic, prefetch=99) as queue:
        in_hand = get(queue)
        held = queue._workshop._consumer
        assert held is not None
        shared.wait_until(lambda: held._held.count == 100, "all are prefetched")
    with pytest.raises(JobLost):
        in_hand.done()
    with client.queue(topic, group=topic, prefetch=99) as other:
        jobs: list[Job] = []
        while len(jobs) < 100:
            jobs.append(get(other))
            jobs[-1].done()
    assert {job.attempt for job in jobs} == {2}


def test_a_worker_killed_in_the_middle_loses_no_job(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 10)
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), shared.bootstrap, topic, "3"], stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    done = [worker.stdout.readline().strip() for _ in range(3)]
    worker.kill()
    worker.wait()
    worker.stdout.close()
    with client.queue(topic, group=topic) as queue:
        rest: list[str] = []
        while len(rest) < 7:
            job = get(queue, 60.0)
            rest.append(job.text())
            job.done()
        assert is_empty(queue)
    assert sorted(done + rest, key=int) == [str(number) for number in range(10)]


def test_a_restarted_broker_takes_the_locks_and_the_worker_goes_on() -> None:
    with InProcessBroker() as broker, Client(broker.bootstrap, timeout_s=20) as client:
        topic = broker.create_topic("jobs")
        fill(broker, topic, 5)
        with client.queue(topic, group="g") as queue:
            get(queue).done()
            in_hand = get(queue)
            broker.restart()
            with pytest.raises(JobLost):
                in_hand.done()
            rest: list[str] = []
            while len(rest) < 4:
                job = get(queue, 60.0)
                rest.append(job.text())
                job.done()
            assert is_empty(queue)
    assert sorted(rest) == ["1", "2", "3", "4"]


def test_run_works_on_several_jobs_and_lets_failed_ones_come_again(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 6)
    stop = threading.Event()
    together = threading.Barrier(2)
    seen: list[tuple[str, int]] = []

    def handle(job: Job) -> None:
        if not seen:
            together.wait(LIMIT_S)
        seen.append((job.text(), job.attempt))
        if len([each for each in seen if each[0] != "0" or each[1] == 2]) == 6:
            stop.set()
        if job.text() == "0" and job.attempt == 1:
            raise RuntimeError("not yet")

    client.queue(topic, group=topic, concurrency=2).run(handle, stop=stop)
    assert sorted(set(seen)) == [("0", 1), ("0", 2), *((str(number), 1) for number in range(1, 6))]


def test_a_topic_that_does_not_exist_is_named(client: Client) -> None:
    with client.queue("nowhere", group="g") as queue, pytest.raises(UnknownTopic, match="nowhere"):
        queue.get(0.1)


def test_a_queue_is_of_no_use_after_its_end(client: Client, topic: str) -> None:
    queue = client.queue(topic, group=topic)
    queue.close()
    queue.close()
    with pytest.raises(Closed):
        queue.get(0.1)


@pytest.mark.parametrize(
    "given",
    [
        {"prefetch": -1},
        {"concurrency": 0},
        {"prefetch": 100_000},
        {"start": "middle"},
        {"dead_letters": "orders"},
    ],
)
def test_settings_that_cannot_be_meant_are_refused(client: Client, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        client.queue("orders", group="g", **given)


async def test_asynchronous_queue_that_could_not_be_opened_says_so_again(shared: InProcessBroker) -> None:
    async with AsyncClient(shared.bootstrap, timeout_s=20) as client:
        queue = client.queue("nowhere", group="g")
        for _ in range(2):
            with pytest.raises(UnknownTopic, match="nowhere"):
                await queue.get(0.1)
        await queue.close()


async def test_jobs_from_an_event_loop(shared: InProcessBroker, topic: str) -> None:
    fill(shared, topic, 5)
    async with AsyncClient(shared.bootstrap, timeout_s=20) as client:
        seen = []
        async with client.queue(topic, group=topic) as queue:
            async for job in queue:
                seen.append(job.text())
                await job.extend()
                await job.done()
                with pytest.raises(JobSettled):
                    await job.done()
                if len(seen) == 5:
                    break
    assert sorted(seen) == ["0", "1", "2", "3", "4"]


async def test_dead_letters_are_not_published_in_the_thread_of_the_event_loop(
    shared: InProcessBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer whose queue is full, or a store of large payloads, lets its caller wait."""
    letters = shared.create_topic(f"{topic}-dlq")
    headers = retry_headers([], Origin(topic, 0, 0, 0), 5, topic, "1s", "declined")
    attempted = [each for each in headers if each[0] != DELAY]
    shared.produce(topic, "fails")
    shared.produce(topic, "retried at its last attempt", headers=attempted)
    shared.produce(topic, "attempted too often", headers=[*attempted, ("tidemill.retry.attempt", b"6")])
    threads: list[threading.Thread] = []
    original = Publisher.publish

    def publish(self: Publisher, *given: Any) -> Publication:
        threads.append(threading.current_thread())
        return original(self, *given)

    monkeypatch.setattr(Publisher, "publish", publish)
    async with (
        AsyncClient(shared.bootstrap, timeout_s=20) as client,
        client.queue(topic, group=topic, dead_letters=letters) as queue,
    ):
        while len(threads) < 3:
            job = await queue.get(0.5)
            if job is not None:
                await (job.fail("no") if job.text() == "fails" else job.retry())
    assert threading.main_thread() not in threads
    assert len(shared.records(letters)) == 3


async def test_a_cancelled_run_finishes_what_is_in_hand_and_releases_the_rest(
    shared: InProcessBroker, topic: str
) -> None:
    fill(shared, topic, 20)
    started, may_end = asyncio.Event(), asyncio.Event()
    done = []

    async def handle(job: AsyncJob) -> None:
        started.set()
        await may_end.wait()
        done.append(job.text())

    async with AsyncClient(shared.bootstrap, timeout_s=20) as client:
        running = asyncio.create_task(
            client.queue(topic, group=topic, prefetch=10, concurrency=2).run(handle)
        )
        await asyncio.wait_for(started.wait(), LIMIT_S)
        running.cancel()
        # What was not started is there for others although the job in hand is not done.
        async with client.queue(topic, group=topic, prefetch=30) as other:
            rest = set()
            async for job in other:
                rest.add(job.text())
                await job.done()
                if len(rest) >= 18:
                    break
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await running
    assert 1 <= len(done) <= 2
    assert not rest & set(done)


def is_locked_until(delivery: ShareDelivery, steady_s: float) -> bool:
    return delivery.locked_until_s > steady_s


def test_locks_are_renewed_until_a_record_is_acknowledged(shared: InProcessBroker, topic: str) -> None:
    fill(shared, topic, 1)
    with Cluster(shared.bootstrap) as cluster:
        Admin(cluster).alter_configs(
            ResourceType.GROUP, topic, changes={"share.auto.offset.reset": "earliest"}
        )
    passed_s = 0.0
    consumer = ShareConsumer(
        Cluster(shared.bootstrap),
        topic,
        [topic],
        capacity=1,
        renews_locks=True,
        steady_s=lambda: time.monotonic() + passed_s,
    )
    delivery = consumer.take(LIMIT_S)
    assert delivery is not None
    other = ShareConsumer(Cluster(shared.bootstrap), topic, [topic], capacity=1)
    try:
        for _ in range(5):
            locked_until_s = delivery.locked_until_s + 10
            passed_s += 15
            eventually(partial(is_locked_until, delivery, locked_until_s), "the lock is renewed")
            shared.clock.advance(seconds=15)
        assert other.take(1.0) is None
        consumer.acknowledge(delivery, Acknowledge.ACCEPT).result(LIMIT_S)
    finally:
        consumer.close()
        other.close()
