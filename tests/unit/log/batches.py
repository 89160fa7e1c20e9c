"""Batches for tests, and a reader of segments that shares no code with the one under test."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tidemill.config import TopicConfig
from tidemill.log.log import Log
from tidemill.protocol.records import TRANSACTIONAL, Record, build_batch, header_at

T0 = 1_700_000_000_000


def batch(
    count: int = 1,
    *,
    value: bytes = b"v" * 20,
    timestamps: Sequence[int] | None = None,
    producer: tuple[int, int, int] | None = None,
    codec: int = 0,
    attributes: int = 0,
) -> bytearray:
    """Returns a batch as a client sends it, with offsets from zero. `producer` is (id, epoch, first sequence)."""
    times = timestamps if timestamps is not None else [T0 + number for number in range(count)]
    records = [Record(n, t, b"k%d" % n, value) for n, t in enumerate(times)]
    producer_id, epoch, sequence = producer or (-1, -1, -1)
    return build_batch(
        records,
        codec=codec,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


def transactional(producer_id: int, epoch: int, sequence: int, count: int = 2, **how: Any) -> bytearray:
    return batch(count, producer=(producer_id, epoch, sequence), attributes=TRANSACTIONAL, **how)


def append(log: Log, data: bytearray, *, leader_epoch: int = 0, wall_ms: int = T0) -> int:
    """Append a batch. Returns its offset."""
    return log.append(memoryview(data), (header_at(data),), leader_epoch, wall_ms)


def small_segments(**changes: int | tuple[str, ...]) -> TopicConfig:
    settings: dict[str, object] = {"segment_bytes": 400, "index_interval_bytes": 120, "retention_ms": -1}
    return TopicConfig(**{**settings, **changes})  # type: ignore[arg-type]


class ParsedBatch(NamedTuple):
    base_offset: int
    leader_epoch: int
    last_offset_delta: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int
    position: int
    raw: bytes

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta


def parse_segment(content: bytes) -> list[ParsedBatch]:
    """Every batch of a segment file; an AssertionError where it is not made of whole, right batches."""
    found = []
    position = 0
    while position < len(content):
        base_offset, length = struct.unpack_from(">qi", content, position)
        end = position + 12 + length
        assert length >= 49, f"a batch at {position} claims {length} bytes"
        assert end <= len(content), f"a torn batch at {position}"
        epoch, magic, crc = struct.unpack_from(">ibI", content, position + 12)
        assert magic == 2, f"magic {magic} at {position}"
        assert crc == castagnoli(content[position + 21 : end]), f"wrong CRC at {position}"
        _, delta, _, newest, pid, pepoch, sequence, count = struct.unpack_from(
            ">hiqqqhii", content, position + 21
        )
        raw = content[position:end]
        found.append(
            ParsedBatch(base_offset, epoch, delta, newest, pid, pepoch, sequence, count, position, raw)
        )
        position = end
    return found


@lru_cache(maxsize=4096)
def castagnoli(data: bytes) -> int:
    """CRC-32C by its definition, a table of the reflected polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def _table_entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_TABLE = [_table_entry(byte) for byte in range(256)]
