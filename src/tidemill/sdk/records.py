"""Records as users see them: what is read, what is to be written, and where it was written to."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemill.claims.streams import is_stream
from tidemill.client.delayed_retries import Origin
from tidemill.sdk.errors import InvalidSetting
from tidemill.types import TopicPartition

Text = str | bytes
Headers = Mapping[str, Text | None] | Sequence[tuple[str, Text | None]]
# Gets every value that is not None.
Serializer = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    # How often it has been handed out with this time, where `consume` has retries.
    attempt: int = 1
    # Of a retry.
    retried_from: Origin | None = None

    @property
    def origin(self) -> Origin:
        """The place and time of the first publication: of a retry, those of the record that failed."""
        return self.retried_from or Origin(self.topic, self.partition, self.offset, self.timestamp_ms)

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def as_stored(self) -> Record:
        """The record as it is in the log: another one where the payload is in an object store."""
        return self

    def chunks(self) -> Iterator[bytes]:
        """The value piece by piece: many pieces where the payload is in an object store."""
        if self.value is not None:
            yield self.value

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the value to a file, piece by piece, and return its size. The file is there when all of it is verified."""
        target = Path(path)
        partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}.partial")
        size = 0
        try:
            with partial.open("xb") as file:
                for chunk in self.chunks():
                    size += file.write(chunk)
            partial.replace(target)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return size

    def text(self) -> str:
        """The value as UTF-8."""
        return (self.value or b"").decode()

    def json(self) -> Any:
        """The value as JSON; None for a record without a value."""
        return None if self.value is None else json.loads(self.value)

    def header(self, name: str) -> bytes | None:
        """The last header of that name."""
        return next((content for each, content in reversed(self.headers) if each == name), None)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value that is bytes already: no serializer gets it."""

    data: bytes


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record to be published, where a value alone does not say enough."""

    value: Any
    key: Text | None = None
    headers: Headers | None = None
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delivery:
    """The place of an acknowledged record."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def to_json(value: Any) -> bytes:
    """A serializer: compact JSON in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def encoded(topic: str, value: Any, serializer: Serializer | None) -> bytes | None:
    """Returns the value as bytes. Nothing is guessed: a value that is neither bytes nor text needs a serializer."""
    if value is None:
        return None
    if isinstance(value, Encoded):
        return value.data
    if serializer is not None:
        return serializer(value)
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if is_stream(value):
        raise InvalidSetting(
            f"publish to {topic}: a {type(value).__name__} is read into an object store; "
            "give the client one with large_payloads=LargePayloads(...)"
        )
    raise InvalidSetting(
        f"publish to {topic}: a {type(value).__name__} is neither bytes nor str; "
        "give a serializer, such as serializer=tidemill.to_json"
    )


def header_pairs(headers: Headers | None) -> list[tuple[str, Text | None]] | None:
    """Raises ValueError for text that is not Unicode: given such a name, librdkafka's binding ends the process."""
    if not headers:
        return None
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    for name, content in pairs:
        for text in (name, content):
            if isinstance(text, str) and not text.isascii():
                text.encode()
    return pairs
