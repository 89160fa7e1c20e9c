"""Judges a topic that was made from another by transactions: every message of the input once, and nothing else.

Whoever drives the transformers reads three logs to their ends: the input, and the output as `read_committed` and as
`read_uncommitted` readers see it. An output message carries the id of the input message that it was made from. What only
the second reader of the output sees was aborted, and is none of the first one's business.

Each rule is a function from these logs to violations, named after what it promises; `check` runs them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidemill.sim.checker import Found, MessageId, Violation

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Logs:
    """Each with its messages in the order of their offsets, partition after partition."""

    input: Sequence[Found]
    committed: Sequence[Found]
    uncommitted: Sequence[Found]

    def aborted(self) -> list[Found]:
        """What only a `read_uncommitted` reader sees."""
        committed = {(found.partition, found.offset) for found in self.committed}
        return [found for found in self.uncommitted if (found.partition, found.offset) not in committed]


def check(logs: Logs) -> list[Violation]:
    """Everything that is wrong; empty when every input was transformed exactly once."""
    return [Violation(rule.__name__, text) for rule in RULES for text in rule(logs)]


def every_input_is_transformed(logs: Logs) -> Iterator[str]:
    transformed = {found.message for found in logs.committed}
    yield from _first_of(
        [
            f"{found.message}, at {_place(found)}, is not in the committed output"
            for found in logs.input
            if found.message not in transformed
        ]
    )


def nothing_is_transformed_twice(logs: Logs) -> Iterator[str]:
    counts = Counter(found.message for found in logs.committed)
    yield from _first_of(
        [
            f"{message} is in the committed output {count} times"
            for message, count in counts.items()
            if count > 1
        ]
    )


def nothing_is_invented(logs: Logs) -> Iterator[str]:
    """Not even in what was aborted."""
    known = {found.message for found in logs.input}
    yield from _first_of(
        [
            f"{found.message}, at {_place(found)}, is in no input"
            for found in [*logs.committed, *logs.uncommitted]
            if found.message not in known
        ]
    )


def order_is_kept(logs: Logs) -> Iterator[str]:
    """The messages of one producer lie in one partition of the committed output, in the order of their numbers."""
    last: dict[str, Found] = {}
    violations = []
    for found in logs.committed:
        before = last.get(found.message.producer)
        if before is not None and (
            found.partition != before.partition or found.message.number < before.message.number
        ):
            violations.append(f"{found.message} at {_place(found)} comes after {_named(before)}")
        last[found.message.producer] = found
    yield from _first_of(violations)


def committed_is_part_of_the_log(logs: Logs) -> Iterator[str]:
    """What a `read_committed` reader sees, everybody sees, at the same offset."""
    stored = {(found.partition, found.offset): found.message for found in logs.uncommitted}
    yield from _first_of(
        [
            f"{_named(found)} is not what read_uncommitted shows there"
            for found in logs.committed
            if stored.get((found.partition, found.offset)) != found.message
        ]
    )


RULES: tuple[Callable[[Logs], Iterator[str]], ...] = (
    every_input_is_transformed,
    nothing_is_transformed_twice,
    nothing_is_invented,
    order_is_kept,
    committed_is_part_of_the_log,
)


def message_of(value: bytes) -> MessageId:
    """`producer/number`."""
    producer, _, number = value.decode().rpartition("/")
    return MessageId(producer, int(number))


def _place(found: Found) -> str:
    return f"{found.partition} offset {found.offset}"


def _named(found: Found) -> str:
    return f"{found.message} at {_place(found)}"


def _first_of(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_NAMED_MAX]
    if len(texts) > _NAMED_MAX:
        yield f"and {len(texts) - _NAMED_MAX} more"
