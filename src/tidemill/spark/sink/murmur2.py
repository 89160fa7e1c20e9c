"""The partition of each key, as Kafka's Java client has it, for a column of keys at once.

The hash takes a key four bytes at a time. All keys take their first four bytes together, then those that have more
the next four: with the longest keys first, those are always the front part of the arrays. A few very long keys are
hashed one by one. `client.partitioner` is the same for a single key, and what the tests hold this against.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemill.client.producing.partitioner import murmur2
from tidemill.spark.arrow.varints import Bytes, Ints

NO_PARTITION = -1

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_TAIL_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)
# So few keys are hashed faster one by one.
_TOGETHER_MIN = 16


def partitions_of(keys: pa.Array, partition_count: int) -> NDArray[np.int32]:
    """The partition of each key; `NO_PARTITION` where it is null."""
    if pa.types.is_null(keys.type):
        return np.full(len(keys), NO_PARTITION, dtype=np.int32)
    hashes = murmur2_of(keys)
    partitions = ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partition_count)).astype(np.int32)
    if keys.null_count:
        partitions[keys.is_null().to_numpy(zero_copy_only=False)] = NO_PARTITION
    return partitions


def murmur2_of(keys: pa.Array) -> NDArray[np.uint32]:
    """The hash of each key; that of a null is arbitrary."""
    raw, bounds = _bytes_of(keys)
    starts, lengths = bounds[:-1], np.diff(bounds)
    if len(lengths) == 0 or lengths.min() == lengths.max():
        return _hash(raw, starts, lengths)
    order = np.argsort(-lengths, kind="stable")
    hashes = np.empty(len(lengths), dtype=np.uint32)
    hashes[order] = _hash(raw, starts[order], lengths[order])
    return hashes


def _bytes_of(keys: pa.Array) -> tuple[Bytes, Ints]:
    """The keys' bytes, with four more after them, and where each begins and the last ends."""
    large = pa.types.is_large_binary(keys.type) or pa.types.is_large_string(keys.type)
    _, offsets, data = keys.buffers()
    if len(keys) == 0 or offsets is None:
        return np.zeros(4, dtype=np.uint8), np.zeros(len(keys) + 1, dtype=np.int64)
    all_bounds = np.frombuffer(offsets, dtype=np.int64 if large else np.int32)
    bounds: Ints = all_bounds[keys.offset : keys.offset + len(keys) + 1].astype(np.int64)
    first, size = int(bounds[0]), int(bounds[-1] - bounds[0])
    raw = np.zeros(size + 4, dtype=np.uint8)
    if size:
        raw[:size] = np.frombuffer(data, dtype=np.uint8, count=size, offset=first)
    return raw, bounds - first


def _hash(raw: Bytes, starts: Ints, lengths: Ints) -> NDArray[np.uint32]:
    """The hashes of keys of descending length."""
    # Void, because numpy is slow with numbers that are not aligned.
    words = np.ndarray((len(raw) - 3,), dtype="V4", buffer=raw.data, strides=(1,))
    hashes = (lengths.astype(np.uint32)) ^ np.uint32(_SEED)
    word_counts = lengths >> 2
    step, count = 0, int(np.count_nonzero(word_counts))
    while count >= _TOGETHER_MIN:
        mixed = words[starts[:count] + 4 * step].view("<u4") * _M
        mixed ^= mixed >> np.uint32(24)
        mixed *= _M
        hashes[:count] *= _M
        hashes[:count] ^= mixed
        step += 1
        if word_counts[count - 1] == step:
            count = int(np.count_nonzero(word_counts[:count] > step))
    tails = lengths & 3
    last = words[starts + (lengths - tails)].view("<u4") & _TAIL_MASKS[tails]
    hashes = np.where(tails > 0, (hashes ^ last) * _M, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    for index in range(count):
        start = int(starts[index])
        key = raw[start : start + int(lengths[index])].tobytes()
        hashes[index] = murmur2(key) & 0xFFFFFFFF
    return hashes
