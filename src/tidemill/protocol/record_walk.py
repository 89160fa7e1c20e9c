"""A walk over the records of a batch that reads their positions, keys and timestamps, but no values or headers.

Each record costs the same, so the header of a batch tells the work. The decompressed size is limited in advance: by
the claimed number of records, and by a ratio that no real batch reaches.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from tidemill.errors import ProtocolError
from tidemill.protocol import compression
from tidemill.protocol.records import (
    DECOMPRESSED_BYTES_MAX,
    HEADER_SIZE,
    INT64_MAX,
    INT64_MIN,
    BatchHeader,
    check_fits,
)
from tidemill.protocol.steps import Steps

# About half a millisecond of work.
RECORDS_A_STEP = 500
# The number of bytes that are decompressed or compressed within a step.
_BYTES_A_STEP = 64 * 1024
_EXPANSION_MAX = 128
_EXPANDED_BYTES_MIN = 16 * 1024 * 1024

# (start, end, timestamp delta, offset delta, key, is a tombstone) of a record in the decompressed bytes. A plain
# tuple, because one is made for every record.
RawRecord = tuple[int, int, int, int, bytes | None, bool]


def records_of(batch: memoryview, header: BatchHeader) -> bytes:
    """The decompressed records, for callers that may block."""
    body = batch[HEADER_SIZE : header.size]
    return compression.decompress(header.codec, body, DECOMPRESSED_BYTES_MAX) if header.codec else bytes(body)


def records_in_steps(batch: memoryview, header: BatchHeader) -> Steps[bytes]:
    """The decompressed records, in a thread when there are many bytes."""
    body = batch[HEADER_SIZE : header.size]
    if not header.codec:
        return bytes(body)
    # An impossible claim is rejected before any work.
    check_fits(header.record_count, _expanded_max(body))
    if len(body) <= _BYTES_A_STEP:
        try:
            return compression.decompress(header.codec, body, _BYTES_A_STEP)
        except compression.TooLarge:
            pass
    expanded: bytes = yield partial(compression.decompress, header.codec, bytes(body), _expanded_max(body))
    return expanded


def _expanded_max(body: memoryview) -> int:
    return min(DECOMPRESSED_BYTES_MAX, max(_EXPANDED_BYTES_MIN, len(body) * _EXPANSION_MAX))


def compress_in_steps(codec: int, body: bytes) -> Steps[bytes]:
    if not codec or len(body) <= _BYTES_A_STEP // 4:
        return compression.compress(codec, body)
    payload: bytes = yield partial(compression.compress, codec, body)
    return payload


def walk(body: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Returns every record of a batch without value and headers. Raises `ProtocolError` for invalid records.

    Most varints have one byte. They are decoded in place, because a call costs more than all the rest.
    """
    position, size = 0, len(body)
    check_fits(header.record_count, size)
    last_offset_delta, base_timestamp = header.last_offset_delta, header.base_timestamp
    try:
        for _ in range(header.record_count):
            start = position
            if (byte := body[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = varint_at(body, position)
            end = position + length
            if length < 0 or end > size:
                raise ProtocolError(f"a record of {length} bytes does not fit its batch")
            if (byte := body[position + 1]) < 0x80:
                timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                timestamp_delta, position = varint_at(body, position + 1)
            if (byte := body[position]) < 0x80:
                offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                offset_delta, position = varint_at(body, position)
            if not 0 <= offset_delta <= last_offset_delta:
                raise ProtocolError(f"a record's offset delta of {offset_delta} lies outside of its batch")
            if not INT64_MIN <= base_timestamp + timestamp_delta <= INT64_MAX:
                raise ProtocolError("a record's timestamp does not fit 64 bits")
            if (byte := body[position]) < 0x80:
                key_length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                key_length, position = varint_at(body, position)
            key = None
            if key_length >= 0:
                key = body[position : position + key_length]
                position += key_length
            # Only the sign of the value's length is needed, which is in the first byte of the varint.
            if position >= end:
                raise ProtocolError("a key does not fit its record")
            yield start, end, timestamp_delta, offset_delta, key, bool(body[position] & 1)
            position = end
    except IndexError as error:
        raise ProtocolError("a record is cut off") from error
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last record of a batch")


def varint_at(body: bytes, position: int) -> tuple[int, int]:
    byte = body[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise ProtocolError("a varint in a record is longer than ten bytes")
        position += 1
        byte = body[position]
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position + 1
