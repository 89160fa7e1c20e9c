"""Transaction markers: the control batches that end a producer's transaction in one partition.

A marker is a batch of one record without a sequence number, in Kafka's format. Its key is COMMIT or ABORT, its value
holds the epoch of the transaction coordinator, and its header the producer id and epoch. Two control batches end no
transaction: those of another kind (in the metadata log), and markers whose record compaction has removed.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter
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
# Both start with the version of their schema (ControlRecordTypeSchema, EndTxnMarker). Later versions only add fields.
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class TransactionEnd(NamedTuple):
    """The content of a marker. `transaction_version` and `ordinal` come from the request and are not stored.

    A coordinator numbers the ends that it orders. -1: the end has no number.
    """

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    is_commit: bool
    transaction_version: int = 0
    ordinal: int = -1


class AbortedTransaction(NamedTuple):
    """An aborted transaction, from its first record to its marker, with the last stable offset after the abort."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


_first_offset = attrgetter("first_offset")


class AbortedTransactions:
    """Aborted transactions by producer. Those of one producer never overlap."""

    def __init__(self, aborted: Sequence[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for each in sorted(aborted, key=_first_offset):
            self._by_producer.setdefault(each.producer_id, []).append(each)

    def has(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to one of them."""
        if not header.is_transactional:
            return False
        known = self._by_producer.get(header.producer_id)
        if known is None:
            return False
        number = bisect_right(known, header.base_offset, key=_first_offset) - 1
        return number >= 0 and header.base_offset <= known[number].last_offset


def build_marker(end: TransactionEnd, wall_ms: int) -> bytes:
    """Build the control batch that ends a transaction."""
    key = _KEY.pack(_VERSION, COMMIT if end.is_commit else ABORT)
    value = _VALUE.pack(_VERSION, end.coordinator_epoch)
    return bytes(
        build_batch(
            [Record(0, wall_ms, key, value)],
            attributes=TRANSACTIONAL | CONTROL,
            producer_id=end.producer_id,
            producer_epoch=end.producer_epoch,
        )
    )


def marker_of(batch: memoryview, header: BatchHeader) -> TransactionEnd | None:
    """Returns the transaction end in a control batch; None for another kind, or when the record was compacted away.

    Raises `ProtocolError` when the record does not have Kafka's format.
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
