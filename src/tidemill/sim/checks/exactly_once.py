"""The checker of a transformed topic: it holds every message of the input once, and nothing else.

The driver of the transformers reads three logs to their ends: the input, and the output as a `read_committed` and as a
`read_uncommitted` consumer sees it. An output message has the id of its input message. Messages that only the second
consumer sees were aborted.

Each rule is a function from these logs to violations, named after its guarantee; `check` runs them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tidemill.sim.checks.checker import Found, Violation

_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Logs:
    """The three logs, each with its messages in the order of their offsets, partition after partition."""

    input: Sequence[Found]
    committed: Sequence[Found]
    uncommitted: Sequence[Found]

    def aborted(self) -> list[Found]:
        """The messages that only a `read_uncommitted` consumer sees."""
        committed = {(found.partition, found.offset) for found in self.committed}
        return [found for found in self.uncommitted if (found.partition, found.offset) not in committed]


def check(logs: Logs) -> list[Violation]:
    """Returns every violation; none when every input was transformed exactly once."""
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
    """Every output message has an input, even an aborted one."""
    known = {found.message for found in logs.input}
    yield from _first_of(
        [
            f"{found.message}, at {_place(found)}, is in no input"
            for found in [*logs.committed, *logs.uncommitted]
            if found.message not in known
        ]
    )


def order_is_kept(logs: Logs) -> Iterator[str]:
    """The messages of one producer are in one partition of the committed output, in order."""
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
    """A `read_committed` consumer sees a part of the log, at the same offsets."""
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


def _place(found: Found) -> str:
    return f"{found.partition} offset {found.offset}"


def _named(found: Found) -> str:
    return f"{found.message} at {_place(found)}"


def _first_of(texts: Sequence[str]) -> Iterator[str]:
    yield from texts[:_NAMED_MAX]
    if len(texts) > _NAMED_MAX:
        yield f"and {len(texts) - _NAMED_MAX} more"
