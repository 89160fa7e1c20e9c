"""Produce requests and responses without messages in between: the hot path's own reading and writing.

A request is walked where it lies: nothing is copied but the topics' names, and each partition's records are given as
positions in the frame. A response in which nothing went wrong is packed directly. Everything else about Produce goes
through the message classes in `api/data.py`, against which both are tested.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.errors import ProtocolError
from tidemill.protocol.wire import read_uvarint, skip_tagged_fields, write_uvarint

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_PARTITION_RESULT_V3 = struct.Struct(">ihqq")
_PARTITION_RESULT = struct.Struct(">ihqqq")
# After the fixed part of a partition's result: no record errors, no message and, from version 9 on, no tags.
_NO_ERRORS = {8: b"\0\0\0\0\xff\xff", 9: b"\x01\x00\x00"}


class ProducedTopic(NamedTuple):
    # The name or, from version 13 on, the id, as it stands in the request.
    wire_name: bytes
    # (partition, start of the records, end of the records); start is -1 for null.
    partitions: list[tuple[int, int, int]]


class ProduceWalk(NamedTuple):
    acks: int
    timeout_ms: int
    is_transactional: bool
    topics: list[ProducedTopic]


class Appended(NamedTuple):
    """The result of one partition that took its batch."""

    partition: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int


def walk_produce(frame: memoryview, position: int, version: int) -> ProduceWalk:
    """Find every batch of the request without copying anything but the topics' names."""
    try:
        flexible = version >= 9
        transactional_id, position = _string_at(frame, position, flexible)
        acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
        count, position = _count_at(frame, position + 6, flexible)
        topics = []
        for _ in range(count):
            if version >= 13:
                wire_name, position = bytes(frame[position : position + 16]), position + 16
            else:
                name, position = _string_at(frame, position, flexible)
                wire_name = bytes(name or b"")
                if not wire_name.isascii():
                    wire_name.decode()
            partition_count, position = _count_at(frame, position, flexible)
            partitions = []
            for _ in range(partition_count):
                (index,) = _INT32.unpack_from(frame, position)
                if flexible:
                    length, start = read_uvarint(frame, position + 4)
                    length -= 1
                else:
                    (length,) = _INT32.unpack_from(frame, position + 4)
                    start = position + 8
                if length < 0:
                    partitions.append((index, -1, -1))
                    position = start
                else:
                    position = start + length
                    if position > len(frame):
                        raise ProtocolError(f"a Produce request is cut off within {length} bytes of records")
                    partitions.append((index, start, position))
                if flexible:
                    position = skip_tagged_fields(frame, position)
            if flexible:
                position = skip_tagged_fields(frame, position)
            topics.append(ProducedTopic(wire_name, partitions))
        return ProduceWalk(acks, timeout_ms, transactional_id is not None, topics)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a Produce request is malformed: {error}") from None


def _string_at(frame: memoryview, position: int, flexible: bool) -> tuple[memoryview | None, int]:
    if flexible:
        length, position = read_uvarint(frame, position)
        length -= 1
    else:
        (length,) = _INT16.unpack_from(frame, position)
        position += 2
    if length < 0:
        return None, position
    if position + length > len(frame):
        raise ProtocolError(f"a Produce request is cut off within a string of {length} bytes")
    return frame[position : position + length], position + length


def _count_at(frame: memoryview, position: int, flexible: bool) -> tuple[int, int]:
    if flexible:
        count, position = read_uvarint(frame, position)
        count -= 1
    else:
        (count,) = _INT32.unpack_from(frame, position)
        position += 4
    if count > len(frame) - position:
        raise ProtocolError(f"a Produce request claims {count} elements in {len(frame) - position} bytes")
    return max(count, 0), position


def pack_produced(results: Sequence[tuple[bytes, Sequence[Appended]]], version: int) -> bytearray:
    """The response when nothing went wrong."""
    flexible = version >= 9
    out = bytearray()
    after = _NO_ERRORS.get(min(version, 9), b"")
    _append_count(out, len(results), flexible)
    for wire_name, partitions in results:
        if version < 13:
            _append_name(out, wire_name, flexible)
        else:
            out += wire_name
        _append_count(out, len(partitions), flexible)
        for index, base_offset, log_append_time_ms, log_start_offset in partitions:
            if version >= 5:
                out += _PARTITION_RESULT.pack(index, 0, base_offset, log_append_time_ms, log_start_offset)
            else:
                out += _PARTITION_RESULT_V3.pack(index, 0, base_offset, log_append_time_ms)
            out += after
        if flexible:
            out.append(0)
    out += b"\0\0\0\0"  # throttle_time_ms
    if flexible:
        out.append(0)
    return out


def _append_count(out: bytearray, count: int, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def _append_name(out: bytearray, name: bytes, flexible: bool) -> None:
    if flexible:
        write_uvarint(out, len(name) + 1)
    else:
        out += _INT16.pack(len(name))
    out += name
