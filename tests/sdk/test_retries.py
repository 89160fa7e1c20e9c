"""Retries and dead letters of an ordinary group: how often, in which order, and what a crash leaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tidemill import AsyncClient, Client, Record
from tidemill.dead_letters import Header, failure_of
from tidemill.sdk.consuming.retries import Retrying, Waits
from tidemill.sdk.errors import Closed, InvalidSetting, UnknownTopic
from tidemill.sdk.records import NewRecord
from tidemill.testing import InProcessBroker
from tidemill.types import TopicPartition

WORKER = Path(__file__).with_name("retrying_worker.py")
LIMIT_S = 60.0


@pytest.fixture
def letters(shared: InProcessBroker, name: str) -> str:
    return shared.create_topic(f"{name}-dlq")


def policy(retries: int = 2) -> Retrying:
    made = Retrying.of("billing", ["orders"], retries, "1s..3s", "orders-dlq", None)
    assert made is not None
    return made


# -- the rules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backoff", "delays_ms"),
    [
        ("1s..10s", [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]),
        ("30s", [30_000] * 6),
        (0, [0] * 6),
        (1.5, [1_500] * 6),
        (timedelta(minutes=1), [60_000] * 6),
    ],
)
def test_each_wait_is_twice_the_one_before_up_to_the_longest(backoff: Any, delays_ms: list[int]) -> None:
    assert [Waits.of(backoff).delay_ms(retry) for retry in range(1, 7)] == delays_ms


def test_wait_of_the_thousandth_retry_is_the_longest() -> None:
    assert Waits.of("1ms..1d").delay_ms(1_000) == 86_400_000


def as_delivered(topic: str, new: NewRecord, offset: int) -> Record:
    """As the broker delivers it: without the delay, with headers of its own."""
    pairs = [(name, value) for name, value in list(new.headers or ()) if name != "tidemill-delay"]
    headers = (*pairs, ("tidemill-original-offset", b"0"), ("tidemill-due", b"5"))
    return Record(topic, 0, offset, 99, new.key, new.value, headers)  # type: ignore[arg-type]


def test_a_retry_looks_like_its_original_and_counts() -> None:
    first = Record("orders", 3, 7, 1_234, b"k", b"v", (("trace", b"a"), ("tidemill-delay", b"1h")))
    topic, new = policy().after_failure(first, "ValueError: no")
    assert topic == "billing-retry"
    second = policy().restored(as_delivered(topic, new, 12))
    assert (second.key, second.value, second.headers) == (b"k", b"v", first.headers)
    assert second.attempt == 2
    assert second.origin == first.origin
    assert (second.topic, second.offset) == ("billing-retry", 12)


def test_exactly_the_stated_retries_come_before_the_dead_letter() -> None:
    record, topics, delays = Record("orders", 0, 7, 1_234, b"k", b"v"), [], []
    for offset in range(4):
        topic, new = policy(retries=3).after_failure(record, "ValueError: no")
        topics.append(topic)
        delays.append(dict(new.headers or ()).get("tidemill-delay"))
        record = policy(retries=3).restored(as_delivered(topic, new, offset))
    assert topics == ["billing-retry"] * 3 + ["orders-dlq"]
    assert delays == [b"1000", b"2000", b"3000", None]


def test_a_dead_letter_has_key_value_headers_and_timestamp_of_the_original() -> None:
    first = Record("orders", 3, 7, 1_234, b"k", None, (("trace", b"a"), ("trace", None)))
    topic, new = policy(retries=1).after_failure(first, "first")
    topic, letter = policy(retries=1).after_failure(policy(1).restored(as_delivered(topic, new, 0)), "second")
    assert (topic, letter.key, letter.value, letter.timestamp_ms) == ("orders-dlq", b"k", None, 1_234)
    headers = [Header(*each) for each in letter.headers or ()]
    assert headers[:2] == [("trace", b"a"), ("trace", None)]
    failure = failure_of(headers)
    assert (failure.topic, failure.partition, failure.offset) == ("orders", 3, 7)
    assert (failure.group, failure.attempts, failure.message) == ("billing", 2, "second")
    assert {name for name, _ in headers[2:]} == {
        f"__dlq.errors.{name}"
        for name in ("topic", "partition", "offset", "group", "delivery.count", "message")
    }


def test_a_foreign_record_in_the_retry_topic_is_a_record_like_any_other() -> None:
    foreign = Record("billing-retry", 0, 0, 1, None, b"v", (("tidemill.retry.attempt", b"many"),))
    assert policy().restored(foreign) is foreign


@pytest.mark.parametrize(
    "given",
    [
        {"retries": 5},
        {"retries": -1, "dead_letters": "d"},
        {"retries": 1_001, "dead_letters": "d"},
        {"retries": 1, "dead_letters": "orders"},
        {"retries": 1, "dead_letters": "d", "retry_topic": "d"},
        {"retries": 1, "dead_letters": "d", "retry_topic": "orders"},
        {"retries": 1, "dead_letters": "d", "retry_topic": "a/b"},
        {"retries": 1, "dead_letters": "d", "backoff": "10m..1s"},
        {"retries": 1, "dead_letters": "d", "backoff": "soon"},
        {"retries": 1, "dead_letters": "d", "backoff": -1},
        {"retries": 1, "dead_letters": "d", "guarantee": "at-most-once"},
        {"retries": 1, "dead_letters": "d", "guarantee": "exactly-once"},
        {"retry_topic": "r"},
    ],
)
def test_retries_that_cannot_be_meant_are_refused(client: Client, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting):
        client.consume("orders", group="billing", **given)


# -- against a broker ------------------------------------------------------------------------------------------


def work(
    client: Client, topic: str, letters: str, handler: Callable[[Record], None], **more: Any
) -> list[Record]:
    """Every record that was handed out until nothing came for a while."""
    seen = []
    settings: dict[str, Any] = {"retries": 2, "backoff": "10ms", "idle_timeout_s": 1.0, **more}
    with client.consume(topic, group=topic, dead_letters=letters, **settings) as batches:
        for batch in batches:
            for record in batch:
                seen.append(record)
                with batch.attempt(record):
                    handler(record)
    return seen


def fail_if_poison(record: Record) -> None:
    if record.value == b"poison":
        raise RuntimeError("cannot be eaten")


def test_a_poison_record_is_attempted_as_often_as_stated_and_ends_as_a_dead_letter(
    shared: InProcessBroker, client: Client, topic: str, letters: str
) -> None:
    for value in ("bread", "poison", "butter"):
        client.publish(topic, value, key="k", headers={"trace": "t"}, timestamp_ms=1_700_000_000_000).result()
    seen = work(client, topic, letters, fail_if_poison)
    assert [(each.value, each.attempt) for each in seen] == [
        (b"bread", 1),
        (b"poison", 1),
        (b"butter", 1),
        (b"poison", 2),
        (b"poison", 3),
    ]
    (letter,) = shared.records(letters)
    assert (letter.key, letter.value, letter.timestamp_ms) == (b"k", b"poison", 1_700_000_000_000)
    failure = failure_of([Header(*each) for each in letter.headers])
    assert (failure.topic, failure.offset, failure.attempts) == (topic, 1, 3)
    assert failure.message == "RuntimeError: cannot be eaten"
    assert work(client, topic, letters, fail_if_poison) == []


def test_a_record_that_succeeds_in_a_retry_leaves_no_dead_letter(
    shared: InProcessBroker, client: Client, topic: str, letters: str
) -> None:
    client.publish(topic, "late").result()

    def fail_once(record: Record) -> None:
        if record.attempt == 1:
            raise RuntimeError("not yet")

    assert [each.attempt for each in work(client, topic, letters, fail_once)] == [1, 2]
    assert shared.records(letters) == []


def test_a_retry_waits_its_backoff(shared: InProcessBroker, client: Client, topic: str, letters: str) -> None:
    client.publish(topic, "poison").result()
    seen = work(client, topic, letters, fail_if_poison, backoff="1h..2h", idle_timeout_s=0.3)
    assert [each.attempt for each in seen] == [1]
    shared.clock.advance(minutes=61)
    seen = work(client, topic, letters, fail_if_poison, backoff="1h..2h")
    assert [each.attempt for each in seen] == [2]


def test_dead_letters_without_retries(
    shared: InProcessBroker, client: Client, topic: str, letters: str
) -> None:
    client.publish(topic, "poison").result()
    assert len(work(client, topic, letters, fail_if_poison, retries=None)) == 1
    assert [each.value for each in shared.records(letters)] == [b"poison"]
    assert f"{topic}-retry" not in shared.topics()


def test_another_group_sees_no_retry(client: Client, topic: str, letters: str) -> None:
    client.publish(topic, "poison").result()
    work(client, topic, letters, fail_if_poison)
    with client.consume(topic, group=f"{topic}-other", idle_timeout_s=0.3) as batches:
        assert [record.value for batch in batches for record in batch] == [b"poison"]


def test_start_at_latest_reads_retries_from_the_first(client: Client, topic: str, letters: str) -> None:
    with client.consume(
        topic, group=topic, dead_letters=letters, retries=1, backoff=0, start="latest", max_batch=1
    ) as batches:
        waiting = iter(batches)
        # Positions are known when the first step has been made; what is published then is not older.
        batches.seek("earliest")
        client.publish(topic, "poison").result()
        batch = next(waiting)
        with batch.attempt(batch[0]):
            raise RuntimeError("no")
        batches.commit()
    seen = work(client, topic, letters, fail_if_poison, retries=1, start="latest")
    assert [(each.value, each.attempt) for each in seen] == [(b"poison", 2)]


def test_a_failed_record_of_a_rewound_batch_is_not_retried(
    shared: InProcessBroker, client: Client, topic: str, letters: str
) -> None:
    client.publish(topic, "poison").result()
    with client.consume(
        topic, group=topic, dead_letters=letters, retries=1, backoff=0, idle_timeout_s=1.0
    ) as batches:
        batch = next(batches)
        batch.fail(batch[0], "no")
        batches.rewind()
        again = [record.attempt for batch in batches for record in batch]
    assert again == [1]
    assert shared.records(letters) == []


def test_committing_a_part_of_a_batch_with_failures_is_refused(
    client: Client, topic: str, letters: str
) -> None:
    client.publish(topic, "poison").result()
    with client.consume(topic, group=topic, dead_letters=letters, retries=1) as batches:
        batch = next(batches)
        batch.fail(batch[0], "no")
        with pytest.raises(InvalidSetting, match="whole batch"):
            batches.commit(batch[0])


def test_a_record_of_another_batch_cannot_fail(client: Client, topic: str, letters: str) -> None:
    client.publish_many(topic, ["one", "two"])
    with client.consume(topic, group=topic, dead_letters=letters, retries=1, max_batch=1) as batches:
        old = next(batches)
        new = next(batches)
        for batch, record in ((old, old[0]), (new, old[0])):
            with pytest.raises(Closed):
                batch.fail(record, "no")


def test_attempt_without_retries_is_refused(client: Client, topic: str) -> None:
    client.publish(topic, "one").result()
    with client.consume(topic, group=topic) as batches:
        batch = next(batches)
        with pytest.raises(InvalidSetting, match="retries="), batch.attempt(batch[0]):
            raise RuntimeError("no")


def test_a_missing_dead_letter_topic_is_named_before_anything_is_read(client: Client, topic: str) -> None:
    with (
        client.consume(topic, group=topic, retries=1, dead_letters="nowhere") as batches,
        pytest.raises(UnknownTopic, match="nowhere"),
    ):
        next(batches)


def test_a_retry_topic_without_delays_is_refused(
    shared: InProcessBroker, client: Client, topic: str, letters: str
) -> None:
    plain = shared.create_topic(f"{topic}-plain")
    with (
        client.consume(topic, group=topic, retries=1, dead_letters=letters, retry_topic=plain) as batches,
        pytest.raises(InvalidSetting, match="has no delays"),
    ):
        next(batches)


async def test_retries_from_an_event_loop(shared: InProcessBroker, topic: str, letters: str) -> None:
    async with AsyncClient(shared.bootstrap, timeout_s=20, fetch_wait_max_ms=50) as client:
        await client.publish(topic, "poison")
        attempts = []
        async with client.consume(
            topic, group=topic, retries=2, backoff=0, dead_letters=letters, idle_timeout_s=1.0
        ) as batches:
            async for batch in batches:
                for record in batch:
                    with batch.attempt(record):
                        attempts.append(record.attempt)
                        fail_if_poison(record)
    assert attempts == [1, 2, 3]
    assert [each.value for each in shared.records(letters)] == [b"poison"]


@pytest.mark.parametrize("where", ["in-handler", "before-commit", "in-transaction"])
def test_a_worker_killed_while_a_record_fails_loses_and_doubles_nothing(
    shared: InProcessBroker, topic: str, letters: str, where: str
) -> None:
    for value in ("bread", "poison", "butter"):
        shared.produce(topic, value)
    command = [sys.executable, str(WORKER), shared.bootstrap, topic, letters]
    killed = subprocess.run([*command, "--die", where], check=False, timeout=LIMIT_S)
    assert killed.returncode == -9
    subprocess.run(command, check=True, timeout=LIMIT_S)
    (letter,) = shared.records(letters)
    assert failure_of([Header(*each) for each in letter.headers]).attempts == 3
    # Two retries: each was written once, and each is followed by its delivered copy.
    assert len(shared.records(f"{topic}-retry")) == 2
    assert shared.committed(topic)[TopicPartition(topic, 0)] == 3
