"""Compiles a filter into a function that decides for one record, and into bytes that a match cannot lack.

`Matcher.keeps(key, headers)` takes the headers as (name, value) pairs of bytes. A caller may leave out headers that
`Matcher.header_names` does not name, so that it need not decode them. The function is a composition of closures over
sets: one test costs a tenth of a microsecond or two.

`Matcher.searches` lets a reader skip records, and whole batches, without decoding them: every record that matches
contains a hit of each group (`needles.py`). A filter without searches needs every record decoded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from tidemill.filters.needles import needles_of, searches_for
from tidemill.filters.terms import (
    TAGS,
    And,
    Condition,
    Exists,
    Field,
    Filter,
    HasTag,
    Not,
    OneOf,
    Or,
    StartsWith,
    term_count,
    without_not,
)

Headers: TypeAlias = Sequence[tuple[bytes, bytes | None]]
Keeps: TypeAlias = Callable[[bytes | None, Headers], bool]


class Matcher(NamedTuple):
    """A compiled filter."""

    keeps: Keeps
    # The headers that `keeps` looks at. Without any, headers need not be decoded at all.
    header_names: frozenset[bytes]
    # What `keeps` costs, in terms of the filter.
    term_count: int
    # For each group of needles the expressions that find them. The most selective group is the first.
    searches: tuple[tuple[re.Pattern[bytes], ...], ...]


def compile_filter(parsed: Filter) -> Matcher:
    condition = without_not(parsed.condition)
    searches = tuple(map(searches_for, needles_of(parsed)))
    header_names = frozenset(_header_names(condition))
    return Matcher(_compiled(condition), header_names, term_count(condition), searches)


def tags_of(value: bytes | None) -> list[bytes]:
    """The items of the value of a `tags` header."""
    if value is None:
        return []
    return [item for each in value.split(b",") if (item := each.strip())]


def _header_names(condition: Condition) -> set[bytes]:
    match condition:
        case And(parts) | Or(parts):
            return set().union(*map(_header_names, parts))
        case Not(part):
            return _header_names(part)
        case HasTag():
            return {TAGS}
        case OneOf(Field(name)) | StartsWith(Field(name)) | Exists(Field(name)):
            return set() if name is None else {name}


def _compiled(condition: Condition) -> Keeps:
    match condition:
        case And(parts):
            return _all([_compiled(part) for part in _cheapest_first(parts)])
        case Or(parts):
            return _any([_compiled(part) for part in _cheapest_first(parts)])
        case Not(part):
            keeps = _compiled(part)
            return lambda key, headers: not keeps(key, headers)
        case OneOf(Field(None), values):
            return _key_is_one_of(frozenset(values))
        case OneOf(Field(name), values):
            # One call in C compares all headers with all values.
            disjoint = frozenset((name, value) for value in values).isdisjoint
            return lambda _key, headers: not disjoint(headers)
        case StartsWith(Field(None), prefix):
            return lambda key, _headers: key is not None and key.startswith(prefix)
        case StartsWith(Field(name), prefix):
            return _header_starts_with(name, prefix)
        case Exists(Field(None)):
            return lambda key, _headers: key is not None
        case Exists(Field(name)):
            return _header_exists(name)
        case HasTag(tag):
            return _has_tag(tag)


def _cheapest_first(parts: Sequence[Condition]) -> list[Condition]:
    """Sorts conditions: those decided by the key or by one set come before those that loop over headers."""
    return sorted(parts, key=_cost)


def _cost(condition: Condition) -> int:
    match condition:
        case And(parts) | Or(parts):
            return 10 + sum(map(_cost, parts))
        case Not(part):
            return _cost(part)
        case OneOf(Field(None)) | StartsWith(Field(None)) | Exists(Field(None)):
            return 0
        case OneOf():
            return 1
        case _:
            return 2


def _all(parts: Sequence[Keeps]) -> Keeps:
    first, second, *rest = parts
    if not rest:
        return lambda key, headers: first(key, headers) and second(key, headers)

    def keeps(key: bytes | None, headers: Headers) -> bool:
        for part in parts:  # noqa: SIM110  (a generator costs more than the loop)
            if not part(key, headers):
                return False
        return True

    return keeps


def _any(parts: Sequence[Keeps]) -> Keeps:
    first, second, *rest = parts
    if not rest:
        return lambda key, headers: first(key, headers) or second(key, headers)

    def keeps(key: bytes | None, headers: Headers) -> bool:
        for part in parts:  # noqa: SIM110
            if part(key, headers):
                return True
        return False

    return keeps


def _key_is_one_of(values: frozenset[bytes]) -> Keeps:
    return lambda key, _headers: key in values


def _header_starts_with(wanted: bytes | None, prefix: bytes) -> Keeps:
    def keeps(_key: bytes | None, headers: Headers) -> bool:
        for name, value in headers:  # noqa: SIM110
            if name == wanted and value is not None and value.startswith(prefix):
                return True
        return False

    return keeps


def _header_exists(wanted: bytes | None) -> Keeps:
    def keeps(_key: bytes | None, headers: Headers) -> bool:
        for name, _value in headers:  # noqa: SIM110
            if name == wanted:
                return True
        return False

    return keeps


def _has_tag(tag: bytes) -> Keeps:
    def keeps(_key: bytes | None, headers: Headers) -> bool:
        for name, value in headers:  # noqa: SIM110
            # Most values lack the tag's bytes and need not be split.
            if name == TAGS and value is not None and tag in value and tag in tags_of(value):
                return True
        return False

    return keeps
