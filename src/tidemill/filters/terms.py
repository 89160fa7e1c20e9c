"""A filter as a tree of conditions, and its canonical text.

A condition looks at the record's key or at one header. `And`, `Or` and `Not` combine conditions. The trees that
`parse` makes are canonical: nested `And` and `Or` are flat, their parts are distinct and sorted, and a double negation
is gone. So filters that differ only in spelling or order are equal, and `str(filter)` is a text that parses to the same
filter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

# The header whose value is a set: items with commas between them.
TAGS = b"tags"
KEYWORDS = frozenset({"and", "or", "not", "in", "starts", "with", "exists"})

_BARE_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class Field(NamedTuple):
    """The operand of a condition: a header, or the record's key when `header` is None."""

    header: bytes | None

    def __str__(self) -> str:
        if self.header is None:
            return "key"
        name = self.header.decode()
        if _BARE_NAME.fullmatch(name) and name.lower() not in KEYWORDS and name.lower() != "key":
            return name
        return '"' + name.replace('"', '""') + '"'


KEY = Field(None)


@dataclass(frozen=True, slots=True)
class OneOf:
    """A value of the field is one of `values`."""

    field: Field
    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class StartsWith:
    """A value of the field begins with `prefix`."""

    field: Field
    prefix: bytes


@dataclass(frozen=True, slots=True)
class Exists:
    """The record has the header, or a key."""

    field: Field


@dataclass(frozen=True, slots=True)
class HasTag:
    """A `tags` header lists `tag`."""

    tag: bytes


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Condition, ...]


Predicate: TypeAlias = OneOf | StartsWith | Exists | HasTag
Condition: TypeAlias = Predicate | Not | And | Or


@dataclass(frozen=True, slots=True)
class Filter:
    """A parsed filter. Equal filters have the same canonical text."""

    condition: Condition

    def __str__(self) -> str:
        return _text(self.condition)


def one_of(field: Field, values: Iterable[bytes]) -> OneOf:
    return OneOf(field, tuple(sorted(set(values))))


def negated(condition: Condition) -> Condition:
    return condition.part if isinstance(condition, Not) else Not(condition)


def joined(kind: type[And] | type[Or], parts: Iterable[Condition]) -> Condition:
    """The canonical conjunction or disjunction of canonical parts."""
    flat: set[Condition] = set()
    for part in parts:
        flat.update(part.parts if isinstance(part, kind) else (part,))
    ordered = sorted(flat, key=_text)
    return ordered[0] if len(ordered) == 1 else kind(tuple(ordered))


def without_not(condition: Condition, *, negate: bool = False) -> Condition:
    """The same condition (or its negation) with `Not` around tests only, by De Morgan's laws.

    In this form a part that becomes true never makes the whole false, which bounds and indexes rely on.
    """
    if isinstance(condition, Not):
        return without_not(condition.part, negate=not negate)
    if isinstance(condition, And | Or):
        kind = type(condition) if not negate else Or if isinstance(condition, And) else And
        return kind(tuple(without_not(part, negate=negate) for part in condition.parts))
    return Not(condition) if negate else condition


def term_count(condition: Condition) -> int:
    """The number of terms: a measure of what it costs to evaluate the condition."""
    match condition:
        case And(parts) | Or(parts):
            return sum(map(term_count, parts))
        case Not(part):
            return term_count(part)
        case OneOf(_, values):
            return len(values)
        case _:
            return 1


def _text(condition: Condition) -> str:
    match condition:
        case Or(parts):
            return " or ".join(map(_text, parts))
        case And(parts):
            return " and ".join(f"({_text(part)})" if isinstance(part, Or) else _text(part) for part in parts)
        case Not(And() | Or() as part):
            return f"not ({_text(part)})"
        case Not(part):
            return _test_text(part, is_negated=True)
        case _:
            return _test_text(condition, is_negated=False)


def _test_text(test: Condition, *, is_negated: bool) -> str:
    word_not = "not " if is_negated else ""
    match test:
        case OneOf(field, (value,)):
            return f"{field} {'!=' if is_negated else '='} {_quoted(value)}"
        case OneOf(field, values):
            return f"{field} {word_not}in ({', '.join(map(_quoted, values))})"
        case StartsWith(field, prefix):
            return f"{field} {word_not}starts with {_quoted(prefix)}"
        case Exists(field):
            return f"{field} {word_not}exists"
        case HasTag(tag):
            return f"{_quoted(tag)} {word_not}in {TAGS.decode()}"
    raise AssertionError(f"{test} is no test")


def _quoted(value: bytes) -> str:
    return "'" + value.decode().replace("'", "''") + "'"
