"""Snapshots of a partition's delays: bytes that spare the replay of the log up to an offset.

A snapshot is stamped with the end offset of the log that it describes and the leader epoch of the last batch before it.
Two logs that agree on the epoch at an offset agree on everything before it. So `restore` trusts a snapshot only when
the log reaches that far and has that epoch there. After a truncation the offset or the epoch differs.

The layout is a CRC-32C of everything after it, a fixed head, arrays in the byte order of the machine, and records with
text for schedules and staged requests. Whatever does not fit is no snapshot, and the log is replayed.

A snapshot of millions of records has hundreds of megabytes. It is written as a sequence of small pieces, and restored
in steps from a function that reads a range. So neither holds the loop, nor needs the snapshot in memory.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from crc32c import crc32c

from tidemill.delays.cron import InvalidSchedule, Schedule, parse_schedule
from tidemill.delays.offsets import HiddenOffsets
from tidemill.delays.pending import PendingRecords, Scheduled
from tidemill.delays.requests import Cancel, Delayed
from tidemill.delays.state import PartitionDelays, Staged
from tidemill.protocol.steps import Steps

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
# Records with text between two steps. A new expression takes some microseconds to parse.
_RECORDS_A_STEP = 50
_CHUNK_BYTES = 256 * 1024
CRC_BYTES = _CRC.size

# Returns up to so many bytes at a position.
Read = Callable[[int, int], bytes]


def pieces_of(delays: PartitionDelays, last_epoch: int) -> Iterator[bytes]:
    """The state up to `delays.end_offset`, where the batch before that has the leader epoch `last_epoch`.

    The state must not change meanwhile. `packed_crc` of all pieces comes before them.
    """
    pending = delays.pending
    blocks, runs = pending.offsets.arrays(), pending.queue.run_arrays()
    staged_count = sum(len(of_producer) for of_producer in delays.staged.values())
    yield _HEAD.pack(
        _MAGIC,
        delays.end_offset,
        last_epoch,
        len(pending.offsets),
        len(runs),
        delays.hidden.run_count,
        len(pending.scheduled),
        len(pending.markers),
        staged_count,
    )
    for offsets, due_times in blocks:
        yield _LENGTH.pack(len(offsets)) + offsets.tobytes() + due_times.tobytes()
    for due_times, offsets in runs:
        yield _LENGTH.pack(len(offsets)) + due_times.tobytes() + offsets.tobytes()
    # Taken entries have left the queue, and are pending all the same.
    yield _LENGTH.pack(len(pending.taken))
    yield from (_PAIR.pack(*entry) for entry in pending.taken.items())
    for starts, lengths in delays.hidden.arrays():
        yield _LENGTH.pack(len(starts)) + starts.tobytes() + lengths.tobytes()
    for offset, scheduled in pending.scheduled.items():
        yield _with_schedule(_SCHEDULED, (offset, scheduled.identity), scheduled.schedule)
    yield from (_PAIR.pack(*entry) for entry in pending.markers.items())
    for producer_id, of_producer in delays.staged.items():
        for each in of_producer.values():
            yield _packed_staged(producer_id, each)


def packed_crc(crc: int) -> bytes:
    return _CRC.pack(crc)


def restore(
    read: Read,
    log_start_offset: int,
    log_end_offset: int,
    high_watermark: int,
    epoch_before: Callable[[int], int],
) -> Steps[PartitionDelays | None]:
    """The state at a snapshot's end offset, to go on replaying from there; None when it cannot be trusted.

    `epoch_before(offset)` is the leader epoch of the log's batch that ends at this offset.
    """
    head = yield partial(read, _CRC.size + _HEAD.size, 0)
    if len(head) < _CRC.size + _HEAD.size:
        return None
    magic, end_offset, last_epoch, *counts = _HEAD.unpack_from(head, _CRC.size)
    if magic != _MAGIC or not log_start_offset <= end_offset <= log_end_offset:
        return None
    if epoch_before(end_offset) != last_epoch:
        return None
    crc = yield partial(_crc_of, read)
    if _CRC.unpack_from(head)[0] != crc:
        return None
    reader = _Reader(read, _CRC.size + _HEAD.size)
    try:
        delays = yield from _read(reader, end_offset, high_watermark, counts)
    except (struct.error, InvalidSchedule):
        return None  # a time zone may be unknown to this machine
    yield from delays.advance_log_start(log_start_offset)
    return delays


def _crc_of(read: Read) -> int:
    crc, position = 0, _CRC.size
    while chunk := read(_CHUNK_BYTES, position):
        crc = crc32c(chunk, crc)
        position += len(chunk)
    return crc


def _read(reader: _Reader, end_offset: int, high_watermark: int, counts: list[int]) -> Steps[PartitionDelays]:
    pending_count, run_count, hidden_count, scheduled_count, marker_count, staged_count = counts
    pending = PendingRecords()
    while len(pending.offsets) < pending_count:
        pending.offsets.append_block(*(yield from reader.arrays("q", "q")))
    for _ in range(run_count):
        pending.queue.add_run(*(yield from reader.arrays("q", "q")))
    (taken_count,) = yield from reader.unpack(_LENGTH)
    for _ in range(taken_count):
        offset, due_ms = yield from reader.unpack(_PAIR)
        pending.queue.add(due_ms, offset)
    hidden = HiddenOffsets()
    while hidden.run_count < hidden_count:
        hidden.extend(*(yield from reader.arrays("q", "I")))
    for _ in range(scheduled_count):
        (offset, identity), schedule = yield from reader.with_schedule(_SCHEDULED)
        pending.scheduled[offset] = Scheduled(identity, schedule)
        pending.by_identity[identity] = offset
    for _ in range(marker_count):
        offset, marker_offset = yield from reader.unpack(_PAIR)
        pending.set_marker(offset, marker_offset)
    staged: dict[int, dict[bytes | int, Staged]] = {}
    for _ in range(staged_count):
        producer_id, key, each = yield from _read_staged(reader)
        staged.setdefault(producer_id, {})[key] = each
    return PartitionDelays.restored(end_offset, high_watermark, pending, hidden, staged)


def _read_staged(reader: _Reader) -> Steps[tuple[int, bytes | int, Staged]]:
    (producer_id, offset, kind, name, number), schedule = yield from reader.with_schedule(_STAGED)
    identity = name if kind & _NAMED else None
    request: Delayed | Cancel
    if kind & _DELAYED:
        request = Delayed(number, identity, schedule)
    else:
        request = Cancel(identity, None if kind & _NAMED else number)
    return producer_id, offset if identity is None else identity, Staged(offset, request)


def _packed_staged(producer_id: int, staged: Staged) -> bytes:
    request = staged.request
    kind = 0 if request.identity is None else _NAMED
    if isinstance(request, Delayed):
        kind, number, schedule = kind | _DELAYED, request.due_ms, request.schedule
    else:
        number, schedule = request.offset or 0, None
    return _with_schedule(
        _STAGED, (producer_id, staged.offset, kind, request.identity or bytes(16), number), schedule
    )


def _with_schedule(layout: struct.Struct, fields: tuple[object, ...], schedule: Schedule | None) -> bytes:
    expression = schedule.expression.encode() if schedule else b""
    time_zone = schedule.time_zone.encode() if schedule else b""
    return layout.pack(*fields, len(expression), len(time_zone)) + expression + time_zone


class _Reader:
    """Reads a snapshot from front to back. The CRC has vouched for its lengths."""

    def __init__(self, read: Read, position: int) -> None:
        self._read = read
        # Where the next chunk begins.
        self._chunk_position = position
        self._chunk = b""
        self._at = 0
        self._records = 0
        # Most schedules of a topic have one of a few expressions.
        self._schedules: dict[tuple[bytes, bytes], Schedule] = {}

    def unpack(self, layout: struct.Struct) -> Steps[tuple[Any, ...]]:
        return layout.unpack((yield from self._bytes(layout.size)))

    def arrays(self, *kinds: str) -> Steps[list[array[int]]]:
        """Arrays of one length, which stands before them."""
        (length,) = yield from self.unpack(_LENGTH)
        arrays = [array(kind) for kind in kinds]
        for each in arrays:
            each.frombytes((yield from self._bytes(length * each.itemsize)))
        return arrays

    def with_schedule(self, layout: struct.Struct) -> Steps[tuple[tuple[Any, ...], Schedule | None]]:
        *fields, expression_bytes, zone_bytes = yield from self.unpack(layout)
        self._records += 1
        if self._records % _RECORDS_A_STEP == 0:
            yield None
        if not expression_bytes:
            return tuple(fields), None
        text = yield from self._bytes(expression_bytes + zone_bytes)
        known_by = text[:expression_bytes], text[expression_bytes:]
        schedule = self._schedules.get(known_by)
        if schedule is None:
            schedule = self._schedules[known_by] = parse_schedule(known_by[0].decode(), known_by[1].decode())
        return tuple(fields), schedule

    def _bytes(self, size: int) -> Steps[bytes]:
        while len(self._chunk) - self._at < size:
            more = yield partial(self._read, _CHUNK_BYTES, self._chunk_position)
            if not more:
                raise struct.error("a snapshot is cut off")
            self._chunk_position += len(more)
            self._chunk, self._at = self._chunk[self._at :] + more, 0
        start, self._at = self._at, self._at + size
        return self._chunk[start : self._at]
