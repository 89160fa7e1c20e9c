"""The cleaner's memory: for each key the last offset at which it stands, in a table of fixed size.

A slot is 24 bytes: 16 that stand for the key and the offset plus one (zero means free), so one key costs
24 / `load_factor` bytes however long it is, and the table is allocated once. A key of up to 15 bytes stands for itself. Of a
longer one it is a digest of 120 bits; two keys with one digest would be taken for the same key and the older record lost,
which with BLAKE2b does not happen, neither by chance nor by design.

Open addressing with double hashing: the slots are a power of two and the step is odd, so that a probe visits every
slot. Nothing is ever removed. A full table refuses the next new key; the cleaner then cleans as far as it got and
goes on in another pass.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

SLOT_BYTES = 24
_WORDS_PER_SLOT = 3
_HALVES = Struct("<QQ")
_SHORT_KEY_BYTES_MAX = 15
_IS_DIGEST = b"\xff"
# What tells b"a" from b"a\0": the length of a key that stands for itself.
_LENGTHS = tuple(bytes([length]) for length in range(_SHORT_KEY_BYTES_MAX + 1))


def fingerprint(key: bytes) -> bytes:
    """16 bytes that stand for a key."""
    length = len(key)
    if length <= _SHORT_KEY_BYTES_MAX:
        return key.ljust(_SHORT_KEY_BYTES_MAX, b"\0") + _LENGTHS[length]
    return blake2b(key, digest_size=_SHORT_KEY_BYTES_MAX).digest() + _IS_DIGEST


class OffsetMap:
    def __init__(self, memory_bytes: int, load_factor: float = 0.9, keys_expected: int | None = None) -> None:
        """At most `memory_bytes`, and no more than `keys_expected` keys need."""
        slots = max(2, memory_bytes // SLOT_BYTES)
        if keys_expected is not None:
            slots = min(slots, max(2, 2 * int(keys_expected / load_factor + 1)))
        self._mask = (1 << (slots.bit_length() - 1)) - 1
        # A bytearray of zeros is not resident before it is touched: an oversized table costs nothing.
        self._words = memoryview(bytearray((self._mask + 1) * SLOT_BYTES)).cast("Q")
        # One slot always stays free, or the search for an absent key would not end.
        self.capacity = max(1, min(self._mask, int((self._mask + 1) * load_factor)))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        return len(self._words) * 8

    def put(self, key: bytes, offset: int) -> bool:
        """The key also stands at this offset, which is above all put before; False when it found no room."""
        words = self._words
        at, low, high = self._find(key)
        if words[at + 2] == 0:
            if self._count >= self.capacity:
                return False
            self._count += 1
            words[at], words[at + 1] = low, high
        words[at + 2] = offset + 1
        return True

    def get(self, key: bytes) -> int:
        """The last offset of a key; -1 when it was not put."""
        return self._words[self._find(key)[0] + 2] - 1

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Where a key stands or would stand, and the two halves of its fingerprint."""
        stands_for_key = fingerprint(key)
        low, high = _HALVES.unpack(stands_for_key)
        words, mask = self._words, self._mask
        # Python's own hash only spreads the slots; it differs from run to run and decides nothing.
        spread = hash(stands_for_key)
        number = spread & mask
        while True:
            at = number * _WORDS_PER_SLOT
            if words[at + 2] == 0 or (words[at] == low and words[at + 1] == high):
                return at, low, high
            number = (number + (spread >> 31 | 1)) & mask
