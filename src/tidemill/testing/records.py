"""The records of a topic in a form that tests compare, and the conversion of test values to bytes and settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Text = bytes | str
Headers = Mapping[str, Text | None] | Sequence[tuple[str, Text | None]]


class JobCounts(NamedTuple):
    """The jobs of a queue, in records."""

    # Neither done nor given up.
    left: int
    # Of these: in the hands of workers, and delivered before and waiting for another delivery.
    in_flight: int
    waiting: int
    # Of both: how many were delivered once, twice, and so on.
    by_deliveries: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record in a log."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


def encoded(text: Text | None) -> bytes | None:
    return text.encode() if isinstance(text, str) else text


def encoded_headers(headers: Headers | None) -> tuple[tuple[str, bytes | None], ...]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return tuple((name, encoded(content)) for name, content in pairs)


def properties_text(settings: Mapping[str, object]) -> dict[str, str]:
    """Format settings as a properties file: `True` becomes `true`."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in settings.items()
    }
