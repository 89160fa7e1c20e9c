"""Rewriting of batches by the cleaner: some records are dropped, everything else stays.

A kept record keeps its bytes, offset and timestamp. A batch keeps its first and last offset, sequence numbers, leader
epoch and codec. A batch without records may stay as a bare header, for the sake of its last offset or sequence number.

KIP-534: the first cleaning that finds a tombstone stores its delete horizon in the batch. Attribute bit 6 is set and
the base timestamp *is* the horizon. Record timestamps are deltas to the base timestamp, so they are rewritten and
readers notice no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tidemill.errors import ProtocolError
from tidemill.protocol import compression
from tidemill.protocol.record_walk import RawRecord, varint_at
from tidemill.protocol.records import (
    COMPRESSION_MASK,
    DELETE_HORIZON,
    INT64_MAX,
    INT64_MIN,
    BatchHeader,
    assemble,
)
from tidemill.types import NO_TIMESTAMP


def _encode_varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _check_int64(delta_ms: int) -> int:
    if not INT64_MIN <= delta_ms <= INT64_MAX:
        raise ProtocolError(f"a timestamp delta of {delta_ms} does not fit 64 bits")
    return delta_ms


def delete_horizon_of(header: BatchHeader) -> int | None:
    """Returns the time at which the tombstones of a batch may be removed; None when no cleaning has set a delete horizon."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def with_records(
    header: BatchHeader, body: bytes, kept: Sequence[RawRecord], delete_horizon_ms: int | None
) -> bytearray:
    """The batch with only the kept records. `delete_horizon_ms` is set unless the batch has one."""
    max_timestamp = header.max_timestamp
    if not header.is_log_append_time:
        max_timestamp = header.base_timestamp + max(timestamp_delta for _, _, timestamp_delta, *_ in kept)
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon_ms is None:
        content = b"".join(_runs(body, kept))
    else:
        moved = base_timestamp - delete_horizon_ms
        content = b"".join(_with_timestamp_moved(body, record, moved) for record in kept)
        attributes, base_timestamp = attributes | DELETE_HORIZON, delete_horizon_ms
    payload = compression.compress(header.codec, content) if header.codec else content
    return assemble(
        header._replace(
            attributes=attributes,
            base_timestamp=base_timestamp,
            max_timestamp=max_timestamp,
            record_count=len(kept),
        ),
        payload,
    )


def _runs(body: bytes, kept: Iterable[RawRecord]) -> Iterator[bytes]:
    """The bytes of the kept records. Neighbours are copied as one piece."""
    start = end = 0
    for record_start, record_end, *_ in kept:
        if record_start != end:
            yield body[start:end]
            start = record_start
        end = record_end
    yield body[start:end]


def _with_timestamp_moved(body: bytes, record: RawRecord, moved_ms: int) -> bytes:
    start, end, timestamp_delta, *_ = record
    _, attributes_at = varint_at(body, start)
    _, rest_at = varint_at(body, attributes_at + 1)
    delta = _encode_varint(_check_int64(timestamp_delta + moved_ms))
    rest = body[rest_at:end]
    length = _encode_varint(1 + len(delta) + len(rest))
    return b"".join((length, body[attributes_at : attributes_at + 1], delta, rest))


def without_records(header: BatchHeader) -> bytearray:
    """A bare header: the offsets, sequence numbers and maximum timestamp of a batch without records."""
    return assemble(
        header._replace(
            attributes=header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON),
            base_timestamp=NO_TIMESTAMP,
            record_count=0,
        ),
        b"",
    )
