"""Summaries of records: which terms they contain, and whether a filter can match one of them.

A summary is a Bloom filter over the terms of a set of records: the pairs of header name and value, the header names,
the items of `tags`, and the keys. A match of a filter requires terms. When the summary lacks them there is no match.

- A negation requires no term, so it excludes nothing. `Probe` moves negations to the predicates first, by De Morgan's
  laws. So what a probe excludes has no match, whatever the filter is.
- A field with many distinct values (trace ids, unique keys) is not listed. A term of its own says so.
- Records with too many terms, in a damaged batch, or that do not decode have no summary. They are never excluded.

Terms are hashed with BLAKE2b, so that every process and version of Python makes the same summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, TypeAlias

from tidemill.errors import ProtocolError
from tidemill.filters.matching import tags_of
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
from tidemill.protocol.record_walk import headers_at, keys_and_headers, records_in_steps
from tidemill.protocol.records import BatchHeader, checksum_matches
from tidemill.protocol.steps import run_steps

# Distinct values of one field in one summary. A field with more is not listed.
VALUES_A_FIELD_MAX = 256
# Distinct terms of a summary. The largest has a kibibyte.
TERMS_MAX = 800

_BITS_A_TERM_MIN = 10
_LOG2_BITS_MIN = 7
_HASHES = 4
_HEADERS_AT_ONCE_MAX = 4096
_CACHED_TERM_BYTES_MAX = 64

# The kinds of terms, as the first byte of each.
_NAME, _VALUE, _TAG, _KEY, _HAS_KEY = b"n", b"v", b"t", b"k", b"h"
# Fields whose values are not listed.
_UNLISTED_VALUE, _UNLISTED_TAG, _UNLISTED_KEY = b"V", b"T", b"K"


class Summary(NamedTuple):
    """A Bloom filter over terms."""

    log2_bits: int
    bits: int


def _value_term(name: bytes, value: bytes) -> bytes:
    return _VALUE + len(name).to_bytes(4, "big") + name + value


def _mask(term: bytes, log2_bits: int) -> int:
    """The bits of a term in a summary of this size."""
    # Long values would fill the memory.
    return (_cached_mask if len(term) <= _CACHED_TERM_BYTES_MAX else _computed_mask)(term, log2_bits)


def _computed_mask(term: bytes, log2_bits: int) -> int:
    digest = int.from_bytes(blake2b(term, digest_size=8).digest(), "big")
    first, step = digest & 0xFFFFFFFF, digest >> 32 | 1
    mask = 0
    for number in range(_HASHES):
        mask |= 1 << ((first + number * step) & ((1 << log2_bits) - 1))
    return mask


# The same few terms are in most summaries of a segment.
_cached_mask = lru_cache(maxsize=4096)(_computed_mask)


def summarize(terms: set[bytes]) -> Summary | None:
    """The summary of records with these terms. None when there are too many."""
    if len(terms) > TERMS_MAX:
        return None
    log2_bits = max(_LOG2_BITS_MIN, (len(terms) * _BITS_A_TERM_MIN - 1).bit_length())
    bits = 0
    for term in terms:
        bits |= _mask(term, log2_bits)
    return Summary(log2_bits, bits)


class Probe:
    """Decides whether records with a given summary can match a filter."""

    __slots__ = ("_may_match", "term_count")

    def __init__(self, parsed: Filter) -> None:
        # What an evaluation costs.
        self.term_count = term_count(parsed.condition)
        self._may_match = _probe(without_not(parsed.condition))

    def may_match(self, summary: Summary | None) -> bool:
        """False only when no record matches. Without a summary nothing is excluded."""
        return summary is None or self._may_match(summary)


_MayMatch: TypeAlias = Callable[[Summary], bool]


def _probe(condition: Condition) -> _MayMatch:
    match condition:
        case And(parts):
            all_of = [_probe(part) for part in parts]
            return lambda summary: all(part(summary) for part in all_of)
        case Or(parts):
            any_of = [_probe(part) for part in parts]
            return lambda summary: any(part(summary) for part in any_of)
        case Not():
            return lambda _summary: True
        case OneOf(Field(None), values):
            return _has_any(_UNLISTED_KEY, *(_KEY + value for value in values))
        case OneOf(Field(bytes(name)), values):
            return _has_any(_UNLISTED_VALUE + name, *(_value_term(name, value) for value in values))
        case HasTag(tag):
            return _has_any(_UNLISTED_TAG, _TAG + tag)
        case StartsWith(Field(bytes(name))) | Exists(Field(bytes(name))):
            return _has_any(_NAME + name)
        case _:
            return _has_any(_HAS_KEY)


def _has_any(*terms: bytes) -> _MayMatch:
    # The masks of the terms for each size of a summary, of which there are a few.
    masks_of: dict[int, list[int]] = {}

    def may_match(summary: Summary) -> bool:
        log2_bits, bits = summary
        masks = masks_of.get(log2_bits)
        if masks is None:
            masks = masks_of[log2_bits] = [_mask(term, log2_bits) for term in terms]
        for mask in masks:  # noqa: SIM110  (a generator costs more than the loop)
            if bits & mask == mask:
                return True
        return False

    return may_match


class TermCollector:
    """Collects the terms of batches for one summary."""

    def __init__(self) -> None:
        self._terms: set[bytes] = set()
        self._keys: set[bytes] | None = set()
        self._tags: set[bytes] | None = set()
        # None when there are too many.
        self._values: dict[bytes, set[bytes] | None] = {}
        self._is_known = True

    def add(self, header: BatchHeader, batch: memoryview) -> None:
        if not checksum_matches(batch, header):
            self._is_known = False
        if not self._is_known or not header.record_count:
            return
        try:
            self._add_records(run_steps(records_in_steps(batch, header)), header)
        except ProtocolError:
            self._is_known = False

    def _add_records(self, body: bytes, header: BatchHeader) -> None:
        # Most records of a run have the same headers as others, and the same bytes are decoded once.
        encoded: set[bytes] = set()
        keys = set()
        for key, headers in keys_and_headers(body, header):
            keys.add(key)
            encoded.add(headers)
            if len(encoded) + len(keys) >= _HEADERS_AT_ONCE_MAX:
                self._add_fields(keys, encoded)
                keys.clear()
                encoded.clear()
        self._add_fields(keys, encoded)

    def _add_fields(self, keys: set[bytes | None], encoded: set[bytes]) -> None:
        present = {key for key in keys if key is not None}
        if present:
            self._terms.add(_HAS_KEY)
            self._keys = _limited(self._keys, present)
        for headers in encoded:
            try:
                fields = headers_at(headers, 0, len(headers))
            except IndexError as error:
                raise ProtocolError("the headers of a record are cut off") from error
            for name, value in fields:
                values = self._values.setdefault(name, set())
                if values is not None and value is not None:
                    values.add(value)
                    if len(values) > VALUES_A_FIELD_MAX:
                        self._values[name] = None
                if name == TAGS:
                    self._tags = _limited(self._tags, tags_of(value))
        # Memory is bounded by the number of names, and of values of each.
        self._is_known &= len(self._values) <= TERMS_MAX

    def summary(self) -> Summary | None:
        if not self._is_known:
            return None
        terms = self._terms
        terms.update({_UNLISTED_KEY} if self._keys is None else {_KEY + key for key in self._keys})
        terms.update({_UNLISTED_TAG} if self._tags is None else {_TAG + tag for tag in self._tags})
        for name, values in self._values.items():
            terms.add(_NAME + name)
            if values is None:
                terms.add(_UNLISTED_VALUE + name)
            else:
                terms.update(_value_term(name, value) for value in values)
        return summarize(terms)


def _limited(values: set[bytes] | None, more: Iterable[bytes]) -> set[bytes] | None:
    if values is not None:
        values.update(more)
        if len(values) > VALUES_A_FIELD_MAX:
            return None
    return values
