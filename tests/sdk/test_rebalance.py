"""Members that come, go and are taken for dead: no exception, no lost record, no offset of a partition that is gone."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from tidemill import Client
from tidemill.sdk.consuming.guarantees import GuaranteeName
from tidemill.testing import InProcessBroker

LIMIT_S = 60.0
SETTINGS = [
    {"heartbeat_interval_ms": 200},
    {"heartbeat_interval_ms": 200, "partition_assignment_strategy": "cooperative-sticky"},
    {"group_protocol": "consumer"},
]


@pytest.fixture(scope="module")
def shared() -> Iterator[InProcessBroker]:
    """A short heartbeat interval, so that members notice a rebalance soon."""
    quick = {
        "group.consumer.heartbeat.interval.ms": 200,
        "group.consumer.min.heartbeat.interval.ms": 200,
    }
    with InProcessBroker(quick) as broker:
        yield broker


class Member(threading.Thread):
    """Consumes until it is stopped, and notes what it saw."""

    def __init__(self, client: Client, topic: str, **options: object) -> None:
        super().__init__(daemon=True)
        self.batches = client.consume(topic, group=topic, max_batch=5, idle_timeout_s=0.1, **options)  # type: ignore[arg-type]
        self.seen: list[bytes] = []
        self.failure: BaseException | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            with self.batches:
                while not self.stopping.is_set():
                    for batch in self.batches:
                        self.seen += [record.value or b"" for record in batch]
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self.stopping.set()
        self.join(LIMIT_S)
        assert not self.is_alive()
        assert self.failure is None


@pytest.mark.parametrize("options", SETTINGS, ids=["eager", "cooperative", "consumer-protocol"])
def test_a_second_member_takes_its_share_and_gives_it_back(
    shared: InProcessBroker, client: Client, name: str, options: dict[str, object]
) -> None:
    topic = shared.create_topic(name, partitions=4)
    sent: list[bytes] = []

    def publish(count: int) -> None:
        values = [str(len(sent) + number).encode() for number in range(count)]
        for number, value in enumerate(values):
            client.publish(topic, value, partition=number % 4)
        client.flush()
        sent.extend(values)

    first = Member(client, topic, **options)
    first.start()
    publish(40)
    shared.wait_until(lambda: len(first.seen) == 40, "the first member reads", LIMIT_S)
    second = Member(client, topic, **options)
    second.start()
    shared.wait_until(lambda: len(second.batches.assignment) == 2, "the second has its share", LIMIT_S)
    publish(40)
    shared.wait_until(lambda: len(first.seen) + len(second.seen) == 80, "both read", LIMIT_S)
    assert len(second.seen) == 20
    second.stop()
    shared.wait_until(lambda: len(first.batches.assignment) == 4, "the first has all again", LIMIT_S)
    publish(40)
    shared.wait_until(lambda: len(first.seen) + len(second.seen) == 120, "the first reads", LIMIT_S)
    first.stop()
    # Everybody left what they had in order: nothing comes twice.
    assert Counter(first.seen + second.seen) == Counter(sent)
    assert sum(shared.committed(topic).values()) == 120


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_expelled_member_commits_nothing_and_goes_on(
    shared: InProcessBroker, client: Client, topic: str, guarantee: GuaranteeName
) -> None:
    output = shared.create_topic(f"{topic}-out")
    for number in range(6):
        shared.produce(topic, str(number))

    slow = client.consume(
        topic,
        group=topic,
        guarantee=guarantee,
        max_batch=3,
        linger_s=1,
        instance="slow",
        transaction_timeout_ms=900_000,
        heartbeat_interval_ms=200,
    )
    quick = client.consume(
        topic,
        group=topic,
        guarantee=guarantee,
        max_batch=3,
        linger_s=1,
        instance="quick",
        heartbeat_interval_ms=200,
    )
    batch = next(slow)
    for record in batch:
        batch.publish(output, b"slow " + (record.value or b""))

    def is_taken_for_dead() -> bool:
        # It works on this batch for longer than its session lasts, unless a heartbeat slips in.
        shared.clock.advance(seconds=50)
        return shared.members(topic) == []

    shared.wait_until(is_taken_for_dead, "the slow one is out of the group")
    for _ in range(2):
        for record in (other := next(quick)):
            other.publish(output, b"quick " + (record.value or b""))
    quick.commit()
    # The markers of a transaction are written a moment after it is committed.
    shared.wait_until(lambda: shared.committed(topic) == {(topic, 0): 6}, "the quick one has committed")
    with quick:
        # No exception for the slow one, and its offsets, which would set the group back to 3, count no more.
        thread = threading.Thread(target=lambda: next(slow, None), daemon=True)
        thread.start()
        shared.wait_until(lambda: len(shared.members(topic)) == 2, "the slow one joins again", LIMIT_S)
        assert shared.committed(topic) == {(topic, 0): 6}
    shared.produce(topic, "6")
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    slow.close()
    client.flush()
    values = [record.value or b"" for record in shared.records(output, count=6)]
    assert [value for value in values if value.startswith(b"quick")] == [b"quick %d" % n for n in range(6)]
    # At least once, the slow one's results are there, too. Exactly once, they never were.
    assert len(values) == (6 if guarantee == "exactly-once" else 9)
