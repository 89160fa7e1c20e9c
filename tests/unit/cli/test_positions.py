"""Every way to name a place in a log, and what is none."""

from __future__ import annotations

import time

import pytest

from tidemill.cli.failures import UsageError
from tidemill.cli.positions import (
    AtOffset,
    AtTime,
    Beginning,
    End,
    Position,
    parse_position,
    parse_time,
    time_text,
)

NOW_S = 1_800_000_000.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", Beginning()),
        ("earliest", Beginning()),
        ("END", End()),
        ("latest", End()),
        ("0", AtOffset(0)),
        ("99999999999", AtOffset(99_999_999_999)),
        ("100000000000", AtTime(100_000_000_000)),
        ("offset:1767225600000", AtOffset(1_767_225_600_000)),
        ("ms:5", AtTime(5)),
        ("1970-01-02T00:00:00Z", AtTime(86_400_000)),
        ("1970-01-02T01:00:00.250+01:00", AtTime(86_400_250)),
        ("90s", AtTime(1_799_999_910_000)),
        ("15m", AtTime(1_799_999_100_000)),
        ("2h", AtTime(1_799_992_800_000)),
        ("7d", AtTime(1_799_395_200_000)),
    ],
)
def test_positions_are_parsed(text: str, expected: Position) -> None:
    assert parse_position(text, lambda: NOW_S) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "-5", "12x", "offset:", "offset:x", "2026-13-01", "1.5"])
def test_invalid_position_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="not a position in a log"):
        parse_position(text)


def test_a_bad_time_says_what_a_time_is() -> None:
    with pytest.raises(UsageError, match="is not a time"):
        parse_time("soon")


def test_a_time_without_a_zone_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Etc/GMT-2")
    time.tzset()
    try:
        assert parse_time("1970-01-01T02:00") == 0
        assert time_text(0) == "1970-01-01T02:00:00.000+02:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_times_that_cannot_be_shown_are_shown_as_numbers() -> None:
    assert time_text(-1) == "-"
    assert time_text(1 << 62) == str(1 << 62)
