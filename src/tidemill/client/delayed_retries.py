"""Delayed retries: records that come again as the next attempt of another record, at a time of their own.

A retry is a delayed record (docs/delays.md) with the key, the value and the headers of the record that failed. Headers
say which attempt it is, of which record, and for which group. Delay headers that the original has for reasons of its own
would act on the retry, so they are carried under another name and given back.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.dead_letters import RETRY_PREFIX
from tidemill.delays.requests import BROKER_HEADERS, DELAY, PRODUCER_HEADERS

Headers = Sequence[tuple[str, bytes | None]]

# The group that the retry is for.
RETRY_GROUP = f"{RETRY_PREFIX}group"
_ATTEMPT, _MESSAGE = f"{RETRY_PREFIX}attempt", f"{RETRY_PREFIX}message"
_TOPIC, _PARTITION = f"{RETRY_PREFIX}topic", f"{RETRY_PREFIX}partition"
_OFFSET, _TIMESTAMP = f"{RETRY_PREFIX}offset", f"{RETRY_PREFIX}timestamp"
_KEPT = f"{RETRY_PREFIX}kept."
_MESSAGE_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class Origin:
    """The place and time at which a record was first published."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


class Retried(NamedTuple):
    """The meaning of a retry's headers."""

    attempt: int
    origin: Origin
    # Those of the original.
    headers: tuple[tuple[str, bytes | None], ...]


def retry_headers(
    headers: Headers, origin: Origin, attempt: int, group: str, delay: str, message: str
) -> list[tuple[str, bytes | None]]:
    """The headers of a retry: of a record with these headers, as this attempt, after `delay` (`30s`, or milliseconds)."""
    return [
        *(
            (_KEPT + name if name in PRODUCER_HEADERS else name, value)
            for name, value in own_headers(headers)
        ),
        (_ATTEMPT, str(attempt).encode()),
        (RETRY_GROUP, group.encode()),
        (_TOPIC, origin.topic.encode()),
        (_PARTITION, str(origin.partition).encode()),
        (_OFFSET, str(origin.offset).encode()),
        (_TIMESTAMP, str(origin.timestamp_ms).encode()),
        (_MESSAGE, shortened(message)),
        (DELAY, delay.encode()),
    ]


def retried_of(headers: Iterable[tuple[str, bytes | None]]) -> Retried | None:
    """Parses the headers of a retry; None for a record that is none."""
    given = list(headers)
    fields = {name: value or b"" for name, value in given if name.startswith(RETRY_PREFIX)}
    if not fields:
        return None
    try:
        origin = Origin(
            fields[_TOPIC].decode(), int(fields[_PARTITION]), int(fields[_OFFSET]), int(fields[_TIMESTAMP])
        )
        attempt = int(fields[_ATTEMPT])
    except (KeyError, ValueError):
        # Published by another program: a record like any other.
        return None
    restored = tuple(
        (name.removeprefix(_KEPT), value)
        for name, value in own_headers(given)
        if name.startswith(_KEPT) or not name.startswith(RETRY_PREFIX)
    )
    return Retried(attempt, origin, restored)


def own_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Without what the broker wrote on a delivered copy: it refuses that from producers."""
    return [header for header in headers if header[0] not in BROKER_HEADERS]


def shortened(message: str) -> bytes:
    """A reason, as long as a header may have it."""
    return message[:_MESSAGE_CHARS_MAX].encode("utf-8", "replace")
