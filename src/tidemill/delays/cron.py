"""Recurring schedules: cron expressions in a time zone, and fixed intervals.

The fields are Vixie cron's: minute, hour, day of month, month, day of week, with lists, ranges, steps and English names.
A sixth field in front gives seconds. A day matches if either day field does, unless one of them starts with `*`; then
both must. `@hourly`, `@daily` (`@midnight`), `@weekly`, `@monthly` and `@yearly` (`@annually`) are names for such
expressions. `@every 10s` fires at fixed distances from the moment at which the broker appended it.

Summer time: a schedule that fires in every hour of the day follows elapsed time. It skips local times that do not exist,
and fires in both passes of an hour that happens twice. Every other schedule follows the clock on the wall. An occurrence
in the gap of spring fires once, right after the gap; one in the overlap of autumn fires once, in the first pass.

The work of one `next_after` is bounded: at most `_MONTHS_SEARCHED` months are looked at. No date pattern has a longer
gap than eight years (29 February around 2100), so an expression without an occurrence in that time never fires. Results
are remembered for a while.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from calendar import monthrange
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Protocol
from zoneinfo import ZoneInfo

from tidemill.errors import TidemillError

EXPRESSION_CHARS_MAX = 256
_MONTHS_SEARCHED = 12 * 9
_SECOND = timedelta(seconds=1)
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d{1,15})(ms|s|m|h|d)?", re.ASCII)
_TERM = re.compile(r"(\*|\w+)(?:-(\w+))?(?:/(\d{1,4}))?", re.ASCII)
# The last millisecond that has a date with four digits for the year.
TIME_MS_MAX = 253_402_300_799_999

_NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTH_NAMES = {
    name: index
    for index, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_DAY_NAMES = {name: index for index, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}


class InvalidSchedule(TidemillError):
    """An expression or a time zone that is not one, with a sentence for the producer."""


class UnknownTimeZone(InvalidSchedule):
    """A time zone that this machine's database does not have."""


class Schedule(Protocol):
    """The occurrences of a recurring message. `parse_schedule(expression, time_zone)` makes an equal one."""

    @property
    def expression(self) -> str: ...

    @property
    def time_zone(self) -> str: ...

    @property
    def interval_ms_min(self) -> int:
        """A lower bound of the time between two occurrences."""

    def next_after(self, wall_ms: int) -> int | None:
        """The first occurrence after a time; None when there is no further one."""

    def latest_until(self, due_ms: int, wall_ms: int) -> int:
        """The latest occurrence up to a time, where `due_ms` is an occurrence that is not later than it."""


class _Field(NamedTuple):
    name: str
    low: int
    high: int
    names: dict[str, int]


_FIELDS = (
    _Field("second", 0, 59, {}),
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, _MONTH_NAMES),
    # 7 is another name for Sunday.
    _Field("day of week", 0, 7, _DAY_NAMES),
)


@lru_cache(maxsize=1024)
def parse_schedule(expression: str, time_zone: str = "UTC") -> Schedule:
    """The schedule that an expression describes. Raises `InvalidSchedule`."""
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise InvalidSchedule(
            f"a schedule may have {EXPRESSION_CHARS_MAX} characters, this one has {len(expression)}"
        )
    zone = _zone_of(time_zone)
    if expression.startswith("@every "):
        interval_ms = parse_duration(expression.removeprefix("@every ").strip())
        if interval_ms <= 0:
            raise InvalidSchedule("the interval of @every must be positive")
        return Interval(interval_ms)
    if expression.startswith("@") and expression not in _NICKNAMES:
        raise InvalidSchedule(f"{expression!r} is not one of {', '.join(_NICKNAMES)}, @every <interval>")
    texts = _NICKNAMES.get(expression, expression).split()
    if len(texts) not in (5, 6):
        raise InvalidSchedule(f"a schedule has five fields, or six with seconds, this one has {len(texts)}")
    if len(texts) == 5:
        texts = ["0", *texts]
    values = [_values_of(text, field) for text, field in zip(texts, _FIELDS, strict=True)]
    days_of_week = frozenset(day % 7 for day in values[5])
    needs_both_days = texts[3].startswith("*") or texts[5].startswith("*")
    return Cron(
        expression,
        time_zone,
        tuple(values[0]),
        tuple(values[1]),
        tuple(values[2]),
        frozenset(values[3]),
        frozenset(values[4]),
        days_of_week,
        needs_both_days,
        zone,
    )


def parse_duration(text: str) -> int:
    """Milliseconds of `500ms`, `30s`, `15m`, `2h`, `1d`, or of a number of milliseconds. Raises `InvalidSchedule`."""
    matched = _DURATION.fullmatch(text)
    if matched is None:
        if text.startswith("-"):
            raise InvalidSchedule(f"{text[:40]!r} is negative")
        raise InvalidSchedule(f"{text[:40]!r} is no duration; write 500ms, 30s, 15m, 2h, 1d or milliseconds")
    return int(matched[1]) * _UNITS_MS[matched[2] or "ms"]


def _zone_of(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # without the time zone database
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise UnknownTimeZone(f"there is no time zone {name[:64]!r}") from error


def _values_of(text: str, field: _Field) -> list[int]:
    found: set[int] = set()
    for term in text.split(","):
        matched = _TERM.fullmatch(term)
        if matched is None:
            raise InvalidSchedule(f"{term!r} is no {field.name}")
        first, last, step = matched.groups()
        if first == "*":
            if last is not None:
                raise InvalidSchedule(f"{term!r} is no {field.name}")
            # `*` as a day of the week is Sunday to Saturday; 7 would count Sunday twice.
            low, high = field.low, min(field.high, 6) if field.names is _DAY_NAMES else field.high
        else:
            low = _number(first, field)
            high = low if last is None else _number(last, field)
            if step is not None and last is None:
                raise InvalidSchedule(f"{term!r}: a step needs a range before it, or *")
        if low > high:
            raise InvalidSchedule(f"{term!r}: a {field.name} cannot range from {low} to {high}")
        stride = 1 if step is None else int(step)
        if stride < 1:
            raise InvalidSchedule(f"{term!r}: a step must be positive")
        found.update(range(low, high + 1, stride))
    return sorted(found)


def _number(text: str, field: _Field) -> int:
    value = field.names.get(text.lower())
    if value is None:
        # `int` would also read digits of other scripts and underscores.
        if not (text.isascii() and text.isdigit() and len(text) <= 4):
            raise InvalidSchedule(f"{text[:40]!r} is no {field.name}")
        value = int(text)
    if not field.low <= value <= field.high:
        raise InvalidSchedule(f"the {field.name} {value} is not between {field.low} and {field.high}")
    return value


class Interval(NamedTuple):
    """`@every`: occurrences at a fixed distance."""

    interval_ms: int

    @property
    def expression(self) -> str:
        return f"@every {self.interval_ms}ms"

    @property
    def time_zone(self) -> str:
        return "UTC"

    @property
    def interval_ms_min(self) -> int:
        return self.interval_ms

    def next_after(self, wall_ms: int) -> int | None:
        following = wall_ms + self.interval_ms
        return following if following <= TIME_MS_MAX else None

    def latest_until(self, due_ms: int, wall_ms: int) -> int:
        return wall_ms - (wall_ms - due_ms) % self.interval_ms


class Cron(NamedTuple):
    """A cron expression in a time zone. The tuples are sorted."""

    expression: str
    time_zone: str
    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days_of_month: frozenset[int]
    months: frozenset[int]
    days_of_week: frozenset[int]
    needs_both_days: bool
    zone: tzinfo

    @property
    def interval_ms_min(self) -> int:
        gaps = [later - earlier for earlier, later in pairwise(self.seconds)]
        following = {(minute + 1) % 60 for minute in self.minutes}
        if not following.isdisjoint(self.minutes):
            gaps.append(60 + self.seconds[0] - self.seconds[-1])
        return 1000 * min(gaps, default=60)

    @property
    def _follows_elapsed_time(self) -> bool:
        return len(self.hours) == 24

    def next_after(self, wall_ms: int) -> int | None:
        return _next_after(self, wall_ms // 1000)

    def latest_until(self, due_ms: int, wall_ms: int) -> int:
        following_ms = self.next_after(due_ms)
        if following_ms is None or following_ms > wall_ms:
            return due_ms
        return _latest_until(self, following_ms // 1000, wall_ms // 1000)

    def search(self, instant: int) -> int | None:
        """The first occurrence after an instant, both in seconds."""
        try:
            found = self._elapsed(instant) if self._follows_elapsed_time else self._on_wall(instant)
        except (OverflowError, ValueError):
            return None  # the calendar ends with the year 9999
        return None if found is None or found * 1000 > TIME_MS_MAX else found

    # -- local time and instants, both in seconds ----------------------------------------------------------------

    def _on_wall(self, instant: int) -> int | None:
        local = _local(instant, self.zone)
        if local.fold:
            # All local times up to the end of the overlap have fired in the first pass.
            transition = _transition(*_passes(local, self.zone), self.zone)
            start = _naive(transition - 1, self.zone) + _SECOND
        else:
            start = local.replace(tzinfo=None) + _SECOND
        for candidate in self._local_matches(start):
            first, second = _passes(candidate, self.zone)
            if first > second:
                return _transition(second, first, self.zone)  # in a gap: PEP 495 puts fold 1 before fold 0
            return first
        return None

    def _elapsed(self, instant: int) -> int | None:
        local = _local(instant, self.zone)
        first, second = _passes(local, self.zone)
        start = local.replace(tzinfo=None) + _SECOND
        if first < second and not local.fold:
            transition = _transition(first, second, self.zone)
            again = _naive(transition, self.zone)
            for candidate in self._local_matches(start):
                if candidate <= _naive(transition - 1, self.zone):
                    return _passes(candidate, self.zone)[0]
                break
            for candidate in self._local_matches(again):
                return _passes(candidate, self.zone)[1]
            return None
        while True:
            following = next(self._local_matches(start), None)
            if following is None:
                return None
            first, second = _passes(following, self.zone)
            if first <= second:
                return second if first <= instant else first
            start = _naive(_transition(second, first, self.zone), self.zone)

    def _local_matches(self, start: datetime) -> Iterator[datetime]:
        """The matching local times from `start` on, within the months that are searched."""
        year, month, first_day = start.year, start.month, start.day
        for _ in range(_MONTHS_SEARCHED):
            if month in self.months:
                for day in self._days(year, month):
                    if day >= first_day:
                        yield from self._times(datetime(year, month, day), start)
            month, first_day = month + 1, 1
            if month > 12:
                year, month = year + 1, 1

    def _days(self, year: int, month: int) -> Iterator[int]:
        """The matching days of a month."""
        first_weekday, day_count = monthrange(year, month)
        if self.needs_both_days and len(self.days_of_month) < day_count:
            candidates: Iterable[int] = sorted(day for day in self.days_of_month if day <= day_count)
        else:
            candidates = range(1, day_count + 1)
        for day in candidates:
            by_month = day in self.days_of_month
            # Sunday is 0 here, and 6 in the calendar.
            by_week = (first_weekday + day) % 7 in self.days_of_week
            if (by_month and by_week) if self.needs_both_days else (by_month or by_week):
                yield day

    def _times(self, midnight: datetime, start: datetime) -> Iterator[datetime]:
        earliest = (start.hour, start.minute, start.second) if start > midnight else (0, 0, 0)
        for hour in self.hours[bisect_left(self.hours, earliest[0]) :]:
            is_first_hour = hour == earliest[0]
            minutes = (
                self.minutes[bisect_left(self.minutes, earliest[1]) :] if is_first_hour else self.minutes
            )
            for minute in minutes:
                is_first_minute = is_first_hour and minute == earliest[1]
                seconds = (
                    self.seconds[bisect_left(self.seconds, earliest[2]) :]
                    if is_first_minute
                    else self.seconds
                )
                for second in seconds:
                    yield midnight.replace(hour=hour, minute=minute, second=second)


# Many messages may have the same schedule and the same moment: a batch has one append time.
@lru_cache(maxsize=4096)
def _next_after(cron: Cron, instant: int) -> int | None:
    """The first occurrence after an instant in seconds, in milliseconds."""
    found = cron.search(instant)
    return None if found is None else found * 1000


@lru_cache(maxsize=1024)
def _latest_until(cron: Cron, due: int, instant: int) -> int:
    """The latest occurrence up to an instant, in milliseconds, where `due` is one. Both are in seconds.

    Found by bisection, about thirty searches, however many occurrences there were.
    """

    def is_last(since: int) -> bool:
        following = cron.search(since)
        return following is None or following > instant

    # The first moment after which nothing fires any more is the latest occurrence itself.
    return 1000 * (due + bisect_left(range(instant - due + 1), True, key=lambda late: is_last(due + late)))


def _local(instant: int, zone: tzinfo) -> datetime:
    return datetime.fromtimestamp(instant, zone)


def _naive(instant: int, zone: tzinfo) -> datetime:
    return _local(instant, zone).replace(tzinfo=None)


def _passes(local: datetime, zone: tzinfo) -> tuple[int, int]:
    """The instants of a local time with fold 0 and 1: equal, or rising in an overlap, or falling in a gap."""
    utc = local.replace(tzinfo=UTC, fold=0).timestamp()
    first, second = (local.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    assert first is not None
    assert second is not None
    return int(utc - first.total_seconds()), int(utc - second.total_seconds())


def _transition(before: int, after: int, zone: tzinfo) -> int:
    """The first instant with the offset from UTC that holds at `after`, where another one holds at `before`."""
    offset = _local(after, zone).utcoffset()
    instants = range(before, after + 1)
    return instants[
        bisect_left(instants, True, key=lambda instant: _local(instant, zone).utcoffset() == offset)
    ]
