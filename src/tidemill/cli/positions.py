"""Positions in a log as users write them: an end, an offset, or a time.

beginning, earliest       the oldest record
end, latest               after the newest record
42, offset:42             an offset
1767225600000, ms:0       milliseconds since 1970; a bare number from 100,000,000,000 on (March 1973) is a time
2026-01-01T12:00Z         an ISO date or time; without a zone it is local time
90s, 15m, 2h, 7d          an age
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from tidemill.cli.failures import UsageError

HELP = "beginning, end, an offset, an ISO time, milliseconds since 1970, or an age such as 15m"

_FIRST_MS = 100_000_000_000
_AGE = re.compile(r"(\d+)(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Beginning:
    pass


@dataclass(frozen=True)
class End:
    pass


@dataclass(frozen=True)
class AtOffset:
    offset: int


@dataclass(frozen=True)
class AtTime:
    timestamp_ms: int


Position: TypeAlias = Beginning | End | AtOffset | AtTime


def parse_age_ms(text: str) -> int:
    """An age such as 36h, for the `type` of an argument."""
    age = _AGE.fullmatch(text)
    if age is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not an age such as 90s, 15m, 36h or 7d")
    return int(age[1]) * _SECONDS[age[2]] * 1000


def parse_position(text: str, now_s: Callable[[], float] = time.time) -> Position:
    match text.lower():
        case "beginning" | "earliest" | "start":
            return Beginning()
        case "end" | "latest":
            return End()
    kind, colon, number = text.partition(":")
    if colon and number.isdecimal() and kind in ("offset", "ms"):
        return AtOffset(int(number)) if kind == "offset" else AtTime(int(number))
    if text.isdecimal() and int(text) < _FIRST_MS:
        return AtOffset(int(text))
    try:
        return AtTime(parse_time(text, now_s))
    except UsageError:
        raise UsageError(f"{text!r} is not a position in a log: it should be {HELP}") from None


def parse_time(text: str, now_s: Callable[[], float] = time.time) -> int:
    """Parse a time into milliseconds since 1970."""
    if text.isdecimal():
        return int(text)
    if age := _AGE.fullmatch(text):
        return int((now_s() - int(age[1]) * _SECONDS[age[2]]) * 1000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text!r} is not a time: it should be like 2026-01-01T12:00Z, milliseconds since 1970, or an age such as 15m"
        ) from None


def time_text(timestamp_ms: int) -> str:
    """Format a timestamp in local time; `-` for none."""
    if timestamp_ms < 0:
        return "-"
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000).astimezone().isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
