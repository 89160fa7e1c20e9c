"""Record batches, written and parsed by hand from the published format, apart from the broker's own code.

`encode` lets a test lie about any field of the header. `parse` reads what a broker sends or has on disk and checks
it: lengths, CRC, counts, offsets.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import crc32c

# base offset, length, leader epoch, magic, crc | attributes, last offset delta, base timestamp, max timestamp,
# producer id, producer epoch, base sequence, count
PREFIX = struct.Struct(">qiibI")
REST = struct.Struct(">hiqqqhii")
# Recent, so that retention leaves the records alone.
NOW_MS = int(time.time() * 1000)
HEADER_SIZE = PREFIX.size + REST.size
LENGTH_END = 12
COMPRESSION_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class BadBatchError(AssertionError):
    """The bytes are not whole, well-formed batches."""


@dataclass(frozen=True)
class Record:
    value: bytes | None
    key: bytes | None = None
    timestamp_delta_ms: int = 0
    offset_delta: int | None = None
    headers: tuple[tuple[str, bytes], ...] = ()


def zigzag(value: int) -> bytes:
    encoded = (value << 1) ^ (value >> 63)
    out = bytearray()
    while encoded > 0x7F:
        out.append(encoded & 0x7F | 0x80)
        encoded >>= 7
    out.append(encoded)
    return bytes(out)


def _sized(value: bytes | None) -> bytes:
    return zigzag(-1) if value is None else zigzag(len(value)) + value


def encode_records(records: Sequence[Record]) -> bytes:
    out = []
    for index, record in enumerate(records):
        delta = index if record.offset_delta is None else record.offset_delta
        body = b"\0" + zigzag(record.timestamp_delta_ms) + zigzag(delta)
        body += _sized(record.key) + _sized(record.value) + zigzag(len(record.headers))
        body += b"".join(_sized(name.encode()) + _sized(content) for name, content in record.headers)
        out.append(zigzag(len(body)) + body)
    return b"".join(out)


@dataclass(frozen=True)
class Header:
    """Every field that may be wrong; None means what is right."""

    base_offset: int = 0
    length: int | None = None
    leader_epoch: int = -1
    magic: int = 2
    crc: int | None = None
    attributes: int = 0
    last_offset_delta: int | None = None
    base_timestamp_ms: int = NOW_MS
    max_timestamp_ms: int | None = None
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    count: int | None = None


def encode(
    records: Sequence[Record | bytes], header: Header | None = None, payload: bytes | None = None
) -> bytes:
    """One batch. `payload` replaces the encoded records, for instance by compressed ones."""
    header = header or Header()
    whole = [Record(record) if isinstance(record, bytes) else record for record in records]
    body = encode_records(whole) if payload is None else payload
    newest = max((record.timestamp_delta_ms for record in whole), default=0)
    rest = REST.pack(
        header.attributes,
        len(whole) - 1 if header.last_offset_delta is None else header.last_offset_delta,
        header.base_timestamp_ms,
        header.base_timestamp_ms + newest if header.max_timestamp_ms is None else header.max_timestamp_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        len(whole) if header.count is None else header.count,
    )
    crc = crc32c.crc32c(rest + body) if header.crc is None else header.crc
    length = HEADER_SIZE - LENGTH_END + len(body) if header.length is None else header.length
    return PREFIX.pack(header.base_offset, length, header.leader_epoch, header.magic, crc) + rest + body


def stamped(batch: bytes, **changes: int) -> bytes:
    """The batch with other values in the part that the CRC does not cover."""
    base_offset, length, leader_epoch, magic, crc = PREFIX.unpack_from(batch)
    prefix = {
        "base_offset": base_offset,
        "length": length,
        "leader_epoch": leader_epoch,
        "magic": magic,
        "crc": crc,
    }
    return PREFIX.pack(*(prefix | changes).values()) + batch[PREFIX.size :]


@dataclass(frozen=True)
class Batch:
    base_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    count: int
    last_offset: int
    size: int
    body: bytes

    @property
    def codec(self) -> int:
        return self.attributes & COMPRESSION_MASK

    def records(self) -> list[StoredRecord]:
        if self.codec:
            raise BadBatchError("this parser does not decompress")
        return list(_parse_records(self))

    def values(self) -> list[bytes | None]:
        return [record.value for record in self.records()]


@dataclass(frozen=True)
class StoredRecord:
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def varint(self) -> int:
        shift = value = 0
        while True:
            if self.at >= len(self.data) or shift > 63:
                raise BadBatchError("a varint runs past its end")
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7

    def take(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise BadBatchError("a field runs past its end")
        self.at += size
        return self.data[self.at - size : self.at]

    def sized(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)


def _parse_records(batch: Batch) -> Iterator[StoredRecord]:
    cursor = _Cursor(batch.body)
    for _ in range(batch.count):
        size = cursor.varint()
        end = cursor.at + size
        cursor.take(1)
        timestamp_ms = batch.base_timestamp_ms + cursor.varint()
        if batch.attributes & APPEND_TIME:
            timestamp_ms = batch.max_timestamp_ms
        offset = batch.base_offset + cursor.varint()
        key, value = cursor.sized(), cursor.sized()
        for _ in range(cursor.varint()):
            cursor.sized()
            cursor.sized()
        if cursor.at != end:
            raise BadBatchError(f"the record at offset {offset} has the wrong length")
        yield StoredRecord(offset, timestamp_ms, key, value)
    if cursor.at != len(batch.body):
        raise BadBatchError(f"bytes after the last record of the batch at {batch.base_offset}")


def parse_batch(data: bytes, at: int = 0) -> Batch:
    """The batch that starts at `at`, checked; raises when it is torn or damaged."""
    if len(data) - at < HEADER_SIZE:
        raise BadBatchError(f"{len(data) - at} bytes are too few for a batch")
    base_offset, length, leader_epoch, magic, crc = PREFIX.unpack_from(data, at)
    end = at + LENGTH_END + length
    if length < HEADER_SIZE - LENGTH_END or end > len(data):
        raise BadBatchError(f"the batch at offset {base_offset} is torn: length {length}")
    if magic != 2:
        raise BadBatchError(f"magic {magic} at offset {base_offset}")
    if crc32c.crc32c(data[at + PREFIX.size : end]) != crc:
        raise BadBatchError(f"wrong CRC at offset {base_offset}")
    (attributes, last_delta, base_timestamp, max_timestamp, producer_id, _, _, count) = REST.unpack_from(
        data, at + PREFIX.size
    )
    body = bytes(data[at + HEADER_SIZE : end])
    return Batch(
        base_offset,
        leader_epoch,
        attributes,
        base_timestamp,
        max_timestamp,
        producer_id,
        count,
        base_offset + last_delta,
        LENGTH_END + length,
        body,
    )


def parse(data: bytes) -> list[Batch]:
    """Every batch of `data`, which must hold whole batches with nothing between and after them."""
    batches = []
    at = 0
    while at < len(data):
        batches.append(parse_batch(data, at))
        at += batches[-1].size
    return batches


def parse_fetched(data: bytes) -> list[Batch]:
    """As `parse`, but a fetch may end in a cut batch, which does not count."""
    batches = []
    at = 0
    while len(data) - at >= LENGTH_END:
        size = LENGTH_END + int(PREFIX.unpack_from(data + bytes(PREFIX.size), at)[1])
        if at + size > len(data):
            break
        batches.append(parse_batch(data, at))
        at += size
    return batches
