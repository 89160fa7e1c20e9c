"""Whole transactions by hand: what producers, coordinators and consumers send each other, in every version that matters.

`OLD` clients add their partitions themselves and keep an epoch for as long as they live. `NEW` ones leave the adding to
the broker and get a new epoch with each transaction (KIP-890).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.brokers import RunningBroker, eventually
from tests.wire.batches import Header, Record, encode
from tests.wire.connection import Connection, fetch_fields
from tests.wire.transactional import (
    CONCURRENT_TRANSACTIONS,
    Producer,
    batches,
    fetch,
    kinds,
    stable,
    until_stable,
)

UNKNOWN_TOPIC_OR_PARTITION = 3
OUT_OF_ORDER_SEQUENCE = 45
INVALID_PRODUCER_EPOCH = 47
INVALID_TXN_STATE = 48
INVALID_PRODUCER_ID_MAPPING = 49
TRANSACTION_COORDINATOR_FENCED = 52
PRODUCER_FENCED = 90
TRANSACTION_ABORTABLE = 120
LONG_WAIT_MS = 20_000


@pytest.fixture(params=[11, 12], ids=["old", "new"])
def version(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def producer(connection: Connection, topic: str, version: int) -> Producer:
    connection.create_topic(topic)
    producer = Producer(connection, f"tx-{topic}", version)
    producer.init()
    return producer


def aborted(part: Any) -> list[tuple[int, int]] | None:
    found = part.aborted_transactions
    return None if found is None else [(each.producer_id, each.first_offset) for each in found]


class TestLives:
    def test_a_commit(self, connection: Connection, topic: str, producer: Producer) -> None:
        assert producer.send(topic, b"a", b"b") == 0
        assert producer.send(topic, b"c") == 0
        open_ = fetch(connection, topic)
        assert (kinds(open_), open_.high_watermark, open_.last_stable_offset) == ([], 3, 0)
        assert kinds(fetch(connection, topic, committed=False)) == ["a,b", "c"]
        assert producer.end(commit=True) == 0
        until_stable(connection, topic, 4)
        committed = fetch(connection, topic)
        assert (kinds(committed), aborted(committed)) == (["a,b", "c", "commit"], [])

    def test_an_abort(self, connection: Connection, topic: str, producer: Producer) -> None:
        producer_id = producer.producer_id
        assert producer.send(topic, b"a") == 0
        assert producer.end(commit=False) == 0
        until_stable(connection, topic, 2)
        part = fetch(connection, topic)
        assert (kinds(part), aborted(part)) == (["a", "abort"], [(producer_id, 0)])
        plain = fetch(connection, topic, committed=False)
        assert (kinds(plain), aborted(plain), plain.last_stable_offset) == (["a", "abort"], None, 2)

    @staticmethod
    def is_sent(producer: Producer, topic: str, value: bytes) -> bool:
        code = producer.send(topic, value)
        assert code in (0, CONCURRENT_TRANSACTIONS)
        return code == 0

    def test_several_after_each_other(self, connection: Connection, topic: str, producer: Producer) -> None:
        for number in range(4):
            eventually(partial(self.is_sent, producer, topic, b"%d" % number), "the next transaction")
            assert producer.end(commit=number % 2 == 0) == 0
        until_stable(connection, topic, 8)
        part = fetch(connection, topic)
        assert kinds(part) == ["0", "commit", "1", "abort", "2", "commit", "3", "abort"]
        assert [first for _, first in aborted(part) or []] == [2, 6]

    def test_a_consumer_that_waits_is_woken_by_the_marker(
        self, target: RunningBroker, connection: Connection, topic: str, producer: Producer
    ) -> None:
        assert producer.send(topic, b"x" * 5_000) == 0
        with Connection(target) as other:
            fields = fetch_fields(topic, 0, max_wait=LONG_WAIT_MS, min_bytes=5_000) | {"isolation_level": 1}
            waiting = other.start("fetch", 12, **fields)
            assert producer.end(commit=True) == 0
            part = other.finish("fetch", 12, waiting).responses[0].partitions[0]
        assert len(batches(part)) == 2

    def test_batches_in_flight_keep_their_order(
        self, connection: Connection, topic: str, producer: Producer
    ) -> None:
        if not producer.is_new:
            assert producer.add(topic) == 0
        started = [
            producer.start(topic, producer.batch(b"%d" % number, sequence=number)) for number in range(5)
        ]
        answers = [producer.finish(correlation_id) for correlation_id in started]
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, n) for n in range(5)]
        assert producer.end(commit=True) == 0
        until_stable(connection, topic, 6)

    def test_list_offsets(self, connection: Connection, topic: str, producer: Producer) -> None:
        assert producer.send(topic, b"a") == 0
        asked = {"partition_index": 0, "timestamp": -1}
        for isolation, expected in ((0, 1), (1, 0)):
            answer = connection.request(
                "list_offsets",
                7,
                replica_id=-1,
                isolation_level=isolation,
                topics=[{"name": topic, "partitions": [asked]}],
            )
            assert answer.topics[0].partitions[0].offset == expected
        assert producer.end(commit=False) == 0


class TestRefused:
    def test_failure_06_a_late_write_after_the_abort_does_not_freeze_the_last_stable_offset(
        self, connection: Connection, topic: str, producer: Producer
    ) -> None:
        assert producer.send(topic, b"a") == 0
        late = producer.batch(b"late")
        assert producer.end(commit=False) == 0
        until_stable(connection, topic, 2)
        told = producer.send_batch(topic, late).error_code
        assert told == (INVALID_PRODUCER_EPOCH if producer.is_new else TRANSACTION_ABORTABLE)
        assert stable(connection, topic) == 2
        assert connection.end_offset(topic) == 2

    def test_a_partition_that_was_not_added(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        for version, code in ((11, TRANSACTION_ABORTABLE), (10, INVALID_TXN_STATE)):
            producer = Producer(connection, f"tx-{topic}", version)
            producer.init()
            answer = producer.send_batch(topic, producer.batch(b"a"))
            assert answer.error_code == code
        assert connection.end_offset(topic) == 0

    def test_a_producer_that_was_replaced(
        self, connection: Connection, topic: str, producer: Producer
    ) -> None:
        assert producer.send(topic, b"a") == 0
        successor = Producer(connection, producer.transactional_id, producer.produce_version)
        successor.init()
        until_stable(connection, topic, 2)
        assert producer.send_batch(topic, producer.batch(b"b")).error_code == INVALID_PRODUCER_EPOCH
        assert successor.send(topic, b"c") == 0
        assert successor.end(commit=True) == 0
        until_stable(connection, topic, 4)
        assert kinds(fetch(connection, topic)) == ["a", "abort", "c", "commit"]

    def test_an_unknown_transactional_id(
        self, connection: Connection, topic: str, producer: Producer
    ) -> None:
        producer.transactional_id += "-unknown"
        answer = producer.send_batch(topic, producer.batch(b"a"))
        assert answer.error_code == INVALID_PRODUCER_ID_MAPPING

    def test_a_sequence_that_begins_in_the_middle(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        producer = Producer(connection, f"tx-{topic}", 12)
        producer.init()
        answer = producer.send_batch(topic, producer.batch(b"a", sequence=3))
        assert answer.error_code == OUT_OF_ORDER_SEQUENCE

    def test_a_retry_within_the_transaction(
        self, connection: Connection, topic: str, producer: Producer
    ) -> None:
        first = producer.batch(b"a")
        assert producer.send(topic, b"a") == 0
        again = producer.send_batch(topic, first)
        assert (again.error_code, again.base_offset) == (0, 0)
        assert connection.end_offset(topic) == 1
        assert producer.end(commit=True) == 0

    def test_a_plain_batch_within_the_transaction(
        self, connection: Connection, topic: str, producer: Producer
    ) -> None:
        assert producer.send(topic, b"a") == 0
        header = Header(
            producer_id=producer.producer_id, producer_epoch=producer.epoch, base_sequence=producer.sequence
        )
        assert connection.produce(topic, encode([Record(b"b")], header)).error_code == INVALID_TXN_STATE
        assert producer.end(commit=True) == 0


class TestMarkers:
    @staticmethod
    def write(
        connection: Connection,
        topic: str,
        producer_id: int,
        epoch: int,
        *,
        coordinator_epoch: int = 0,
        commit: bool = False,
        partition: int = 0,
    ) -> int:
        marker = {
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "transaction_result": commit,
            "coordinator_epoch": coordinator_epoch,
            "topics": [{"name": topic, "partition_indexes": (partition,)}],
        }
        answer = connection.request("write_txn_markers", 1, markers=[marker])
        (result,) = answer.markers
        assert result.producer_id == producer_id
        return int(result.topics[0].partitions[0].error_code)

    def test_an_administrator_ends_a_hanging_transaction(
        self, connection: Connection, topic: str, producer: Producer
    ) -> None:
        assert producer.send(topic, b"a") == 0
        described = connection.request(
            "describe_producers", 0, topics=[{"name": topic, "partition_indexes": (0,)}]
        )
        (state,) = described.topics[0].partitions[0].active_producers
        assert (state.producer_id, state.producer_epoch) == (producer.producer_id, producer.epoch)
        assert (state.last_sequence, state.current_txn_start_offset, state.coordinator_epoch) == (0, 0, -1)
        assert self.write(connection, topic, state.producer_id, state.producer_epoch) == 0
        part = fetch(connection, topic)
        assert (part.last_stable_offset, kinds(part)) == (2, ["a", "abort"])
        assert aborted(part) == [(producer.producer_id, 0)]
        (state,) = (
            connection.request("describe_producers", 0, topics=[{"name": topic, "partition_indexes": (0,)}])
            .topics[0]
            .partitions[0]
            .active_producers
        )
        assert (state.current_txn_start_offset, state.coordinator_epoch) == (-1, 0)

    def test_markers_of_old_epochs_are_rejected(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        assert self.write(connection, topic, 4_000_001, 5, coordinator_epoch=3) == 0
        assert self.write(connection, topic, 4_000_001, 5, coordinator_epoch=3) == 0
        fenced = self.write(connection, topic, 4_000_001, 5, coordinator_epoch=2)
        assert fenced == TRANSACTION_COORDINATOR_FENCED
        assert self.write(connection, topic, 4_000_001, 4, coordinator_epoch=3) == INVALID_PRODUCER_EPOCH
        assert connection.end_offset(topic) == 2

    def test_markers_for_unknown_partitions_return_error(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        assert self.write(connection, f"{topic}-not", 4_000_002, 0) == UNKNOWN_TOPIC_OR_PARTITION
        assert self.write(connection, topic, 4_000_002, 0, partition=7) == UNKNOWN_TOPIC_OR_PARTITION
        assert not connection.request("write_txn_markers", 1, markers=[]).markers

    def test_describe_producers_of_idle_and_unknown_partitions(
        self, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic)
        answer = connection.request(
            "describe_producers",
            0,
            topics=[
                {"name": topic, "partition_indexes": (0, 7)},
                {"name": f"{topic}-not", "partition_indexes": (0,)},
            ],
        )
        known, missing = answer.topics[0].partitions
        assert (known.error_code, known.active_producers) == (0, ())
        assert missing.error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert answer.topics[1].partitions[0].error_code == UNKNOWN_TOPIC_OR_PARTITION
