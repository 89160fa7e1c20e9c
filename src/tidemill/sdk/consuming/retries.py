"""Retries: what becomes of a record that could not be worked on.

In an ordinary group the record is published to the group's retry topic, which delays it (docs/delays.md), with the number
of its next attempt in a header. After the last attempt it goes to the dead-letter topic instead, with the headers of
`tidemill.dead_letters`. Other groups of the source topic never see a retry, because the retry topic belongs to one group.

Key, value and headers stay those of the original (`client/delayed_retries.py`). `guarantees.py` decides when all this is
committed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import timedelta

from tidemill.client.delayed_retries import retried_of, retry_headers, shortened
from tidemill.dead_letters import failure_headers, is_of_failure, letter_headers
from tidemill.delays.cron import InvalidSchedule, parse_duration
from tidemill.sdk.errors import InvalidSetting
from tidemill.sdk.records import NewRecord, Record

Backoff = float | timedelta | str

RETRIES_MAX = 1_000
_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}", re.ASCII)


@dataclass(frozen=True)
class Waits:
    """The delays of retries: each twice as long as the one before, from the first to the longest."""

    first_ms: int
    longest_ms: int

    @classmethod
    def of(cls, backoff: Backoff) -> Waits:
        """Parses "1s..10m", a single duration such as "30s", or seconds."""
        if isinstance(backoff, str):
            first, _, longest = backoff.partition("..")
            try:
                waits = cls(parse_duration(first), parse_duration(longest or first))
            except InvalidSchedule as error:
                raise InvalidSetting(f"backoff is {backoff!r}: {error}") from None
        else:
            seconds = backoff.total_seconds() if isinstance(backoff, timedelta) else float(backoff)
            if not 0 <= seconds < float("inf"):
                raise InvalidSetting(f"backoff is {backoff!r}; it has to be a time from 0 on")
            waits = cls(round(seconds * 1000), round(seconds * 1000))
        if waits.longest_ms < waits.first_ms:
            raise InvalidSetting(f"backoff is {backoff!r}; the shorter time stands first")
        return waits

    def delay_ms(self, retry: int) -> int:
        """Returns the delay of the retry with this number, which begins with 1."""
        # 50 doublings of a millisecond are 35,000 years: no need to count on.
        return min(self.longest_ms, self.first_ms << min(retry - 1, 50))


@dataclass(frozen=True)
class Retrying:
    """The retries and the dead letter topic of a group, for records that fail."""

    group: str
    retries: int
    waits: Waits
    dead_letters: str
    retry_topic: str

    @classmethod
    def of(
        cls,
        group: str,
        topics: list[str],
        retries: int | None,
        backoff: Backoff,
        dead_letters: str | None,
        retry_topic: str | None,
    ) -> Retrying | None:
        """None when neither retries nor dead letters are asked for."""
        if retries is None and dead_letters is None:
            if retry_topic is not None:
                raise InvalidSetting("consume: retry_topic belongs to retries")
            return None
        count = retries or 0
        if not 0 <= count <= RETRIES_MAX:
            raise InvalidSetting(f"consume: retries is {count}; it has to be 0 to {RETRIES_MAX}")
        if dead_letters is None:
            raise InvalidSetting(
                "consume: retries need dead_letters, the topic for records whose retries are used up"
            )
        name = retry_topic or f"{group}-retry"
        if count and not _TOPIC_NAME.fullmatch(name):
            raise InvalidSetting(f"consume: {name!r} cannot name a topic; give another with retry_topic")
        for each in (dead_letters, name) if count else (dead_letters,):
            if each in topics:
                raise InvalidSetting(
                    f"consume: {each} is read by this group; retries would go round for ever"
                )
        if count and name == dead_letters:
            raise InvalidSetting("consume: dead_letters and the retry topic have to be two topics")
        return cls(group, count, Waits.of(backoff), dead_letters, name)

    @property
    def also_read(self) -> list[str]:
        """Topics to read beside those of the user."""
        return [self.retry_topic] if self.retries else []

    def after_failure(self, record: Record, message: str) -> tuple[str, NewRecord]:
        """The topic and the record that take the place of one that failed."""
        # A claim is passed on as a claim: its payload may be what is wrong with it.
        record = record.as_stored()
        if record.attempt <= self.retries:
            delay = str(self.waits.delay_ms(record.attempt))
            return self.retry_topic, retry_of(record, self.group, delay, message)
        return self.dead_letters, dead_letter_of(record, self.group, message)

    def restored(self, record: Record) -> Record:
        """A record of the retry topic as its handler sees it."""
        return restored(record) if record.topic == self.retry_topic and self.retries else record


def retry_of(record: Record, group: str, delay: str, message: str) -> NewRecord:
    """A record that comes again as the next attempt of this one, in a topic with delays."""
    headers = retry_headers(record.headers, record.origin, record.attempt + 1, group, delay, message)
    return NewRecord(record.value, record.key, headers)


def dead_letter_of(record: Record, group: str, message: str) -> NewRecord:
    """The record with the headers of its failure."""
    origin = record.origin
    failed = failure_headers(
        origin.topic, origin.partition, origin.offset, group, record.attempt, shortened(message).decode()
    )
    # What an earlier failure said, of a letter that was put back into its topic, gives way to this one.
    own = [header for header in record.headers if not is_of_failure(header[0])]
    return NewRecord(record.value, record.key, letter_headers(own, failed), timestamp_ms=origin.timestamp_ms)


def restored(record: Record) -> Record:
    """A retry with the headers of its original, and the number of its attempt. Others are as they were."""
    retried = retried_of(record.headers)
    if retried is None:
        return record
    return replace(record, headers=retried.headers, attempt=retried.attempt, retried_from=retried.origin)
