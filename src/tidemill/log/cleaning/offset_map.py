"""The cleaner's offset map: the last offset of each key, in a hash table of fixed size (Kafka's SkimpyOffsetMap).

A slot has 24 bytes: a fingerprint of 16 and the offset plus one, where zero marks a free slot. So a key costs 24 /
`load_factor` bytes however long it is, and the table is allocated once. The fingerprint of a key of up to 15 bytes is
the key itself. That of a longer key is a BLAKE2b digest of 120 bits. Two keys with one digest would be confused and
the older record lost; BLAKE2b makes that infeasible.

The table uses open addressing with double hashing. The number of slots is a power of two and the step is odd, so a
probe visits every slot. Entries are never removed. A full table rejects a new key, and the cleaner continues in
another pass.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

SLOT_BYTES = 24
_WORDS_PER_SLOT = 3
_HALVES = Struct("<QQ")
_SHORT_KEY_BYTES_MAX = 15
_IS_DIGEST = b"\xff"
# The length distinguishes b"a" from b"a\0" in the fingerprint of a short key.
_LENGTHS = tuple(bytes([length]) for length in range(_SHORT_KEY_BYTES_MAX + 1))


def fingerprint(key: bytes) -> bytes:
    """The 16 bytes that represent a key in the table."""
    length = len(key)
    if length <= _SHORT_KEY_BYTES_MAX:
        return key.ljust(_SHORT_KEY_BYTES_MAX, b"\0") + _LENGTHS[length]
    return blake2b(key, digest_size=_SHORT_KEY_BYTES_MAX).digest() + _IS_DIGEST


class OffsetMap:
    """The table of keys and offsets."""

    def __init__(self, memory_bytes: int, load_factor: float = 0.9, keys_expected: int | None = None) -> None:
        """Allocate at most `memory_bytes`, and no more than `keys_expected` keys need."""
        slots = max(2, memory_bytes // SLOT_BYTES)
        if keys_expected is not None:
            slots = min(slots, max(2, 2 * int(keys_expected / load_factor + 1)))
        self._mask = (1 << (slots.bit_length() - 1)) - 1
        # The pages of a zeroed bytearray are not resident before they are written, so an oversized table costs
        # nothing.
        self._words = memoryview(bytearray((self._mask + 1) * SLOT_BYTES)).cast("Q")
        # One slot always stays free; otherwise the search for an absent key would not end.
        self.capacity = max(1, min(self._mask, int((self._mask + 1) * load_factor)))
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        return len(self._words) * 8

    def put(self, key: bytes, offset: int) -> bool:
        """Set the offset of a key; offsets only rise. Returns False when the table is full."""
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
        """The last offset of a key; -1 when the key is absent."""
        return self._words[self._find(key)[0] + 2] - 1

    def _find(self, key: bytes) -> tuple[int, int, int]:
        """Find the slot of a key, or the free slot for it, with both halves of its fingerprint."""
        stands_for_key = fingerprint(key)
        low, high = _HALVES.unpack(stands_for_key)
        words, mask = self._words, self._mask
        # Python's own hash only picks the slots. It differs between runs and does not affect the result.
        spread = hash(stands_for_key)
        number = spread & mask
        while True:
            at = number * _WORDS_PER_SLOT
            if words[at + 2] == 0 or (words[at] == low and words[at + 1] == high):
                return at, low, high
            number = (number + (spread >> 31 | 1)) & mask
