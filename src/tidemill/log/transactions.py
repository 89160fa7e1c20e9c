"""Transaction markers: the control batches that end a producer's transaction in one partition.

A marker is a batch of one record, without a sequence number: its key says whether the transaction was committed or aborted,
its value which epoch of the transaction coordinator decided so, and its header whose transaction it is. The formats are
Kafka's. A control batch may be of another kind (those of the metadata log), and compaction leaves markers without their
record behind: neither ends anything.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from tidemill.errors import ProtocolError
from tidemill.protocol.records import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    build_batch,
    iterate_records,
)

ABORT, COMMIT = 0, 1
_VERSION = 0
# Both begin with the version of their schema (ControlRecordTypeSchema, EndTxnMarker), which later ones only extend.
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class TransactionEnd(NamedTuple):
    """What a marker says. `transaction_version` is the sender's word and not stored."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0


class AbortedTransaction(NamedTuple):
    """From its first record to its marker; and where the last stable offset stood once it was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def build_marker(end: TransactionEnd, now_ms: int) -> bytes:
    """A control batch of one record."""
    key = _KEY.pack(_VERSION, COMMIT if end.is_commit else ABORT)
    value = _VALUE.pack(_VERSION, end.coordinator_epoch)
    return bytes(
        build_batch(
            [Record(0, now_ms, key, value)],
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
        )
    )


def marker_of(batch: memoryview, header: BatchHeader) -> TransactionEnd | None:
    """The end of a transaction that a control batch tells of; None for another kind, or when its record is gone.

    `ProtocolError` when the record is not what Kafka writes.
    """
    if not header.record_count or header.producer_id < 0:
        return None
    record = next(iterate_records(batch, header))
    try:
        _, kind = _KEY.unpack_from(record.key or b"")
        if kind not in (ABORT, COMMIT):
            return None
        _, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error as error:
        raise ProtocolError(f"the control record at offset {header.base_offset} is cut off") from error
    return TransactionEnd(header.producer_id, header.producer_epoch, coordinator_epoch, kind == COMMIT)
