"""The primitive types of the Kafka protocol, over any bytes-like buffer.

A reader takes `(buffer, position)` and returns `(value, next position)`; a writer appends to a
`bytearray`. Whatever the bytes are, a reader either returns a value of its type or raises `ProtocolError`:
lengths are checked against what is left in the buffer before anything is allocated, so a peer cannot make
us reserve memory for data it never sent.

Generated codecs (codegen.py) inline the short forms and call in here for the long ones; frames.py and code
that walks bytes by hand use these functions directly.
"""

from __future__ import annotations

import struct
from typing import TypeAlias

from tidemill.errors import ProtocolError

Buffer: TypeAlias = "bytes | bytearray | memoryview"

INT8 = struct.Struct(">b")
INT16 = struct.Struct(">h")
INT32 = struct.Struct(">i")
INT64 = struct.Struct(">q")
UINT16 = struct.Struct(">H")
UINT32 = struct.Struct(">I")
FLOAT64 = struct.Struct(">d")

NULL_LENGTH = -1
# The int16 length of classic strings. Kafka applies it to compact strings too.
STRING_BYTES_MAX = 0x7FFF


def truncated(needed: int, left: int) -> ProtocolError:
    return ProtocolError(f"truncated: {needed} bytes announced, {max(left, 0)} left")


def _read_fixed(layout: struct.Struct, buffer: Buffer, position: int) -> int:
    try:
        value: int = layout.unpack_from(buffer, position)[0]
    except struct.error:
        raise truncated(layout.size, len(buffer) - position) from None
    return value


def read_int8(buffer: Buffer, position: int) -> tuple[int, int]:
    return _read_fixed(INT8, buffer, position), position + 1


def read_int16(buffer: Buffer, position: int) -> tuple[int, int]:
    return _read_fixed(INT16, buffer, position), position + 2


def read_int32(buffer: Buffer, position: int) -> tuple[int, int]:
    return _read_fixed(INT32, buffer, position), position + 4


def read_int64(buffer: Buffer, position: int) -> tuple[int, int]:
    return _read_fixed(INT64, buffer, position), position + 8


def read_uuid(buffer: Buffer, position: int) -> tuple[bytes, int]:
    return read_slice(buffer, position, 16)


def read_slice(buffer: Buffer, position: int, length: int) -> tuple[bytes, int]:
    end = position + length
    if length < 0 or end > len(buffer):
        raise truncated(length, len(buffer) - position)
    return bytes(buffer[position:end]), end


# --- varints -----------------------------------------------------------------------------------------------


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """An unsigned 32-bit varint: at most five bytes."""
    return _read_varint_bits(buffer, position, 32)


def read_varint(buffer: Buffer, position: int) -> tuple[int, int]:
    """A zigzag 32-bit varint."""
    raw, position = _read_varint_bits(buffer, position, 32)
    return (raw >> 1) ^ -(raw & 1), position


def read_varlong(buffer: Buffer, position: int) -> tuple[int, int]:
    """A zigzag 64-bit varint: at most ten bytes."""
    raw, position = _read_varint_bits(buffer, position, 64)
    return (raw >> 1) ^ -(raw & 1), position


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
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{value} is not an unsigned 32-bit integer")
    _write_varint_bits(out, value)


def write_varint(out: bytearray, value: int) -> None:
    if not -(1 << 31) <= value < 1 << 31:
        raise ValueError(f"{value} is not a 32-bit integer")
    _write_varint_bits(out, (value << 1) ^ (value >> 31))


def write_varlong(out: bytearray, value: int) -> None:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{value} is not a 64-bit integer")
    _write_varint_bits(out, (value << 1) ^ (value >> 63))


def _write_varint_bits(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


# --- strings and bytes -------------------------------------------------------------------------------------


def read_nullable_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    length, position = read_int16(buffer, position)
    return _read_text(buffer, position, length)


def read_string(buffer: Buffer, position: int) -> tuple[str, int]:
    return _not_null(*read_nullable_string(buffer, position))


def read_nullable_compact_string(buffer: Buffer, position: int) -> tuple[str | None, int]:
    length, position = read_uvarint(buffer, position)
    if length - 1 > STRING_BYTES_MAX:
        raise ProtocolError(f"a string of {length - 1} bytes, at most {STRING_BYTES_MAX} are allowed")
    return _read_text(buffer, position, length - 1)


def read_compact_string(buffer: Buffer, position: int) -> tuple[str, int]:
    return _not_null(*read_nullable_compact_string(buffer, position))


def read_nullable_bytes(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
    length, position = read_int32(buffer, position)
    if length == NULL_LENGTH:
        return None, position
    return read_slice(buffer, position, length)


def read_nullable_compact_bytes(buffer: Buffer, position: int) -> tuple[bytes | None, int]:
    length, position = read_uvarint(buffer, position)
    if length == 0:
        return None, position
    return read_slice(buffer, position, length - 1)


def _read_text(buffer: Buffer, position: int, length: int) -> tuple[str | None, int]:
    if length == NULL_LENGTH:
        return None, position
    raw, position = read_slice(buffer, position, length)
    try:
        return raw.decode(), position
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a string is not UTF-8: {error.reason}") from None


def _not_null(value: str | None, position: int) -> tuple[str, int]:
    if value is None:
        raise ProtocolError("null where a string is required")
    return value, position


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


def read_array_length(buffer: Buffer, position: int, element_size_min: int = 1) -> tuple[int | None, int]:
    """The number of elements; None for a null array. Rejects more than the rest of the buffer can hold."""
    length, position = read_int32(buffer, position)
    return _check_array_length(buffer, position, length, element_size_min)


def read_compact_array_length(
    buffer: Buffer, position: int, element_size_min: int = 1
) -> tuple[int | None, int]:
    length, position = read_uvarint(buffer, position)
    return _check_array_length(buffer, position, length - 1, element_size_min)


def _check_array_length(
    buffer: Buffer, position: int, length: int, element_size_min: int
) -> tuple[int | None, int]:
    if length == NULL_LENGTH:
        return None, position
    left = len(buffer) - position
    if length < 0 or length * element_size_min > left:
        raise ProtocolError(f"array of {length} elements announced, {left} bytes left")
    return length, position


def skip_tagged_fields(buffer: Buffer, position: int) -> int:
    """Skip a whole tagged section."""
    count, position = read_uvarint(buffer, position)
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
