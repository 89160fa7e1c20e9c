"""Byte strings that the encoding of a matching record cannot lack.

A header is encoded as the length of its name, the name, the length of its value and the value. So a record with
`region = 'eu'` contains `region`, 4 (the zigzag varint of 2) and `eu`, one after the other. A search for that in the
decompressed bytes of a batch, which is a loop in C, finds every record that can match.

A varint may be longer than it needs to be: 2 may be written as 0x84 0x00. No known client does it, but every decoder
accepts it, and so a needle for that form is part of each group.

Negations require nothing. A conjunction requires what each of its parts requires. A disjunction requires one string
of the best groups of all its parts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from tidemill.filters.terms import (
    And,
    Condition,
    Exists,
    Field,
    Filter,
    HasTag,
    OneOf,
    Or,
    StartsWith,
    without_not,
)

# With more, a search costs as much as decoding. Needles with the same beginning are found by one search.
NEEDLES_A_GROUP_MAX = 64
SEARCHES_A_GROUP_MAX = 16
# More groups rarely exclude more, and all of them are searched at once.
_GROUPS_MAX = 3
# A shorter string is found in nearly every record.
_NEEDLE_BYTES_MIN = 2
# The beginning of a long string is as selective as the whole.
NEEDLE_BYTES_MAX = 64


class _Group(NamedTuple):
    # Whether the needles contain a value, which is rarer than a name.
    has_value: bool
    needle_bytes_min: int
    needles: tuple[bytes, ...]


def needles_of(parsed: Filter) -> tuple[tuple[bytes, ...], ...]:
    """Groups of strings. A matching record contains a string of each group. The most selective group is the first."""
    groups = _groups(without_not(parsed.condition))
    return tuple(group.needles for group in sorted(groups, reverse=True)[:_GROUPS_MAX])


def searches_for(needles: Sequence[bytes]) -> tuple[re.Pattern[bytes], ...]:
    """Expressions that find any of these strings.

    Python searches for an expression that begins with a fixed string as quickly as for a string, and for one that
    begins with alternatives ten times as slowly. So there is one expression for each beginning.
    """
    searches = []
    for _, same in groupby(sorted(needles), key=lambda needle: needle[:_NEEDLE_BYTES_MIN]):
        alternatives = list(same)
        begin = _common_beginning(alternatives)
        rest = b"|".join(re.escape(needle[len(begin) :]) for needle in alternatives)
        searches.append(re.compile(re.escape(begin) + b"(?:" + rest + b")"))
    return tuple(searches)


def _common_beginning(ordered: Sequence[bytes]) -> bytes:
    """The longest string that all of these sorted strings begin with."""
    first, last = ordered[0], ordered[-1]
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]


def _groups(condition: Condition) -> set[_Group]:
    """Returns the groups that `condition` requires; none when nothing is known."""
    match condition:
        case And(parts):
            return set().union(*map(_groups, parts))
        case Or(parts):
            groups = [max(_groups(part), default=None) for part in parts]
            known = [group for group in groups if group is not None]
            if len(known) < len(groups):
                return set()
            return _group(
                *(needle for group in known for needle in group.needles),
                has_value=all(group.has_value for group in known),
            )
        case OneOf(field, values):
            return _group(*(needle for value in values for needle in _with_length(field, value)))
        case StartsWith(Field(None), prefix):
            return _group(prefix)
        case StartsWith(field, prefix):
            return _group(prefix) or _groups(Exists(field))
        case Exists(Field(bytes(name))):
            return _group(*_with_length(Field(None), name), has_value=False)
        case HasTag(tag):
            return _group(tag) or _groups(Exists(Field(b"tags")))
        case _:
            return set()


def _group(*needles: bytes, has_value: bool = True) -> set[_Group]:
    distinct = tuple(sorted({needle[:NEEDLE_BYTES_MAX] for needle in needles}))
    shortest = min(map(len, distinct))
    searches = len({needle[:_NEEDLE_BYTES_MIN] for needle in distinct})
    if shortest < _NEEDLE_BYTES_MIN or len(distinct) > NEEDLES_A_GROUP_MAX or searches > SEARCHES_A_GROUP_MAX:
        return set()
    return {_Group(has_value, shortest, distinct)}


def _with_length(field: Field, value: bytes) -> tuple[bytes, bytes]:
    """The value after its length, as it is usually encoded, and what precedes or follows a longer length."""
    length = _zigzag_varint(len(value))
    if field.header is None:
        return length + value, b"\0" + value
    continued = bytes([*length[:-1], length[-1] | 0x80])
    return field.header + length + value, field.header + continued


def _zigzag_varint(value: int) -> bytes:
    value <<= 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
