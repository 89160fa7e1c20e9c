"""The bytes in `__consumer_offsets`, written out by hand after Kafka's schemas, and the partition they are in."""

from __future__ import annotations

import pytest

from tidemill.coordinator.partitions import java_hash, partition_for_group
from tidemill.coordinator.records import Record, decode, encode, group_metadata_tombstone
from tidemill.errors import ProtocolError
from tidemill.protocol.api.coordinator_records import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)


def string(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


OFFSET_KEY = b"\x00\x01" + string("g") + string("orders") + b"\x00\x00\x00\x07"


def test_an_offset_is_written_in_version_3() -> None:
    value = OffsetCommitValue(offset=42, leader_epoch=5, metadata="m", commit_timestamp=1000)
    key = OffsetCommitKey(group="g", topic="orders", partition=7)
    assert encode(Record(key, value)) == (
        OFFSET_KEY,
        b"\x00\x03"
        + (42).to_bytes(8, "big")
        + (5).to_bytes(4, "big")
        + string("m")
        + (1000).to_bytes(8, "big"),
    )


def test_an_offset_with_a_topic_id_is_written_in_version_4() -> None:
    topic_id = bytes(range(16))
    value = OffsetCommitValue(
        offset=42, leader_epoch=5, metadata="m", commit_timestamp=1000, topic_id=topic_id
    )
    key = OffsetCommitKey(group="g", topic="orders", partition=7)
    tagged = b"\x01\x00\x10" + topic_id
    raw = b"\x00\x04" + (42).to_bytes(8, "big") + (5).to_bytes(4, "big") + b"\x02m"
    assert encode(Record(key, value))[1] == raw + (1000).to_bytes(8, "big") + tagged


def test_an_offset_with_its_own_retention_is_written_in_version_1() -> None:
    value = OffsetCommitValue(offset=42, metadata="", commit_timestamp=1000, expire_timestamp=2000)
    key = OffsetCommitKey(group="g", topic="orders", partition=7)
    raw = b"\x00\x01" + (42).to_bytes(8, "big") + string("")
    assert encode(Record(key, value))[1] == raw + (1000).to_bytes(8, "big") + (2000).to_bytes(8, "big")


def test_a_group_is_written_in_version_3() -> None:
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=2,
        session_timeout=1,
        subscription=b"s",
        assignment=b"a",
    )
    value = GroupMetadataValue(
        protocol_type="consumer",
        generation=3,
        protocol="range",
        leader="m",
        current_state_timestamp=9,
        members=[member],
    )
    raw_member = (
        string("m") + b"\xff\xff" + string("c") + string("/h") + b"\0\0\0\2\0\0\0\1\0\0\0\1s\0\0\0\1a"
    )
    assert encode(Record(GroupMetadataKey(group="g"), value)) == (
        b"\x00\x02" + string("g"),
        b"\x00\x03" + string("consumer") + b"\0\0\0\3" + string("range") + string("m")
        + (9).to_bytes(8, "big") + b"\0\0\0\1" + raw_member,
    )  # fmt: skip


def test_a_tombstone_has_a_key_and_no_value() -> None:
    assert encode(group_metadata_tombstone("g")) == (b"\x00\x02" + string("g"), None)
    assert decode(b"\x00\x02" + string("g"), None) == group_metadata_tombstone("g")


@pytest.mark.parametrize(
    "value",
    [
        OffsetCommitValue(offset=1, leader_epoch=2, metadata="x", commit_timestamp=3),
        OffsetCommitValue(offset=1, leader_epoch=2, metadata="x", commit_timestamp=3, topic_id=b"i" * 16),
        OffsetCommitValue(offset=1, metadata="x", commit_timestamp=3, expire_timestamp=4),
    ],
)
def test_written_records_are_read_back(value: OffsetCommitValue) -> None:
    record = Record(OffsetCommitKey(group="g", topic="orders", partition=7), value)
    assert decode(*encode(record)) == record


def test_records_of_a_later_version_are_left_alone() -> None:
    assert decode(b"\x7f\xff whatever", b"\x00\x00") is None


def test_a_key_that_is_no_key_is_an_error() -> None:
    with pytest.raises(ProtocolError):
        decode(b"\x00", None)


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("polygenelubricants", -(2**31)),
        ("ünïcödé", None),
        ("longer than a block, ünïcödé; " * 99, None),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_java_hash(text: str, hashed: int | None) -> None:
    if hashed is None:
        # Java's own definition: s[0]*31^(n-1) + … + s[n-1], in 32 bits.
        value = sum(ord(letter) * 31 ** (len(text) - 1 - index) for index, letter in enumerate(text))
        hashed = (value + 2**31) % 2**32 - 2**31
    assert java_hash(text) == hashed


def test_the_partition_of_a_group() -> None:
    assert partition_for_group("hello", 50) == 22
    # The smallest int has no absolute value in Java.
    assert partition_for_group("polygenelubricants", 50) == 0
    # "zzzzzz" is negative: -685253486
    assert java_hash("zzzzzz") < 0
    assert partition_for_group("zzzzzz", 50) == -java_hash("zzzzzz") % 50
