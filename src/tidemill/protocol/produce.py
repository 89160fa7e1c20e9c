"""Produce requests and responses without message objects, for the hot path.

A request is read in place: only the topics' names are copied, and each partition's records are positions in the frame.
A response without errors is packed directly. Everything else about Produce uses the message classes in `api/data.py`,
against which both are tested.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol.wire import (
    ARRAY_ELEMENTS_MAX,
    Buffer,
    read_uvarint,
    skip_tagged_fields,
    too_many_elements,
    write_nullable_compact_string,
    write_nullable_string,
    write_uvarint,
)

# The first versions of Produce with these parts.
_LOG_START_OFFSET = 5
_FLEXIBLE = 9
_TOPIC_IDS = 13

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_PARTITION_AND_LENGTH = struct.Struct(">ii")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_PARTITION_RESULT_V3 = struct.Struct(">ihqq")
_PARTITION_RESULT = struct.Struct(">ihqqq")
# After the fixed part of a partition's result: no record errors, no message and, from version 9 on, no tags.
_NO_ERRORS = {8: b"\0\0\0\0\xff\xff", 9: b"\x01\x00\x00"}


class ProducedTopic(NamedTuple):
    """One topic of a request."""

    # The name or, from version 13 on, the topic id, in its encoded form.
    wire_name: bytes
    # (partition, start of the records, end of the records); start is -1 for null.
    partitions: list[tuple[int, int, int]]


class ProduceWalk(NamedTuple):
    """The result of `walk_produce`."""

    acks: int
    timeout_ms: int
    transactional_id: str | None
    topics: list[ProducedTopic]


class TopicToProduce(NamedTuple):
    """The batches that a client sends to one topic, one for each partition, in any number of pieces."""

    name: str
    topic_id: bytes
    partitions: Sequence[tuple[int, Sequence[Buffer]]]


class ProduceResult(NamedTuple):
    """The result of one partition's batch. The first five fields are those of the response, in its order."""

    partition: int
    error: ErrorCode
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    message: str | None = None
    # (index within the batch, error text)
    record_errors: Sequence[tuple[int, str]] = ()
    # The log end offset that must be synced before the response; None when there is no need to wait.
    sync_to: int | None = None
    # The offset that the high watermark must reach before the response; None when there is no need to wait.
    commit_to: int | None = None


def produce_request_parts(
    version: int, transactional_id: str | None, acks: int, timeout_ms: int, topics: Sequence[TopicToProduce]
) -> list[Buffer]:
    """The body of a request in pieces; the batches are not copied."""
    is_flexible = version >= _FLEXIBLE
    text = bytearray()
    _write_text(text, transactional_id, is_flexible)
    text += _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
    _write_count(text, len(topics), is_flexible)
    parts: list[Buffer] = []
    for name, topic_id, partitions in topics:
        if version >= _TOPIC_IDS:
            text += topic_id
        else:
            _write_text(text, name, is_flexible)
        _write_count(text, len(partitions), is_flexible)
        for index, pieces in partitions:
            text += _INT32.pack(index)
            _write_count(text, sum(len(piece) for piece in pieces), is_flexible)
            parts += (text, *pieces)
            # The partition's tags.
            text = bytearray(1 if is_flexible else 0)
        if is_flexible:
            text.append(0)
    if is_flexible:
        text.append(0)
    parts.append(text)
    return parts


def _write_text(out: bytearray, text: str | None, is_flexible: bool) -> None:
    if is_flexible:
        write_nullable_compact_string(out, text)
    else:
        write_nullable_string(out, text)


def _write_count(out: bytearray, count: int, is_flexible: bool) -> None:
    if is_flexible:
        write_uvarint(out, count + 1)
    else:
        out += _INT32.pack(count)


def walk_produce(frame: memoryview, position: int, version: int) -> ProduceWalk:
    """Find every batch of the request. Only the topics' names are copied."""
    try:
        if version >= _FLEXIBLE:
            return _walk_flexible(frame, position, names_are_ids=version >= _TOPIC_IDS)
        return _walk_classic(frame, position)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a Produce request is malformed: {error}") from None


def _walk_flexible(frame: memoryview, position: int, *, names_are_ids: bool) -> ProduceWalk:
    # Most lengths fit one byte; reading those here saves a call for each.
    length = frame[position]
    if length < 0x80:
        position += 1
    else:
        length, position = read_uvarint(frame, position)
    transactional_id = None
    if length:
        name, position = _name_at(frame, position, length - 1)
        transactional_id = name.decode()
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    count, position = read_uvarint(frame, position + 6)
    _check_count(frame, count - 1, position)
    topics = []
    for _ in range(count - 1):
        if names_are_ids:
            wire_name, position = bytes(frame[position : position + 16]), position + 16
        else:
            length, position = read_uvarint(frame, position)
            wire_name, position = _name_at(frame, position, length - 1)
        partition_count, position = read_uvarint(frame, position)
        _check_count(frame, partition_count - 1, position)
        partitions = []
        for _ in range(partition_count - 1):
            index = _INT32.unpack_from(frame, position)[0]
            length, start = read_uvarint(frame, position + 4)
            if length == 0:
                partitions.append((index, -1, -1))
                position = start
            else:
                position = start + length - 1
                partitions.append((index, start, position))
            # Reading past the end fails here, because at least the tag section follows every batch.
            position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
        position = position + 1 if frame[position] == 0 else skip_tagged_fields(frame, position)
        topics.append(ProducedTopic(wire_name, partitions))
    return ProduceWalk(acks, timeout_ms, transactional_id, topics)


def _walk_classic(frame: memoryview, position: int) -> ProduceWalk:
    """Read versions 3 to 8, which have lengths of a fixed size."""
    length = _INT16.unpack_from(frame, position)[0]
    transactional_id = None
    position += 2
    if length >= 0:
        name, position = _name_at(frame, position, length)
        transactional_id = name.decode()
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    count = _INT32.unpack_from(frame, position + 6)[0]
    position += 10
    _check_count(frame, count, position)
    topics = []
    for _ in range(count):
        length = _INT16.unpack_from(frame, position)[0]
        wire_name, position = _name_at(frame, position + 2, length)
        partition_count = _INT32.unpack_from(frame, position)[0]
        position += 4
        _check_count(frame, partition_count, position)
        partitions = []
        for _ in range(partition_count):
            index, length = _PARTITION_AND_LENGTH.unpack_from(frame, position)
            start = position + 8
            if length < 0:
                partitions.append((index, -1, -1))
                position = start
            else:
                position = start + length
                if position > len(frame):
                    raise ProtocolError(f"a Produce request is cut off within {length} bytes of records")
                partitions.append((index, start, position))
        topics.append(ProducedTopic(wire_name, partitions))
    return ProduceWalk(acks, timeout_ms, transactional_id, topics)


def _name_at(frame: memoryview, position: int, length: int) -> tuple[bytes, int]:
    if length < 0 or position + length > len(frame):
        raise ProtocolError(f"a Produce request has a name of {length} bytes")
    name = bytes(frame[position : position + length])
    if not name.isascii():
        name.decode()
    return name, position + length


def _check_count(frame: memoryview, count: int, position: int) -> None:
    if count > ARRAY_ELEMENTS_MAX:
        raise too_many_elements(count)
    if count > len(frame) - position:
        raise ProtocolError(f"a Produce request claims {count} elements in {len(frame) - position} bytes")


def pack_produced(
    results: Sequence[tuple[bytes, Sequence[ProduceResult]]], version: int, throttle_time_ms: int = 0
) -> bytearray:
    """Build the response when no partition has an error."""
    flexible = version >= _FLEXIBLE
    out = bytearray()
    after = _NO_ERRORS.get(min(version, _FLEXIBLE), b"")
    _append_count(out, len(results), flexible)
    for wire_name, partitions in results:
        if version < _TOPIC_IDS:
            _append_name(out, wire_name, flexible)
        else:
            out += wire_name
        _append_count(out, len(partitions), flexible)
        for result in partitions:
            if version >= _LOG_START_OFFSET:
                out += _PARTITION_RESULT.pack(*result[:5])
            else:
                out += _PARTITION_RESULT_V3.pack(*result[:4])
            out += after
        if flexible:
            out.append(0)
    out += _INT32.pack(throttle_time_ms)
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
