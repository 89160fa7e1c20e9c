"""Logs to compact: short ways to write, clean and read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidemill.config import TopicConfig
from tidemill.log.cleaning.cleanable import find_dirt, plan_cleaning
from tidemill.log.cleaning.cleaner import CleaningResult, clean
from tidemill.log.cleaning.swap import SegmentSwap
from tidemill.log.files import Files
from tidemill.log.log import Log
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.records import (
    BatchHeader,
    Header,
    Record,
    build_batch,
    header_at,
    iterate_records,
    split_batches,
)

FOLDER = "/data/t-0"
LARGE_MAP_BYTES = 1 << 16
DELETE_RETENTION_MS = 1_000

ABORT_KEY = b"\0\0\0\0"

Entry = tuple[bytes | None, bytes | None]


def topic_config(**changes: Any) -> TopicConfig:
    values: dict[str, Any] = {
        "cleanup_policy": ("compact",),
        "segment_bytes": 400,
        "index_interval_bytes": 100,
        "delete_retention_ms": DELETE_RETENTION_MS,
    }
    return TopicConfig(**{**values, **changes})


def open_log(files: Files, config: TopicConfig | None = None, *, is_clean: bool = True, **how: Any) -> Log:
    files.make_folder(FOLDER)
    return Log(files, FOLDER, config or topic_config(), wall_ms=0, is_clean=is_clean, **how)


def append(
    log: Log,
    entries: Iterable[Entry],
    *,
    timestamp: int = 0,
    codec: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    epoch: int = 0,
    sequence: int = -1,
) -> list[Record]:
    """One batch; each record gets a header and its own timestamp. Returns the records as they must be read."""
    base = log.log_end_offset
    records = [
        Record(base + number, timestamp + number, key, value, (Header("n", b"%d" % number),))
        for number, (key, value) in enumerate(entries)
    ]
    batch = build_batch(
        records,
        base_offset=base,
        codec=codec,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=epoch if producer_id >= 0 else -1,
        base_sequence=sequence,
    )
    log.append(memoryview(batch), split_batches(memoryview(batch)), 0, timestamp)
    return records


def put(log: Log, *entries: Entry, **how: Any) -> list[Record]:
    return append(log, entries, **how)


def prepare(
    files: Files,
    log: Log,
    first_dirty: int | None = None,
    *,
    wall_ms: int = 0,
    limit: int | None = None,
    map_bytes: int = LARGE_MAP_BYTES,
) -> tuple[SegmentSwap, CleaningResult]:
    """Run a cleaning up to the swap."""
    dirt = find_dirt(log, first_dirty, wall_ms, log.log_end_offset if limit is None else limit)
    swap = SegmentSwap(files, log)
    cleaning = plan_cleaning(log, dirt, wall_ms, map_bytes=map_bytes)
    return swap, clean(files, cleaning)


def swap_in(files: Files, log: Log, swap: SegmentSwap, result: CleaningResult) -> None:
    """Swap the segments in the same steps as the broker."""
    swap.begin(result)
    files.sync_folder(log.folder)
    removed = swap.switch()
    files.sync_folder(log.folder)
    swap.finish()
    files.sync_folder(log.folder)
    for path in removed:
        files.remove(path)


def compact(files: Files, log: Log, first_dirty: int | None = None, **how: Any) -> CleaningResult:
    swap, result = prepare(files, log, first_dirty, **how)
    swap_in(files, log, swap, result)
    log.check_invariants()
    return result


def batches(log: Log, *, max_bytes: int = 1) -> list[tuple[BatchHeader, bytes]]:
    """Returns the batches that a consumer gets which reads from the log start and continues after each batch."""
    offset, found = log.log_start_offset, []
    while (piece := log.read(offset, max_bytes, log.log_end_offset)) is not None:
        data = piece.read()
        while data:
            header = header_at(data)
            found.append((header, data[: header.size]))
            data = data[header.size :]
            offset = header.next_offset
    return found


def records(log: Log) -> list[Record]:
    """Returns every record that a consumer gets."""
    return [
        record._replace(headers=tuple(record.headers))
        for header, data in batches(log)
        for record in iterate_records(memoryview(data), header)
        if record.offset >= log.log_start_offset
    ]


def committed(log: Log, high_watermark: int | None = None, *, max_bytes: int = 1) -> list[Record]:
    """Every record that a consumer with `read_committed` gets, doing what such clients do with the aborted list."""
    end_offset = log.last_stable_offset(log.log_end_offset if high_watermark is None else high_watermark)
    offset, found = log.log_start_offset, list[Record]()
    while (piece := log.read(offset, max_bytes, end_offset)) is not None:
        data = piece.read()
        waiting = sorted(log.aborted_between(offset, end_offset), key=lambda entry: entry.first_offset)
        aborting: set[int] = set()
        while data:
            header = header_at(data)
            while waiting and waiting[0].first_offset <= header.last_offset:
                aborting.add(waiting.pop(0).producer_id)
            control_keys = [r.key for r in iterate_records(memoryview(data[: header.size]), header)]
            if header.is_control:
                if control_keys == [ABORT_KEY]:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                found += iterate_records(memoryview(data[: header.size]), header)
            data = data[header.size :]
            offset = header.next_offset
    return [record._replace(headers=tuple(record.headers)) for record in found]


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records(log)]


def latest(found: Iterable[Record]) -> dict[bytes, bytes]:
    """The table that a reader builds: the last value of each key that is not deleted."""
    table: dict[bytes, bytes] = {}
    for record in found:
        assert record.key is not None
        if record.value is None:
            table.pop(record.key, None)
        else:
            table[record.key] = record.value
    return table


def seal(log: Log) -> None:
    """Roll, so that everything written so far may be cleaned."""
    log.roll(0)


def end_transaction(
    log: Log, producer_id: int, *, commit: bool, epoch: int = 0, coordinator_epoch: int = 0, at_ms: int = 0
) -> int:
    """A marker; its offset."""
    return log.append_marker(TransactionEnd(producer_id, epoch, coordinator_epoch, commit), 0, at_ms) - 1
