"""Walks over the records of a batch that decode no more of a record than they need.

`walk` reads positions, keys and timestamps. Each record costs the same, so the work is known from the header of a batch.
`select` reads keys and headers for a filter. It searches the bytes for what a match contains, and decodes only the
records in which it finds that. The decompressed size is limited in advance: by the claimed number of records, and by a
ratio that no real batch reaches.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from tidemill.errors import ProtocolError
from tidemill.filters.matching import Matcher
from tidemill.filters.needles import NEEDLE_BYTES_MAX
from tidemill.protocol import compression
from tidemill.protocol.records import (
    DECOMPRESSED_BYTES_MAX,
    HEADER_SIZE,
    INT64_MAX,
    INT64_MIN,
    BatchHeader,
    check_fits,
)
from tidemill.protocol.steps import Steps

# About half a millisecond of work.
RECORDS_A_STEP = 500
# The number of bytes that are decompressed or compressed within a step.
_BYTES_A_STEP = 64 * 1024
# The number of bytes that are searched at once, which takes about 30 µs.
_BYTES_A_SEARCH = 32 * 1024
# Records that `select` decodes within a step. With its headers a record costs three times as much as in `walk`.
_SELECTED_A_STEP = 150
# So many terms of a filter cost as much as decoding a record.
_TERMS_A_RECORD = 8
_EXPANSION_MAX = 128
_EXPANDED_BYTES_MIN = 16 * 1024 * 1024

# (start, end, timestamp delta, offset delta, key, is a tombstone) of a record in the decompressed bytes. A plain
# tuple, because one is made for every record.
RawRecord = tuple[int, int, int, int, bytes | None, bool]


def records_of(batch: memoryview, header: BatchHeader) -> bytes:
    """The decompressed records, for callers that may block."""
    body = batch[HEADER_SIZE : header.size]
    return compression.decompress(header.codec, body, DECOMPRESSED_BYTES_MAX) if header.codec else bytes(body)


def records_in_steps(batch: memoryview, header: BatchHeader) -> Steps[bytes]:
    """The decompressed records, in a thread when there are many bytes."""
    body = batch[HEADER_SIZE : header.size]
    if not header.codec:
        return bytes(body)
    # An impossible claim is rejected before any work.
    check_fits(header.record_count, _expanded_max(body))
    if len(body) <= _BYTES_A_STEP:
        try:
            return compression.decompress(header.codec, body, _BYTES_A_STEP)
        except compression.TooLarge:
            pass
    expanded: bytes = yield partial(compression.decompress, header.codec, bytes(body), _expanded_max(body))
    return expanded


def _expanded_max(body: memoryview) -> int:
    return min(DECOMPRESSED_BYTES_MAX, max(_EXPANDED_BYTES_MIN, len(body) * _EXPANSION_MAX))


def compress_in_steps(codec: int, body: bytes, level: int | None = None) -> Steps[bytes]:
    if not codec or len(body) <= _BYTES_A_STEP // 4:
        return compression.compress(codec, body, level)
    payload: bytes = yield partial(compression.compress, codec, body, level)
    return payload


def walk(body: bytes, header: BatchHeader) -> Iterator[RawRecord]:
    """Returns every record of a batch without value and headers. Raises `ProtocolError` for invalid records.

    Most varints have one byte. They are decoded in place, because a call costs more than all the rest.
    """
    position, size = 0, len(body)
    check_fits(header.record_count, size)
    last_offset_delta, base_timestamp = header.last_offset_delta, header.base_timestamp
    try:
        for _ in range(header.record_count):
            start = position
            if (byte := body[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = varint_at(body, position)
            end = position + length
            if length < 0 or end > size:
                raise ProtocolError(f"a record of {length} bytes does not fit its batch")
            if (byte := body[position + 1]) < 0x80:
                timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                timestamp_delta, position = varint_at(body, position + 1)
            if (byte := body[position]) < 0x80:
                offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                offset_delta, position = varint_at(body, position)
            if not 0 <= offset_delta <= last_offset_delta:
                raise ProtocolError(f"a record's offset delta of {offset_delta} lies outside of its batch")
            if not INT64_MIN <= base_timestamp + timestamp_delta <= INT64_MAX:
                raise ProtocolError("a record's timestamp does not fit 64 bits")
            if (byte := body[position]) < 0x80:
                key_length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                key_length, position = varint_at(body, position)
            key = None
            if key_length >= 0:
                key = body[position : position + key_length]
                position += key_length
            # Only the sign of the value's length is needed, which is in the first byte of the varint.
            if position >= end:
                raise ProtocolError("a key does not fit its record")
            yield start, end, timestamp_delta, offset_delta, key, bool(body[position] & 1)
            position = end
    except IndexError as error:
        raise ProtocolError("a record is cut off") from error
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last record of a batch")


def select(body: bytes, header: BatchHeader, matcher: Matcher) -> Steps[list[RawRecord]]:
    """The records of a batch that a filter keeps. Raises `ProtocolError` for records that do not parse.

    A record without a needle of the filter cannot match. Only its length is decoded, so other faults in it stay
    unnoticed. A batch without needles has no match, even if its bytes are no records.
    """
    size = len(body)
    check_fits(header.record_count, size)
    if not (yield from _can_match(body, matcher)):
        return []
    keeps, header_names = matcher.keeps, matcher.header_names
    cost = 1 + matcher.term_count // _TERMS_A_RECORD
    candidates = _Candidates(body, matcher.searches[0]) if matcher.searches else None
    # Without searches every record is a candidate.
    candidate = candidates.next_from(0) if candidates else -1
    kept: list[RawRecord] = []
    position = decoded = 0
    step_end = _BYTES_A_SEARCH
    try:
        for _ in range(header.record_count):
            start = position
            if (byte := body[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            elif (high := body[position + 1]) < 0x80:
                # Most records have 64 to 8,191 bytes.
                length, position = (((high << 7) | (byte & 0x7F)) >> 1) ^ -(byte & 1), position + 2
            else:
                length, position = varint_at(body, position)
            end = position + length
            if length < 0 or end > size:
                raise ProtocolError(f"a record of {length} bytes does not fit its batch")
            if candidate >= end:
                position = end
                continue
            # There is a candidate within every search, so that this is reached often enough.
            if decoded >= _SELECTED_A_STEP or position > step_end:
                yield None
                decoded, step_end = 0, position + _BYTES_A_SEARCH
            decoded += cost
            record, position = _raw_record(body, start, position, end, header)
            if keeps(record[4], headers_at(body, position, end, header_names) if header_names else ()):
                kept.append(record)
            position = end
            if candidates:
                candidate = candidates.next_from(end)
    except IndexError as error:
        raise ProtocolError("a record is cut off") from error
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last record of a batch")
    return kept


def _can_match(body: bytes, matcher: Matcher) -> Steps[bool]:
    """Whether the records contain everything that a match requires, though perhaps not in the same record."""
    for group in matcher.searches:
        for start in range(0, len(body), _BYTES_A_SEARCH):
            if start:
                yield None
            # A needle may begin here and end after it.
            end = start + _BYTES_A_SEARCH + NEEDLE_BYTES_MAX
            if any(search.search(body, start, end) for search in group):
                break
        else:
            return False
    return True


class _Candidates:
    """Searches the records for the places where a match may be."""

    __slots__ = ("_body", "_found", "_searches")

    def __init__(self, body: bytes, group: Sequence[re.Pattern[bytes]]) -> None:
        self._body = body
        self._searches = [each.search for each in group]
        # For each search the place of its next hit.
        self._found = [-1] * len(group)

    def next_from(self, position: int) -> int:
        """The first place at or after `position` where a match may be."""
        found = self._found
        for number, search in enumerate(self._searches):
            if found[number] < position:
                end = position + _BYTES_A_SEARCH
                hit = search(self._body, position, end)
                # A needle that begins in the searched bytes and ends after them is in the record that contains `end`.
                found[number] = hit.start() if hit else end
        return min(found)


class RecordFields(NamedTuple):
    """The fields of all records of a batch that an index needs, one entry for each record."""

    sizes: list[int]
    keys: list[bytes | None]
    # As they are encoded: their number and the headers.
    headers: list[bytes]


def fields_of(body: bytes, header: BatchHeader) -> RecordFields:
    """The size, key and encoded headers of every record. Raises `ProtocolError` for the same records as `walk`.

    Only `headers_at` finds faults in the headers. Varints are decoded in place, as in `walk`.
    """
    position, size = 0, len(body)
    check_fits(header.record_count, size)
    last_offset_delta, base_timestamp = header.last_offset_delta, header.base_timestamp
    found = RecordFields([], [], [])
    add_size, add_key, add_headers = found.sizes.append, found.keys.append, found.headers.append
    try:
        for _ in range(header.record_count):
            start = position
            if (byte := body[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = varint_at(body, position)
            end = position + length
            if length < 0 or end > size:
                raise ProtocolError(f"a record of {length} bytes does not fit its batch")
            if (byte := body[position + 1]) < 0x80:
                delta, position = (byte >> 1) ^ -(byte & 1), position + 2
            else:
                delta, position = varint_at(body, position + 1)
            if not INT64_MIN <= base_timestamp + delta <= INT64_MAX:
                raise ProtocolError("a record's timestamp does not fit 64 bits")
            if (byte := body[position]) < 0x80:
                delta, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                delta, position = varint_at(body, position)
            if not 0 <= delta <= last_offset_delta:
                raise ProtocolError(f"a record's offset delta of {delta} lies outside of its batch")
            if (byte := body[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = varint_at(body, position)
            key = None
            if length >= 0:
                key = body[position : position + length]
                position += length
            if (byte := body[position]) < 0x80:
                length, position = (byte >> 1) ^ -(byte & 1), position + 1
            else:
                length, position = varint_at(body, position)
            if length > 0:
                position += length
            if position >= end:
                raise ProtocolError("a key or value does not fit its record")
            add_size(end - start)
            add_key(key)
            add_headers(body[position:end])
            position = end
    except IndexError as error:
        raise ProtocolError("a record is cut off") from error
    if position != size:
        raise ProtocolError(f"{size - position} bytes follow the last record of a batch")
    return found


def holds_record(body: bytes, start: int, end: int) -> bool:
    """Whether a record stands between two positions, by its length alone."""
    try:
        length, position = varint_at(body, start)
    except (IndexError, ProtocolError):
        return False
    return position + length == end <= len(body)


def _raw_record(
    body: bytes, start: int, position: int, end: int, header: BatchHeader
) -> tuple[RawRecord, int]:
    """The record whose attributes are at `position`, and the position of its number of headers."""
    if (byte := body[position + 1]) < 0x80:
        timestamp_delta, position = (byte >> 1) ^ -(byte & 1), position + 2
    else:
        timestamp_delta, position = varint_at(body, position + 1)
    if (byte := body[position]) < 0x80:
        offset_delta, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        offset_delta, position = varint_at(body, position)
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise ProtocolError(f"a record's offset delta of {offset_delta} lies outside of its batch")
    if not INT64_MIN <= header.base_timestamp + timestamp_delta <= INT64_MAX:
        raise ProtocolError("a record's timestamp does not fit 64 bits")
    if (byte := body[position]) < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = varint_at(body, position)
    key = None
    if length >= 0:
        key = body[position : position + length]
        position += length
    if (byte := body[position]) < 0x80:
        length, position = (byte >> 1) ^ -(byte & 1), position + 1
    else:
        length, position = varint_at(body, position)
    is_tombstone = length < 0
    if not is_tombstone:
        position += length
    if position >= end:
        raise ProtocolError("a key or value does not fit its record")
    return (start, end, timestamp_delta, offset_delta, key, is_tombstone), position


def headers_at(
    body: bytes, position: int, end: int, names: Container[bytes] | None = None
) -> list[tuple[bytes, bytes | None]]:
    """The headers of a record that are called one of `names`, or all. Their number is at `position`.

    Raises `ProtocolError` unless they end at `end`, and `IndexError` when `body` ends before that.
    """
    count, position = varint_at(body, position)
    if not 0 <= count <= end - position:
        raise ProtocolError(f"{count} headers do not fit their record")
    found: list[tuple[bytes, bytes | None]] = []
    for _ in range(count):
        if (byte := body[position]) < 0x80:
            length, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            length, position = varint_at(body, position)
        if length < 0:
            raise ProtocolError("a record header has no key")
        name = body[position : position + length]
        position += length
        if (byte := body[position]) < 0x80:
            length, position = (byte >> 1) ^ -(byte & 1), position + 1
        else:
            length, position = varint_at(body, position)
        value_start = position
        if length >= 0:
            position += length
        if names is None or name in names:
            found.append((name, body[value_start:position] if length >= 0 else None))
    if position != end:
        raise ProtocolError("the headers of a record do not end where the record does")
    return found


def varint_at(body: bytes, position: int) -> tuple[int, int]:
    byte = body[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise ProtocolError("a varint in a record is longer than ten bytes")
        position += 1
        byte = body[position]
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position + 1
