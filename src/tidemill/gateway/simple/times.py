"""The members that delay a record of the simple API: when it is to be delivered.

    {"value": "…", "delay": "15m"}                                 so long after the broker has taken it
    {"value": "…", "deliver_at": "2030-01-01T08:00:00Z"}           at this moment, or at these milliseconds since 1970
    {"value": "…", "key": "bob", "cron": "0 8 * * *", "time_zone": "Europe/Berlin", "schedule_id": "report"}

They become the headers that topics with `tidemill.delays.enable=true` understand. What makes no sense is refused with the
sentence that a broker has for it. The limits of the topic are the broker's to check.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tidemill.delays.requests import (
    DELAY,
    DELIVER_AT,
    SCHEDULE,
    SCHEDULE_ID,
    TIME_ZONE,
    Limits,
    inspect,
)
from tidemill.gateway.http.bodies import kind_of
from tidemill.gateway.http.formats import invalid, text
from tidemill.gateway.http.openapi import LONG, STRING, Schema
from tidemill.gateway.problems import Problem
from tidemill.protocol.records import Header, Record
from tidemill.protocol.steps import run_steps

_HEADERS = {
    "delay": DELAY,
    "deliver_at": DELIVER_AT,
    "cron": SCHEDULE,
    "time_zone": TIME_ZONE,
    "schedule_id": SCHEDULE_ID,
}
MEMBERS = frozenset(_HEADERS)
_UNLIMITED = Limits(delay_ms_max=2**63, interval_ms_min=0)

SCHEMAS: dict[str, Schema] = {
    "delay": {
        **STRING,
        "pattern": "^[0-9]{1,15}(ms|s|m|h|d)?$",
        "description": "`500ms`, `30s`, `15m`, `2h`, `1d`, or milliseconds.",
    },
    "deliver_at": {
        "anyOf": [{**STRING, "format": "date-time"}, {**LONG, "minimum": 0}],
        "description": "ISO 8601 with an offset, or milliseconds since 1970.",
    },
    "cron": {**STRING, "description": "Cron with five fields, `@daily`, `@every 10s`. Needs a schedule id."},
    "time_zone": {**STRING, "description": "Of the schedule; UTC without it."},
    "schedule_id": {
        **STRING,
        "minLength": 1,
        "maxLength": 256,
        "description": "With the key it names the message: a later record with both takes its place.",
    },
}


def headers_of(members: Mapping[str, Any], where: str) -> list[tuple[str, bytes]]:
    """The headers for these members; members of other names are left out."""
    return [
        (header, _text(members[name], f"{where}.{name}", name).encode())
        for name, header in _HEADERS.items()
        if name in members
    ]


def check(headers: list[tuple[str, bytes]], where: str, key: bytes | None) -> None:
    """`Problem` (400) when the times make no sense."""
    record = Record(0, 0, key, None, [Header(*each) for each in headers])
    inspection = run_steps(inspect([record], int(time.time() * 1000), _UNLIMITED))
    for _, sentence in inspection.errors:
        raise Problem(400, 40002, f"{where}: {sentence}")


def _text(value: Any, where: str, name: str) -> str:
    if name == "deliver_at" and not isinstance(value, str):
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid(f"{where} should be a string or an integer, not {kind_of(value)}")
        if value < 0:
            raise invalid(f"{where} should not be negative")
        return str(value)
    return text(value, where)
