"""Records through stock clients: each library reads what each library wrote."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import pytest

from tests.brokers import RunningBroker, eventually
from tests.interop.clients import CODECS, MESSAGE_TOO_LARGE, Client, ClientError, Message, Received
from tests.interop.table import CLIENTS, column, installed, with_clients
from tests.wire.connection import read_all

HEADERS = (("trace", b"1"), ("span", b""), ("trace", b"2"))
NULL_HEADER = (("nothing", None),)
# Enough of one kind to make every codec shrink it, and text, because kcat carries text.
COMPRESSIBLE = [Message(b"%04d " % number + b"ebb and flow " * 40) for number in range(50)]
KEYS = [f"key-{number}".encode() for number in range(40)]


Open = Callable[[type[Client]], Client]


def _content(received: list[Received]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key, record.value) for record in received]


@with_clients()
def test_keys_and_values_come_back(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    messages = [
        Message(b"v1", b"k1"),
        Message(b"v2"),
        Message(None, b"k3"),
        Message("größe ✓".encode(), b"k4"),
    ]
    client.produce(topic, messages)
    expected = [(message.key, message.value) for message in messages]
    assert _content(client.fetch(topic, 0, 0, 4)) == expected
    assert _content(other.fetch(topic, 0, 0, 4)) == expected


@with_clients()
def test_headers_come_back_in_order_and_with_repeats(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    client.produce(topic, [Message(b"v", b"k", headers=HEADERS)])
    assert client.fetch(topic, 0, 0, 1)[0].headers == HEADERS
    assert other.fetch(topic, 0, 0, 1)[0].headers == HEADERS


@with_clients("produce null headers")
def test_a_header_may_be_null(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    client.produce(topic, [Message(b"v", headers=NULL_HEADER)])
    assert other.fetch(topic, 0, 0, 1)[0].headers == NULL_HEADER


@with_clients()
def test_a_null_header_is_read_as_null(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    other.produce(topic, [Message(b"v", headers=NULL_HEADER)])
    assert client.fetch(topic, 0, 0, 1)[0].headers == NULL_HEADER


@with_clients("produce timestamps")
def test_the_producers_timestamp_is_kept(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    an_hour_ago_ms = int(time.time() * 1000) - 3_600_000
    client.produce(topic, [Message(b"v", timestamp_ms=an_hour_ago_ms)])
    for reader in (client, other):
        (record,) = reader.fetch(topic, 0, 0, 1)
        assert (record.timestamp_ms, record.is_append_time) == (an_hour_ago_ms, False)


@with_clients()
def test_a_timestamp_is_read_as_it_was_written(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    a_minute_ago_ms = int(time.time() * 1000) - 60_000
    other.produce(topic, [Message(b"v", timestamp_ms=a_minute_ago_ms)])
    (record,) = client.fetch(topic, 0, 0, 1)
    assert (record.timestamp_ms, record.is_append_time) == (a_minute_ago_ms, False)


@with_clients()
def test_log_append_time_replaces_the_producers(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    other.produce(topic, [Message(b"v", timestamp_ms=before_ms - 3_600_000)])
    client.produce(topic, [Message(b"w")])
    for record in client.fetch(topic, 0, 0, 2):
        assert record.is_append_time
        assert record.timestamp_ms >= before_ms


@with_clients()
def test_order_is_kept_within_a_partition(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, partitions=2)
    messages = [Message(b"%05d" % number, partition=1) for number in range(2000)]
    client.produce(topic, messages)
    received = client.fetch(topic, 1, 0, 2000)
    assert [record.value for record in received] == [message.value for message in messages]
    assert [record.offset for record in received] == list(range(2000))
    assert client.end_offset(topic, 0) == 0


@with_clients("produce reports")
def test_the_producer_learns_where_its_records_are(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic, partitions=2)
    deliveries = client.produce(topic, [Message(b"%d" % n, partition=n % 2) for n in range(10)])
    assert sorted((one.partition, one.offset) for one in deliveries) == [
        (partition, offset) for partition in range(2) for offset in range(5)
    ]


def test_a_key_goes_to_the_same_partition_from_every_client(
    opened: Open, topic: str, target: RunningBroker
) -> None:
    """Each client writes every key; a key's records must then all be in one partition."""
    kinds = installed()
    opened(CLIENTS[0]).create_topic(topic, partitions=7)
    for kind in kinds:
        opened(kind).produce(topic, [Message(kind.name.encode(), key) for key in KEYS])
    places: dict[bytes | None, set[int]] = {}
    count = 0
    for partition in range(7):
        for batch in read_all(target, topic, partition):
            for record in batch.records():
                places.setdefault(record.key, set()).add(partition)
                count += 1
    assert count == len(KEYS) * len(kinds)
    assert {key: len(partitions) for key, partitions in places.items()} == dict.fromkeys(KEYS, 1)
    assert len(set(itertools.chain(*places.values()))) > 1


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", [column(kind) for kind in CLIENTS])
def test_every_client_reads_what_one_compressed(
    kind: type[Client], codec: str, opened: Open, target: RunningBroker, topic: str
) -> None:
    opened(CLIENTS[0]).create_topic(topic)
    opened(kind).produce(topic, COMPRESSIBLE, compression=codec)
    stored = read_all(target, topic)
    assert {batch.codec for batch in stored} == {CODECS[codec]}
    for reader in installed():
        received = opened(reader).fetch(topic, 0, 0, len(COMPRESSIBLE))
        assert [record.value for record in received] == [message.value for message in COMPRESSIBLE], (
            reader.name
        )


@with_clients()
def test_topic_compression_type_recompresses_batches(
    client: Client, other: Client, target: RunningBroker, topic: str
) -> None:
    other.create_topic(topic, configs={"compression.type": "zstd"})
    client.produce(topic, COMPRESSIBLE, compression="gzip")
    assert {batch.codec for batch in read_all(target, topic)} == {CODECS["zstd"]}
    received = client.fetch(topic, 0, 0, len(COMPRESSIBLE))
    assert [record.value for record in received] == [message.value for message in COMPRESSIBLE]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@with_clients()
def test_acks(client: Client, other: Client, topic: str, acks: str) -> None:
    other.create_topic(topic)
    client.produce(topic, [Message(b"%d" % number) for number in range(100)], acks=acks)
    received = client.fetch(topic, 0, 0, 100)
    assert [record.value for record in received] == [b"%d" % number for number in range(100)]


@with_clients()
def test_the_idempotent_producer(client: Client, other: Client, target: RunningBroker, topic: str) -> None:
    other.create_topic(topic)
    client.produce(topic, [Message(b"%d" % number) for number in range(500)], idempotent=True)
    stored = read_all(target, topic)
    assert all(batch.producer_id >= 0 for batch in stored)
    assert [value for batch in stored for value in batch.values()] == [
        b"%d" % number for number in range(500)
    ]


@with_clients()
def test_a_message_up_to_the_limit_is_taken_and_a_larger_one_refused(
    client: Client, other: Client, topic: str
) -> None:
    other.create_topic(topic, configs={"max.message.bytes": "200000"})
    client.produce(topic, [Message(b"x" * 199_000)])
    with pytest.raises(ClientError) as refused:
        client.produce(topic, [Message(b"x" * 201_000)])
    assert refused.value.code == MESSAGE_TOO_LARGE
    client.produce(topic, [Message(b"after")])
    assert [len(record.value or b"") for record in client.fetch(topic, 0, 0, 2)] == [199_000, 5]


@with_clients()
def test_a_message_of_several_megabytes(client: Client, other: Client, topic: str) -> None:
    """Larger than any client's default of what one partition may return in a fetch."""
    other.create_topic(topic, configs={"max.message.bytes": "20000000"})
    client.produce(topic, [Message(b"x" * 5_000_000), Message(b"after")])
    assert [len(record.value or b"") for record in client.fetch(topic, 0, 0, 2)] == [5_000_000, 5]


@with_clients()
def test_a_waiting_consumer_is_woken_by_a_new_record(client: Client, other: Client, topic: str) -> None:
    """The fetch may wait half a minute in the broker; the record must come long before that."""
    other.create_topic(topic)
    other.produce(topic, [Message(b"first")])
    with client.reader(topic, 0, 0, wait_ms_max=30_000) as reader:
        assert reader.next().value == b"first"
        # The pause lets the next fetch reach the broker and wait there; the outcome does not depend on it.
        later = threading.Timer(0.3, other.produce, (topic, [Message(b"second")]))
        later.start()
        try:
            assert reader.next(limit_s=20).value == b"second"
        finally:
            later.join()


@with_clients()
def test_producing_to_a_missing_topic_creates_it(client: Client, other: Client, topic: str) -> None:
    client.produce(topic, [Message(b"v")])
    assert other.partitions(topic) == {0}
    assert client.fetch(topic, 0, 0, 1)[0].value == b"v"


@with_clients()
def test_two_readers_see_the_same(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    client.produce(topic, [Message(b"%d" % number, b"k") for number in range(300)])
    eventually(lambda: other.end_offset(topic, 0) == 300, "the end offset")
    assert client.fetch(topic, 0, 0, 300) == other.fetch(topic, 0, 0, 300)
