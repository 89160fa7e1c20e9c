"""Copies of decoded records, made by the code that makes them of bytes."""

from __future__ import annotations

from tidemill.delays.copies import CopyBatch, Original
from tidemill.protocol.record_walk import records_of
from tidemill.protocol.records import Record, build_batch, header_at, iterate_records


def visible_copy(record: Record, due_ms: int, next_due_ms: int | None) -> Record:
    batch = CopyBatch()
    batch.add_visible(original_of(record), due_ms, next_due_ms)
    return _only_record(batch)


def carried_copy(record: Record, due_ms: int, wall_ms: int = 0) -> Record:
    batch = CopyBatch()
    batch.add_carried(original_of(record), due_ms, wall_ms)
    return _only_record(batch)


def original_of(record: Record) -> Original:
    batch = build_batch([record], base_offset=record.offset)
    header = header_at(batch)
    return Original.at(header, records_of(memoryview(batch), header), 0)


def _only_record(batch: CopyBatch) -> Record:
    (record,) = iterate_records(memoryview(batch.finish()))
    return record
