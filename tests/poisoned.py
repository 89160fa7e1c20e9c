"""Batches that a broker takes, because header and checksum are right, and that cannot be decoded.

Each claims three records of which the newest is from `CLAIMED_MS`, so that a search for a time after `T0` has to look
inside.
"""

from __future__ import annotations

from random import Random

from tests.wire.batches import Header, Record, encode, encode_records
from tidemill.protocol.compression import CompressionType, compress

T0 = 1_700_000_000_000
CLAIMED_MS = T0 + 1_800_000
KEYS = (b"a", b"b", b"c")
GOOD = [Record(b"v", key) for key in KEYS]

_BODIES = {
    "no codec's bytes": Random(5).randbytes(300),
    "zeros": bytes(300),
    "ones": b"\xff" * 300,
    "a record cut off": encode_records(GOOD)[:-2],
    "bytes after the records": encode_records(GOOD) + b"more",
    "fewer records than claimed": encode_records(GOOD[:2]),
    "an offset outside of the batch": encode_records([*GOOD[:2], Record(b"v", b"c", offset_delta=3)]),
    "an offset before the batch": encode_records([*GOOD[:2], Record(b"v", b"c", offset_delta=-1)]),
    "no 64-bit timestamp": encode_records([*GOOD[:2], Record(b"v", b"c", timestamp_delta_ms=2**63 - 1)]),
}


def _poisoned(codec: int, body: bytes, *, is_compressed: bool, base_ms: int = T0) -> bytes:
    payload = compress(codec, body) if is_compressed else body
    header = Header(attributes=codec, base_timestamp_ms=base_ms, max_timestamp_ms=base_ms + CLAIMED_MS - T0)
    return encode(GOOD, header, payload=payload)


def poisoned(base_ms: int = T0) -> dict[str, bytes]:
    """By a name that says what is wrong."""
    batches = {}
    for codec in CompressionType:
        for name, body in _BODIES.items():
            is_compressed = name != "no codec's bytes"
            batches[f"{codec.name.lower()}: {name}"] = _poisoned(
                codec, body, is_compressed=is_compressed, base_ms=base_ms
            )
    return batches


POISONED = poisoned()
