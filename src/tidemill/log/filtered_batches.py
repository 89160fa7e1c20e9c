"""Batches as a filtered read sends them: with a part of their records, or without any.

A batch with a part of its records keeps its first and last offset, producer, sequence numbers, leader epoch, attributes
and both timestamps. So the largest timestamp may be that of a record that was left out. Length, record count and
checksum are new. It keeps its codec only where that makes it smaller than the whole batch was.

The functions take the places of the kept records, which are (start, end) in the decompressed bytes. They look at
nothing else of a record, because a selective read spends most of its time here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from crc32c import crc32c

from tidemill.protocol import compression
from tidemill.protocol.records import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_SEQUENCE,
    BatchHeader,
    assemble,
)
from tidemill.protocol.steps import Steps
from tidemill.types import NO_TIMESTAMP

# Larger ones are compressed in a thread.
_BYTES_A_STEP = 16 * 1024
_NO_PRODUCER = -1
# Base offset, length, leader epoch and magic. The checksum follows, then what it covers: the rest of the header, which
# ends with the number of records, and the records.
_FRONT = struct.Struct(">qiib")
_CHECKED = struct.Struct(">hiqqqhii")
_CHECKED_AT, _COUNT_AT = 21, 57
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")

Places = Sequence[tuple[int, int]]


class KeptRecords(NamedTuple):
    """The kept part of a batch: its header before and after the checksum, and the (compressed) records."""

    front: bytes
    checked: bytes
    payload: bytes
    record_count: int

    @property
    def length(self) -> int:
        return HEADER_SIZE + len(self.payload)

    def append_to(self, out: bytearray) -> None:
        """Append the batch to others."""
        front, checked, payload, _ = self
        crc = crc32c(payload, crc32c(checked))
        out += b"".join((front, _UINT32.pack(crc), checked, payload))


def kept_uncompressed(chunk: bytes, position: int, places: Places) -> KeptRecords:
    """Returns the kept part of the batch at a position, which has no codec. The places are those after its header."""
    body_at = position + HEADER_SIZE
    if len(places) == 1:
        ((start, end),) = places
        payload = chunk[body_at + start : body_at + end]
    else:
        payload = b"".join([chunk[body_at + start : body_at + end] for start, end in places])
    length = _INT32.pack(HEADER_SIZE - LENGTH_PREFIX + len(payload))
    return KeptRecords(
        chunk[position : position + 8] + length + chunk[position + 12 : position + 17],
        chunk[position + _CHECKED_AT : position + _COUNT_AT] + _INT32.pack(len(places)),
        payload,
        len(places),
    )


def kept_of(header: BatchHeader, records: Sequence[bytes]) -> Steps[KeptRecords]:
    """Returns the kept part of a batch: these records."""
    payload = b"".join(records)
    attributes, codec = header.attributes, header.codec
    if codec and len(payload) <= header.size - HEADER_SIZE:
        # The codec would cost more time than the network.
        attributes, codec = attributes & ~COMPRESSION_MASK, 0
    if codec and len(payload) <= _BYTES_A_STEP:
        payload = compression.compress(codec, payload)
    elif codec:
        payload = yield partial(compression.compress, codec, payload)
    length = HEADER_SIZE - LENGTH_PREFIX + len(payload)
    front = _FRONT.pack(header.base_offset, length, header.leader_epoch, MAGIC)
    return KeptRecords(front, _CHECKED.pack(attributes, *header[6:12], len(records)), payload, len(records))


def empty_batch(first_offset: int, last_offset: int, leader_epoch: int) -> bytearray:
    """A batch without records that covers a range of offsets."""
    return assemble(
        BatchHeader(
            base_offset=first_offset,
            batch_length=HEADER_SIZE - LENGTH_PREFIX,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=last_offset - first_offset,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=_NO_PRODUCER,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        ),
        b"",
    )
