"""Kafka's zigzag varints, many at a time: read at given positions of a buffer, and written to given positions of one.

A varint is seven bits a byte, least significant first, with the high bit set on all bytes but the last. Most of those
in records take one byte, so that case is one gather and a table. Otherwise eight bytes are gathered for each varint
as one number, and the ends of all varints are found by arithmetic. Only what takes nine or ten bytes (a timestamp
delta of a million years) is read one by one.

Readers never check where a record ends. They may look up to ten bytes past a position, so a buffer ends with `PADDING`.
Their caller checks the positions that they return.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

# Zero bytes that a buffer must have after its last varint: each of them ends a varint.
PADDING = 16
_SIZE_MAX = 10
# Of what follows a record's length: attributes, two deltas, two lengths and the number of headers.
RECORD_LENGTH_MIN = 6

_SEVEN_BITS = np.array([(n >> 1) ^ -(n & 1) for n in range(128)], dtype=np.int64)
_HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_BITS = np.uint64(0x7F)
_ONE = np.uint64(1)


class Buffer:
    """Bytes to read varints from, the last `PADDING` of them zero; `size` does not count those."""

    def __init__(self, raw: Bytes, size: int) -> None:
        self.raw = raw
        self.size = size
        # Each position's eight bytes. Void, because numpy gathers unaligned numbers one third slower.
        self._words: NDArray[Any] = np.ndarray((len(raw) - 7,), dtype="V8", buffer=raw.data, strides=(1,))

    def read(self, positions: Ints) -> tuple[Ints, Ints]:
        """The varints at these positions, and the positions after them. One longer than ten bytes ends past `size`."""
        first = self.raw[positions]
        if len(first) == 0 or first.max() < 0x80:
            return _SEVEN_BITS[first], positions + 1
        following = positions + 1
        second = self.raw[following]
        # Nothing where the first byte was the last.
        second *= first >> np.uint8(7)
        if second.max() < 0x80:
            pairs = (first & np.uint8(0x7F)) | second.astype(np.int16) << np.int16(7)
            values = ((pairs >> np.int16(1)) ^ -(pairs & np.int16(1))).astype(np.int64)
            following += first >> np.uint8(7)
            return values, following
        return self._read_words(positions)

    def _read_words(self, positions: Ints) -> tuple[Ints, Ints]:
        words = self._words[positions].view("<u8")
        ends = ~words & _HIGH_BITS
        last = ends & (~ends + _ONE)
        # All bits up to the varint's last byte; everything when there is no last byte among the eight.
        mask = last | (last - _ONE)
        values = unzigzag(_seven_bit_groups(words & mask & ~_HIGH_BITS))
        following = positions + (np.bitwise_count(mask) >> np.uint8(3))
        for index in np.flatnonzero(ends == 0).tolist():
            values[index], following[index] = self._read_long(int(positions[index]))
        return values, following

    def _read_long(self, position: int) -> tuple[int, int]:
        value = 0
        for index, byte in enumerate(self.raw[position : position + _SIZE_MAX].tolist()):
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80:
                if value >> 64:
                    break
                return (value >> 1) ^ -(value & 1), position + index + 1
        return 0, self.size + 1


def unzigzag(values: Words) -> Ints:
    return ((values >> _ONE) ^ (~(values & _ONE) + _ONE)).view(np.int64)


def _seven_bit_groups(words: Words) -> Words:
    """The low seven bits of each byte, pushed together: first in pairs, then pairs of pairs."""
    for low, shift in ((0x007F007F007F007F, 1), (0x00003FFF00003FFF, 2), (0x000000000FFFFFFF, 4)):
        kept = words & np.uint64(low)
        words = kept | (words ^ kept) >> np.uint64(shift)
    return words


def zigzag(values: NDArray[np.integer[Any]]) -> Words:
    signed = values.astype(np.int64)
    return ((signed << 1) ^ (signed >> 63)).view(np.uint64)


def sizes(words: Words) -> Ints:
    """Returns the number of bytes that each takes as a varint."""
    result = np.ones(len(words), dtype=np.int64)
    largest = int(words.max(initial=0))
    for bits in range(7, 64, 7):
        if not largest >> bits:
            break
        result += words >= np.uint64(1 << bits)
    return result


def write(out: Bytes, positions: Ints, words: Words) -> Ints:
    """Put these varints at these positions; returns the positions after them."""
    following = positions + 1
    longer = np.flatnonzero(words > _LOW_BITS)
    if len(longer) == 0:
        out[positions] = words
        return following
    out[positions] = words & _LOW_BITS | (words > _LOW_BITS).astype(np.uint64) << np.uint64(7)
    following[longer] = write(out, following[longer], words[longer] >> np.uint64(7))
    return following
