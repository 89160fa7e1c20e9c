"""A model of producers and transactions: a slow, simple twin that reads them from the raw bytes of all batches."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_HEADER = struct.Struct(">qiibIhiqqqhii")


class Batch(NamedTuple):
    base_offset: int
    last_offset: int
    timestamp: int
    producer_id: int
    epoch: int
    sequence: int
    is_transactional: bool
    # (is a commit, coordinator epoch) of a marker.
    marker: tuple[bool, int] | None


class Transaction(NamedTuple):
    producer_id: int
    first_offset: int
    # None while it is open.
    marker_offset: int | None
    is_commit: bool


@dataclass
class Producer:
    epoch: int
    # (base sequence, last sequence, base offset, last offset, timestamp)
    batches: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    coordinator_epoch: int = -1
    txn_first_offset: int = -1
    last_timestamp: int = -1


def parse(raw: bytes) -> Batch:
    fields = _HEADER.unpack_from(raw)
    base_offset, attributes, delta, newest, pid, epoch, sequence = (
        fields[n] for n in (0, 5, 6, 8, 9, 10, 11)
    )
    marker = None
    if attributes & 0x20:
        # key length 4, key, value length 6, value, no headers; lengths are zigzag varints
        assert (raw[-13], raw[-8], raw[-1]) == (8, 12, 0)
        kind = struct.unpack(">hh", raw[-12:-8])[1]
        marker = (kind == 1, struct.unpack(">hi", raw[-7:-1])[1])
    return Batch(
        base_offset, base_offset + delta, newest, pid, epoch, sequence, bool(attributes & 0x10), marker
    )


def parsed(raws: Iterable[bytes]) -> list[Batch]:
    return [batch for batch in map(parse, raws) if batch.producer_id >= 0]


def transactions(batches: Sequence[Batch]) -> list[Transaction]:
    """All of them, in the order of their first offsets."""
    found = []
    for number, begin in enumerate(batches):
        if not begin.is_transactional or begin.marker is not None:
            continue
        before = [b for b in batches[:number] if b.producer_id == begin.producer_id and b.is_transactional]
        if before and before[-1].marker is None:
            continue  # the open transaction continues
        ends = [b for b in batches[number:] if b.producer_id == begin.producer_id and b.marker is not None]
        if ends:
            assert ends[0].marker is not None
            found.append(
                Transaction(begin.producer_id, begin.base_offset, ends[0].base_offset, ends[0].marker[0])
            )
        else:
            found.append(Transaction(begin.producer_id, begin.base_offset, None, False))
    return found


def stable_offset(batches: Sequence[Batch], high_watermark: int, log_start_offset: int = 0) -> int:
    """The last stable offset by its definition."""
    undecided = [
        max(txn.first_offset, log_start_offset)
        for txn in transactions(batches)
        if txn.marker_offset is None or txn.marker_offset >= high_watermark
    ]
    return min([high_watermark, *undecided])


def aborted(batches: Sequence[Batch]) -> list[tuple[int, int, int, int]]:
    """(producer, first offset, marker's offset, last stable offset after the marker), in the order of the markers."""
    found = []
    for txn in transactions(batches):
        if txn.marker_offset is not None and not txn.is_commit:
            end = txn.marker_offset + 1
            past = [b for b in batches if b.base_offset < end]
            still_open = [t.first_offset for t in transactions(past) if t.marker_offset is None]
            found.append((txn.producer_id, txn.first_offset, txn.marker_offset, min([end, *still_open])))
    return sorted(found, key=lambda entry: entry[2])


def producers(batches: Sequence[Batch]) -> dict[int, Producer]:
    known: dict[int, Producer] = {}
    for batch in batches:
        producer = known.setdefault(batch.producer_id, Producer(batch.epoch))
        if producer.epoch != batch.epoch:
            producer.epoch, producer.batches = batch.epoch, []
        producer.last_timestamp = batch.timestamp
        if batch.marker is not None:
            producer.coordinator_epoch = batch.marker[1]
            producer.txn_first_offset = -1
            continue
        span = batch.last_offset - batch.base_offset
        last_sequence = (batch.sequence + span) % (1 << 31)
        entry = (batch.sequence, last_sequence, batch.base_offset, batch.last_offset, batch.timestamp)
        producer.batches = [*producer.batches, entry][-5:]
        if batch.is_transactional and producer.txn_first_offset < 0:
            producer.txn_first_offset = batch.base_offset
    return known
