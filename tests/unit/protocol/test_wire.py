"""Primitives: their bytes by the protocol guide, and the limits that hold against any peer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tidemill.errors import ProtocolError
from tidemill.protocol import wire

UVARINTS = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16383, "ff7f"),
    (2**32 - 1, "ffffffff0f"),
]
VARINTS = [(0, "00"), (-1, "01"), (1, "02"), (63, "7e"), (-64, "7f"), (64, "8001"), (-(2**31), "ffffffff0f")]
VARLONGS = [(0, "00"), (2**63 - 1, "feffffffffffffffff01"), (-(2**63), "ffffffffffffffffff01")]


@pytest.mark.parametrize(("value", "raw"), UVARINTS)
def test_uvarint(value: int, raw: str) -> None:
    _both_ways(wire.write_uvarint, wire.read_uvarint, value, raw)


@pytest.mark.parametrize(("value", "raw"), VARINTS)
def test_varint(value: int, raw: str) -> None:
    _both_ways(wire.write_varint, wire.read_varint, value, raw)


@pytest.mark.parametrize(("value", "raw"), VARLONGS)
def test_varlong(value: int, raw: str) -> None:
    _both_ways(wire.write_varlong, wire.read_varlong, value, raw)


def _both_ways(
    write: Callable[..., None], read: Callable[..., tuple[int, int]], value: int, raw: str
) -> None:
    out = bytearray(b"#")
    write(out, value)
    assert out[1:].hex() == raw
    assert read(out, 1) == (value, len(out))


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (wire.read_uvarint, "ffffffff1f"),
        (wire.read_uvarint, "808080808001"),
        (wire.read_varint, "ffffffffff01"),
        (wire.read_varlong, "ffffffffffffffffff02"),
        (wire.read_varlong, "8080808080808080808001"),
    ],
)
def test_a_varint_longer_than_its_type_is_refused(read: Callable[..., Any], raw: str) -> None:
    with pytest.raises(ProtocolError, match="does not fit"):
        read(bytes.fromhex(raw), 0)


@pytest.mark.parametrize(
    ("write", "value"),
    [
        (wire.write_uvarint, -1),
        (wire.write_uvarint, 2**32),
        (wire.write_varint, 2**31),
        (wire.write_varlong, -(2**63) - 1),
    ],
)
def test_a_number_out_of_range_is_not_written(write: Callable[..., None], value: int) -> None:
    out = bytearray()
    with pytest.raises(ValueError, match=str(value)):
        write(out, value)
    assert out == b""


READERS: list[Callable[..., Any]] = [
    wire.read_int8,
    wire.read_int16,
    wire.read_int32,
    wire.read_int64,
    wire.read_uuid,
    wire.read_uvarint,
    wire.read_varint,
    wire.read_varlong,
    wire.read_string,
    wire.read_nullable_string,
    wire.read_compact_string,
    wire.read_nullable_compact_string,
    wire.read_nullable_bytes,
    wire.read_nullable_compact_bytes,
    wire.read_array_length,
    wire.read_compact_array_length,
    wire.skip_tagged_fields,
]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@pytest.mark.parametrize("position", [0, 1, 100])
def test_nothing_is_read_past_the_end(read: Callable[..., Any], position: int) -> None:
    with pytest.raises(ProtocolError):
        read(b"", position)


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (wire.read_string, "7fff61"),
        (wire.read_nullable_string, "000261"),
        (wire.read_compact_string, "0361"),
        (wire.read_nullable_compact_string, "ffffffff0f61"),
        (wire.read_nullable_bytes, "7fffffff61"),
        (wire.read_nullable_compact_bytes, "ffffffff0f61"),
        (wire.read_array_length, "7fffffff61"),
        (wire.read_compact_array_length, "ffffffff0f61"),
    ],
)
def test_a_length_beyond_the_buffer_is_refused(read: Callable[..., Any], raw: str) -> None:
    with pytest.raises(ProtocolError):
        read(memoryview(bytes.fromhex(raw)), 0)


def test_int16_strings() -> None:
    assert wire.read_string(b"\x00\x02ab", 0) == ("ab", 4)
    assert wire.read_nullable_string(b"\xff\xff", 0) == (None, 2)
    with pytest.raises(ProtocolError, match="null"):
        wire.read_string(b"\xff\xff", 0)
    with pytest.raises(ProtocolError):
        wire.read_nullable_string(b"\xff\xfe", 0)
    with pytest.raises(ProtocolError, match="UTF-8"):
        wire.read_string(b"\x00\x01\xff", 0)


def test_compact_strings_count_from_one() -> None:
    assert wire.read_compact_string(b"\x03ab", 0) == ("ab", 3)
    assert wire.read_compact_string(b"\x01", 0) == ("", 1)
    assert wire.read_nullable_compact_string(b"\x00", 0) == (None, 1)
    with pytest.raises(ProtocolError, match="null"):
        wire.read_compact_string(b"\x00", 0)


def test_strings_are_written_as_they_are_read() -> None:
    for text in ("", "ä", "x" * 200, None):
        out = bytearray()
        wire.write_nullable_string(out, text)
        assert wire.read_nullable_string(out, 0) == (text, len(out))
        out = bytearray()
        wire.write_nullable_compact_string(out, text)
        assert wire.read_nullable_compact_string(out, 0) == (text, len(out))


def test_a_string_too_long_for_its_length_field_is_not_written() -> None:
    for write in (wire.write_nullable_string, wire.write_nullable_compact_string):
        write(bytearray(), "x" * 32767)
        with pytest.raises(ValueError, match="32768"):
            write(bytearray(), "x" * 32768)
    with pytest.raises(ProtocolError, match="32768"):
        wire.read_compact_string(b"\x81\x80\x02" + bytes(40_000), 0)


def test_bytes() -> None:
    assert wire.read_nullable_bytes(b"\x00\x00\x00\x01a", 0) == (b"a", 5)
    assert wire.read_nullable_bytes(b"\xff\xff\xff\xff", 0) == (None, 4)
    assert wire.read_nullable_compact_bytes(b"\x02a", 0) == (b"a", 2)
    assert wire.read_nullable_compact_bytes(b"\x00", 0) == (None, 1)
    with pytest.raises(ProtocolError):
        wire.read_nullable_bytes(b"\xff\xff\xff\xfe", 0)


def test_array_lengths_are_bounded_by_the_smallest_element() -> None:
    four = b"\x00\x00\x00\x04"
    assert wire.read_array_length(four + bytes(4), 0) == (4, 4)
    with pytest.raises(ProtocolError, match="4 elements announced, 3 bytes left"):
        wire.read_array_length(four + bytes(3), 0)
    with pytest.raises(ProtocolError):
        wire.read_array_length(four + bytes(15), 0, element_size_min=4)
    assert wire.read_array_length(b"\xff\xff\xff\xff", 0) == (None, 4)
    with pytest.raises(ProtocolError):
        wire.read_array_length(b"\xff\xff\xff\xfe" + bytes(8), 0)
    assert wire.read_compact_array_length(b"\x00", 0) == (None, 1)
    assert wire.read_compact_array_length(b"\x03\x00\x00", 0) == (2, 1)


def test_tagged_fields_are_skipped_whole() -> None:
    section = b"\x02" + b"\x00\x01a" + b"\x85\x01\x02bc"
    assert wire.skip_tagged_fields(section + b"rest", 0) == len(section)
    with pytest.raises(ProtocolError):
        wire.skip_tagged_fields(section[:-1], 0)
    with pytest.raises(ProtocolError, match="tagged fields announced"):
        wire.skip_tagged_fields(b"\xff\xff\xff\xff\x0f\x00", 0)
