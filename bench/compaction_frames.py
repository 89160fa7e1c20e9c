"""Bytes for the compaction load: batches with keys, AlterConfigs v0, and DescribeLogDirs v1 for the size of a log."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence

from crc32c import crc32c

from bench.frames import request, varint

ALTER_CONFIGS, DESCRIBE_LOG_DIRS = 33, 35
TOPIC_RESOURCE = 2
# Correlation id and throttle time.
_HEAD_BYTES = 8


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def keyed_batch(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    """One batch of magic 2, uncompressed, without a producer id."""
    records = bytearray()
    for delta, (key, value) in enumerate(pairs):
        body = b"\0\0" + varint(delta) + varint(len(key)) + key + varint(len(value)) + value + b"\0"
        records += varint(len(body)) + body
    wall_ms, count = time.time_ns() // 1_000_000, len(pairs)
    checked = struct.pack(">hiqqqhii", 0, count - 1, wall_ms, wall_ms, -1, -1, -1, count) + records
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


def alter_topic_configs(topic: str, configs: Mapping[str, str]) -> bytearray:
    """AlterConfigs with exactly these configs."""
    entries = b"".join(_string(name) + _string(value) for name, value in configs.items())
    resource = struct.pack(">b", TOPIC_RESOURCE) + _string(topic) + struct.pack(">i", len(configs)) + entries
    return request(ALTER_CONFIGS, 0, struct.pack(">i", 1) + resource + b"\0")


def describe_log_dirs(topic: str) -> bytearray:
    """DescribeLogDirs for partition 0."""
    return request(DESCRIBE_LOG_DIRS, 1, struct.pack(">i", 1) + _string(topic) + struct.pack(">ii", 1, 0))


def alter_error(response: memoryview) -> int:
    error: int = struct.unpack_from(">h", response, _HEAD_BYTES + 4)[0]
    return error


def log_size(response: memoryview) -> int:
    """The size of the requested partitions in all log directories."""
    (directories,) = struct.unpack_from(">i", response, _HEAD_BYTES)
    at, size = _HEAD_BYTES + 4, 0
    for _ in range(directories):
        at = _skip_string(response, at + 2)
        (topics,) = struct.unpack_from(">i", response, at)
        at += 4
        for _ in range(topics):
            at = _skip_string(response, at)
            (partitions,) = struct.unpack_from(">i", response, at)
            at += 4
            for _ in range(partitions):
                # index, size, lag, whether it is a future replica
                size += int(struct.unpack_from(">q", response, at + 4)[0])
                at += 4 + 8 + 8 + 1
    return size


def _skip_string(response: memoryview, at: int) -> int:
    (length,) = struct.unpack_from(">h", response, at)
    return at + 2 + max(0, int(length))
