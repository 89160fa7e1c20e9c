"""At least once, at most once, exactly once: what is handed out again, what is lost, what is counted twice."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidemill import Client
from tidemill.sdk.consuming.guarantees import GuaranteeName
from tidemill.sdk.errors import Closed, DeliveryFailed, Fenced, InvalidSetting, UnknownTopic
from tidemill.testing import InProcessBroker
from tidemill.types import TopicPartition

GUARANTEES: tuple[GuaranteeName, ...] = ("at-least-once", "at-most-once", "exactly-once")
WORKER = Path(__file__).with_name("worker.py")
LIMIT_S = 60.0


def fill(broker: InProcessBroker, topic: str, count: int) -> None:
    for number in range(count):
        broker.produce(topic, str(number))


def committed(broker: InProcessBroker, group: str, topic: str) -> int | None:
    return broker.committed(group).get(TopicPartition(topic, 0))


def await_committed(broker: InProcessBroker, group: str, topic: str, offset: int) -> None:
    """The markers of a transaction are written a moment after it is committed."""
    broker.wait_until(
        lambda: committed(broker, group, topic) == offset, f"{group} has committed {offset} of {topic}"
    )


class Failure(Exception):
    pass


@pytest.mark.parametrize(
    ("guarantee", "handed_out", "results"),
    [
        # 10 records in batches of 5. The second batch fails after it has published 2 results, and the loop starts anew.
        ("at-least-once", 5 + 5 + 5, 10 + 2),
        ("at-most-once", 5 + 5, 5 + 2),
        ("exactly-once", 5 + 5 + 5, 10),
    ],
)
def test_an_exception_in_the_middle_of_a_batch(
    shared: InProcessBroker,
    client: Client,
    topic: str,
    guarantee: GuaranteeName,
    handed_out: int,
    results: int,
) -> None:
    output = shared.create_topic(f"{topic}-out")
    fill(shared, topic, 10)
    seen = 0
    failures = 1
    while True:
        try:
            with client.consume(
                topic,
                group=topic,
                guarantee=guarantee,
                max_batch=5,
                linger_s=10,
                idle_timeout_s=0.2,
                instance="one",
            ) as batches:
                for batch in batches:
                    seen += len(batch)
                    for number, record in enumerate(batch):
                        if failures and batch[0].offset == 5 and number == 2:
                            failures -= 1
                            raise Failure
                        batch.publish(output, record.value)
            break
        except Failure:
            expected = 10 if guarantee == "at-most-once" else 5
            await_committed(shared, topic, topic, expected)
    client.flush()
    assert seen == handed_out
    await_committed(shared, topic, topic, 10)
    assert len(shared.records(output, count=results)) == results


@pytest.mark.parametrize(
    ("guarantee", "results"),
    [
        # 30 records in batches of 10. The process is killed when half of the second batch is published.
        ("at-least-once", 30 + 5),
        ("at-most-once", 30 - 5),
        ("exactly-once", 30),
    ],
)
def test_kill_9_in_the_middle_of_a_batch(
    shared: InProcessBroker, topic: str, guarantee: GuaranteeName, results: int
) -> None:
    output = shared.create_topic(f"{topic}-out")
    fill(shared, topic, 30)
    arguments = [sys.executable, str(WORKER), shared.bootstrap, topic, output, guarantee]
    killed = subprocess.run([*arguments, "--die-at", "15"], timeout=LIMIT_S, capture_output=True, text=True)
    assert killed.returncode == -9, killed
    await_committed(shared, topic, topic, 20 if guarantee == "at-most-once" else 10)
    # The session of the dead one: without this the group waits for it.
    shared.clock.advance(minutes=1)
    again = subprocess.run(arguments, timeout=LIMIT_S, capture_output=True, text=True)
    assert again.returncode == 0, again
    await_committed(shared, topic, topic, 30)
    found = [record.value for record in shared.records(output, count=results)]
    assert len(found) == results
    everything = {str(number).encode() for number in range(30)}
    if guarantee == "at-most-once":
        assert set(found) == everything - {str(number).encode() for number in range(15, 20)}
    else:
        assert set(found) == everything
    # Both loops wrote 35 results; what differs is what counts.
    written = len(shared.records(output, isolation="read_uncommitted"))
    assert written == (25 if guarantee == "at-most-once" else 35)


def test_asking_for_the_next_batch_commits_the_one_before(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 6)
    with client.consume(topic, group=topic, max_batch=2, linger_s=10) as batches:
        next(batches)
        assert committed(shared, topic, topic) is None
        assert [record.offset for record in next(batches)] == [2, 3]
        assert committed(shared, topic, topic) == 2
    assert committed(shared, topic, topic) == 4


def test_closing_without_leaving_the_block_commits_nothing(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 2)
    batches = client.consume(topic, group=topic)
    assert next(batches)
    batches.close()
    assert committed(shared, topic, topic) is None
    with pytest.raises(Closed, match=f"consume {topic} as {topic}: already closed"):
        next(batches)


def test_commit_by_hand(shared: InProcessBroker, client: Client, topic: str) -> None:
    fill(shared, topic, 4)
    batches = client.consume(topic, group=topic, max_batch=3, linger_s=10)
    batch = next(batches)
    batches.commit(batch[1])
    assert committed(shared, topic, topic) == 2
    batches.commit()
    assert committed(shared, topic, topic) == 3
    with pytest.raises(Closed, match="its batch is over"):
        batch.publish(topic, "late")
    batches.close()


def test_committing_a_part_of_a_batch_waits_for_its_results(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    output = shared.create_topic(f"{topic}-out", **{"max.message.bytes": 1_000})
    fill(shared, topic, 3)
    with client.consume(topic, group=topic, max_batch=3, linger_s=10) as batches:
        batch = next(batches)
        batch.publish(output, b"x" * 2_000)
        with pytest.raises(DeliveryFailed):
            batches.commit(batch[1])
        assert committed(shared, topic, topic) is None
        batches.rewind()


def test_exactly_once_a_part_of_a_batch_cannot_be_committed(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 3)
    with client.consume(topic, group=topic, guarantee="exactly-once", max_batch=3, linger_s=10) as batches:
        batch = next(batches)
        with pytest.raises(InvalidSetting, match="counts as a whole"):
            batches.commit(batch[1])
        assert committed(shared, topic, topic) is None


def test_at_most_once_a_commit_of_a_part_takes_nothing_back(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    fill(shared, topic, 3)
    with client.consume(topic, group=topic, guarantee="at-most-once", max_batch=3, linger_s=10) as batches:
        batch = next(batches)
        batches.commit(batch[0])
        assert committed(shared, topic, topic) == 3


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_rewind_hands_the_batch_out_again(
    shared: InProcessBroker, client: Client, topic: str, guarantee: GuaranteeName
) -> None:
    output = shared.create_topic(f"{topic}-out")
    fill(shared, topic, 4)
    tries = []
    with client.consume(
        topic, group=topic, guarantee=guarantee, max_batch=2, linger_s=10, idle_timeout_s=0.2
    ) as batches:
        for batch in batches:
            tries.append([record.offset for record in batch])
            batch.publish(output, str(len(tries)))
            if len(tries) == 2:
                batches.rewind()
    assert tries == [[0, 1], [2, 3], [2, 3]]
    client.flush()
    await_committed(shared, topic, topic, 4)
    expected = [b"1", b"3"] if guarantee == "exactly-once" else [b"1", b"2", b"3"]
    assert [record.value for record in shared.records(output, count=len(expected))] == expected


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_result_that_cannot_be_delivered_keeps_its_batch_from_being_committed(
    shared: InProcessBroker, client: Client, topic: str, guarantee: GuaranteeName
) -> None:
    output = shared.create_topic(f"{topic}-out", **{"max.message.bytes": 1_000})
    fill(shared, topic, 2)
    with client.consume(topic, group=topic, guarantee=guarantee, max_batch=2, linger_s=10) as batches:
        batch = next(batches)
        batch.publish(output, "small")
        batch.publish(output, b"x" * 2_000)
        with pytest.raises(DeliveryFailed, match=f"publish to {output}"):
            next(batches)
        assert committed(shared, topic, topic) is None
        assert [record.offset for record in next(batches)] == [0, 1]
    await_committed(shared, topic, topic, 2)


def test_aborted_transaction_is_retried_inside_the_loop(
    tidemill_broker: InProcessBroker,
) -> None:
    for each in ("orders", "results"):
        tidemill_broker.create_topic(each)
    fill(tidemill_broker, "orders", 2)
    tries = 0
    with (
        Client(tidemill_broker.bootstrap, fetch_wait_max_ms=50) as client,
        client.consume(
            "orders", group="g", guarantee="exactly-once", max_batch=2, linger_s=10, idle_timeout_s=0.2
        ) as batches,
        tidemill_broker.faults.refuse_next("TxnOffsetCommit", "ILLEGAL_GENERATION"),
    ):
        for batch in batches:
            tries += 1
            for record in batch:
                batch.publish("results", record.value)
    assert tries == 2
    await_committed(tidemill_broker, "g", "orders", 2)
    assert [record.value for record in tidemill_broker.records("results", count=2)] == [b"0", b"1"]


def test_lost_answers_to_commits_change_nothing(tidemill_broker: InProcessBroker) -> None:
    for each in ("orders", "results"):
        tidemill_broker.create_topic(each)
    fill(tidemill_broker, "orders", 4)
    tidemill_broker.faults.lose_next_ack(api="EndTxn")
    tidemill_broker.faults.lose_next_ack(api="OffsetCommit")
    with Client(tidemill_broker.bootstrap, fetch_wait_max_ms=50) as client:
        for guarantee in ("exactly-once", "at-least-once"):
            with client.consume(
                "orders",
                group=guarantee,
                guarantee=guarantee,
                max_batch=2,
                linger_s=10,
                idle_timeout_s=0.2,
            ) as batches:
                for batch in batches:
                    for record in batch:
                        batch.publish("results", record.value)
            await_committed(tidemill_broker, guarantee, "orders", 4)
    assert len(tidemill_broker.records("results", count=8)) == 8


def test_a_second_instance_of_a_name_fences_the_first(
    shared: InProcessBroker, client: Client, topic: str
) -> None:
    output = shared.create_topic(f"{topic}-out")
    fill(shared, topic, 2)
    first = client.consume(topic, group=topic, guarantee="exactly-once", instance="one")
    next(first).publish(output, "of the first").result()
    with ThreadPoolExecutor(1) as thread:
        second = client.consume(topic, group=topic, guarantee="exactly-once", instance="one")
        batch = thread.submit(next, second)
        shared.wait_until(lambda: len(shared.members(topic)) == 2, "the second one has joined", LIMIT_S)
        with pytest.raises(Fenced, match=f"transaction of {topic}-one: .*another instance of that name runs"):
            next(first)
        first.close()
        assert [record.offset for record in batch.result(LIMIT_S)] == [0, 1]
        second.close()
    assert shared.records(output) == []


def test_consuming_an_unknown_topic_or_with_bad_settings_is_refused(
    shared: InProcessBroker, client: Client, name: str
) -> None:
    with pytest.raises(InvalidSetting, match="at-least-once, at-most-once, exactly-once"):
        client.consume(name, group=name, guarantee="sometimes")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="max_batch is 0"):
        client.consume(name, group=name, max_batch=0)
    with pytest.raises(InvalidSetting, match="committed records only"):
        client.consume(name, group=name, guarantee="exactly-once", isolation_level="read_uncommitted")
    with client.consume(name, group=name) as batches, pytest.raises(UnknownTopic, match="create it with"):
        next(batches)
