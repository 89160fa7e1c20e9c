"""Chooses the partition of a record as Kafka's Java client does.

A key decides by its murmur2 hash, so every client that follows Kafka sends one key to one partition. Without a key, one
partition is drawn at random and kept until the producer has sent what it gathered: batches stay large, and the
partitions fill evenly over time.
"""

from __future__ import annotations

import random

_SEED = 0x9747B28C
_M = 0x5BD1E995
_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of Kafka, as a signed number."""
    length = len(data)
    hashed = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        k = int.from_bytes(data[position : position + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        hashed = hashed * _M & _MASK ^ k
    if length > whole:
        hashed = (hashed ^ int.from_bytes(data[whole:], "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    hashed ^= hashed >> 15
    return hashed - (1 << 32) if hashed & 0x80000000 else hashed


def partition_of_key(key: bytes, partition_count: int) -> int:
    return (murmur2(key) & 0x7FFFFFFF) % partition_count


class Partitioner:
    """The partitions of one producer's records."""

    def __init__(self, source: random.Random | None = None) -> None:
        self._random = source or random.Random()
        self._sticky: dict[str, int] = {}

    def partition(self, topic: str, key: bytes | None, partition_count: int) -> int:
        if key is not None:
            return partition_of_key(key, partition_count)
        sticky = self._sticky.get(topic)
        if sticky is None or sticky >= partition_count:
            sticky = self._sticky[topic] = self._random.randrange(partition_count)
        return sticky

    def next_batch(self) -> None:
        """Forgets the sticky partitions: the gathered batch is sent, and the next records without a key may go elsewhere."""
        self._sticky.clear()
