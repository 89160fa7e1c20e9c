"""What stock clients check of Produce: acks, timestamps, sequences of idempotent producers, replicas."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from tests.brokers import RunningBroker, eventually
from tests.wire import messages
from tests.wire.batches import APPEND_TIME, NOW_MS, TRANSACTIONAL, Header, Record, encode
from tests.wire.connection import Connection, produce_fields, read_all

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_REQUIRED_ACKS = 21
INVALID_TIMESTAMP = 32
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
INVALID_PRODUCER_EPOCH = 47
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
INVALID_RECORD = 87
UNKNOWN_TOPIC_ID = 100


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_impossible_acks(connection: Connection, topic: str, acks: int) -> None:
    connection.create_topic(topic)
    assert connection.produce(topic, encode([b"v"]), acks=acks).error_code == INVALID_REQUIRED_ACKS
    assert connection.end_offset(topic) == 0


def test_acks_0_gets_no_reply_at_all(connection: Connection, topic: str) -> None:
    """The next answer on the connection is that of the next request."""
    connection.create_topic(topic)
    connection.start("produce", 9, **produce_fields(topic, encode([b"v"]), acks=0))
    assert connection.end_offset(topic) == 1


def test_acks_0_with_an_error_closes_the_connection_or_stays_silent(
    target: RunningBroker, topic: str
) -> None:
    with Connection(target) as connection:
        connection.start("produce", 9, **produce_fields(topic, encode([b"v"], Header(crc=1)), acks=0))
        number = connection.start("api_versions", 0)
        answer = connection.answer_or_close()
        if answer is not None:
            assert messages.read_response("api_versions", 0, answer)[0] == number


def test_unknown_topics_and_partitions(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    batch = encode([b"v"])
    assert connection.produce("no-such-topic", batch).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert connection.produce("not a name", batch).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert connection.produce(topic, batch, partition=5).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert connection.produce(topic, batch, partition=-1).error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert connection.metadata("no-such-topic").error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_by_topic_id(connection: Connection, topic: str) -> None:
    known = connection.create_topic(topic)
    for topic_id, error in ((known, 0), (uuid.uuid4(), UNKNOWN_TOPIC_ID)):
        data = [{"topic_id": topic_id, "partition_data": [{"index": 0, "records": encode([b"v"])}]}]
        body = connection.request("produce", 13, acks=-1, timeout=20_000, topic_data=data)
        assert body.responses[0].partition_responses[0].error_code == error


@pytest.mark.parametrize("version", range(3, 13))
def test_each_version_stores_the_same(connection: Connection, topic: str, version: int) -> None:
    connection.create_topic(topic)
    produced = connection.produce(topic, encode([b"a", b"b"]), version=version)
    assert (produced.error_code, produced.base_offset) == (0, 0)
    assert connection.read(topic, 0)[0].values() == [b"a", b"b"]


def test_log_append_time_in_response_and_batch(connection: Connection, topic: str) -> None:
    connection.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    produced = connection.produce(topic, encode([b"a"], Header(base_timestamp_ms=NOW_MS - 3_600_000)))
    assert produced.error_code == 0
    (batch,) = connection.read(topic, 0)
    assert batch.attributes & APPEND_TIME
    assert batch.max_timestamp_ms >= before_ms
    # kio gives the response's timestamp as a datetime.
    assert round(produced.log_append_time.timestamp() * 1000) == batch.max_timestamp_ms


def test_create_time_in_response_is_minus_one(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    assert connection.produce(topic, encode([b"a"])).log_append_time is None


def test_min_insync_replicas_above_the_replicas_counts_as_all(connection: Connection, topic: str) -> None:
    """Of one replica, two cannot be in sync: Apache Kafka 4 takes the smaller of the two numbers."""
    connection.create_topic(topic, configs={"min.insync.replicas": "2"})
    assert connection.produce(topic, encode([b"v"]), acks=-1).error_code == 0


class TestIdempotence:
    def _producer(self, connection: Connection) -> int:
        body = connection.request(
            "init_producer_id", 4, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1
        )
        assert (body.error_code, body.producer_epoch) == (0, 0)
        return int(body.producer_id)

    def _batch(self, producer_id: int, sequence: int, epoch: int = 0, count: int = 1) -> bytes:
        values = [b"%d" % (sequence + n) for n in range(count)]
        return encode(values, Header(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))

    def test_producer_ids_differ(self, connection: Connection) -> None:
        assert len({self._producer(connection) for _ in range(20)}) == 20

    def test_a_repeated_batch_gets_its_first_offset(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        producer_id = self._producer(connection)
        for sequence in range(7):
            assert connection.produce(topic, self._batch(producer_id, sequence)).base_offset == sequence
        for sequence in range(2, 7):
            again = connection.produce(topic, self._batch(producer_id, sequence))
            assert (again.error_code, again.base_offset) == (0, sequence)
        assert connection.end_offset(topic) == 7

    def test_failure_09_a_batch_older_than_the_window_is_not_stored_again(
        self, connection: Connection, topic: str
    ) -> None:
        connection.create_topic(topic)
        producer_id = self._producer(connection)
        for sequence in range(7):
            connection.produce(topic, self._batch(producer_id, sequence))
        assert connection.produce(topic, self._batch(producer_id, 0)).error_code != 0
        assert connection.end_offset(topic) == 7

    def test_a_gap_is_refused(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        producer_id = self._producer(connection)
        connection.produce(topic, self._batch(producer_id, 0))
        assert (
            connection.produce(topic, self._batch(producer_id, 2)).error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
        )
        assert connection.produce(topic, self._batch(producer_id, 1)).base_offset == 1

    def test_a_bumped_epoch_starts_anew_and_fences_the_old(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        producer_id = self._producer(connection)
        connection.produce(topic, self._batch(producer_id, 0))
        assert connection.produce(topic, self._batch(producer_id, 0, epoch=1)).base_offset == 1
        assert connection.produce(topic, self._batch(producer_id, 1)).error_code == INVALID_PRODUCER_EPOCH
        refused = connection.produce(topic, self._batch(producer_id, 5, epoch=2))
        assert refused.error_code == OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_the_sequence_wraps(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        producer_id = self._producer(connection)
        top = 2**31 - 1
        # A producer that the partition has not seen may start anywhere.
        assert connection.produce(topic, self._batch(producer_id, top - 1, count=2)).base_offset == 0
        assert connection.produce(topic, self._batch(producer_id, 0)).base_offset == 2

    def test_retries_of_batches_in_flight(self, connection: Connection, topic: str) -> None:
        """Five batches at once, twice, as after a lost connection."""
        connection.create_topic(topic)
        producer_id = self._producer(connection)
        for _ in range(2):
            numbers = [
                connection.start(
                    "produce", 9, **produce_fields(topic, self._batch(producer_id, 2 * n, count=2))
                )
                for n in range(5)
            ]
            answers = [connection.finish("produce", 9, number) for number in numbers]
            parts = [body.responses[0].partition_responses[0] for body in answers]
            assert [(part.error_code, part.base_offset) for part in parts] == [(0, 2 * n) for n in range(5)]
        assert connection.end_offset(topic) == 10


def test_concurrent_producers_share_a_partition(target: RunningBroker, topic: str) -> None:
    with Connection(target) as connection:
        connection.create_topic(topic)
    acked: list[tuple[int, bytes]] = []

    def produce(name: int) -> None:
        with Connection(target) as connection:
            for number in range(50):
                value = b"%d-%d" % (name, number)
                acked.append((connection.produce(topic, encode([value])).base_offset, value))

    threads = [threading.Thread(target=produce, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = [
        (record.offset, record.value) for batch in read_all(target, topic) for record in batch.records()
    ]
    assert sorted(acked) == stored
    assert [offset for offset, _ in stored] == list(range(400))


def test_failure_26_acks_go_on_while_flushed_topics_come_and_go(
    target: RunningBroker, connection: Connection, topic: str
) -> None:
    """Whatever flushes in the background must survive topics that vanish under it."""
    flushed = {"flush.messages": "1"}
    connection.create_topic(topic, configs=flushed)
    failures: list[str] = []
    done = threading.Event()

    def churn(name: int) -> None:
        with Connection(target) as other:
            for number in range(15):
                passing = f"{topic}-{name}-{number}"
                other.create_topic(passing, configs=flushed)
                pending = [
                    other.start("produce", 9, **produce_fields(passing, encode([b"x" * 1000])))
                    for _ in range(5)
                ]
                with Connection(target) as third:
                    asked = [{"name": passing, "topic_id": None}]
                    third.request("delete_topics", 6, topics=asked, timeout=20_000)
                for one in pending:
                    other.finish("produce", 9, one)

    def run(name: int) -> None:
        try:
            churn(name)
        except Exception as failure:
            failures.append(repr(failure))
        done.set()

    threads = [threading.Thread(target=run, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    offset = 0
    while any(thread.is_alive() for thread in threads) or offset < 50:
        produced = connection.produce(topic, encode([b"%d" % offset]))
        assert (produced.error_code, produced.base_offset) == (0, offset)
        offset += 1
    for thread in threads:
        thread.join()
    assert failures == []
    eventually(lambda: connection.end_offset(topic) == offset, "the end offset")


class TestWhatKafkaRefusesOrRepairs:
    """Settled by `make diff-kafka`; here so that it stays without Apache Kafka at hand."""

    @pytest.mark.parametrize("base_offset", [77, -1])
    def test_a_batch_begins_at_offset_0(self, connection: Connection, topic: str, base_offset: int) -> None:
        connection.create_topic(topic)
        refused = connection.produce(topic, encode([b"v"], Header(base_offset=base_offset)))
        assert (refused.error_code, refused.log_start_offset) == (INVALID_RECORD, 0)

    def test_a_client_cannot_claim_append_time(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        assert connection.produce(topic, encode([b"v"], Header(attributes=APPEND_TIME))).error_code == 0
        (batch,) = connection.read(topic, 0)  # which checks the CRC
        assert batch.attributes == 0

    @pytest.mark.parametrize("max_timestamp_ms", [NOW_MS + 7_200_000, -2], ids=["too new", "negative"])
    def test_a_max_timestamp_beyond_the_limits_is_taken_from_the_records(
        self, connection: Connection, topic: str, max_timestamp_ms: int
    ) -> None:
        connection.create_topic(topic)
        batch = encode([b"v"], Header(max_timestamp_ms=max_timestamp_ms))
        assert connection.produce(topic, batch).error_code == 0
        assert connection.read(topic, 0)[0].max_timestamp_ms == NOW_MS

    @pytest.mark.parametrize("delta_ms", [-7_200_000, 7_200_000], ids=["too old", "too new"])
    def test_records_outside_of_the_limits_are_named(
        self, connection: Connection, topic: str, delta_ms: int
    ) -> None:
        connection.create_topic(topic, configs={"message.timestamp.before.max.ms": "3600000"})
        records = [Record(b"fine"), Record(b"odd", timestamp_delta_ms=delta_ms), Record(b"fine")]
        refused = connection.produce(topic, encode(records))
        assert refused.error_code == INVALID_TIMESTAMP
        assert [each.batch_index for each in refused.record_errors] == [1]
        assert connection.end_offset(topic) == 0

    def test_a_transactional_batch_needs_a_transactional_id(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        refused = connection.produce(topic, encode([b"v"], Header(attributes=TRANSACTIONAL)))
        assert refused.error_code == TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def test_an_uncompressed_topic_counts_its_records(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic, configs={"compression.type": "uncompressed"})
        for count in (1, 3):
            wrong = encode([b"a", b"b"], Header(count=count, last_offset_delta=count - 1))
            assert connection.produce(topic, wrong).error_code == INVALID_RECORD
        assert connection.produce(topic, encode([b"a", b"b"])).base_offset == 0

    def test_retry_returns_append_time_of_first_write(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
        batch = encode([b"v"], Header(producer_id=4_000_000, producer_epoch=0, base_sequence=0))
        first = connection.produce(topic, batch)
        after_ms = int(time.time() * 1000) + 1
        eventually(lambda: time.time() * 1000 > after_ms, "the clock moves")
        assert connection.produce(topic, batch).log_append_time == first.log_append_time

    def test_a_topic_without_partitions_is_not_answered(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        data = [{"name": topic, "partition_data": []}]
        assert connection.request("produce", 9, acks=-1, timeout=1000, topic_data=data).responses == ()
