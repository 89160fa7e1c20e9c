"""Dictionaries of the keys and headers of a run of records, and which of their entries a filter keeps.

The tag index stores the distinct keys of a run, the distinct sets of headers, and for each record the numbers of its own.
So a filter is evaluated once for each entry, by the function that also decides about single records, and the result is
exact for negations, prefixes and tags too.

- A field with many distinct values (trace ids, unique keys) is not listed. A filter that looks at it learns nothing from
  the index, and the run is read. Other fields stay listed.
- A dictionary is sorted, so that equal sets of entries are equal bytes. `Probe` remembers its verdicts by them.
- Before a dictionary is decoded, its bytes are searched for what a match requires, as `filters/needles.py` does it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from tidemill.errors import ProtocolError
from tidemill.filters.matching import compile_filter
from tidemill.filters.terms import (
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
    without_not,
)
from tidemill.protocol.record_walk import headers_at
from tidemill.protocol.steps import Steps

# The number of an entry has one byte.
ENTRIES_MAX = 256
# A larger dictionary costs more than it spares: a run has 64 KiB.
DICTIONARY_BYTES_MAX = 4096
# Dictionaries of neighbours are joined up to this size. Larger ones tell more where they are apart.
_JOINED_ENTRIES_MAX = 64
_JOINED_BYTES_MAX = 1024
_UNCHANGED = bytes(range(256))
# Names of headers in one run. With more, none is listed.
NAMES_MAX = 64

_LENGTH = struct.Struct(">i")
_COUNT = struct.Struct(">H")
_NULL = _LENGTH.pack(-1)
# Verdicts and decoded dictionaries that a probe remembers.
_REMEMBERED_MAX = 256
# Evaluations between two steps, and the number of terms that cost as much as one.
_EVALUATIONS_A_STEP = 400
_TERMS_AN_EVALUATION = 8

Pairs: TypeAlias = Sequence[tuple[bytes, bytes | None]]


class Encoded(NamedTuple):
    """A dictionary as bytes, and the number of the entry of each key, or of each section of headers."""

    content: bytes
    numbers: Mapping[bytes | None, int]


def _packed(value: bytes | None) -> bytes:
    return _NULL if value is None else _LENGTH.pack(len(value)) + value


def encode_keys(keys: set[bytes | None]) -> Encoded | None:
    """The dictionary of these keys. None when they are too many, or too large."""
    if len(keys) > ENTRIES_MAX or sum(4 + len(key or b"") for key in keys) > DICTIONARY_BYTES_MAX:
        return None
    ordered = sorted(keys, key=lambda key: (key is not None, key or b""))
    content = _COUNT.pack(len(ordered)) + b"".join(map(_packed, ordered))
    return Encoded(content, {key: number for number, key in enumerate(ordered)})


def decode_keys(content: bytes) -> list[bytes | None]:
    return _Reader(content).texts()


def encode_headers(sections: set[bytes]) -> Encoded | None:
    """The dictionary of sections of headers, as they are encoded in records. None when little can be listed.

    Raises `ProtocolError` for headers that do not decode.
    """
    decoded = {section: _headers_of(section) for section in sections}
    values: dict[bytes, set[bytes | None]] = {}
    for pairs in decoded.values():
        for name, value in pairs:
            values.setdefault(name, set()).add(value)
    if len(values) > NAMES_MAX:
        return None
    # The names with the fewest and smallest values are listed, as long as their combinations are not too many.
    size_of = {name: sum(len(value or b"") for value in of_name) for name, of_name in values.items()}
    by_values = sorted(values, key=lambda name: (len(values[name]), size_of[name], name))
    listed = [
        name
        for name in by_values
        if len(values[name]) <= ENTRIES_MAX and size_of[name] <= DICTIONARY_BYTES_MAX
    ]
    while True:
        encoded = _encode_listed(decoded, frozenset(listed), by_values)
        if encoded is not None or not listed:
            return encoded
        listed.pop()


def _headers_of(section: bytes) -> Pairs:
    try:
        return headers_at(section, 0, len(section))
    except IndexError as error:
        raise ProtocolError("the headers of a record are cut off") from error


def _encode_listed(
    decoded: Mapping[bytes, Pairs], listed: frozenset[bytes], names: Iterable[bytes]
) -> Encoded | None:
    unlisted = sorted(name for name in names if name not in listed)
    packed_of: dict[bytes | None, bytes] = {}
    for section, pairs in decoded.items():
        kept = [pair for pair in pairs if pair[0] in listed]
        packed_of[section] = _COUNT.pack(len(kept)) + b"".join(
            _packed(name) + _packed(value) for name, value in kept
        )
    entries = sorted(set(packed_of.values()))
    head = _COUNT.pack(len(unlisted)) + b"".join(map(_packed, unlisted))
    content = head + _COUNT.pack(len(entries)) + b"".join(entries)
    if len(entries) > ENTRIES_MAX or len(content) > DICTIONARY_BYTES_MAX:
        return None
    number_of = {entry: number for number, entry in enumerate(entries)}
    return Encoded(content, {section: number_of[packed] for section, packed in packed_of.items()})


class Joined(NamedTuple):
    """A dictionary with the entries of two others, and for each of these the new numbers of its entries."""

    content: bytes | None
    first_numbers: bytes
    second_numbers: bytes


def join_keys(first: bytes | None, second: bytes | None) -> Joined | None:
    """The dictionary of the keys of two runs. None when they have to stay apart."""
    if first is None or second is None or first == second:
        return _same(first, second)
    keys, others = decode_keys(first), decode_keys(second)
    encoded = encode_keys({*keys, *others})
    if encoded is None or _is_large(encoded.content, len(encoded.numbers)):
        return None
    numbers = encoded.numbers
    return Joined(
        encoded.content, _table([numbers[key] for key in keys]), _table([numbers[key] for key in others])
    )


def join_headers(first: bytes | None, second: bytes | None) -> Joined | None:
    """The dictionary of the sets of headers of two runs. None when they have to stay apart."""
    if first is None or second is None or first == second:
        return _same(first, second)
    unlisted, entries = _packed_entries(first)
    other_unlisted, others = _packed_entries(second)
    if unlisted or other_unlisted:
        return None
    ordered = sorted({*entries, *others})
    content = _COUNT.pack(0) + _COUNT.pack(len(ordered)) + b"".join(ordered)
    if _is_large(content, len(ordered)):
        return None
    numbers = {entry: number for number, entry in enumerate(ordered)}
    return Joined(
        content, _table([numbers[each] for each in entries]), _table([numbers[each] for each in others])
    )


def _same(first: bytes | None, second: bytes | None) -> Joined | None:
    return Joined(first, _UNCHANGED, _UNCHANGED) if first == second else None


def _is_large(content: bytes, entry_count: int) -> bool:
    return entry_count > _JOINED_ENTRIES_MAX or len(content) > _JOINED_BYTES_MAX


def _table(numbers: Sequence[int]) -> bytes:
    return bytes(numbers).ljust(ENTRIES_MAX, b"\0")


def _packed_entries(content: bytes) -> tuple[int, list[bytes]]:
    """The number of names that are not listed, and the entries as they are encoded."""
    reader = _Reader(content)
    unlisted = len(reader.texts())
    entries = []
    for _ in range(reader.count()):
        start = reader.position
        reader.pairs()
        entries.append(content[start : reader.position])
    return unlisted, entries


def decode_headers(content: bytes) -> tuple[frozenset[bytes | None], list[Pairs]]:
    """The names of headers that are not listed, and the entries."""
    reader = _Reader(content)
    unlisted = frozenset(reader.texts())
    return unlisted, [reader.pairs() for _ in range(reader.count())]


class _Reader:
    """Reads a dictionary from front to back. The checksum of the index vouches for its lengths."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def count(self) -> int:
        (count,) = _COUNT.unpack_from(self._content, self.position)
        self.position += _COUNT.size
        return int(count)

    def text(self) -> bytes | None:
        (length,) = _LENGTH.unpack_from(self._content, self.position)
        start = self.position + _LENGTH.size
        self.position = start + max(0, length)
        return None if length < 0 else self._content[start : self.position]

    def texts(self) -> list[bytes | None]:
        return [self.text() for _ in range(self.count())]

    def pairs(self) -> Pairs:
        return [(self.text() or b"", self.text()) for _ in range(self.count())]


class Columns(NamedTuple):
    """The numbers of the keys and headers of a run's records. None where all records have the only entry."""

    record_count: int
    keys: bytes | None
    headers: bytes | None


class Verdict:
    """A filter's decision about the records of runs with certain dictionaries."""

    __slots__ = ()


class _ByTable(Verdict):
    """Whether a record is kept depends on one number."""

    __slots__ = ("is_by_key", "table")

    def __init__(self, table: bytes, *, is_by_key: bool) -> None:
        self.table = table
        self.is_by_key = is_by_key


class _ByPair(Verdict):
    """Whether a record is kept depends on both numbers."""

    __slots__ = ("headers", "kept", "keys")

    def __init__(self, keys: Sequence[bytes | None], headers: Sequence[Pairs]) -> None:
        self.keys = keys
        self.headers = headers
        self.kept: dict[tuple[int, int], int] = {}


# No record matches. / Nothing is known: each record may match.
NO_MATCH, UNKNOWN = Verdict(), Verdict()


class Probe:
    """Evaluates a filter over dictionaries and columns."""

    def __init__(self, parsed: Filter) -> None:
        matcher = compile_filter(parsed)
        condition = without_not(parsed.condition)
        self._keeps = matcher.keeps
        self._header_names = matcher.header_names
        self._uses_key = _uses_key(condition)
        self._evaluations_a_step = max(
            1, _EVALUATIONS_A_STEP // (1 + matcher.term_count // _TERMS_AN_EVALUATION)
        )
        self._may_match = _may_match(condition)
        self._verdicts: dict[tuple[bytes | None, bytes | None], Verdict] = {}

    def verdict(self, keys: bytes | None, headers: bytes | None) -> Steps[Verdict]:
        """Returns the filter's decision about runs with these dictionaries; None stands for one that is not listed."""
        known_by = keys if self._uses_key else b"", headers if self._header_names else b""
        verdict = self._verdicts.get(known_by)
        if verdict is None:
            verdict = yield from self._decide(*known_by)
            if len(self._verdicts) >= _REMEMBERED_MAX:
                self._verdicts.clear()
            self._verdicts[known_by] = verdict
        return verdict

    def _decide(self, keys: bytes | None, headers: bytes | None) -> Steps[Verdict]:
        if not self._may_match(keys, headers):
            return NO_MATCH
        if keys is None or headers is None:
            return UNKNOWN
        if not self._header_names:
            table = yield from self._table([(key, ()) for key in decode_keys(keys)])
            return _ByTable(table, is_by_key=True) if any(table) else NO_MATCH
        unlisted, sections = decode_headers(headers)
        if not unlisted.isdisjoint(self._header_names):
            return UNKNOWN
        if self._uses_key:
            return _ByPair(decode_keys(keys), sections)
        table = yield from self._table([(None, section) for section in sections])
        return _ByTable(table, is_by_key=False) if any(table) else NO_MATCH

    def _table(self, entries: Sequence[tuple[bytes | None, Pairs]]) -> Steps[bytes]:
        """For each number of an entry 1 when the filter keeps it."""
        table = bytearray(ENTRIES_MAX)
        for number, (key, headers) in enumerate(entries):
            table[number] = self._keeps(key, headers)
            if number % self._evaluations_a_step == self._evaluations_a_step - 1:
                yield None
        return bytes(table)

    def kept(self, verdict: Verdict, columns: Columns) -> Steps[bytes]:
        """For each record of a run 1 when the filter keeps it. `verdict` is neither `NO_MATCH` nor `UNKNOWN`."""
        count = columns.record_count
        if isinstance(verdict, _ByTable):
            column = columns.keys if verdict.is_by_key else columns.headers
            return (bytes(count) if column is None else column).translate(verdict.table)
        assert isinstance(verdict, _ByPair)
        pairs = list(zip(columns.keys or bytes(count), columns.headers or bytes(count), strict=True))
        kept = verdict.kept
        for number, (key, section) in enumerate(set(pairs) - kept.keys(), 1):
            kept[key, section] = self._keeps(verdict.keys[key], verdict.headers[section])
            if not number % self._evaluations_a_step:
                yield None
        return bytes(map(kept.__getitem__, pairs))


def _uses_key(condition: Condition) -> bool:
    match condition:
        case And(parts) | Or(parts):
            return any(map(_uses_key, parts))
        case Not(part):
            return _uses_key(part)
        case OneOf(field) | StartsWith(field) | Exists(field):
            return field.header is None
        case _:
            return False


# Whether a match is possible, by the bytes of the dictionaries of keys and headers.
_MayMatch: TypeAlias = Callable[[bytes | None, bytes | None], bool]


def _may_match(condition: Condition) -> _MayMatch:
    match condition:
        case And(parts):
            all_of = [_may_match(part) for part in parts]
            return lambda keys, headers: all(part(keys, headers) for part in all_of)
        case Or(parts):
            any_of = [_may_match(part) for part in parts]
            return lambda keys, headers: any(part(keys, headers) for part in any_of)
        case OneOf(Field(None), values):
            return _contains_key([_packed(value) for value in values])
        case StartsWith(Field(None), prefix):
            return _contains_key([prefix])
        case OneOf(Field(bytes(name)), values):
            return _contains_header(name, [_packed(name) + _packed(value) for value in values])
        case StartsWith(Field(bytes(name))) | Exists(Field(bytes(name))):
            return _contains_header(name, [_packed(name)])
        case HasTag(tag):
            return _contains_header(b"tags", [tag])
        case _:
            return lambda _keys, _headers: True


def _contains_key(needles: Sequence[bytes]) -> _MayMatch:
    return lambda keys, _headers: keys is None or any(needle in keys for needle in needles)


def _contains_header(name: bytes, needles: Sequence[bytes]) -> _MayMatch:
    def may_match(_keys: bytes | None, headers: bytes | None) -> bool:
        if headers is None or any(needle in headers for needle in needles):
            return True
        # The values of a name that is not listed are not there.
        return _packed(name) in headers and name in decode_headers(headers)[0]

    return may_match
