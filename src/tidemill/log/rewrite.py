"""Batches as the cleaner rewrites them: some records go, everything else stays as it was.

A record that stays keeps its bytes, its offset and its timestamp; a batch keeps its first and last offset, its
sequence numbers, its leader epoch and its codec. A batch may lose all of its records and stay as a bare header,
because of the offset or the sequence number that it ends with.

KIP-534: the first cleaning that meets a tombstone writes into the batch when the tombstone may go: attribute bit 6 is set
and the base timestamp *is* that time. The records' timestamps count from the base timestamp, so they are written anew
against it, and a reader needs to know nothing of all this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemill.errors import ProtocolError
from tidemill.protocol import compression
from tidemill.protocol.records import (
    COMPRESSION_MASK,
    DECOMPRESSED_BYTES_MAX,
    DELETE_HORIZON,
    HEADER_SIZE,
    BatchHeader,
    assemble,
    check_fits,
)
from tidemill.types import NO_TIMESTAMP

# (start, end, timestamp delta, offset delta, key, is a tombstone): where a record lies in the decompressed records of its
# batch, and the little that cleaning asks. A plain tuple: one is made for every record of the log, twice.
RawRecord = tuple[int, int, int, int, bytes | None, bool]


def records_of(batch: memoryview, header: BatchHeader) -> bytes:
    """The records' bytes, decompressed."""
    body = batch[HEADER_SIZE : header.size]
    return compression.decompress(header.codec, body, DECOMPRESSED_BYTES_MAX) if header.codec else bytes(body)


def walk(body: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Every record of a batch, without its value and its headers; `ProtocolError` when they make no sense.

    Most varints have one byte: those are decoded in place, because a call costs more than all the rest.
    """
    position, size = 0, len(body)
    check_fits(header.record_count, size)
    last_offset_delta = header.last_offset_delta
    try:
        for _ in range(header.record_count):
            start = position
            if (byte := body[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = _varint(body, position)
            end = position + length
            if length < 0 or end > size:
                raise ProtocolError(f"a record of {length} bytes does not fit its batch")
            if (byte := body[position + 1]) < 0x80:
                timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                timestamp_delta, position = _varint(body, position + 1)
            if (byte := body[position]) < 0x80:
                offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                offset_delta, position = _varint(body, position)
            if not 0 <= offset_delta <= last_offset_delta:
                raise ProtocolError(f"a record's offset delta of {offset_delta} lies outside of its batch")
            if (byte := body[position]) < 0x80:
                key_length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                key_length, position = _varint(body, position)
            key = None
            if key_length >= 0:
                key = body[position : position + key_length]
                position += key_length
            # Of the value only the sign of its length is asked; a varint's first byte has it.
            if position >= end:
                raise ProtocolError("a key does not fit its record")
            yield start, end, timestamp_delta, offset_delta, key, bool(body[position] & 1)
            position = end
    except IndexError as error:
        raise ProtocolError("a record is cut off") from error
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last record of a batch")


def _varint(body: bytes, position: int) -> tuple[int, int]:
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


def _encode_varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _check_int64(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise ProtocolError(f"a timestamp of {value} does not fit 64 bits")
    return value


def delete_horizon_of(header: BatchHeader) -> int | None:
    """When the tombstones of this batch may go; None when no cleaning has met them yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def with_records(
    header: BatchHeader, body: bytes, kept: Sequence[RawRecord], delete_horizon_ms: int | None
) -> bytearray:
    """The batch with only these of its records; `delete_horizon_ms` is set where none is yet.

    `ProtocolError` when a timestamp of theirs is none.
    """
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = header.base_timestamp + max(timestamp_delta for _, _, timestamp_delta, *_ in kept)
        _check_int64(max_timestamp)
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon_ms is None:
        content = b"".join(_runs(body, kept))
    else:
        moved = base_timestamp - delete_horizon_ms
        content = b"".join(_with_timestamp_moved(body, record, moved) for record in kept)
        attributes, base_timestamp = attributes | DELETE_HORIZON, delete_horizon_ms
    payload = compression.compress(header.codec, content) if header.codec else content
    return assemble(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
        payload,
    )


def _runs(body: bytes, kept: Iterable[RawRecord]) -> Iterator[bytes]:
    """The kept records' bytes; neighbours as one piece."""
    start = end = 0
    for record_start, record_end, *_ in kept:
        if record_start != end:
            yield body[start:end]
            start = record_start
        end = record_end
    yield body[start:end]


def _with_timestamp_moved(body: bytes, record: RawRecord, moved_ms: int) -> bytes:
    start, end, timestamp_delta, *_ = record
    _, attributes_at = _varint(body, start)
    _, rest_at = _varint(body, attributes_at + 1)
    delta = _encode_varint(_check_int64(timestamp_delta + moved_ms))
    rest = body[rest_at:end]
    length = _encode_varint(1 + len(delta) + len(rest))
    return b"".join((length, body[attributes_at : attributes_at + 1], delta, rest))


def without_records(header: BatchHeader) -> bytearray:
    """A bare header: offsets, sequence numbers and newest timestamp of a batch whose records are all gone."""
    return assemble(
        header._replace(
            attributes=header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON),
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )
