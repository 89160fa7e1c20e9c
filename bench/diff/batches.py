"""Record batches, written and read by this tool's own code, so that good and bad ones can be made to measure.

`batch` makes a valid batch of magic 2 unless told otherwise: every header field can be overridden after the
fact, which is how the bad ones are made. `message_set` makes the two formats that came before. `describe`
lists what a Fetch answer holds, batch by batch and record by record.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import cramjam
from crc32c import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
CRC_START = 21
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
XERIAL_MAGIC = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
# Magic, version 1 with independent blocks, blocks of at most 64 KB, and the checksum of these two bytes.
LZ4_HEADER = bytes.fromhex("04224d18604082")
LZ4_BLOCK_BYTES = 65536
LZ4_STORED = 0x8000_0000

# Old enough to differ from any clock, so that answers can be compared to the millisecond.
T0_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Record:
    value: bytes | None = b"value"
    key: bytes | None = b"key"
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = T0_MS


def records(count: int, *, timestamp_ms: int = T0_MS, step_ms: int = 1000, size: int = 0) -> list[Record]:
    return [
        Record(b"v%d" % i + b"." * size, b"k%d" % i, timestamp_ms=timestamp_ms + i * step_ms)
        for i in range(count)
    ]


def batch(items: list[Record], *, codec: str = "none", **header: Any) -> bytes:
    """One batch; a keyword (`crc`, `length`, any other field of the header) replaces the right value."""
    base_timestamp = items[0].timestamp_ms if items else T0_MS
    body = b"".join(_record(i, item, base_timestamp) for i, item in enumerate(items))
    body = header.pop("payload", None) or _compress(codec, body)
    attributes = CODECS.index(codec) | header.get("flags", 0)
    return seal(
        body,
        attributes=header.get("attributes", attributes),
        last_offset_delta=header.get("last_offset_delta", len(items) - 1),
        base_timestamp=header.get("base_timestamp", base_timestamp),
        max_timestamp=header.get("max_timestamp", max((r.timestamp_ms for r in items), default=T0_MS)),
        producer_id=header.get("producer_id", -1),
        producer_epoch=header.get("producer_epoch", -1),
        base_sequence=header.get("base_sequence", -1),
        count=header.get("count", len(items)),
        base_offset=header.get("base_offset", 0),
        magic=header.get("magic", 2),
        length=header.get("length"),
        crc=header.get("crc"),
        leader_epoch=header.get("leader_epoch", -1),
    )


def seal(
    body: bytes,
    *,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
    base_offset: int,
    magic: int,
    length: int | None,
    crc: int | None,
    leader_epoch: int,
) -> bytes:
    after_crc = struct.pack(
        ">hiqqqhii",
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    real_crc = crc32c(after_crc + body)
    real_length = HEADER_BYTES - 12 + len(body)
    front = struct.pack(
        ">qiibI",
        base_offset,
        real_length if length is None else length,
        leader_epoch,
        magic,
        real_crc if crc is None else crc,
    )
    return front + after_crc + body


def message_set(magic: int, value: bytes = b"value", key: bytes | None = b"key") -> bytes:
    """One message of magic 0 or 1."""
    body = struct.pack(">bb", magic, 0)
    if magic == 1:
        body += struct.pack(">q", T0_MS)
    for part in (key, value):
        body += struct.pack(">i", -1) if part is None else struct.pack(">i", len(part)) + part
    message = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message


def describe(data: bytes) -> list[dict[str, Any]]:
    """Every batch in `data`; the last says how many bytes were cut off, if any."""
    found = []
    position = 0
    while position + HEADER_BYTES <= len(data):
        header = HEADER.unpack_from(data, position)
        end = position + 12 + header[1]
        if end > len(data):
            break
        found.append(_describe_batch(header, data[position:end]))
        position = end
    if position < len(data):
        found.append({"bytes_left_over": len(data) - position})
    return found


def _describe_batch(header: tuple[int, ...], data: bytes) -> dict[str, Any]:
    (
        base,
        _,
        epoch,
        magic,
        crc,
        attributes,
        last_delta,
        first_ms,
        max_ms,
        pid,
        pid_epoch,
        sequence,
        count,
    ) = header
    codec = attributes & 7
    result = {
        "base_offset": base,
        "last_offset": base + last_delta,
        "leader_epoch": epoch,
        "magic": magic,
        "crc_is_right": crc32c(data[CRC_START:]) == crc,
        "attributes": f"{attributes:#04x}",
        "codec": CODECS[codec] if codec < len(CODECS) else codec,
        "max_timestamp": max_ms,
        "producer_id": pid,
        "producer_epoch": pid_epoch,
        "base_sequence": sequence,
        "count": count,
    }
    if codec < len(CODECS):
        try:
            body = _decompress(CODECS[codec], data[HEADER_BYTES:])
            result["records"] = (
                _markers(body, count) if attributes & CONTROL else _records(body, count, base, first_ms)
            )
        except (cramjam.DecompressionError, LookupError, struct.error) as error:
            result["records"] = f"cannot be read ({type(error).__name__})"
    return result


def _records(body: bytes, count: int, base_offset: int, base_timestamp: int) -> list[str]:
    found = []
    position = 0
    for _ in range(count):
        size, position = _read_varint(body, position)
        end = position + size
        delta_ms, position = _read_varint(body, position + 1)
        delta, position = _read_varint(body, position)
        key, position = _read_bytes(body, position)
        value, position = _read_bytes(body, position)
        header_count, position = _read_varint(body, position)
        shown = value if value is None or len(value) <= 20 else value[:8] + b"...%d" % len(value)
        found.append(
            f"{base_offset + delta}: {key!r}={shown!r} at {base_timestamp + delta_ms} +{header_count} headers"
        )
        position = end
    return found


def _markers(body: bytes, count: int) -> list[str]:
    """Control records, without their times, which are the broker's."""
    found = []
    position = 0
    for _ in range(count):
        size, position = _read_varint(body, position)
        end = position + size
        _, position = _read_varint(body, position + 1)
        _, position = _read_varint(body, position)
        key, position = _read_bytes(body, position)
        value, position = _read_bytes(body, position)
        found.append(f"control {(key or b'').hex()}={(value or b'').hex()}")
        position = end
    return found


def _record(index: int, item: Record, base_timestamp: int) -> bytes:
    body = b"\x00" + _varint(item.timestamp_ms - base_timestamp) + _varint(index)
    for part in (item.key, item.value):
        body += _varint(-1) if part is None else _varint(len(part)) + part
    body += _varint(len(item.headers))
    for name, value in item.headers:
        body += _varint(len(name)) + name.encode()
        body += _varint(-1) if value is None else _varint(len(value)) + value
    return _varint(len(body)) + body


def _compress(codec: str, body: bytes) -> bytes:
    match codec:
        case "gzip":
            return bytes(cramjam.gzip.compress(body))
        case "snappy":
            # Java's own framing: a magic, two version numbers, then length-prefixed blocks.
            block = bytes(cramjam.snappy.compress_raw(body))
            return XERIAL_MAGIC + struct.pack(">i", len(block)) + block
        case "lz4":
            return _lz4_frame(body)
        case "zstd":
            return bytes(cramjam.zstd.compress(body))
    return body


def _lz4_frame(body: bytes) -> bytes:
    """Independent blocks, as Kafka's own client writes them; Kafka refuses blocks that depend on others."""
    frame = LZ4_HEADER
    for start in range(0, len(body), LZ4_BLOCK_BYTES):
        block = body[start : start + LZ4_BLOCK_BYTES]
        packed = bytes(cramjam.lz4.compress_block(block, store_size=False))
        is_smaller = len(packed) < len(block)
        size = len(packed) if is_smaller else len(block) | LZ4_STORED
        frame += struct.pack("<I", size) + (packed if is_smaller else block)
    return frame + struct.pack("<I", 0)


def _decompress(codec: str, body: bytes) -> bytes:
    match codec:
        case "gzip":
            return bytes(cramjam.gzip.decompress(body))
        case "snappy" if body.startswith(XERIAL_MAGIC[:8]):
            blocks, position = b"", len(XERIAL_MAGIC)
            while position < len(body):
                size = struct.unpack_from(">i", body, position)[0]
                blocks += bytes(cramjam.snappy.decompress_raw(body[position + 4 : position + 4 + size]))
                position += 4 + size
            return blocks
        case "snappy":
            return bytes(cramjam.snappy.decompress_raw(body))
        case "lz4":
            return bytes(cramjam.lz4.decompress(body))
        case "zstd":
            return bytes(cramjam.zstd.decompress(body))
    return body


def _varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while True:
        if raw < 0x80:
            out.append(raw)
            return bytes(out)
        out.append(raw & 0x7F | 0x80)
        raw >>= 7


def _read_varint(data: bytes, position: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[position]
        position += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), position
        shift += 7


def _read_bytes(data: bytes, position: int) -> tuple[bytes | None, int]:
    size, position = _read_varint(data, position)
    if size < 0:
        return None, position
    return data[position : position + size], position + size
