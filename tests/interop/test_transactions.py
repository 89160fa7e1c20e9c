"""Transactions through stock clients: what each isolation level shows, offsets in a transaction, and fencing.

Each producer's records are read with all three libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.brokers import eventually
from tests.conftest import BOOTSTRAP
from tests.interop.clients import Client
from tests.interop.transactional import COMMITTED, UNCOMMITTED, FencedError, TransactionalProducer
from tests.interop.transactional_clients import KINDS, with_producers
from tidemill.types import TopicPartition

Start = Callable[..., TransactionalProducer]


@pytest.fixture
def transactional_id(topic: str) -> str:
    return f"tx-{topic}"


@pytest.fixture
def start_producer(other: Client, transactional_id: str) -> Iterator[Start]:
    """Starts producers with the test's own transactional id."""
    with ExitStack() as started:

        def start_one(kind: type[TransactionalProducer], **settings: Any) -> TransactionalProducer:
            producer = kind(other.bootstrap, transactional_id, **settings)
            started.callback(producer.close)
            return producer

        yield start_one


@pytest.fixture
def places(other: Client, topic: str) -> list[TopicPartition]:
    other.create_topic(topic, 2)
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def _reads(client: Client, place: TopicPartition, isolation: str) -> list[bytes]:
    """Returns the records that every library reads; all must agree."""
    first, *others = [kind.read(client.bootstrap, place, isolation) for kind in KINDS]
    assert all(values == first for values in others)
    return first


def _shows(client: Client, place: TopicPartition, values: list[bytes]) -> None:
    """The answer to a commit or abort comes when that is decided, its markers a moment later."""
    reader = KINDS[0]
    eventually(lambda: reader.read(client.bootstrap, place, COMMITTED) == values, f"{values} in {place}")
    assert _reads(client, place, COMMITTED) == values


@with_producers()
def test_a_transaction_is_seen_when_it_is_committed(
    kind: type[TransactionalProducer],
    start_producer: Start,
    other: Client,
    places: list[TopicPartition],
) -> None:
    producer = start_producer(kind)
    producer.begin()
    for place in places:
        producer.send(place, b"1", b"2")
    for place in places:
        assert _reads(other, place, UNCOMMITTED) == [b"1", b"2"]
        assert _reads(other, place, COMMITTED) == []
    producer.commit()
    for place in places:
        _shows(other, place, [b"1", b"2"])


@with_producers()
def test_an_aborted_transaction_is_never_seen(
    kind: type[TransactionalProducer],
    start_producer: Start,
    other: Client,
    places: list[TopicPartition],
) -> None:
    producer = start_producer(kind)
    for number, end in enumerate((producer.abort, producer.commit, producer.abort, producer.commit)):
        producer.begin()
        producer.send(places[0], b"%d" % number)
        end()
    _shows(other, places[0], [b"1", b"3"])
    assert _reads(other, places[0], UNCOMMITTED) == [b"0", b"1", b"2", b"3"]


@with_producers()
def test_records_of_others_wait_behind_an_open_transaction(
    kind: type[TransactionalProducer],
    start_producer: Start,
    other: Client,
    places: list[TopicPartition],
    transactional_id: str,
) -> None:
    producer = start_producer(kind)
    producer.begin()
    producer.send(places[0], b"open")
    second = kind(other.bootstrap, f"{transactional_id}-2")
    try:
        second.begin()
        second.send(places[0], b"second")
        second.commit()
        assert _reads(other, places[0], COMMITTED) == []
        producer.commit()
        _shows(other, places[0], [b"open", b"second"])
    finally:
        second.close()


@with_producers()
def test_offsets_take_effect_with_their_transaction(
    kind: type[TransactionalProducer],
    start_producer: Start,
    other: Client,
    places: list[TopicPartition],
    group: str,
) -> None:
    producer = start_producer(kind)
    source, target = places
    for offset, end in ((5, producer.commit), (8, producer.abort), (6, producer.commit)):
        producer.begin()
        producer.send(target, b"%d" % offset)
        producer.send_offsets(group, {source: offset})
        end()
    eventually(lambda: other.group_offsets(group).get((*source,)) == (6, ""), "the offsets")
    _shows(other, target, [b"5", b"6"])


@with_producers()
def test_a_second_producer_fences_the_first(
    kind: type[TransactionalProducer],
    start_producer: Start,
    other: Client,
    places: list[TopicPartition],
) -> None:
    first = start_producer(kind)
    first.begin()
    first.send(places[0], b"first")
    second = start_producer(kind)
    with pytest.raises(FencedError):
        first.commit()
    second.begin()
    second.send(places[0], b"second")
    second.commit()
    _shows(other, places[0], [b"second"])


@with_producers()
@pytest.mark.skipif(bool(BOOTSTRAP), reason="needs a broker that looks for timeouts often")
def test_a_transaction_that_takes_too_long_is_aborted(
    kind: type[TransactionalProducer], start: Callable[..., Any], topic: str
) -> None:
    interval = "transaction.abort.timed.out.transaction.cleanup.interval.ms"
    broker = start({interval: "100"})
    place = TopicPartition(topic, 0)
    slow = kind(broker.bootstrap, "slow", timeout_ms=1000)
    quick = kind(broker.bootstrap, "quick")
    try:
        slow.begin()
        slow.send(place, b"slow")
        quick.begin()
        quick.send(place, b"quick")
        quick.commit()
        eventually(lambda: kind.read(broker.bootstrap, place, COMMITTED) == [b"quick"], "the abort")
    finally:
        slow.close()
        quick.close()
