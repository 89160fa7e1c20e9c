"""Topics that get fewer partitions: where records go, what repeats, and what is left when partitions are gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.brokers import RunningBroker, eventually
from tests.wire.batches import Header, Record, encode
from tests.wire.connection import Connection, read_all
from tests.wire.transactional import Producer, fetch, kinds
from tidemill.client.admin.delays import DelayAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import fetch_range
from tidemill.protocol.records import iterate_records
from tidemill.types import TopicPartition

OUT_OF_ORDER_SEQUENCE_NUMBER = 45
OFFSET_OUT_OF_RANGE = 1
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
UNKNOWN_TOPIC_OR_PARTITION = 3
NOT_LEADER_OR_FOLLOWER = 6
NOT_ENOUGH_REPLICAS = 19
RETRIED = (UNKNOWN_TOPIC_OR_PARTITION, NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS)
ACTIVE = "tidemill.partitions.active"
PRODUCER_ID = 7_000


def alter(connection: Connection, topic: str, **changes: str | None) -> Any:
    configs = [
        {"name": name, "config_operation": 1 if value is None else 0, "value": value}
        for name, value in changes.items()
    ]
    resource = {"resource_type": 2, "resource_name": topic, "configs": configs}
    answer = connection.request("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    return answer.responses[0]


def shrink(connection: Connection, topic: str, active: int) -> None:
    before = [each.leader_epoch for each in connection.metadata(topic).partitions]
    answer = alter(connection, topic, **{ACTIVE: str(active)})
    assert answer.error_code == 0, answer

    def leads_in_new_epoch() -> bool:
        after = {each.partition_index: each.leader_epoch for each in connection.metadata(topic).partitions}
        return all(after[index] > before[index] for index in range(active, len(before)))

    eventually(leads_in_new_epoch, "a new leader epoch of the decommissioned partitions")


def batch(*values: bytes, sequence: int, producer_id: int = PRODUCER_ID) -> bytes:
    return encode(values, Header(producer_id=producer_id, producer_epoch=0, base_sequence=sequence))


def ends(connection: Connection, topic: str, count: int) -> list[int]:
    return [connection.end_offset(topic, index) for index in range(count)]


def values(
    target: RunningBroker, topic: str, partition: int, offset: int | None = None
) -> list[bytes | None]:
    return [value for each in read_all(target, topic, partition, offset) for value in each.values()]


def empty(connection: Connection, topic: str, partition: int) -> None:
    topics = [{"name": topic, "partitions": [{"partition_index": partition, "offset": -1}]}]
    answer = connection.request("delete_records", 2, topics=topics, timeout=20_000)
    assert answer.topics[0].partitions[0].error_code == 0


@pytest.fixture
def orders(connection: Connection, topic: str) -> str:
    """Four partitions with one record each. They may go as soon as they are empty."""
    connection.create_topic(topic, partitions=4, configs={"tidemill.partitions.kept.ms": "0"})
    for partition in range(4):
        assert connection.produce(topic, encode([b"old"]), partition=partition).error_code == 0
    return topic


def test_decommissioned_partition_takes_no_new_records_and_stays_readable(
    connection: Connection, target: RunningBroker, orders: str
) -> None:
    """The mission's sentence."""
    shrink(connection, orders, 2)
    for partition in range(4):
        produced = connection.produce(orders, encode([b"new %d" % partition]), partition=partition)
        assert produced.error_code == 0
        # An offset of another partition would be wrong here.
        assert produced.base_offset == (1 if partition < 2 else -1)
    assert ends(connection, orders, 4) == [3, 3, 1, 1]
    assert values(target, orders, 0) == [b"old", b"new 0", b"new 2"]
    for partition in (2, 3):
        assert values(target, orders, partition) == [b"old"]


def test_no_record_of_a_batch_that_was_passed_on_gets_an_offset(connection: Connection, orders: str) -> None:
    """librdkafka and others count the offsets of a batch from its base offset on."""
    shrink(connection, orders, 2)
    produced = connection.produce(orders, encode([b"a", b"b", b"c"]), partition=3)
    assert (produced.error_code, produced.base_offset) == (0, -3)


def test_failure_43_a_retry_into_a_decommissioned_partition_is_found_where_it_was_stored(
    connection: Connection, orders: str
) -> None:
    before = batch(b"a", b"b", sequence=0)
    stored = connection.produce(orders, before, partition=3)
    shrink(connection, orders, 2)
    again = connection.produce(orders, before, partition=3)
    assert (again.error_code, again.base_offset) == (0, stored.base_offset)
    after = batch(b"c", sequence=2)
    for _ in range(3):
        assert connection.produce(orders, after, partition=3).error_code == 0
    assert ends(connection, orders, 4) == [1, 2, 1, 3]
    assert connection.read(orders, 1, partition=1)[0].values() == [b"c"]


def test_sequence_continues_from_the_decommissioned_partition(
    connection: Connection, target: RunningBroker, orders: str
) -> None:
    connection.produce(orders, batch(b"a", sequence=0), partition=3)
    connection.produce(orders, batch(b"own", sequence=0), partition=1)
    shrink(connection, orders, 2)
    gap = connection.produce(orders, batch(b"c", sequence=2), partition=3)
    assert gap.error_code == OUT_OF_ORDER_SEQUENCE_NUMBER
    assert connection.produce(orders, batch(b"b", sequence=1), partition=3).error_code == 0
    assert connection.produce(orders, batch(b"c", sequence=2), partition=3).error_code == 0
    # The partition that stores them has a sequence of its own for the same producer.
    assert connection.produce(orders, batch(b"own 2", sequence=1), partition=1).error_code == 0
    assert values(target, orders, 1) == [b"old", b"own", b"b", b"c", b"own 2"]


def test_attributes_that_have_no_meaning_for_kafka_are_cleared(connection: Connection, orders: str) -> None:
    header = Header(attributes=3 << 7, producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=0)
    assert connection.produce(orders, encode([b"x"], header)).error_code == 0
    (stored,) = connection.read(orders, 1)
    assert stored.attributes == 0
    assert connection.produce(orders, batch(b"y", sequence=1)).error_code == 0


@pytest.mark.parametrize("produce_version", [11, 12])
def test_transaction_across_a_shrink_ends_everywhere(
    connection: Connection, orders: str, produce_version: int
) -> None:
    producer = Producer(connection, f"{orders}-{produce_version}", produce_version)
    producer.init()
    for number, is_commit in enumerate((True, False, True)):
        assert producer.send(orders, b"%d a" % number, partition=3) == 0
        if number == 0:
            shrink(connection, orders, 2)
        assert producer.send(orders, b"%d b" % number, partition=3) == 0
        assert producer.end(commit=is_commit) == 0

    def stored(partition: int) -> list[str]:
        return kinds(fetch(connection, orders, partition=partition))

    eventually(lambda: stored(3) == ["old", "0 a", "commit"], "the end of the first transaction")
    everything = ["old", "0 b", "commit", "1 a", "1 b", "abort", "2 a", "2 b", "commit"]
    eventually(lambda: stored(1) == everything, "the ends of all transactions")


@pytest.mark.parametrize("produce_version", [11, 12])
def test_retry_in_a_transaction_across_a_shrink_is_found_where_it_was_stored(
    connection: Connection, orders: str, produce_version: int
) -> None:
    producer = Producer(connection, f"{orders}-{produce_version}", produce_version)
    producer.init()
    before = producer.batch(b"a")
    assert producer.send(orders, b"a", partition=3) == 0
    shrink(connection, orders, 2)
    after = producer.batch(b"b")
    assert producer.send(orders, b"b", partition=3) == 0
    # Both come again within their transaction, as if their answers had been lost.
    for again in (before, after):
        assert producer.send_batch(orders, again, 3).error_code == 0
    assert producer.end(commit=True) == 0

    def stored(partition: int) -> list[str]:
        return kinds(fetch(connection, orders, partition=partition))

    eventually(lambda: stored(3) == ["old", "a", "commit"], "the end of the transaction where it began")
    eventually(lambda: stored(1) == ["old", "b", "commit"], "the end of the transaction where it went on")


def test_partitions_disappear_in_descending_order_and_stale_producers_are_served(
    connection: Connection, target: RunningBroker, orders: str
) -> None:
    assert connection.produce(orders, batch(b"a", sequence=0), partition=3).error_code == 0
    shrink(connection, orders, 2)
    assert connection.produce(orders, batch(b"b", sequence=1), partition=3).error_code == 0

    def count() -> int:
        return len(connection.metadata(orders).partitions)

    empty(connection, orders, 2)
    empty(connection, orders, 3)
    eventually(lambda: count() == 2, "the removal of both", limit_s=60)
    # A client that still knows four partitions.
    repeated = connection.produce(orders, batch(b"b", sequence=1), partition=3)
    assert repeated.error_code == 0
    assert connection.produce(orders, batch(b"c", sequence=2), partition=3).error_code == 0
    assert connection.produce(orders, encode([b"d"]), partition=4).error_code == UNKNOWN_TOPIC_OR_PARTITION
    # Most clients are not idempotent by default.
    assert connection.produce(orders, encode([b"d"]), partition=3).error_code == 0
    assert values(target, orders, 1) == [b"old", b"b", b"c", b"d"]
    # A consumer with the same metadata learns that the partition is gone.
    stale = connection.fetch(orders, 1, partition=3)
    assert stale.error_code == UNKNOWN_TOPIC_OR_PARTITION
    assert connection.list_offset(orders, -1, partition=3).error_code == UNKNOWN_TOPIC_OR_PARTITION
    grown = connection.request(
        "create_partitions", 3, topics=[{"name": orders, "count": 4}], timeout=20_000, validate_only=False
    )
    assert grown.results[0].error_code == 0
    eventually(lambda: count() == 4, "four partitions again")
    eventually(
        lambda: connection.produce(orders, encode([b"e"]), partition=3).error_code == 0,
        "a leader of the new one",
    )
    # A position behind the last record of the partition before it is one before the first record of this one.
    assert values(target, orders, 3, offset=2)[0] == b"e"
    former = connection.fetch(orders, 1, partition=3)
    assert former.error_code == OFFSET_OUT_OF_RANGE
    assert connection.list_offset(orders, -2, partition=3).offset == 2
    shrink(connection, orders, 2)
    assert connection.produce(orders, encode([b"f"]), partition=3).error_code == 0
    assert values(target, orders, 1) == [b"old", b"b", b"c", b"d", b"f"]


@pytest.mark.parametrize(
    ("active", "reason"),
    [
        ("4", "not fewer"),
        ("5", "not fewer"),
        ("3", "does not divide"),
        ("-1", "at least 0"),
        ("two", "at least 0"),
    ],
)
def test_a_number_that_cannot_be_is_refused(
    connection: Connection, orders: str, active: str, reason: str
) -> None:
    answer = alter(connection, orders, **{ACTIVE: active})
    assert answer.error_code == INVALID_CONFIG
    assert reason in answer.error_message
    assert connection.produce(orders, encode([b"x"]), partition=3).base_offset == 1


def test_a_number_that_does_not_divide_is_for_topics_without_keys(
    connection: Connection, orders: str
) -> None:
    answer = alter(connection, orders, **{ACTIVE: "3", "tidemill.partitions.unkeyed": "true"})
    assert answer.error_code == 0
    eventually(
        lambda: connection.produce(orders, encode([b"x"]), partition=3).base_offset == -1, "the decommission"
    )


def test_one_shrink_at_a_time_and_none_grown(connection: Connection, orders: str) -> None:
    shrink(connection, orders, 2)
    assert alter(connection, orders, **{ACTIVE: "1"}).error_code == INVALID_CONFIG
    for key in ("total", "former", "epochs", "divisors"):
        assert alter(connection, orders, **{f"tidemill.partitions.{key}": "3"}).error_code == INVALID_CONFIG
    grown = connection.request(
        "create_partitions", 3, topics=[{"name": orders, "count": 8}], timeout=20_000, validate_only=False
    )
    assert grown.results[0].error_code == INVALID_PARTITIONS


# -- taking it back -------------------------------------------------------------------------------------------


def take_back(connection: Connection, topic: str, active: int) -> None:
    before = [each.leader_epoch for each in connection.metadata(topic).partitions]
    assert alter(connection, topic, **{ACTIVE: None}).error_code == 0

    def leads_in_new_epoch() -> bool:
        after = {each.partition_index: each.leader_epoch for each in connection.metadata(topic).partitions}
        return all(after[index] > before[index] for index in range(active, len(before)))

    eventually(leads_in_new_epoch, "a new leader epoch of the partitions")


def accepted(connection: Connection, topic: str, records: bytes, partition: int) -> int:
    """The offset of a batch, which is sent until its partition knows what others store for it."""
    answers: list[Any] = []

    def is_answered() -> bool:
        answers.append(connection.produce(topic, records, partition=partition))
        return answers[-1].error_code not in RETRIED

    eventually(is_answered, "the answer of other partitions")
    assert answers[-1].error_code == 0, answers[-1]
    return int(answers[-1].base_offset)


def test_a_shrink_taken_back_lets_partitions_take_records_again(
    connection: Connection, target: RunningBroker, orders: str
) -> None:
    shrink(connection, orders, 2)
    assert connection.produce(orders, encode([b"away"]), partition=3).base_offset == -1
    take_back(connection, orders, 2)
    assert connection.produce(orders, encode([b"back"]), partition=3).base_offset == 1
    assert values(target, orders, 1) == [b"old", b"away"]
    assert values(target, orders, 3) == [b"old", b"back"]
    grown = connection.request(
        "create_partitions", 3, topics=[{"name": orders, "count": 8}], timeout=20_000, validate_only=False
    )
    assert grown.results[0].error_code == 0


def test_a_retry_is_found_where_it_was_stored_before_the_shrink_was_taken_back(
    connection: Connection, target: RunningBroker, orders: str
) -> None:
    connection.produce(orders, batch(b"a", sequence=0), partition=3)
    shrink(connection, orders, 2)
    for sequence, value in ((1, b"b"), (2, b"c")):
        assert connection.produce(orders, batch(value, sequence=sequence), partition=3).error_code == 0
    take_back(connection, orders, 2)
    # The sequence of the first one continues that of the partition's own log.
    for sequence, value in ((1, b"b"), (2, b"c")):
        assert accepted(connection, orders, batch(value, sequence=sequence), 3) == -1
    # A gap gets the error of an earlier batch that was refused for the moment, if there was one (failure 9).
    gap = connection.produce(orders, batch(b"e", sequence=4), partition=3)
    assert gap.error_code in (OUT_OF_ORDER_SEQUENCE_NUMBER, NOT_ENOUGH_REPLICAS)
    assert accepted(connection, orders, batch(b"d", sequence=3), 3) == 2
    assert accepted(connection, orders, batch(b"d", sequence=3), 3) == 2
    assert values(target, orders, 1) == [b"old", b"b", b"c"]
    assert values(target, orders, 3) == [b"old", b"a", b"d"]


@pytest.mark.parametrize("second", [2, 1])
def test_a_sequence_goes_on_through_a_second_shrink(
    connection: Connection, target: RunningBroker, orders: str, second: int
) -> None:
    connection.produce(orders, batch(b"a", sequence=0), partition=3)
    shrink(connection, orders, 2)
    assert accepted(connection, orders, batch(b"b", sequence=1), 3) == -1
    take_back(connection, orders, 2)
    assert accepted(connection, orders, batch(b"c", sequence=2), 3) == 2
    shrink(connection, orders, second)
    for sequence, value in ((1, b"b"), (2, b"c"), (3, b"d"), (3, b"d")):
        accepted(connection, orders, batch(value, sequence=sequence), 3)
    take_back(connection, orders, second)
    for sequence, value in ((3, b"d"), (4, b"e")):
        accepted(connection, orders, batch(value, sequence=sequence), 3)
    stored = [values(target, orders, partition)[1:] for partition in range(4)]
    assert stored == [
        [b"d"] if second == 1 else [],
        [b"b"] if second == 1 else [b"b", b"d"],
        [],
        [b"a", b"c", b"e"],
    ]


@pytest.mark.parametrize("produce_version", [11, 12])
def test_transaction_across_a_shrink_that_is_taken_back_ends_everywhere(
    connection: Connection, orders: str, produce_version: int
) -> None:
    producer = Producer(connection, f"{orders}-{produce_version}-back", produce_version)
    producer.init()

    def send(value: bytes) -> None:
        eventually(lambda: producer.send(orders, value, partition=3) == 0, "the partition's role")

    send(b"a")
    shrink(connection, orders, 2)
    send(b"b")
    take_back(connection, orders, 2)
    send(b"c")
    assert producer.end(commit=True) == 0
    send(b"d")
    assert producer.end(commit=False) == 0

    def stored(partition: int) -> list[str]:
        return kinds(fetch(connection, orders, partition=partition))

    eventually(
        lambda: stored(1) == ["old", "b", "commit"], "the end of the transaction where it was passed on"
    )
    everything = ["old", "a", "c", "commit", "d", "abort"]
    eventually(lambda: stored(3) == everything, "the ends of both transactions")


def test_partition_that_is_added_again_knows_what_was_stored_for_the_one_before(
    connection: Connection, target: RunningBroker, orders: str
) -> None:
    shrink(connection, orders, 2)
    assert connection.produce(orders, batch(b"a", sequence=0), partition=3).error_code == 0
    for partition in (2, 3):
        empty(connection, orders, partition)
    eventually(lambda: len(connection.metadata(orders).partitions) == 2, "the removal of both", limit_s=60)
    connection.request(
        "create_partitions", 3, topics=[{"name": orders, "count": 4}], timeout=20_000, validate_only=False
    )
    eventually(lambda: len(connection.metadata(orders).partitions) == 4, "four partitions again")
    assert accepted(connection, orders, batch(b"a", sequence=0), 3) == -1
    # Its log begins where that of the one before it ended.
    assert accepted(connection, orders, batch(b"b", sequence=1), 3) == 1
    assert values(target, orders, 1) == [b"old", b"a"]
    assert values(target, orders, 3, offset=1) == [b"b"]


def test_compacted_topic_keeps_its_partitions(connection: Connection, topic: str) -> None:
    connection.create_topic(topic, partitions=4, configs={"cleanup.policy": "compact"})
    answer = alter(connection, topic, **{ACTIVE: "2"})
    assert answer.error_code == INVALID_CONFIG
    assert "compacted" in answer.error_message


def test_topic_is_not_compacted_while_it_gets_fewer_partitions(connection: Connection, orders: str) -> None:
    shrink(connection, orders, 2)
    answer = alter(connection, orders, **{"cleanup.policy": "compact"})
    assert answer.error_code == INVALID_CONFIG
    assert "cannot be compacted before that is done" in answer.error_message


# Delayed records.

DELAYS = {"tidemill.delays.enable": "true"}
INVALID_RECORD = 87


def delayed(value: bytes | None, key: bytes = b"k", **headers: str) -> bytes:
    pairs = tuple((f"tidemill-{name.replace('_', '-')}", text.encode()) for name, text in headers.items())
    return encode([Record(value, key, headers=pairs)])


def shown(target: RunningBroker, topic: str, partition: int) -> list[bytes | None]:
    """What readers get: delayed records are hidden."""
    with Cluster(target.bootstrap) as cluster:
        place = TopicPartition(topic, partition)
        end = Admin(cluster).end_offsets([place])[place]
        fetched = fetch_range(cluster, place, 0, end) if end else ()
        return [
            record.value
            for answer in fetched
            for header, batch in answer.batches
            for record in iterate_records(batch, header)
        ]


def test_delayed_record_of_a_decommissioned_partition_is_delivered_there(
    connection: Connection, target: RunningBroker, topic: str
) -> None:
    connection.create_topic(topic, partitions=4, configs=DELAYS)
    assert connection.produce(topic, delayed(b"soon", delay="2s"), partition=3).error_code == 0
    shrink(connection, topic, 2)
    assert connection.produce(topic, delayed(b"new", delay="1ms"), partition=3).error_code == 0
    assert shown(target, topic, 3) == []
    # It stands in its partition, and so does its copy, which readers get.
    eventually(lambda: shown(target, topic, 3) == [b"soon"], "the delivery of the old one")
    eventually(lambda: shown(target, topic, 1) == [b"new"], "the delivery of the new one")


def settled(connection: Connection, topic: str, batch: bytes) -> Any:
    """The answer to a batch for partition 3, once its leader knows what waits there."""

    def answer() -> Any:
        found = connection.produce(topic, batch, partition=3)
        return found if found.error_code not in (NOT_LEADER_OR_FOLLOWER, NOT_ENOUGH_REPLICAS) else None

    return eventually(answer, "what waits is known")


def test_what_waits_in_a_decommissioned_partition_is_not_replaced(connection: Connection, topic: str) -> None:
    connection.create_topic(topic, partitions=4, configs=DELAYS)
    assert connection.produce(topic, delayed(b"a", delay="1h", schedule_id="a"), partition=3).error_code == 0
    # The other partition has a record at offset 0, too, which a cancel by offset must not meet.
    assert connection.produce(topic, delayed(b"b", delay="1h"), partition=1).error_code == 0
    shrink(connection, topic, 2)
    moved = (("tidemill-delay", b"2h"),), (("tidemill-cancel", b"0"),)
    for change in (
        delayed(b"a2", delay="2h", schedule_id="a"),
        encode([Record(b"a2", b"k", headers=headers) for headers in moved]),
    ):
        answer = settled(connection, topic, change)
        assert answer.error_code == INVALID_RECORD
        assert "decommissioned" in answer.error_message
    # Another id, and another key with the same id, have nothing that waits there.
    assert connection.produce(topic, delayed(b"c", delay="1h", schedule_id="c"), partition=3).error_code == 0
    other = delayed(b"d", key=b"other", delay="1h", schedule_id="a")
    assert connection.produce(topic, other, partition=3).error_code == 0
    assert ends(connection, topic, 4) == [0, 3, 0, 1]


@pytest.mark.parametrize("cancel", [{"cancel": "", "schedule_id": "a"}, {"cancel": "0"}])
def test_what_waits_in_a_decommissioned_partition_is_cancelled_there(
    connection: Connection, target: RunningBroker, topic: str, cancel: dict[str, Any]
) -> None:
    connection.create_topic(topic, partitions=4, configs=DELAYS)
    hourly = delayed(b"a", schedule="@every 1h", schedule_id="a")
    assert connection.produce(topic, hourly, partition=3).error_code == 0
    assert connection.produce(topic, delayed(b"b", delay="1h"), partition=1).error_code == 0
    shrink(connection, topic, 2)
    assert settled(connection, topic, delayed(None, **cancel)).error_code == 0
    assert ends(connection, topic, 4) == [0, 1, 0, 2]
    assert waiting(target, topic) == [b"b"]


def test_a_producer_that_cancelled_in_a_decommissioned_partition_goes_on(
    connection: Connection, target: RunningBroker, topic: str
) -> None:
    connection.create_topic(topic, partitions=4, configs=DELAYS)
    for name in "ab":
        hourly = delayed(b"x", schedule="@every 1h", schedule_id=name)
        assert connection.produce(topic, hourly, partition=3).error_code == 0
    shrink(connection, topic, 2)

    def cancel(name: bytes, sequence: int) -> bytes:
        headers = (("tidemill-cancel", b""), ("tidemill-schedule-id", name))
        header = Header(producer_id=PRODUCER_ID, producer_epoch=0, base_sequence=sequence)
        return encode([Record(None, b"k", headers=headers)], header)

    assert settled(connection, topic, cancel(b"a", 0)).error_code == 0
    # Its retry is found, and its next batch continues the sequence where it is stored.
    assert settled(connection, topic, cancel(b"a", 0)).error_code == 0
    assert settled(connection, topic, batch(b"plain", sequence=1)).error_code == 0
    assert ends(connection, topic, 4) == [0, 1, 0, 3]
    # Its sequence goes on there, so what waits here is left alone.
    assert settled(connection, topic, cancel(b"b", 2)).error_code == INVALID_RECORD
    assert waiting(target, topic) == [b"x"]


def waiting(target: RunningBroker, topic: str) -> list[bytes | None]:
    with Cluster(target.bootstrap) as cluster:
        return [each.value for each in DelayAdmin(cluster).pending(topic).messages]
