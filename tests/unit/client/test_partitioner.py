"""Keys go where Kafka's Java client sends them; records without a key stay together until a batch is sent."""

from __future__ import annotations

import random

import pytest

from tidemill.client.producing.partitioner import Partitioner, murmur2, partition_of_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_that_of_the_java_client(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


def test_a_negative_hash_gives_a_partition_within_range() -> None:
    # -973932308 without its sign bit is 1173551340, and 167650191 * 7 + 3.
    assert partition_of_key(b"21", 7) == 3


def test_without_a_key_one_partition_is_kept_until_the_batch_is_sent() -> None:
    partitioner = Partitioner(random.Random(7))
    chosen = set()
    for _ in range(60):
        within_a_batch = {partitioner.partition("orders", None, 6) for _ in range(10)}
        assert len(within_a_batch) == 1
        chosen |= within_a_batch
        partitioner.next_batch()
    assert chosen == set(range(6))


def test_an_empty_key_is_a_key() -> None:
    partitioner = Partitioner(random.Random(7))
    assert {partitioner.partition("orders", b"", 6) for _ in range(20)} == {partition_of_key(b"", 6)}
