"""Delays of published records: the headers that a topic with `tidemill.delays.enable=true` understands."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from tidemill.sdk.errors import InvalidSetting
from tidemill.sdk.records import Headers, Text

Delay = float | timedelta | str


def delay_headers(
    headers: Headers | None,
    delay: Delay | None,
    deliver_at: datetime | None,
    cron: str | None,
    time_zone: str | None,
    schedule_id: str | None,
) -> Headers | None:
    """The headers of a record with those that delay it. `InvalidSetting` for times that cannot be meant."""
    if sum(each is not None for each in (delay, deliver_at, cron)) > 1:
        raise InvalidSetting("publish: one of delay, deliver_at and cron, not several")
    added: list[tuple[str, Text | None]] = []
    if delay is not None:
        added.append(("tidemill-delay", delay_text(delay)))
    if deliver_at is not None:
        if deliver_at.tzinfo is None:
            raise InvalidSetting("publish: deliver_at needs a time zone, such as datetime.now(UTC)")
        added.append(("tidemill-deliver-at", str(round(deliver_at.timestamp() * 1000))))
    if cron is not None:
        if schedule_id is None:
            raise InvalidSetting("publish: cron needs a schedule_id, by which it can be cancelled")
        added.append(("tidemill-schedule", cron))
        if time_zone is not None:
            added.append(("tidemill-timezone", time_zone))
    elif time_zone is not None:
        raise InvalidSetting("publish: time_zone belongs to cron")
    if schedule_id is not None:
        if not added:
            raise InvalidSetting("publish: schedule_id belongs to delay, deliver_at or cron")
        added.append(("tidemill-schedule-id", schedule_id))
    if not added:
        return headers
    given = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [*given, *added]


def cancel_headers(schedule_id: str) -> Headers:
    return [("tidemill-cancel", ""), ("tidemill-schedule-id", schedule_id)]


def delay_text(delay: Delay) -> str:
    """As the header has it."""
    if isinstance(delay, str):
        return delay
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not 0 <= seconds < float("inf"):
        raise InvalidSetting(f"publish: a delay of {seconds} s is not possible")
    return str(round(seconds * 1000))
