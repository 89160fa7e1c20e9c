"""Reading from a place: by offset, by time, from the ends, after records were deleted."""

from __future__ import annotations

import time

import pytest

from tests.interop.clients import Client, Message
from tests.interop.table import with_clients

COUNT = 100


@pytest.fixture
def filled(other: Client, topic: str) -> str:
    """A topic with a hundred records in few batches, one second apart in time."""
    other.create_topic(topic)
    start_ms = _start_ms()
    other.produce(topic, [Message(b"%d" % n, timestamp_ms=start_ms + n * 1000) for n in range(COUNT)])
    return topic


def _start_ms() -> int:
    """The start of the current hour's last hour: the same in the fixture and in its test."""
    return (int(time.time()) // 86_400 - 1) * 86_400_000


@with_clients()
@pytest.mark.parametrize("offset", [0, 1, 50, 99])
def test_reads_from_any_offset_also_inside_a_batch(client: Client, filled: str, offset: int) -> None:
    (record,) = client.fetch(filled, 0, offset, 1)
    assert (record.offset, record.value) == (offset, b"%d" % offset)


@with_clients()
def test_beginning_and_end(client: Client, filled: str) -> None:
    assert client.beginning_offset(filled, 0) == 0
    assert client.end_offset(filled, 0) == COUNT


@with_clients()
def test_an_empty_partition_begins_and_ends_at_zero(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    assert client.beginning_offset(topic, 0) == 0
    assert client.end_offset(topic, 0) == 0
    assert client.offset_at(topic, 0, 0) is None


@with_clients()
def test_offset_by_timestamp(client: Client, filled: str) -> None:
    start_ms = _start_ms()
    assert client.offset_at(filled, 0, start_ms - 1) == 0
    assert client.offset_at(filled, 0, start_ms + 41_999) == 42
    assert client.offset_at(filled, 0, start_ms + 42_000) == 42
    assert client.offset_at(filled, 0, start_ms + 42_001) == 43
    assert client.offset_at(filled, 0, start_ms + COUNT * 1000) is None


@with_clients("offset_of_newest")
def test_offset_of_the_newest_timestamp(client: Client, other: Client, topic: str) -> None:
    other.create_topic(topic)
    start_ms = _start_ms()
    for offset, second in enumerate([5, 9, 7]):
        other.produce(topic, [Message(b"%d" % offset, timestamp_ms=start_ms + second * 1000)])
    assert client.offset_of_newest(topic, 0) == 1


@with_clients()
@pytest.mark.parametrize(("reset", "expected"), [("earliest", b"0"), ("latest", b"later")])
def test_an_offset_out_of_range_is_reset(
    client: Client, other: Client, filled: str, reset: str, expected: bytes
) -> None:
    if reset == "earliest":
        with client.reader(filled, 0, 1_000_000, reset=reset) as reader:
            assert reader.next().value == expected
        return
    other.delete_records(filled, 0, 10)
    with client.reader(filled, 0, 0, reset=reset, wait_ms_max=100) as reader:
        received = _poll_while_producing(reader, other, filled, expected)
    assert received == expected


def _poll_while_producing(reader: object, other: Client, topic: str, value: bytes) -> bytes | None:
    """With `latest` only records after the reset are seen: produce until one comes."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        other.produce(topic, [Message(value)])
        try:
            received: bytes | None = reader.next(limit_s=1).value  # type: ignore[attr-defined]
        except (AssertionError, TimeoutError):
            continue
        return received
    raise AssertionError("the reader never saw a record")


@with_clients("delete_records")
def test_delete_records_moves_the_beginning(client: Client, other: Client, filled: str) -> None:
    assert client.delete_records(filled, 0, 30) == 30
    assert client.beginning_offset(filled, 0) == 30
    assert client.end_offset(filled, 0) == COUNT
    assert client.fetch(filled, 0, 30, 1)[0].value == b"30"
    with client.reader(filled, 0, 5, reset="earliest") as reader:
        assert reader.next().offset == 30


@with_clients("delete_records")
def test_delete_records_up_to_the_end(client: Client, other: Client, filled: str) -> None:
    assert client.delete_records(filled, 0, -1) == COUNT
    assert client.beginning_offset(filled, 0) == COUNT
    other.produce(filled, [Message(b"next")])
    assert client.fetch(filled, 0, COUNT, 1)[0].value == b"next"
