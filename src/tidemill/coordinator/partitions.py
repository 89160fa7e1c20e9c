"""The partition of an internal topic that holds the state of a group or transactional id. Clients compute the same."""

from __future__ import annotations

from functools import lru_cache

_INT_MIN = -(2**31)
# In characters. Ordinary names are shorter.
_BLOCK = 1_024


def java_hash(text: str) -> int:
    """Returns Java's `String.hashCode`: over UTF-16 code units, as a signed 32-bit number."""
    blocks = len(text) // _BLOCK * _BLOCK
    if blocks:
        value = _add(_hash_of_blocks(text[:blocks]), text[blocks:])
    else:
        value = _add(0, text)
    return value - 2**32 if value >= 2**31 else value


# The keys of one request to a share coordinator begin with the same group id.
@lru_cache(maxsize=8)
def _hash_of_blocks(text: str) -> int:
    return _add(0, text)


def _add(value: int, text: str) -> int:
    units = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(units), 2):
        value = (31 * value + (units[position] << 8 | units[position + 1])) & 0xFFFFFFFF
    return value


def partition_for_group(group_id: str, partitions: int) -> int:
    hashed = java_hash(group_id)
    # The smallest int has no positive counterpart in Java; Kafka uses 0 for it.
    return (0 if hashed == _INT_MIN else abs(hashed)) % partitions
