"""Delay headers: when a record of a topic with `tidemill.delays.enable=true` is to be delivered.

A producer sets headers. `tidemill-deliver-at` (epoch milliseconds, or ISO 8601 with an offset), `tidemill-delay`
(`30s`, or milliseconds) or `tidemill-schedule` (cron, in `tidemill-timezone`) hide the record until it is due. At most
one of them is set. `tidemill-schedule-id` names the message within its key, so that a later record with the same key
and id replaces it, and one with `tidemill-cancel` cancels it. A schedule needs an id: without one it could never be
cancelled. A cancel without an id names a pending record by its offset.

The broker writes headers of its own on what it appends: `tidemill-original-offset` and its companions. A delivered copy
has them and none of the producer's; a carried record has them and `tidemill-carried`. Producers may not send them.

A delay counts from the timestamp that the log gives the record, since a replay has no other clock. So the appender sets
the append time on a batch whose inspection says `needs_append_time` (LogAppendTime, in place). Whether a record is
hidden is a function of that record alone: every reader of the log, live or offline, gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import NamedTuple

from tidemill.delays.cron import (
    TIME_MS_MAX,
    InvalidSchedule,
    Schedule,
    UnknownTimeZone,
    parse_duration,
    parse_schedule,
)
from tidemill.errors import ProtocolError, TidemillError
from tidemill.protocol.record_walk import records_of
from tidemill.protocol.records import INT64_MAX, BatchHeader, Header, Record, iterate_records
from tidemill.protocol.steps import Steps

DELIVER_AT = "tidemill-deliver-at"
DELAY = "tidemill-delay"
SCHEDULE = "tidemill-schedule"
TIME_ZONE = "tidemill-timezone"
SCHEDULE_ID = "tidemill-schedule-id"
CANCEL = "tidemill-cancel"

# Written by the broker alone.
ORIGINAL_OFFSET = "tidemill-original-offset"
PENDING_OFFSET = "tidemill-pending-offset"
DUE = "tidemill-due"
NEXT_DUE = "tidemill-next-due"
CARRIED = "tidemill-carried"

_TIMES = (DELIVER_AT, DELAY, SCHEDULE)
PRODUCER_HEADERS = frozenset((*_TIMES, TIME_ZONE, SCHEDULE_ID, CANCEL))
BROKER_HEADERS = frozenset((ORIGINAL_OFFSET, PENDING_OFFSET, DUE, NEXT_DUE, CARRIED))
_PREFIX = b"tidemill-"
SCHEDULE_ID_BYTES_MAX = 256
_VALUE_BYTES_MAX = 256
# As in other answers: of the records that are wrong, the first hundred are named.
_ERRORS_NAMED_MAX = 100
# What is inspected within a step, in records without a schedule. A schedule that was not seen before costs much more.
_INSPECTED_A_STEP = 500
_SCHEDULE_COST = 10


class InvalidDelay(TidemillError):
    """Delay headers that ask for nothing sensible, with a sentence for the producer."""


class Limits(NamedTuple):
    """The limits of a topic: `tidemill.delays.max.ms` and `tidemill.delays.interval.min.ms`."""

    delay_ms_max: int
    interval_ms_min: int


class Delayed(NamedTuple):
    """A record that is hidden until it is due. `identity` is for those with a schedule id."""

    due_ms: int
    identity: bytes | None = None
    schedule: Schedule | None = None


class Cancel(NamedTuple):
    """A record that cancels what is pending: an identity, or a record by its offset."""

    identity: bytes | None
    offset: int | None = None


class Carried(NamedTuple):
    """A pending record that retention would have removed, appended again. Replaces the one at `pending_offset`."""

    pending_offset: int
    original_offset: int
    delayed: Delayed


class Copy(NamedTuple):
    """A visible copy: the record at `pending_offset` is delivered. `next_due_ms`: when its schedule fires next."""

    pending_offset: int
    original_offset: int
    due_ms: int
    next_due_ms: int | None


class Inspection(NamedTuple):
    """The appender's findings about a batch. `errors` are (index in the batch, sentence) of records to refuse."""

    has_hidden: bool
    needs_append_time: bool
    errors: Sequence[tuple[int, str]]


def may_hold_requests(body: bytes) -> bool:
    """Whether decompressed records may have delay headers. All that an ordinary batch costs."""
    return _PREFIX in body


def delay_records(batch: memoryview, header: BatchHeader) -> list[Record]:
    """The records of a batch for `PartitionDelays.replay`; none when it has no delay headers, or does not decode.

    Blocks while it decompresses: for recovery, fetched batches, and other work in threads or steps.
    """
    if header.is_control:
        return []
    try:
        return list(iterate_records(batch, header)) if may_hold_requests(records_of(batch, header)) else []
    except ProtocolError:
        # Decision 3: such batches are in logs. Every consumer refuses them, so nothing in them can be delivered.
        return []


def inspect(records: Iterable[Record], wall_ms: int, limits: Limits) -> Steps[Inspection]:
    """Check the records of a produced batch, which begins at offset 0, at the append clock."""
    has_hidden = needs_append_time = False
    errors: list[tuple[int, str]] = []
    cost = 0
    for index, record in enumerate(records):
        names = {header.key for header in record.headers}
        cost += _SCHEDULE_COST if SCHEDULE in names else 1
        if cost >= _INSPECTED_A_STEP:
            cost = 0
            yield None
        try:
            if record.offset != index:
                # Decision 3 lets wrong deltas in, but what is hidden is known by its offset, which no other may have.
                raise InvalidDelay(f"its offset delta is {record.offset}, not {index}")
            if names.isdisjoint(PRODUCER_HEADERS) and names.isdisjoint(BROKER_HEADERS):
                continue
            _refuse_headers_of_the_broker(names)
            request = _request_of(record.key, record.headers, wall_ms, is_in_log=False)
            if isinstance(request, Delayed):
                _check_limits(request, wall_ms, limits)
        except InvalidDelay as error:
            errors.append((index, str(error)))
            if len(errors) == _ERRORS_NAMED_MAX:
                break
            continue
        has_hidden = True
        needs_append_time = needs_append_time or not names.isdisjoint((DELAY, SCHEDULE))
    return Inspection(has_hidden, needs_append_time, errors)


def meaning_of(record: Record) -> Delayed | Cancel | Carried | Copy | None:
    """Returns the meaning of a record in the log; None for an ordinary one. Limits do not apply: it was accepted."""
    fields = {header.key: header.value for header in record.headers if header.key.startswith("tidemill-")}
    if fields.keys().isdisjoint(PRODUCER_HEADERS) and fields.keys().isdisjoint(BROKER_HEADERS):
        return None
    try:
        if ORIGINAL_OFFSET not in fields:
            return _request_of(record.key, record.headers, record.timestamp, is_in_log=True)
        original_offset, due_ms = _integer(fields, ORIGINAL_OFFSET), _integer(fields, DUE)
        pending_offset = _integer(fields, PENDING_OFFSET) if PENDING_OFFSET in fields else original_offset
        if CARRIED in fields:
            delayed = Delayed(due_ms, _identity_of(record.key, fields), _schedule_of(fields, is_in_log=True))
            return Carried(pending_offset, original_offset, delayed)
        next_due_ms = _integer(fields, NEXT_DUE) if NEXT_DUE in fields else None
        return Copy(pending_offset, original_offset, due_ms, next_due_ms)
    except InvalidDelay:
        return None


def is_hidden(meaning: Delayed | Cancel | Carried | Copy | None) -> bool:
    """Whether readers do not get the record that has this meaning."""
    return meaning is not None and not isinstance(meaning, Copy)


def plain_headers(headers: Sequence[Header]) -> list[Header]:
    """The headers of a record without those of its delay."""
    return [each for each in headers if each.key not in PRODUCER_HEADERS and each.key not in BROKER_HEADERS]


# -- the headers of producers ------------------------------------------------------------------------------------


def _request_of(
    key: bytes | None, headers: Sequence[Header], append_ms: int, *, is_in_log: bool
) -> Delayed | Cancel:
    fields: dict[str, bytes | None] = {}
    for name, value in headers:
        if name in PRODUCER_HEADERS:
            if name in fields:
                raise InvalidDelay(f"the header {name} is there twice")
            fields[name] = value
    times = [name for name in (*_TIMES, CANCEL) if name in fields]
    if len(times) > 1:
        raise InvalidDelay(f"a record may have one of the headers {' and '.join(times)}, not both")
    if TIME_ZONE in fields and SCHEDULE not in fields:
        raise InvalidDelay(f"{TIME_ZONE} belongs to {SCHEDULE}, which is missing")
    if not times:
        raise InvalidDelay(f"{SCHEDULE_ID} needs a time, a schedule or {CANCEL} beside it")
    identity = _identity_of(key, fields)
    if CANCEL in fields:
        return (
            Cancel(identity) if identity is not None else Cancel(None, _cancelled_offset(fields, is_in_log))
        )
    schedule = _schedule_of(fields, is_in_log)
    if schedule is None:
        return Delayed(_due_ms(fields, append_ms), identity)
    if identity is None:
        raise InvalidDelay(f"{SCHEDULE} needs {SCHEDULE_ID}, by which it can be cancelled")
    first_ms = schedule.next_after(append_ms)
    if first_ms is None:
        raise InvalidDelay(f"the schedule {_text(fields, SCHEDULE)!r} never fires")
    return Delayed(first_ms, identity, schedule)


def _due_ms(fields: dict[str, bytes | None], append_ms: int) -> int:
    if DELAY in fields:
        try:
            due_ms = append_ms + parse_duration(_text(fields, DELAY))
        except InvalidSchedule as error:
            raise InvalidDelay(f"{DELAY}: {error}") from error
    else:
        due_ms = _moment(_text(fields, DELIVER_AT))
    if not 0 <= due_ms <= TIME_MS_MAX:
        raise InvalidDelay("the time of delivery is not between the years 1970 and 9999")
    return due_ms


def _moment(text: str) -> int:
    if text.removeprefix("-").isdecimal() and text.isascii():
        return int(text) if len(text) <= 16 else TIME_MS_MAX + 1
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidDelay(
            f"{DELIVER_AT}: {text[:40]!r} is neither epoch milliseconds nor ISO 8601"
        ) from error
    if moment.tzinfo is None:
        raise InvalidDelay(f"{DELIVER_AT}: {text[:40]!r} has no offset from UTC; add Z or +02:00")
    return round(moment.timestamp() * 1000)


def _schedule_of(fields: dict[str, bytes | None], is_in_log: bool) -> Schedule | None:
    if SCHEDULE not in fields:
        return None
    expression = _text(fields, SCHEDULE)
    try:
        try:
            return parse_schedule(expression, _text(fields, TIME_ZONE) if TIME_ZONE in fields else "UTC")
        except UnknownTimeZone:
            if not is_in_log:
                raise
            # The leader that accepted it knew the zone. Here the record must be hidden all the same.
            return parse_schedule(expression, "UTC")
    except InvalidSchedule as error:
        raise InvalidDelay(f"{SCHEDULE}: {error}") from error


def _identity_of(key: bytes | None, fields: dict[str, bytes | None]) -> bytes | None:
    """Sixteen bytes for key and schedule id: keys may be large, and many are pending."""
    if SCHEDULE_ID not in fields:
        return None
    name = fields[SCHEDULE_ID]
    if not name or len(name) > SCHEDULE_ID_BYTES_MAX:
        raise InvalidDelay(f"{SCHEDULE_ID} has between 1 and {SCHEDULE_ID_BYTES_MAX} bytes")
    prefix = b"-" if key is None else b"%d:" % len(key)
    return blake2b(prefix + (key or b"") + name, digest_size=16).digest()


def _cancelled_offset(fields: dict[str, bytes | None], is_in_log: bool) -> int:
    if not fields[CANCEL]:
        raise InvalidDelay(f"{CANCEL} needs {SCHEDULE_ID}, or the offset of a pending record as its value")
    offset = _integer(fields, CANCEL)
    if offset > INT64_MAX and not is_in_log:
        raise InvalidDelay(f"{CANCEL}: {offset} is no offset")
    # Older logs may have larger ones. They cancel nothing, and are hidden all the same.
    return min(offset, INT64_MAX)


def _check_limits(request: Delayed, wall_ms: int, limits: Limits) -> None:
    if request.schedule is None:
        if request.due_ms - wall_ms > limits.delay_ms_max:
            raise InvalidDelay(
                f"the delay of {request.due_ms - wall_ms} ms is longer than tidemill.delays.max.ms={limits.delay_ms_max}"
            )
    elif request.schedule.interval_ms_min < limits.interval_ms_min:
        raise InvalidDelay(
            f"the schedule fires every {request.schedule.interval_ms_min} ms, more often than "
            f"tidemill.delays.interval.min.ms={limits.interval_ms_min} allows"
        )


def _refuse_headers_of_the_broker(names: set[str]) -> None:
    reserved = names & BROKER_HEADERS
    if reserved:
        raise InvalidDelay(f"the header {min(reserved)} is written by the broker; leave it out")


def _integer(fields: dict[str, bytes | None], name: str) -> int:
    text = _text(fields, name) if name in fields else ""
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise InvalidDelay(f"{name} must be a number that is not negative")
    return int(text)


def _text(fields: dict[str, bytes | None], name: str) -> str:
    value = fields[name]
    if value is None or len(value) > _VALUE_BYTES_MAX:
        raise InvalidDelay(f"{name} has a value of at most {_VALUE_BYTES_MAX} bytes")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidDelay(f"{name} is not UTF-8") from error
