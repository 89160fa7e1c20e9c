"""Snapshots of a partition's delays: bytes that spare the replay of the log up to an offset.

A snapshot is stamped with the end offset of the log that it describes and the leader epoch of the last batch before it.
Two logs that agree on the epoch at an offset agree on everything before it. So `restore` trusts a snapshot when the log
reaches that far and has that epoch there, and in no other case: after a truncation the offset or the epoch differs.

The layout is a fixed head, arrays in the byte order of the machine, records with text for schedules and staged requests,
and a CRC-32C in front of all. Whatever does not fit is no snapshot, and the log is replayed.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable
from typing import Any

from crc32c import crc32c

from tidemill.delays.cron import InvalidSchedule, Schedule, parse_schedule
from tidemill.delays.offsets import HiddenOffsets, PendingOffsets
from tidemill.delays.pending import PendingRecords, Scheduled
from tidemill.delays.requests import Cancel, Delayed
from tidemill.delays.state import PartitionDelays, Staged

_MAGIC = b"TMDELAY1" if sys.byteorder == "little" else b"1YALEDMT"
_CRC = struct.Struct(">I")
# Magic, end offset, epoch before it, and the number of pending, runs, hidden runs, schedules, markers, staged.
_HEAD = struct.Struct(">8sqi6q")
_LENGTH = struct.Struct(">q")
_PAIR = struct.Struct(">qq")
_SCHEDULED = struct.Struct(">q16sHH")
# Producer id, offset, kind, identity, due time or cancelled offset, and the lengths of schedule and time zone.
_STAGED = struct.Struct(">qqB16sqHH")
_DELAYED, _NAMED = 1, 2


def snapshot(delays: PartitionDelays, last_epoch: int) -> bytes:
    """The state up to `delays.end_offset`, where the batch before that has the leader epoch `last_epoch`."""
    pending = delays.pending
    blocks, runs = pending.offsets.arrays(), pending.queue.run_arrays()
    hidden_starts, hidden_lengths = delays.hidden.arrays()
    staged = [(producer_id, each) for producer_id, all_ in delays.staged.items() for each in all_.values()]
    head = _HEAD.pack(
        _MAGIC,
        delays.end_offset,
        last_epoch,
        len(pending.offsets),
        len(runs),
        len(hidden_starts),
        len(pending.scheduled),
        len(pending.markers),
        len(staged),
    )
    parts: list[bytes] = [head]
    parts += (offsets.tobytes() for offsets, _ in blocks)
    parts += (due_times.tobytes() for _, due_times in blocks)
    for due_times, offsets in runs:
        parts += (_LENGTH.pack(len(offsets)), due_times.tobytes(), offsets.tobytes())
    # Taken entries have left the queue, and are pending all the same.
    parts.append(_LENGTH.pack(len(pending.taken)))
    parts += (_PAIR.pack(*entry) for entry in pending.taken.items())
    parts += (hidden_starts.tobytes(), hidden_lengths.tobytes())
    for offset, scheduled in pending.scheduled.items():
        parts += _with_schedule(_SCHEDULED, (offset, scheduled.identity), scheduled.schedule)
    parts += (_PAIR.pack(*entry) for entry in pending.markers.items())
    for producer_id, each in staged:
        parts += _packed_staged(producer_id, each)
    body = b"".join(parts)
    return _CRC.pack(crc32c(body)) + body


def restore(
    data: bytes,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    epoch_before: Callable[[int], int],
) -> PartitionDelays | None:
    """The state at a snapshot's end offset, to go on replaying from there; None when it cannot be trusted.

    `epoch_before(offset)` is the leader epoch of the log's batch that ends at this offset.
    """
    view = memoryview(data)
    if len(view) < _CRC.size + _HEAD.size or _CRC.unpack_from(view)[0] != crc32c(view[_CRC.size :]):
        return None
    reader = _Reader(view[_CRC.size :])
    magic, end_offset, last_epoch, *counts = reader.unpack(_HEAD)
    if magic != _MAGIC or not log_start_offset <= end_offset <= log_end_offset:
        return None
    if epoch_before(end_offset) != last_epoch:
        return None
    try:
        delays = _read(reader, end_offset, high_watermark, counts)
    except (struct.error, InvalidSchedule):
        return None  # a time zone may be unknown to this machine
    delays.advance_log_start(log_start_offset)
    return delays


def _read(reader: _Reader, end_offset: int, high_watermark: int, counts: list[int]) -> PartitionDelays:
    pending_count, run_count, hidden_count, scheduled_count, marker_count, staged_count = counts
    pending = PendingRecords()
    pending.offsets = PendingOffsets.restored(
        reader.array("q", pending_count), reader.array("q", pending_count)
    )
    for _ in range(run_count):
        (length,) = reader.unpack(_LENGTH)
        pending.queue.add_run(reader.array("q", length), reader.array("q", length))
    (taken_count,) = reader.unpack(_LENGTH)
    for _ in range(taken_count):
        offset, due_ms = reader.unpack(_PAIR)
        pending.queue.add(due_ms, offset)
    hidden = HiddenOffsets.restored(reader.array("q", hidden_count), reader.array("I", hidden_count))
    for _ in range(scheduled_count):
        (offset, identity), schedule = reader.with_schedule(_SCHEDULED)
        pending.scheduled[offset] = Scheduled(identity, schedule)
        pending.by_identity[identity] = offset
    for _ in range(marker_count):
        offset, marker_offset = reader.unpack(_PAIR)
        pending.markers[offset] = marker_offset
    staged: dict[int, dict[bytes | int, Staged]] = {}
    for _ in range(staged_count):
        producer_id, key, each = _read_staged(reader)
        staged.setdefault(producer_id, {})[key] = each
    return PartitionDelays.restored(end_offset, high_watermark, pending, hidden, staged)


def _read_staged(reader: _Reader) -> tuple[int, bytes | int, Staged]:
    (producer_id, offset, kind, name, number), schedule = reader.with_schedule(_STAGED)
    identity = name if kind & _NAMED else None
    request: Delayed | Cancel
    if kind & _DELAYED:
        request = Delayed(number, identity, schedule)
    else:
        request = Cancel(identity, None if kind & _NAMED else number)
    return producer_id, offset if identity is None else identity, Staged(offset, request)


def _packed_staged(producer_id: int, staged: Staged) -> list[bytes]:
    request = staged.request
    kind = 0 if request.identity is None else _NAMED
    if isinstance(request, Delayed):
        kind, number, schedule = kind | _DELAYED, request.due_ms, request.schedule
    else:
        number, schedule = request.offset or 0, None
    return _with_schedule(
        _STAGED, (producer_id, staged.offset, kind, request.identity or bytes(16), number), schedule
    )


def _with_schedule(
    layout: struct.Struct, fields: tuple[object, ...], schedule: Schedule | None
) -> list[bytes]:
    expression = schedule.expression.encode() if schedule else b""
    time_zone = schedule.time_zone.encode() if schedule else b""
    return [layout.pack(*fields, len(expression), len(time_zone)), expression, time_zone]


class _Reader:
    """Reads a snapshot from front to back. The CRC has vouched for its lengths."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        values = layout.unpack_from(self._view, self._position)
        self._position += layout.size
        return values

    def array(self, kind: str, length: int) -> array[int]:
        values: array[int] = array(kind)
        values.frombytes(self._bytes(length * values.itemsize))
        return values

    def with_schedule(self, layout: struct.Struct) -> tuple[tuple[Any, ...], Schedule | None]:
        *fields, expression_bytes, zone_bytes = self.unpack(layout)
        expression = str(self._bytes(expression_bytes), "utf-8")
        time_zone = str(self._bytes(zone_bytes), "utf-8")
        return tuple(fields), parse_schedule(expression, time_zone) if expression else None

    def _bytes(self, size: int) -> memoryview:
        start, self._position = self._position, self._position + size
        return self._view[start : self._position]
