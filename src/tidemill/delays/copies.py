"""Copies of delayed records, made from their bytes: the visible copy of a delivery, and the record that is carried.

A copy has the key, the value and the other headers of its original byte for byte. Headers that ask for the delay are
left out, and those of the broker are added: where the original is, when it was due, and when its schedule fires next.
Nothing else is decoded, because a broker makes tens of thousands of copies in a second.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tidemill.delays.pending import Delivery
from tidemill.delays.requests import (
    BROKER_HEADERS,
    CARRIED,
    DELAY,
    DELIVER_AT,
    DUE,
    NEXT_DUE,
    ORIGINAL_OFFSET,
    PENDING_OFFSET,
    PRODUCER_HEADERS,
    SCHEDULE_ID,
)
from tidemill.delays.state import Carry
from tidemill.protocol.record_walk import varint_at
from tidemill.protocol.records import (
    HEADER_SIZE,
    LENGTH_PREFIX,
    MAGIC,
    NO_SEQUENCE,
    BatchHeader,
    append_varint,
    assemble,
)
from tidemill.protocol.steps import Steps

_Due = TypeVar("_Due", Delivery, Carry)

_BATCH_BYTES = 256 * 1024
_COPIES_A_STEP = 100
_ORIGINAL_OFFSET = ORIGINAL_OFFSET.encode()
# A copy keeps the schedule id, which tells the consumer which message it is.
_HIDING = frozenset(name.encode() for name in (PRODUCER_HEADERS | BROKER_HEADERS) - {SCHEDULE_ID})
# A carried record keeps its id, schedule and time zone.
_RESTATED = frozenset(name.encode() for name in BROKER_HEADERS | {DELIVER_AT, DELAY})
_NO_PRODUCER = -1


class Original(NamedTuple):
    """A pending record in the log: its bytes, without those of its batch, and where its key begins in them."""

    offset: int
    timestamp: int
    content: bytes
    key_start: int

    @classmethod
    def at(cls, header: BatchHeader, body: bytes, start: int) -> Original:
        """The record that begins at `start`. It was decoded before, when it became pending."""
        length, position = varint_at(body, start)
        content = body[position : position + length]
        # The attributes, and the deltas of timestamp and offset.
        timestamp_delta, position = varint_at(content, 1)
        offset_delta, key_start = varint_at(content, position)
        is_stamped = header.is_log_append_time
        timestamp = header.max_timestamp if is_stamped else header.base_timestamp + timestamp_delta
        return cls(header.base_offset + offset_delta, timestamp, content, key_start)


class CopyBatch:
    """A batch of copies, one after the other."""

    __slots__ = ("_base_timestamp", "_max_timestamp", "_records", "record_count")

    def __init__(self) -> None:
        self._records = bytearray()
        self._base_timestamp = self._max_timestamp = -1
        self.record_count = 0

    @property
    def size(self) -> int:
        return HEADER_SIZE + len(self._records)

    def add_visible(self, original: Original, due_ms: int, next_due_ms: int | None) -> None:
        """Add the copy to append when a pending record is due.

        Its timestamp is the due time, but not older than the record: a time long past must not look expired to retention.
        """
        added = _DUE_NAME + _value(due_ms)
        if next_due_ms is not None:
            added += _NEXT_DUE_NAME + _value(next_due_ms)
        added_count = 1 if next_due_ms is None else 2
        self._add(original, max(due_ms, original.timestamp), _HIDING, added, added_count)

    def add_carried(self, original: Original, due_ms: int, wall_ms: int) -> None:
        """Add the hidden record to append before retention removes a pending one.

        Its timestamp is the time of that, because it lasts as long as any new record until it is carried again.
        """
        timestamp = max(wall_ms, original.timestamp)
        self._add(original, timestamp, _RESTATED, _DUE_NAME + _value(due_ms) + _CARRIED_HEADER, 2)

    def _add(
        self, original: Original, timestamp: int, dropped: frozenset[bytes], added: bytes, added_count: int
    ) -> None:
        if not self.record_count:
            self._base_timestamp = self._max_timestamp = timestamp
        elif timestamp > self._max_timestamp:
            self._max_timestamp = timestamp
        copy = bytearray(1)
        append_varint(copy, timestamp - self._base_timestamp)
        append_varint(copy, self.record_count)
        _append_content(copy, original, dropped, added, added_count)
        append_varint(self._records, len(copy))
        self._records += copy
        self.record_count += 1

    def finish(self) -> bytearray:
        """The batch, with at least one record."""
        return assemble(
            BatchHeader(
                base_offset=0,
                batch_length=HEADER_SIZE - LENGTH_PREFIX + len(self._records),
                leader_epoch=-1,
                magic=MAGIC,
                crc=0,
                attributes=0,
                last_offset_delta=self.record_count - 1,
                base_timestamp=self._base_timestamp,
                max_timestamp=self._max_timestamp,
                producer_id=_NO_PRODUCER,
                producer_epoch=-1,
                base_sequence=NO_SEQUENCE,
                record_count=self.record_count,
            ),
            self._records,
        )


def _append_content(
    copy: bytearray, original: Original, dropped: frozenset[bytes], added: bytes, added_count: int
) -> None:
    """Append key, value and headers."""
    offset, _, body, key_start = original
    length, position = varint_at(body, key_start)
    length, position = varint_at(body, position + length if length > 0 else position)
    if length > 0:
        position += length
    copy += body[key_start:position]
    count, position = varint_at(body, position)
    kept = bytearray()
    kept_count = 0
    first_offset: bytes | None = None
    for _ in range(count):
        header_start = position
        length, position = varint_at(body, position)
        name = body[position : position + length]
        length, value_start = varint_at(body, position + length)
        position = value_start + length if length > 0 else value_start
        if name not in dropped:
            kept += body[header_start:position]
            kept_count += 1
        elif name == _ORIGINAL_OFFSET and first_offset is None:
            first_offset = body[value_start:position]
    here = _value(offset)
    append_varint(copy, kept_count + added_count + (1 if first_offset is None else 2))
    copy += kept
    copy += _ORIGINAL_OFFSET_NAME
    if first_offset is None:
        copy += here
    else:
        # The record was carried: its first offset stays the one that consumers know.
        append_varint(copy, len(first_offset))
        copy += first_offset + _PENDING_OFFSET_NAME + here
    copy += added


def with_next_due(body: bytes, start: int, end: int, due_ms: int) -> bytes:
    """The record between two positions, with a header more: when its schedule fires next."""
    content_start = varint_at(body, start)[1]
    # The attributes, and the deltas of timestamp and offset.
    position = varint_at(body, varint_at(body, content_start + 1)[1])[1]
    for _ in ("key", "value"):
        length, position = varint_at(body, position)
        position += max(0, length)
    content = bytearray(body[content_start:position])
    count, position = varint_at(body, position)
    append_varint(content, count + 1)
    content += body[position:end] + _NEXT_DUE_NAME + _value(due_ms)
    record = bytearray()
    append_varint(record, len(content))
    return bytes(record + content)


def _value(number: int) -> bytes:
    """A number as the value of a header, in decimal digits."""
    digits = b"%d" % number
    # Fewer than 64 digits: the length is one byte.
    return bytes((len(digits) << 1,)) + digits


def _name(name: str) -> bytes:
    return bytes((len(name) << 1,)) + name.encode()


_ORIGINAL_OFFSET_NAME, _PENDING_OFFSET_NAME = _name(ORIGINAL_OFFSET), _name(PENDING_OFFSET)
_DUE_NAME, _NEXT_DUE_NAME = _name(DUE), _name(NEXT_DUE)
_CARRIED_HEADER = _name(CARRIED) + b"\0"


def visible_copies(
    deliveries: Sequence[Delivery], originals: Mapping[int, Original]
) -> Steps[list[tuple[bytearray, list[Delivery]]]]:
    """Batches of visible copies, each with the deliveries that it makes."""
    return _copies_of(deliveries, originals, _add_visible)


def carried_copies(
    carries: Sequence[Carry], originals: Mapping[int, Original], wall_ms: int
) -> Steps[list[tuple[bytearray, list[Carry]]]]:
    """Batches of carried records, each with what it carries."""

    def add(batch: CopyBatch, original: Original, carry: Carry) -> None:
        batch.add_carried(original, carry.due_ms, wall_ms)

    return _copies_of(carries, originals, add)


def _add_visible(batch: CopyBatch, original: Original, delivery: Delivery) -> None:
    batch.add_visible(original, delivery.due_ms, delivery.next_due_ms)


def _copies_of(
    due: Sequence[_Due],
    originals: Mapping[int, Original],
    add: Callable[[CopyBatch, Original, _Due], None],
) -> Steps[list[tuple[bytearray, list[_Due]]]]:
    batches: list[tuple[bytearray, list[_Due]]] = []
    batch, of_batch = CopyBatch(), []
    for number, each in enumerate(due, 1):
        add(batch, originals[each.offset], each)
        of_batch.append(each)
        if batch.size >= _BATCH_BYTES or number == len(due):
            batches.append((batch.finish(), of_batch))
            batch, of_batch = CopyBatch(), []
            yield None
        elif number % _COPIES_A_STEP == 0:
            yield None
    return batches
