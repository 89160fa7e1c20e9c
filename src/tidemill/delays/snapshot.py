"""Snapshots of a partition's delays: bytes that spare the replay of the log up to an offset.

A snapshot is stamped with the end offset of the log that it describes and the leader epoch of the last batch before it.
Two logs that agree on the epoch at an offset agree on everything before it. So `restore` trusts a snapshot only when
the log reaches that far and has that epoch there. After a truncation the offset or the epoch differs.

The layout is a CRC-32C of everything after it, a fixed head, arrays in the byte order of the machine, and records with
text for schedules and staged requests. Whatever does not fit is no snapshot, and the log is replayed.

A snapshot of millions of records has hundreds of megabytes. It is written as a sequence of small pieces, and restored
in steps from a function that reads a range. So neither holds the loop, nor needs the snapshot in memory.

The state goes on while its snapshot is written. `FrozenDelays` is the state of one moment: arrays are copied before they
change, and the names of records that go meanwhile are kept.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

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

# Records in a piece.
_RECORDS_A_PIECE = 50
# Taken and staged records, which are copied at once when a state is frozen.
_COPIED_MAX = 10_000

# Returns up to so many bytes at a position.
Read = Callable[[int, int], bytes]

_T = TypeVar("_T")


def can_freeze(delays: PartitionDelays) -> bool:
    """Whether `FrozenDelays` takes well under a millisecond.

    It does not when thousands of records belong to open transactions, or are due and wait for their commit.
    """
    return len(delays.pending.taken) + sum(map(len, delays.staged.values())) <= _COPIED_MAX


class FrozenDelays:
    """A state as it is now, for a snapshot, while the state goes on, but not back: a truncation makes it worthless.

    `thaw` ends it. A state has one at a time.
    """

    def __init__(self, delays: PartitionDelays, *, is_at_rest: bool = False) -> None:
        """A state `is_at_rest` when it does not change any more; then nothing is copied."""
        pending = delays.pending
        self._delays = delays
        self.end_offset = delays.end_offset
        self.offsets, self.offset_count = pending.offsets.freeze(), len(pending.offsets)
        self.queue, self.run_count = pending.queue.freeze(), pending.queue.run_count
        self.hidden, self.hidden_count = delays.hidden.freeze(), delays.hidden.run_count
        self.scheduled_count, self.marker_count = len(pending.scheduled), len(pending.markers)
        self.taken_count = len(pending.taken)
        self.staged_count = sum(map(len, delays.staged.values()))
        taken: Iterable[tuple[int, int]] = pending.taken.items()
        staged = ((producer_id, each) for producer_id, of in delays.staged.items() for each in of.values())
        self.taken = taken if is_at_rest else list(taken)
        self.staged: Iterable[tuple[int, Staged]] = staged if is_at_rest else list(staged)
        self._gone = pending.keep_gone()

    def scheduled(self) -> Iterator[Sequence[tuple[int, Scheduled]]]:
        """The pending records with a name, some at a time."""
        return self._of_pending(self.scheduled_count, self._delays.pending.scheduled, self._gone.scheduled)

    def markers(self) -> Iterator[Sequence[tuple[int, int]]]:
        """The commit markers of pending records, some at a time."""
        return self._of_pending(self.marker_count, self._delays.pending.markers, self._gone.markers)

    def _of_pending(
        self, count: int, live: Mapping[int, _T], gone: Mapping[int, _T]
    ) -> Iterator[Sequence[tuple[int, _T]]]:
        """Yields the values in a changing map for the records that are pending in the frozen state."""
        if not count:
            return
        for offsets, _ in self.offsets:
            found = [
                (offset, gone[offset] if offset in gone else live[offset])
                for offset in offsets
                if offset in live or offset in gone
            ]
            for start in range(0, max(1, len(found)), _RECORDS_A_PIECE):
                yield found[start : start + _RECORDS_A_PIECE]

    def thaw(self) -> None:
        self._delays.pending.thaw()
        self._delays.hidden.thaw()


def pieces_of(frozen: FrozenDelays, last_epoch: int) -> Iterator[bytes]:
    """The state up to `frozen.end_offset`, where the batch before that has the leader epoch `last_epoch`.

    `packed_crc` of all pieces comes before them. A piece takes some ten microseconds.
    """
    yield _HEAD.pack(
        _MAGIC,
        frozen.end_offset,
        last_epoch,
        frozen.offset_count,
        frozen.run_count,
        frozen.hidden_count,
        frozen.scheduled_count,
        frozen.marker_count,
        frozen.staged_count,
    )
    for offsets, due_times in frozen.offsets:
        yield _LENGTH.pack(len(offsets)) + offsets.tobytes() + due_times.tobytes()
    for due_times, offsets in frozen.queue:
        yield _LENGTH.pack(len(offsets)) + due_times.tobytes() + offsets.tobytes()
    # Taken entries have left the queue, and are pending all the same.
    yield _LENGTH.pack(frozen.taken_count)
    yield from _packed(frozen.taken, lambda entry: _PAIR.pack(*entry))
    for starts, lengths in frozen.hidden:
        yield _LENGTH.pack(len(starts)) + starts.tobytes() + lengths.tobytes()
    for some in frozen.scheduled():
        yield b"".join(
            [_with_schedule(_SCHEDULED, (offset, each.identity), each.schedule) for offset, each in some]
        )
    for markers in frozen.markers():
        yield b"".join([_PAIR.pack(*entry) for entry in markers])
    yield from _packed(frozen.staged, lambda entry: _packed_staged(*entry))


def _packed(entries: Iterable[_T], pack: Callable[[_T], bytes]) -> Iterator[bytes]:
    left = iter(entries)
    while some := list(islice(left, _RECORDS_A_PIECE)):
        yield b"".join(map(pack, some))


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
