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


@pytest.mark.parametrize(("value", "raw"), UVARINTS)
def test_uvarint_is_read_as_it_is_written(value: int, raw: str) -> None:
    out = bytearray(b"#")
    wire.write_uvarint(out, value)
    assert out[1:].hex() == raw
    assert wire.read_uvarint(out, 1) == (value, len(out))


@pytest.mark.parametrize(
    ("text", "raw", "compact"),
    [("", "0000", "01"), ("ä", "0002c3a4", "03c3a4"), (None, "ffff", "00")],
)
def test_string_is_written_with_its_length_in_bytes(text: str | None, raw: str, compact: str) -> None:
    out, compact_out = bytearray(), bytearray()
    wire.write_nullable_string(out, text)
    wire.write_nullable_compact_string(compact_out, text)
    assert (out.hex(), compact_out.hex()) == (raw, compact)


@pytest.mark.parametrize(
    ("read", "raw"),
    [
        (wire.read_uvarint, "ffffffff1f"),
        (wire.read_uvarint, "808080808001"),
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
    ],
)
def test_a_number_out_of_range_is_not_written(write: Callable[..., None], value: int) -> None:
    out = bytearray()
    with pytest.raises(ValueError, match=str(value)):
        write(out, value)
    assert out == b""


READERS: list[Callable[..., Any]] = [
    wire.read_int16,
    wire.read_int32,
    wire.read_uvarint,
    wire.skip_tagged_fields,
]


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@pytest.mark.parametrize("position", [0, 1, 100])
def test_nothing_is_read_past_the_end(read: Callable[..., Any], position: int) -> None:
    with pytest.raises(ProtocolError):
        read(b"", position)


def test_a_string_too_long_for_its_length_field_is_not_written() -> None:
    for write in (wire.write_nullable_string, wire.write_nullable_compact_string):
        write(bytearray(), "x" * 32767)
        with pytest.raises(ValueError, match="32768"):
            write(bytearray(), "x" * 32768)


def test_tagged_fields_are_skipped_whole() -> None:
    section = b"\x02" + b"\x00\x01a" + b"\x85\x01\x02bc"
    assert wire.skip_tagged_fields(section + b"rest", 0) == len(section)
    with pytest.raises(ProtocolError):
        wire.skip_tagged_fields(section[:-1], 0)
    with pytest.raises(ProtocolError, match="tagged fields, at most"):
        wire.skip_tagged_fields(b"\xff\xff\xff\xff\x0f\x00", 0)
