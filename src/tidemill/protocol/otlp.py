"""The reader of client telemetry: OpenTelemetry metrics in protobuf, as far as Kafka clients use them.

It reads gauges and sums of numbers, and count and sum of histograms. Unknown fields are skipped. The number of points
is limited before any is kept, and an invalid message is a `ProtocolError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tidemill.errors import ProtocolError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DELTA = 1
_VARINT_BYTES_MAX = 10
_DOUBLE, _SIGNED64, _UNSIGNED64 = struct.Struct("<d"), struct.Struct("<q"), struct.Struct("<Q")
# The field numbers of Metric.
_GAUGE, _SUM, _HISTOGRAM = 5, 7, 9


class Point(NamedTuple):
    """One measured value with its labels."""

    name: str
    attributes: tuple[tuple[str, str], ...]
    value: float
    # Whether the value is the increase since the last push.
    is_delta: bool


_Field = tuple[int, int, int | memoryview]


def read_points(data: bytes, limit: int) -> list[Point]:
    """Read at most `limit` points and skip the rest."""
    found: list[Point] = []
    for metric in _inner(memoryview(data), 1, 2, 2):
        for point in _points(metric):
            if len(found) >= limit:
                return found
            found.append(point)
    return found


def _inner(data: memoryview, *path: int) -> Iterator[memoryview]:
    """The messages at the end of a path of field numbers."""
    if not path:
        yield data
        return
    for number, kind, value in _fields(data):
        if number == path[0] and kind == _BYTES:
            assert isinstance(value, memoryview)
            yield from _inner(value, *path[1:])


def _points(metric: memoryview) -> Iterator[Point]:
    name = ""
    bodies: list[tuple[int, memoryview]] = []
    for number, kind, value in _fields(metric):
        if kind == _BYTES and isinstance(value, memoryview):
            if number == 1:
                name = _text(value)
            elif number in (_GAUGE, _SUM, _HISTOGRAM):
                bodies.append((number, value))
    for number, body in bodies:
        is_delta = number != _GAUGE and any(
            field == 2 and kind == _VARINT and value == _DELTA for field, kind, value in _fields(body)
        )
        for point in _inner(body, 1):
            if number == _HISTOGRAM:
                yield from _histogram(name, point, is_delta)
            else:
                yield from _number(name, point, is_delta)


def _number(name: str, point: memoryview, is_delta: bool) -> Iterator[Point]:
    attributes, result = [], None
    for number, kind, value in _fields(point):
        if number == 7 and kind == _BYTES:
            attributes.append(_attribute(value))
        elif number == 4 and kind == _FIXED64:
            result = _DOUBLE.unpack(_raw(value))[0]
        elif number == 6 and kind == _FIXED64:
            result = float(_SIGNED64.unpack(_raw(value))[0])
    if result is not None and math.isfinite(result):
        yield Point(name, tuple(sorted(attributes)), result, is_delta)


def _histogram(name: str, point: memoryview, is_delta: bool) -> Iterator[Point]:
    attributes, values = [], {}
    for number, kind, value in _fields(point):
        if number == 9 and kind == _BYTES:
            attributes.append(_attribute(value))
        elif number == 4 and kind == _FIXED64:
            values["count"] = float(_UNSIGNED64.unpack(_raw(value))[0])
        elif number == 5 and kind == _FIXED64:
            values["sum"] = _DOUBLE.unpack(_raw(value))[0]
    for suffix, result in values.items():
        if math.isfinite(result):
            yield Point(f"{name}.{suffix}", tuple(sorted(attributes)), result, is_delta)


def _attribute(pair: int | memoryview) -> tuple[str, str]:
    assert isinstance(pair, memoryview)
    key, text = "", ""
    for number, kind, value in _fields(pair):
        if number == 1 and kind == _BYTES and isinstance(value, memoryview):
            key = _text(value)
        elif number == 2 and kind == _BYTES and isinstance(value, memoryview):
            text = _any_value(value)
    return key, text


def _any_value(data: memoryview) -> str:
    for number, kind, value in _fields(data):
        if number == 1 and kind == _BYTES and isinstance(value, memoryview):
            return _text(value)
        if number == 2 and kind == _VARINT:
            return "true" if value else "false"
        if number == 3 and kind == _VARINT and isinstance(value, int):
            return str(value - (1 << 64) if value >> 63 else value)
        if number == 4 and kind == _FIXED64:
            return repr(_DOUBLE.unpack(_raw(value))[0])
    return ""


def _raw(value: int | memoryview) -> memoryview:
    assert isinstance(value, memoryview)
    return value


def _text(data: memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a text of the telemetry is no UTF-8: {error}") from None


def _fields(data: memoryview) -> Iterator[_Field]:
    """The number, wire type and value of each field."""
    position, end = 0, len(data)
    while position < end:
        tag, position = _varint(data, position)
        kind = tag & 7
        if kind == _VARINT:
            number, position = _varint(data, position)
            yield tag >> 3, kind, number
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ProtocolError(f"the telemetry has a field of wire type {kind}")
        if length > end - position:
            raise ProtocolError("the telemetry is cut short")
        yield tag >> 3, kind, data[position : position + length]
        position += length


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    result = 0
    for number, byte in enumerate(data[position : position + _VARINT_BYTES_MAX]):
        result |= (byte & 0x7F) << (7 * number)
        if byte < 0x80:
            return result & 0xFFFF_FFFF_FFFF_FFFF, position + number + 1
    raise ProtocolError("a number of the telemetry has no end")
