"""The primitive types of the Kafka protocol, over any bytes-like buffer.

A reader takes `(buffer, position)` and returns `(value, next position)`; a writer appends to a `bytearray`. Whatever
the bytes are, a reader either returns a value of its type or raises `ProtocolError`. Lengths are checked against what
is left in the buffer before anything is allocated. So a peer cannot make us reserve memory for data it never sent.

Generated codecs (`codegen/`) inline the short forms and call in here for the long ones; frames.py and code that walks
bytes by hand use these functions directly.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from tidemill.errors import ProtocolError

Buffer: TypeAlias = "bytes | bytearray | memoryview"

INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")

NULL_LENGTH = -1
# The int16 length of classic strings. Kafka applies it to compact strings too.
STRING_BYTES_MAX = 0x7FFF
# What Kafka's decoder takes at most since 4.4.
ARRAY_ELEMENTS_MAX = 1_000_000
TAGGED_FIELDS_MAX = 10_000


def truncated(needed: int, left: int) -> ProtocolError:
    return ProtocolError(f"truncated: {needed} bytes announced, {max(left, 0)} left")


def _read_fixed(layout: struct.Struct, buffer: Buffer, position: int) -> int:
    try:
        value: int = layout.unpack_from(buffer, position)[0]
    except struct.error:
        raise truncated(layout.size, len(buffer) - position) from None
    return value


def read_int16(buffer: Buffer, position: int) -> tuple[int, int]:
    return _read_fixed(INT16, buffer, position), position + 2


def read_int32(buffer: Buffer, position: int) -> tuple[int, int]:
    return _read_fixed(INT32, buffer, position), position + 4


# --- varints -----------------------------------------------------------------------------------------------


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned 32-bit varint: at most five bytes."""
    try:
        byte = buffer[position]
    except IndexError:
        raise truncated(1, 0) from None
    if byte < 0x80:
        return byte, position + 1  # nearly every length and count
    return _read_varint_bits(buffer, position, 32)


def _read_varint_bits(buffer: Buffer, position: int, bits: int) -> tuple[int, int]:
    value = shift = 0
    while shift < bits:
        try:
            byte = buffer[position]
        except IndexError:
            raise truncated(1, 0) from None
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> bits:
                break
            return value, position
        shift += 7
    raise ProtocolError(f"varint does not fit {bits} bits")


def write_uvarint(out: bytearray, value: int) -> None:
    if 0 <= value <= 0x7F:
        out.append(value)  # nearly every length and count
        return
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{value} is not an unsigned 32-bit integer")
    _write_varint_bits(out, value)


def _write_varint_bits(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


# --- strings and bytes -------------------------------------------------------------------------------------


def write_nullable_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out += INT16.pack(NULL_LENGTH)
        return
    raw = value.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"a string of {len(raw)} bytes is longer than the protocol's {STRING_BYTES_MAX}")
    out += INT16.pack(len(raw))
    out += raw


def write_nullable_compact_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
        return
    raw = value.encode()
    if len(raw) > STRING_BYTES_MAX:
        raise ValueError(f"a string of {len(raw)} bytes is longer than the protocol's {STRING_BYTES_MAX}")
    write_uvarint(out, len(raw) + 1)
    out += raw


# --- arrays and tagged fields ------------------------------------------------------------------------------


def too_many_elements(count: int) -> ProtocolError:
    return ProtocolError(f"an array of {count} elements, at most {ARRAY_ELEMENTS_MAX} are allowed")


def read_tag_count(buffer: Buffer, position: int) -> tuple[int, int]:
    """Read how many tagged fields a section has, and the position after that."""
    count, position = read_uvarint(buffer, position)
    if count > TAGGED_FIELDS_MAX:
        raise ProtocolError(f"{count} tagged fields, at most {TAGGED_FIELDS_MAX} are allowed")
    return count, position


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """Skip a whole tagged section."""
    count, position = read_tag_count(buffer, position)
    end = len(buffer)
    if count > end - position:
        raise ProtocolError(f"{count} tagged fields announced, {end - position} bytes left")
    for _ in range(count):
        _tag, position = read_uvarint(buffer, position)
        size, position = read_uvarint(buffer, position)
        if size > end - position:
            raise truncated(size, end - position)
        position += size
    return position
