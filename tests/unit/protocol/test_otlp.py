"""Telemetry in OpenTelemetry's protobuf: numbers are read, limits hold, damage is an error and nothing else."""

from __future__ import annotations

import contextlib
import random
import struct

import pytest

from tidemill.errors import ProtocolError
from tidemill.protocol.otlp import Point, read_points


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def message(number: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return varint(number << 3 | 2) + varint(len(body)) + body


def attribute(field: int, key: str, value: str) -> bytes:
    return message(field, message(1, key.encode()), message(2, message(1, value.encode())))


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def whole(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<q", value)


def pushed(*metrics: bytes) -> bytes:
    return message(1, message(1), message(2, *(message(2, each) for each in metrics)))


def gauge(name: str, *points: bytes) -> bytes:
    return message(1, name.encode()) + message(5, *(message(1, each) for each in points))


def total(name: str, temporality: int, *points: bytes) -> bytes:
    body = b"".join(message(1, each) for each in points) + varint(2 << 3) + varint(temporality)
    return message(1, name.encode()) + message(7, body)


def test_gauges_and_sums_are_read_with_their_attributes() -> None:
    data = pushed(
        gauge("a.gauge", double(4, 1.5) + attribute(7, "node", "1"), whole(6, -7)),
        total("a.total", 1, whole(6, 3)),
        total("b.total", 2, whole(6, 4)),
    )
    assert read_points(data, 10) == [
        Point("a.gauge", (("node", "1"),), 1.5, False),
        Point("a.gauge", (), -7.0, False),
        Point("a.total", (), 3.0, True),
        Point("b.total", (), 4.0, False),
    ]


def test_of_a_histogram_count_and_sum_are_read() -> None:
    point = whole(4, 5) + double(5, 2.5) + attribute(9, "k", "v")
    data = pushed(message(1, b"h") + message(9, message(1, point)))
    assert read_points(data, 10) == [
        Point("h.count", (("k", "v"),), 5.0, False),
        Point("h.sum", (("k", "v"),), 2.5, False),
    ]


def test_no_more_points_are_read_than_the_limit() -> None:
    data = pushed(gauge("g", *(double(4, float(number)) for number in range(100))))
    assert [point.value for point in read_points(data, 3)] == [0.0, 1.0, 2.0]


def test_numbers_that_no_page_can_show_are_left_out() -> None:
    assert read_points(pushed(gauge("g", double(4, float("nan")), double(4, float("inf")))), 10) == []


@pytest.mark.parametrize(
    "data", [b"\xff" * 11, b"\x0a\x7f", b"\x0b", pushed(message(1, b"\xff") + message(5, message(1)))]
)
def test_damage_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read_points(data, 10)


def test_any_bytes_are_read_or_refused() -> None:
    rng = random.Random(7)
    good = pushed(gauge("g", double(4, 1.0) + attribute(7, "a", "b")), total("t", 1, whole(6, 1)))
    for _ in range(3_000):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 5)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        with contextlib.suppress(ProtocolError):
            read_points(bytes(data), 10)
