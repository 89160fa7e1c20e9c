"""Requests as bytes, built by hand and once, so that sending them costs the client almost nothing."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence

from crc32c import crc32c

PRODUCE, FETCH, LIST_OFFSETS, API_VERSIONS, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 2, 18, 19, 20
CLIENT_ID = b"bench"
LATEST_TIMESTAMP = -1
BATCH_HEADER_BYTES = 61
# In every frame the correlation id follows the length (4), the API key (2) and its version (2).
CORRELATION_ID_AT = 8


def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))


def read_uvarint(data: bytes | bytearray | memoryview, at: int) -> tuple[int, int]:
    """The value and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


# ── record batches ────────────────────────────────────────────────────────────────────────────────────────


def _record(offset_delta: int, value: bytes) -> bytes:
    # attributes, timestamp delta 0, offset delta, no key (-1), value, no headers
    body = b"\0" + varint(0) + varint(offset_delta) + varint(-1) + varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def record_batch(values: Sequence[bytes], timestamp_ms: int | None = None) -> bytes:
    """One batch of magic 2, uncompressed, without a producer id."""
    timestamp_ms = time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms
    records = b"".join(_record(delta, value) for delta, value in enumerate(values))
    count = len(values)
    checked = struct.pack(">hiqqqhii", 0, count - 1, timestamp_ms, timestamp_ms, -1, -1, -1, count) + records
    # base offset, length from the leader epoch on, leader epoch, magic, CRC-32C
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


def full_batch(batch_bytes_max: int, value: bytes) -> tuple[bytes, int]:
    """A batch with as many copies of `value` as fit (at least one), and their number."""
    count, size = 0, BATCH_HEADER_BYTES
    while count == 0 or size + len(_record(count, value)) <= batch_bytes_max:
        size += len(_record(count, value))
        count += 1
    return record_batch([value] * count), count


def end_of_batches(records: memoryview, offset: int) -> int:
    """The offset after the last whole batch in `records`; `offset` when there is none."""
    at = 0
    while at + BATCH_HEADER_BYTES <= len(records):
        base_offset, length = struct.unpack_from(">qi", records, at)
        if at + 12 + length > len(records):
            break
        (last_offset_delta,) = struct.unpack_from(">i", records, at + 23)
        offset = base_offset + last_offset_delta + 1
        at += 12 + length
    return offset


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────────


def _compact(data: bytes) -> bytes:
    return uvarint(len(data) + 1) + data


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def request(api_key: int, version: int, body: bytes, *, is_flexible: bool = False) -> bytearray:
    """A whole frame with correlation id 0; `is_flexible` adds the header's (empty) tagged fields."""
    head = (
        struct.pack(">hhih", api_key, version, 0, len(CLIENT_ID))
        + CLIENT_ID
        + (b"\0" if is_flexible else b"")
    )
    return bytearray(struct.pack(">i", len(head) + len(body)) + head + body)


def stamp(frame: bytearray, correlation_id: int) -> bytearray:
    struct.pack_into(">i", frame, CORRELATION_ID_AT, correlation_id & 0x7FFFFFFF)
    return frame


def produce_request(topic: str, batches: Mapping[int, bytes], acks: int) -> bytearray:
    """Produce v10: one batch for each of the named partitions."""
    partitions = b"".join(
        struct.pack(">i", partition) + _compact(batch) + b"\0" for partition, batch in batches.items()
    )
    topic_data = _compact(topic.encode()) + uvarint(len(batches) + 1) + partitions + b"\0"
    # no transactional id, acks, 30 s to reach them, one topic
    body = b"\0" + struct.pack(">hi", acks, 30_000) + uvarint(2) + topic_data + b"\0"
    return request(PRODUCE, 10, body, is_flexible=True)


def fetch_request(topic: str, offset: int, bytes_max: int, wait_ms_max: int = 500) -> bytearray:
    """Fetch v12 of partition 0, without a session, answered as soon as there is one byte."""
    head = struct.pack(">iiiibii", -1, wait_ms_max, 1, bytes_max, 0, 0, -1)
    # partition, any leader epoch, offset, no last fetched epoch, no log start offset, most bytes
    partition = struct.pack(">iiqiqi", 0, -1, offset, -1, -1, bytes_max) + b"\0"
    topics = uvarint(2) + _compact(topic.encode()) + uvarint(2) + partition + b"\0"
    # no forgotten topics, no rack
    return request(FETCH, 12, head + topics + uvarint(1) + _compact(b"") + b"\0", is_flexible=True)


def list_offsets_request(topic: str, partition_count: int) -> bytearray:
    """ListOffsets v1: the log end offset of each partition."""
    partitions = b"".join(struct.pack(">iq", index, LATEST_TIMESTAMP) for index in range(partition_count))
    body = struct.pack(">ii", -1, 1) + _string(topic) + struct.pack(">i", partition_count) + partitions
    return request(LIST_OFFSETS, 1, body)


def api_versions_request() -> bytearray:
    return request(API_VERSIONS, 0, b"")


def create_topics_request(
    topics: Sequence[str], partitions: int, configs: Mapping[str, str], replication_factor: int = 1
) -> bytearray:
    """CreateTopics v4."""
    config = struct.pack(">i", len(configs)) + b"".join(_string(k) + _string(v) for k, v in configs.items())
    size = struct.pack(">ihi", partitions, replication_factor, 0)  # no assignments
    each = b"".join(_string(topic) + size + config for topic in topics)
    return request(CREATE_TOPICS, 4, struct.pack(">i", len(topics)) + each + struct.pack(">ib", 60_000, 0))


def delete_topics_request(topics: Sequence[str]) -> bytearray:
    """DeleteTopics v3."""
    names = b"".join(_string(topic) for topic in topics)
    return request(DELETE_TOPICS, 3, struct.pack(">i", len(topics)) + names + struct.pack(">i", 60_000))


# ── responses (from the correlation id on) ────────────────────────────────────────────────────────────────


def produce_errors(response: bytes | memoryview) -> dict[int, int]:
    """Partition → error code, of a Produce v10 response about one topic; only partitions that failed."""
    errors = {}
    at = 4 + 1  # correlation id, the header's tagged fields
    _, at = read_uvarint(response, at)  # one topic
    name_length, at = read_uvarint(response, at)
    count, at = read_uvarint(response, at + name_length - 1)
    for _ in range(count - 1):
        partition, error = struct.unpack_from(">ih", response, at)
        if error:
            # What follows a failed partition varies in length; one is enough to fail the run.
            errors[partition] = error
            break
        # index, error code, base offset, append time, log start; no record errors, no message, no tags
        at += 4 + 2 + 8 + 8 + 8 + 3
    return errors


def fetched(response: memoryview) -> tuple[int, memoryview]:
    """The error code and the records of a Fetch v12 response about one partition."""
    at = 4 + 1 + 4  # correlation id, tagged fields, throttle time
    (error,) = struct.unpack_from(">h", response, at)
    at += 2 + 4  # session id
    topics, at = read_uvarint(response, at)
    if error or topics < 2:
        return error, response[:0]
    name_length, at = read_uvarint(response, at)
    _, at = read_uvarint(response, at + name_length - 1)  # one partition
    (error,) = struct.unpack_from(">h", response, at + 4)
    at += 4 + 2 + 8 + 8 + 8  # index, error, high watermark, last stable offset, log start
    aborted, at = read_uvarint(response, at)
    if aborted > 1:
        raise ValueError("aborted transactions in a benchmark's topic")
    records_length, at = read_uvarint(response, at + 4)  # preferred read replica
    return error, response[at : at + max(0, records_length - 1)]


def listed_offsets(response: bytes | memoryview) -> list[tuple[int, int]]:
    """(error code, offset) of each partition, by index, of a ListOffsets v1 response about one topic."""
    (name_length,) = struct.unpack_from(">h", response, 8)
    at = 10 + name_length
    (count,) = struct.unpack_from(">i", response, at)
    at += 4
    rows = sorted(struct.iter_unpack(">ihqq", bytes(response[at : at + 22 * count])))
    return [(error, offset) for _, error, _, offset in rows]


def api_versions_error(response: bytes | memoryview) -> int:
    error: int = struct.unpack_from(">h", response, 4)[0]
    return error


def created_topics(response: bytes | memoryview) -> dict[str, int]:
    """Topic → error code, of a CreateTopics v4 response."""
    at, result = 12, {}
    for _ in range(struct.unpack_from(">i", response, 8)[0]):
        (length,) = struct.unpack_from(">h", response, at)
        name = bytes(response[at + 2 : at + 2 + length]).decode()
        error, message_length = struct.unpack_from(">hh", response, at + 2 + length)
        result[name] = error
        at += 2 + length + 4 + max(0, message_length)
    return result
