"""Schedules: fields, days, summer time in 2026, missed occurrences, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from tidemill.delays.cron import Cron, InvalidSchedule, parse_duration, parse_schedule


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp() * 1000)


def fires(expression: str, start: str, count: int, zone: str = "UTC") -> list[str]:
    schedule = parse_schedule(expression, zone)
    instant_ms, found = ms(start), []
    for _ in range(count):
        following = schedule.next_after(instant_ms)
        assert following is not None
        assert following > instant_ms
        instant_ms = following
        found.append(datetime.fromtimestamp(instant_ms / 1000, ZoneInfo(zone)).isoformat())
    return found


def test_five_fields_fire_at_the_minute() -> None:
    assert fires("15 10 * * *", "2026-01-01T10:15:00+00:00", 1) == ["2026-01-02T10:15:00+00:00"]
    assert fires("15 10 * * *", "2026-01-01T10:14:59+00:00", 1) == ["2026-01-01T10:15:00+00:00"]


def test_lists_ranges_steps_and_names_select_their_values() -> None:
    assert fires("0 9-17/4,20 * jan MON-fri", "2026-01-02T00:00:00+00:00", 5) == [
        "2026-01-02T09:00:00+00:00",
        "2026-01-02T13:00:00+00:00",
        "2026-01-02T17:00:00+00:00",
        "2026-01-02T20:00:00+00:00",
        "2026-01-05T09:00:00+00:00",
    ]


def test_sixth_field_in_front_gives_seconds() -> None:
    assert fires("*/30 0 * * * *", "2026-01-01T00:00:00+00:00", 2) == [
        "2026-01-01T00:00:30+00:00",
        "2026-01-01T01:00:00+00:00",
    ]


def test_both_days_given_means_either_of_them() -> None:
    # 2026-01-02 is a Friday.
    assert fires("0 0 5 * fri", "2026-01-01T00:00:00+00:00", 3) == [
        "2026-01-02T00:00:00+00:00",
        "2026-01-05T00:00:00+00:00",
        "2026-01-09T00:00:00+00:00",
    ]


def test_day_field_that_starts_with_a_star_restricts_the_other() -> None:
    assert fires("0 0 */2 * fri", "2026-01-01T00:00:00+00:00", 2) == [
        "2026-01-09T00:00:00+00:00",
        "2026-01-23T00:00:00+00:00",
    ]


def test_seven_and_zero_are_sunday() -> None:
    sundays = fires("0 0 * * 7", "2026-01-01T00:00:00+00:00", 3)
    assert sundays == fires("0 0 * * 0", "2026-01-01T00:00:00+00:00", 3)
    assert sundays[0] == "2026-01-04T00:00:00+00:00"


@pytest.mark.parametrize(
    ("nickname", "first"),
    [
        ("@hourly", "2026-05-05T06:00:00+00:00"),
        ("@daily", "2026-05-06T00:00:00+00:00"),
        ("@midnight", "2026-05-06T00:00:00+00:00"),
        ("@weekly", "2026-05-10T00:00:00+00:00"),
        ("@monthly", "2026-06-01T00:00:00+00:00"),
        ("@yearly", "2027-01-01T00:00:00+00:00"),
        ("@annually", "2027-01-01T00:00:00+00:00"),
        ("@every 90s", "2026-05-05T05:31:30+00:00"),
    ],
)
def test_nicknames_stand_for_schedules(nickname: str, first: str) -> None:
    assert fires(nickname, "2026-05-05T05:30:00+00:00", 1) == [first]


# -- summer time -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("zone", "start", "around"),
    [
        (
            "Europe/Berlin",
            "2026-03-28T00:00:00+00:00",
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
        ),
        (
            "America/New_York",
            "2026-03-07T00:00:00-05:00",
            ["2026-03-07T02:30:00-05:00", "2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"],
        ),
    ],
)
def test_failure_36_occurrence_in_the_spring_gap_fires_once_after_it(
    zone: str, start: str, around: list[str]
) -> None:
    assert fires("30 2 * * *", start, 3, zone) == around
    # Several occurrences in the gap are one.
    assert fires("0,30 2 * * *", around[0], 1, zone) == [around[1]]


@pytest.mark.parametrize(
    ("zone", "expression", "start", "around"),
    [
        (
            "Europe/Berlin",
            "30 2 * * *",
            "2026-10-24T12:00:00+00:00",
            ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
        ),
        (
            "America/New_York",
            "30 1 * * *",
            "2026-10-31T12:00:00+00:00",
            ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"],
        ),
    ],
)
def test_failure_36_occurrence_in_the_autumn_overlap_fires_once(
    zone: str, expression: str, start: str, around: list[str]
) -> None:
    assert fires(expression, start, 2, zone) == around
    # Asked in the second pass, the answer is the next day as well.
    again = datetime.fromisoformat(around[0]) + timedelta(minutes=40)
    assert fires(expression, again.isoformat(), 1, zone) == [around[1]]


def test_failure_36_schedule_of_every_hour_follows_elapsed_time() -> None:
    assert fires("*/30 * * * *", "2026-10-25T00:00:00+00:00", 5, "Europe/Berlin") == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:00:00+01:00",
        "2026-10-25T03:30:00+01:00",
    ]
    assert fires("30 * * * *", "2026-03-29T00:00:00+00:00", 2, "Europe/Berlin") == [
        "2026-03-29T01:30:00+01:00",
        "2026-03-29T03:30:00+02:00",
    ]


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
)
@pytest.mark.parametrize(
    "expression", ["*/20 * * * *", "*/20 1-3 * * *", "15 2 * * *", "0 0 * * *", "45 1,2 * * sun"]
)
def test_year_of_a_schedule_equals_a_walk_over_all_its_minutes(zone: str, expression: str) -> None:
    """The dumb twin looks at every minute around the two changes of the year."""
    schedule = parse_schedule(expression, zone)
    assert isinstance(schedule, Cron)
    for start in ("2026-03-07", "2026-03-28", "2026-04-04", "2026-10-03", "2026-10-24", "2026-10-31"):
        first = int(datetime.fromisoformat(start + "T00:00:00+00:00").timestamp())
        expected = _walk(schedule, first, first + 3 * 86400)
        found, instant_ms = [], first * 1000
        while (following := schedule.next_after(instant_ms)) is not None and following <= (
            first + 3 * 86400
        ) * 1000:
            found.append(following // 1000)
            instant_ms = following
        assert found == expected


def _walk(schedule: Cron, start: int, end: int) -> list[int]:
    zone = ZoneInfo(schedule.time_zone)
    everywhere = len(schedule.hours) == 24
    found = []
    # The highest local time that the clock has shown, from a day before on.
    shown = datetime.fromtimestamp(start - 86400, zone).replace(tzinfo=None)
    for instant in range(start - 86400 + 60, end + 1, 60):
        local = datetime.fromtimestamp(instant, zone).replace(tzinfo=None)
        if everywhere:
            new = [local]
        else:
            # All local minutes that this minute makes history: several after a gap, none in a second pass.
            new = [
                shown + timedelta(minutes=step)
                for step in range(1, int((local - shown) / timedelta(minutes=1)) + 1)
            ]
        shown = max(shown, local)
        if any(_matches(schedule, each) for each in new) and instant > start:
            found.append(instant)
    return found


def _matches(schedule: Cron, local: datetime) -> bool:
    by_month = local.day in schedule.days_of_month
    by_week = local.isoweekday() % 7 in schedule.days_of_week
    is_day = (by_month and by_week) if schedule.needs_both_days else (by_month or by_week)
    return (
        is_day
        and local.month in schedule.months
        and local.hour in schedule.hours
        and local.minute in schedule.minutes
    )


# -- missed occurrences, limits, bad input -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "latest"),
    [
        ("* * * 1 *", "2026-01-31T23:59:00+00:00"),
        ("*/5 * * * * *", "2026-12-01T00:00:00+00:00"),
        ("0 6 * * *", "2026-11-30T06:00:00+00:00"),
        ("@every 7d", "2026-11-27T00:00:00+00:00"),
    ],
)
def test_latest_of_many_missed_occurrences_is_found(expression: str, latest: str) -> None:
    schedule = parse_schedule(expression)
    first_ms = schedule.next_after(ms("2026-01-02T00:00:00+00:00"))
    assert first_ms is not None
    assert schedule.latest_until(first_ms, ms("2026-12-01T00:00:00+00:00")) == ms(latest)
    assert schedule.latest_until(first_ms, first_ms) == first_ms


def test_leap_day_fires_after_eight_years_and_a_day_that_never_comes_does_not() -> None:
    assert fires("0 0 29 2 *", "2096-03-01T00:00:00+00:00", 1) == ["2104-02-29T00:00:00+00:00"]
    assert parse_schedule("0 0 31 2 *").next_after(0) is None
    assert parse_schedule("0 0 30 2 *").next_after(ms("2026-01-01T00:00:00+00:00")) is None


def test_schedule_ends_with_the_calendar() -> None:
    last = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    assert parse_schedule("* * * * *").next_after(int(last.timestamp() * 1000)) is None
    assert parse_schedule("@every 1s").next_after(int(last.timestamp() * 1000)) is None


@pytest.mark.parametrize(
    ("expression", "interval_ms"),
    [
        ("* * * * * *", 1000),
        ("0 * * * * *", 60_000),
        ("* * * * *", 60_000),
        ("0,59 * * * * *", 1000),
        ("0,50 30 * * * *", 50_000),
        ("@every 250ms", 250),
    ],
)
def test_smallest_interval_of_a_schedule(expression: str, interval_ms: int) -> None:
    assert parse_schedule(expression).interval_ms_min == interval_ms


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * * 13 *",
        "* * * * 8",
        "* * * * xyz",
        "5/15 * * * *",
        "*/0 * * * *",
        "30-10 * * * *",
        "*-5 * * * *",
        "1,,2 * * * *",
        "-1 * * * *",
        "١ * * * *",
        "1_0 * * * *",
        "@reboot",
        "@every",
        "@every 0s",
        "@every -5s",
        "@every soon",
        "0 " * 200,
        "* * * * *" + " " * 300,
    ],
)
def test_expression_that_is_none_is_refused(expression: str) -> None:
    with pytest.raises(InvalidSchedule):
        parse_schedule(expression)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../../etc/passwd", "/etc/passwd", "Europe", "a\0b"])
def test_time_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match="time zone"):
        parse_schedule("* * * * *", zone)


@pytest.mark.parametrize(
    ("text", "duration_ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("15m", 900_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("1500", 1500),
        ("0", 0),
    ],
)
def test_durations(text: str, duration_ms: int) -> None:
    assert parse_duration(text) == duration_ms


@pytest.mark.parametrize("text", ["", "s", "1w", "1.5h", "-1s", "1e3", "10 s", "٣s", "9" * 16])
def test_duration_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidSchedule):
        parse_duration(text)


def test_equal_schedules_are_searched_once_for_one_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    search = Cron.search

    def counted(self: Cron, instant: int) -> int | None:
        searched.append(instant)
        return search(self, instant)

    monkeypatch.setattr(Cron, "search", counted)
    start_ms = ms("2031-05-05T00:00:00+00:00")
    found = {
        parse_schedule("0 0 29 2 *", "Europe/Berlin").next_after(start_ms + number) for number in range(500)
    }
    assert found == {ms("2032-02-29T00:00:00+01:00")}
    assert searched == [start_ms // 1000]
    hourly = parse_schedule("7 * * * *", "Europe/Berlin")
    due_ms = hourly.next_after(start_ms)
    assert due_ms is not None
    searched.clear()
    for late_ms in range(500):
        assert hourly.latest_until(due_ms, due_ms + 90 * 60_000 + late_ms) == due_ms + 60 * 60_000
    assert len(searched) < 20, "the latest of those that were missed, too"


def test_rare_days_are_found_across_years() -> None:
    assert fires("0 0 29 2 *", "2096-03-01T00:00:00+00:00", 1) == ["2104-02-29T00:00:00+00:00"]
    assert fires("0 0 29 2 */7", "2026-01-01T00:00:00+00:00", 1) == ["2032-02-29T00:00:00+00:00"]
    assert fires("0 0 31 * 1", "2026-01-01T00:00:00+00:00", 2) == [
        "2026-01-05T00:00:00+00:00",
        "2026-01-12T00:00:00+00:00",
    ]
