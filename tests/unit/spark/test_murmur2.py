"""Partitions of a column of keys, against those of one key at a time and the values that Kafka's own client gives."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.thoroughness import examples
from tidemill.client.producing.partitioner import partition_of_key
from tidemill.spark.sink.murmur2 import murmur2_of, partitions_of

TYPES = [pa.binary(), pa.large_binary()]

# As Kafka's own test of its hash has them.
JAVA_HASHES = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def one_by_one(keys: list[bytes | None], count: int) -> list[int]:
    return [-1 if key is None else partition_of_key(key, count) for key in keys]


def test_hashes_of_the_java_client() -> None:
    hashes = murmur2_of(pa.array(list(JAVA_HASHES), pa.binary()))
    assert hashes.view(np.int32).tolist() == list(JAVA_HASHES.values())


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=24)), max_size=60), st.integers(1, 1000))
def test_any_keys(keys: list[bytes | None], count: int) -> None:
    for of in TYPES:
        assert partitions_of(pa.array(keys, of), count).tolist() == one_by_one(keys, count)


@pytest.mark.parametrize("sizes", [range(40), [16], [0], [1, 2, 3], [5, 5000], [20_000]], ids=str)
def test_many_keys_of_many_lengths(sizes: range | list[int]) -> None:
    source = random.Random(2)
    keys: list[bytes | None] = [
        source.randbytes(source.choice(sizes)) for _ in range(300 if max(sizes) < 9000 else 20)
    ]
    partitions = partitions_of(pa.array(keys, pa.binary()), 12)
    assert partitions.dtype == np.int32
    assert partitions.tolist() == one_by_one(keys, 12)


def test_a_slice_of_an_array() -> None:
    keys: list[bytes | None] = [None if n % 5 == 0 else b"key-%d" % n for n in range(1000)]
    part = pa.array(keys, pa.binary())[123:900]
    assert partitions_of(part, 7).tolist() == one_by_one(keys[123:900], 7)


def test_text_is_hashed_as_its_utf8() -> None:
    keys = ["", "käse", "naïve", "終"]
    for of in (pa.string(), pa.large_string()):
        assert partitions_of(pa.array(keys, of), 50).tolist() == one_by_one(
            [key.encode() for key in keys], 50
        )


def test_no_keys() -> None:
    assert partitions_of(pa.array([], pa.binary()), 3).tolist() == []
    assert partitions_of(pa.nulls(3), 3).tolist() == [-1, -1, -1]
    assert partitions_of(pa.nulls(3, pa.binary()), 3).tolist() == [-1, -1, -1]
