"""Reads and writes the headers of dead letters, and decides what becomes of each.

An application that gives up on a record writes it to a dead-letter topic with the reason in headers. `CONVENTIONS` has those
of Spring for Apache Kafka, Kafka Connect, Kafka Streams and share groups (KIP-1191); the last is also what the SDK and the
broker write, with `failure_headers`. The first whose headers are there counts. Numbers are text or big-endian, as writers
differ.

A letter carries the headers of its record, without those that brokers write on delayed records (`letter_headers`): a topic
with delays takes them from no producer. A replayed letter is a new record. It has nothing of the failure, of a delay that
is over, or of the attempts before (`tidemill.retry.*`), also where the letter has it.

`decide` is what happens to one letter:

    publish        it goes to its topic: without the headers that are left out, with `REPUBLISHED` counted up
    left           the user's `fix` returned None: it stays in the dead-letter topic, and is not looked at again
    exhausted      it has been published as often as allowed and came back each time: it stays, too
    failed         no one says where it belongs, or `fix` raised; a run that publishes stops there
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tidemill.delays.requests import BROKER_HEADERS

_OURS = "__dlq.errors."
REPUBLISHED = "tidemill.republished"
# Of delayed retries: which attempt of which record it is, and for which group.
RETRY_PREFIX = "tidemill.retry."
PUBLISH, LEFT, EXHAUSTED, FAILED = "publish", "left", "exhausted", "failed"
FIX_FUNCTION = "fix"
_MESSAGE_CHARS_MAX = 200


class Header(NamedTuple):
    key: str
    value: bytes | None


@dataclass(frozen=True)
class Convention:
    """Names of headers after one of `prefixes`; the first that is there counts."""

    name: str
    prefixes: Sequence[str]
    topic: Sequence[str]
    partition: Sequence[str]
    offset: Sequence[str]
    timestamp: Sequence[str]
    exception: Sequence[str]
    message: Sequence[str]
    group: Sequence[str] = ()
    attempts: Sequence[str] = ()
    also: Sequence[str] = ()
    """Headers of the convention that are outside of its prefixes."""


CONVENTIONS = (
    Convention(
        "Share group",
        [_OURS],
        ["topic"],
        ["partition"],
        ["offset"],
        [],
        [],
        ["message"],
        ["group"],
        ["delivery.count"],
    ),
    Convention(
        "Spring",
        # The second pair is that of its retry topics.
        ["kafka_dlt-", "kafka_original-", "kafka_exception-"],
        ["original-topic", "topic"],
        ["original-partition", "partition"],
        ["original-offset", "offset"],
        ["original-timestamp", "timestamp"],
        ["exception-cause-fqcn", "exception-fqcn", "cause-fqcn", "fqcn"],
        ["exception-message", "message"],
        ["original-consumer-group"],
        [],
        ["retry_topic-attempts", "retry_topic-original-timestamp", "retry_topic-backoff-timestamp"],
    ),
    Convention(
        "Kafka Connect",
        ["__connect.errors."],
        ["topic"],
        ["partition"],
        ["offset"],
        [],
        ["exception.class.name"],
        ["exception.message"],
    ),
    Convention(
        "Kafka Streams",
        ["__streams.errors."],
        ["topic"],
        ["partition"],
        ["offset"],
        [],
        ["exception"],
        ["message"],
    ),
)


@dataclass(frozen=True)
class Failure:
    """The facts that headers state about a failure; None where they state none."""

    convention: str | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    timestamp_ms: int | None = None
    exception: str | None = None
    message: str | None = None
    group: str | None = None
    attempts: int | None = None
    """The number of deliveries before it was given up."""

    @property
    def reason(self) -> str:
        """The text by which letters are grouped: the exception, since messages tend to name the record."""
        return self.exception or self.message or "unknown"


@dataclass(frozen=True)
class DeadLetter:
    """A record as `fix` gets it, and as it is published when `fix` returns it; `replace` makes a changed one."""

    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    """Without those of the failure."""
    topic: str | None
    """The topic to publish it to: --to-topic, or the topic that it came from."""
    timestamp_ms: int
    partition: int | None = None
    """The partition to publish it to; None leaves that to the key."""
    failure: Failure = Failure()
    dead_letter_topic: str = ""
    dead_letter_partition: int = -1
    dead_letter_offset: int = -1
    attempts: int = 0
    """The number of times it has been published again before."""

    def replace(
        self,
        *,
        key: bytes | str | types.EllipsisType | None = ...,
        value: bytes | str | types.EllipsisType | None = ...,
        headers: Iterable[tuple[str, bytes | None]] | types.EllipsisType = ...,
        topic: str | types.EllipsisType = ...,
        partition: int | types.EllipsisType | None = ...,
        timestamp_ms: int | types.EllipsisType = ...,
    ) -> DeadLetter:
        """A copy with these changed; text becomes UTF-8."""
        changed = {
            "key": _encoded(key),
            "value": _encoded(value),
            "headers": headers if headers is ... else tuple(Header(*each) for each in headers),
            "topic": topic,
            "partition": partition,
            "timestamp_ms": timestamp_ms,
        }
        return dataclasses.replace(self, **{name: each for name, each in changed.items() if each is not ...})  # type: ignore[arg-type]

    @property
    def place(self) -> str:
        return f"{self.dead_letter_topic}-{self.dead_letter_partition} offset {self.dead_letter_offset}"


class Decision(NamedTuple):
    outcome: str
    letter: DeadLetter
    """As it is published, or as it was found."""
    why: str | None = None


Fix = Callable[[DeadLetter], DeadLetter | None]


def failure_of(headers: Sequence[Header]) -> Failure:
    values = {header.key: header.value for header in headers}
    for each in CONVENTIONS:
        if any(key.startswith(tuple(each.prefixes)) for key in values):

            def found(names: Sequence[str], convention: Convention = each) -> bytes | None:
                keys = [prefix + name for name in names for prefix in convention.prefixes]
                return next((values[key] for key in keys if values.get(key)), None)

            return Failure(
                each.name,
                _text(found(each.topic)),
                number(found(each.partition)),
                number(found(each.offset)),
                number(found(each.timestamp)),
                _text(found(each.exception)),
                _text(found(each.message)),
                _text(found(each.group)),
                number(found(each.attempts)),
            )
    return Failure()


def failure_headers(
    topic: str, partition: int, offset: int, group: str, delivery_count: int, message: str
) -> list[tuple[str, bytes]]:
    """Returns the headers for a record that a group gives up on, beside its own headers."""
    fields = {
        "topic": topic,
        "partition": str(partition),
        "offset": str(offset),
        "group": group,
        "delivery.count": str(delivery_count),
        "message": message,
    }
    return [(_OURS + name, text.encode("utf-8", "replace")) for name, text in fields.items()]


def letter_headers(
    headers: Iterable[tuple[str, bytes | None]], failure: Iterable[tuple[str, bytes | None]]
) -> list[tuple[str, bytes | None]]:
    """The headers of a letter: those of its record, as far as they are carried, and those of the failure."""
    return [*(each for each in headers if each[0] not in BROKER_HEADERS), *failure]


def is_of_failure(key: str) -> bool:
    return any(key.startswith(tuple(each.prefixes)) or key in each.also for each in CONVENTIONS)


def unknown_headers(headers: Iterable[Header]) -> list[str]:
    return sorted({header.key for header in headers if not is_of_failure(header.key)} - {REPUBLISHED})


def read(
    topic: str,
    partition: int,
    offset: int,
    timestamp_ms: int,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[Header],
    to_topic: str | None = None,
) -> DeadLetter:
    failure = failure_of(headers)
    counted = next((number(header.value) for header in reversed(headers) if header.key == REPUBLISHED), None)
    return DeadLetter(
        key,
        value,
        tuple(header for header in headers if not is_of_failure(header.key) and header.key != REPUBLISHED),
        to_topic or failure.topic,
        timestamp_ms if failure.timestamp_ms is None else failure.timestamp_ms,
        None,
        failure,
        topic,
        partition,
        offset,
        counted or 0,
    )


def decide(letter: DeadLetter, fix: Fix | None, attempts_max: int) -> Decision:
    if letter.attempts >= attempts_max:
        return Decision(EXHAUSTED, letter, f"published again {letter.attempts} times and came back")
    fixed: object = letter
    if fix is not None:
        try:
            fixed = fix(letter)
        except Exception as error:
            return Decision(FAILED, letter, f"{FIX_FUNCTION}() raised {type(error).__name__}: {error}")
    if fixed is None:
        return Decision(LEFT, letter, f"{FIX_FUNCTION}() returned None")
    if not isinstance(fixed, DeadLetter):
        return Decision(
            FAILED, letter, f"{FIX_FUNCTION}() returned {type(fixed).__name__}, not the record or None"
        )
    if not fixed.topic:
        why = f"nothing says where it came from; give --to-topic, or let {FIX_FUNCTION}() name a topic or return None"
        return Decision(FAILED, letter, why)
    if fixed.topic == letter.dead_letter_topic:
        return Decision(FAILED, letter, f"it would go back into {fixed.topic}; give another with --to-topic")
    counted = Header(REPUBLISHED, str(letter.attempts + 1).encode())
    kept = [each for each in fixed.headers if not _is_left_out(each.key)]
    return Decision(PUBLISH, dataclasses.replace(fixed, headers=(*kept, counted)))


def _is_left_out(key: str) -> bool:
    return key in BROKER_HEADERS or key.startswith(RETRY_PREFIX)


def number(value: bytes | None) -> int | None:
    """Text or big-endian; digits that could be either are text, as they would be absurdly large otherwise."""
    if not value:
        return None
    if value.isdigit() or (value[:1] == b"-" and value[1:].isdigit()):
        return int(value)
    return int.from_bytes(value, signed=True) if len(value) in (4, 8) else None


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", "replace")[:_MESSAGE_CHARS_MAX]


def _encoded(value: bytes | str | types.EllipsisType | None) -> bytes | types.EllipsisType | None:
    return value.encode() if isinstance(value, str) else value
