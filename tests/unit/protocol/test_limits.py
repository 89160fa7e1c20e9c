"""Limits of the decoder: elements of an array and tagged fields, as in Kafka 4.4."""

from __future__ import annotations

import struct

import pytest

from tidemill.errors import ProtocolError
from tidemill.protocol.api.cluster import ApiVersionsRequest, DescribeClusterRequest
from tidemill.protocol.api.data import FetchRequest
from tidemill.protocol.api.groups import DescribeGroupsRequest
from tidemill.protocol.api.replicas import ElectLeadersRequest
from tidemill.protocol.produce import walk_produce
from tidemill.protocol.schema import Request, decode, encode
from tidemill.protocol.wire import ARRAY_ELEMENTS_MAX, TAGGED_FIELDS_MAX, write_uvarint

TAG_UNKNOWN = 77
EMPTY_TAGS = b"\0"


def uvarint(value: int) -> bytes:
    out = bytearray()
    write_uvarint(out, value)
    return bytes(out)


def tags(count: int) -> bytes:
    """Fields that no version knows, without content."""
    return uvarint(count) + (uvarint(TAG_UNKNOWN) + uvarint(0)) * count


def groups_body(count: int, version: int) -> bytes:
    """DescribeGroups with that many groups without a name."""
    if version >= 5:
        return uvarint(count + 1) + b"\1" * count + b"\0" + EMPTY_TAGS
    return struct.pack(">i", count) + b"\0\0" * count + b"\0"


@pytest.mark.parametrize("version", [3, 5])
def test_array_at_the_limit_is_read_and_one_element_more_is_refused(version: int) -> None:
    body = memoryview(groups_body(ARRAY_ELEMENTS_MAX, version))
    assert len(decode(DescribeGroupsRequest, version, body, 0).groups) == ARRAY_ELEMENTS_MAX
    with pytest.raises(ProtocolError, match=f"an array of {ARRAY_ELEMENTS_MAX + 1} elements"):
        decode(DescribeGroupsRequest, version, memoryview(groups_body(ARRAY_ELEMENTS_MAX + 1, version)), 0)


@pytest.mark.parametrize("version", [1, 2])
def test_array_of_numbers_has_the_same_limit(version: int) -> None:
    count = ARRAY_ELEMENTS_MAX + 1
    partitions = (uvarint(count + 1) if version >= 2 else struct.pack(">i", count)) + bytes(4 * count)
    topic = b"\2a" + partitions if version >= 2 else b"\0\1a" + partitions
    body = b"\0" + (uvarint(2) if version >= 2 else struct.pack(">i", 1)) + topic + bytes(6)
    with pytest.raises(ProtocolError, match="at most 1000000 are allowed"):
        decode(ElectLeadersRequest, version, memoryview(body), 0)


@pytest.mark.parametrize("version", [8, 9])
def test_produce_has_the_same_limit_of_topics_and_partitions(version: int) -> None:
    count = ARRAY_ELEMENTS_MAX + 1
    start = (uvarint(0) if version >= 9 else struct.pack(">h", -1)) + struct.pack(">hi", 1, 1000)
    many = uvarint(count + 1) if version >= 9 else struct.pack(">i", count)
    one = uvarint(2) + b"\2a" if version >= 9 else struct.pack(">i", 1) + b"\0\1a"
    for body in (start + many, start + one + many):
        with pytest.raises(ProtocolError, match=f"an array of {count} elements"):
            walk_produce(memoryview(body + bytes(count)), 0, version)


@pytest.mark.parametrize(
    ("request_type", "version"), [(DescribeClusterRequest, 2), (ApiVersionsRequest, 3), (FetchRequest, 17)]
)
def test_tagged_fields_at_the_limit_are_skipped_and_one_more_is_refused(
    request_type: type[Request], version: int
) -> None:
    """Also of a message that has tagged fields of its own (FetchRequest)."""
    body = bytes(encode(request_type(), version))
    assert body.endswith(EMPTY_TAGS)
    decode(request_type, version, memoryview(body[:-1] + tags(TAGGED_FIELDS_MAX)), 0)
    with pytest.raises(ProtocolError, match=f"{TAGGED_FIELDS_MAX + 1} tagged fields, at most"):
        decode(request_type, version, memoryview(body[:-1] + tags(TAGGED_FIELDS_MAX + 1)), 0)
