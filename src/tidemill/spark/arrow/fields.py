"""The fields of many records, read together.

A `Fields` holds arrays with one element for each record: its deltas, and where its key, value and headers lie in the
buffer. Reading them is the check of the records: a record must end exactly where the next one begins, and each field
must lie within its record. What does not is `Damaged`, with the record's index. So a `Fields` may be used to gather
from the buffer without another check.

Headers are the exception. Their number is known. What they hold is read by `read_headers`, because few queries need it:
in step again, the first header of all records, then the second, and so on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemill.spark.arrow import array_of
from tidemill.spark.arrow.varints import RECORD_LENGTH_MIN, Buffer, Bytes, Ints

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(pa.field("element", _HEADER))


class Damaged(Exception):
    """A record that is not what its lengths say, by its index among all."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class Fields(NamedTuple):
    timestamp_deltas: Ints
    offset_deltas: Ints
    key_starts: Ints
    key_lengths: Ints  # negative: null
    value_starts: Ints
    value_lengths: Ints
    header_counts: Ints
    header_starts: Ints
    ends: Ints

    def part(self, kept: slice | NDArray[np.intp]) -> Fields:
        return Fields._make(column[kept] for column in self)


def read_fields(buffer: Buffer, positions: Ints) -> Fields:
    """The fields of records that should begin at these positions and fill the buffer."""
    ends = np.append(positions[1:], buffer.size)
    lengths, at = buffer.read(positions)
    _refuse((at + lengths != ends) | (lengths < RECORD_LENGTH_MIN), "a record's length is wrong")
    timestamp_deltas, at = buffer.read(at + 1)
    offset_deltas, at = buffer.read(at)
    _refuse(at > ends, "a record is cut off")
    key_lengths, key_starts = buffer.read(at)
    key_ends = _ends(key_starts, key_lengths, ends, "a key does not fit its record")
    value_lengths, value_starts = buffer.read(key_ends)
    value_ends = _ends(value_starts, value_lengths, ends, "a value does not fit its record")
    header_counts, header_starts = buffer.read(value_ends)
    left = ends - header_starts
    if header_counts.any():
        # A header has at least its two lengths.
        _refuse(
            (header_counts < 0) | (header_counts > left >> 1) | ((header_counts == 0) & (left != 0)),
            "headers do not fit their record",
        )
    else:
        _refuse(left != 0, "a record does not end where its length says")
    return Fields(
        timestamp_deltas,
        offset_deltas,
        key_starts,
        key_lengths,
        value_starts,
        value_lengths,
        header_counts,
        header_starts,
        ends,
    )


def gather(raw: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    """These pieces of a buffer as a binary array, null where a length is negative. The pieces lie one after the other."""
    count = len(starts)
    nulls = lengths < 0
    null_count = int(np.count_nonzero(nulls))
    if null_count == count:
        return pa.nulls(count, pa.binary())
    # Even elements are the pieces, odd ones what lies between two of them.
    bounds = np.empty(2 * count, dtype=np.int32)
    bounds[0::2] = starts
    bounds[1::2] = starts + (np.maximum(lengths, 0) if null_count else lengths)
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * count - 1, [None, pa.py_buffer(bounds), pa.py_buffer(raw)]
    ).take(array_of(np.arange(0, 2 * count, 2)))
    if not null_count:
        return pieces
    _, offsets, data = pieces.buffers()
    return pa.Array.from_buffers(pa.binary(), count, [_validity(nulls), offsets, data], null_count)


def read_headers(buffer: Buffer, fields: Fields) -> pa.Array:
    """The headers of these records; null, as in Spark, where there are none."""
    counts = fields.header_counts
    nulls = counts == 0
    if nulls.all():
        return pa.nulls(len(counts), HEADERS)
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    spans = _header_spans(buffer, fields, offsets)
    keys = gather(buffer.raw, spans[0], spans[1]).buffers()
    texts = pa.Array.from_buffers(pa.string(), len(spans[0]), [None, *keys[1:]])
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise Damaged(_first_not_utf8(texts, offsets), "a record header's key is not UTF-8") from None
    pairs = pa.StructArray.from_arrays([texts, gather(buffer.raw, spans[2], spans[3])], fields=list(_HEADER))
    return pa.Array.from_buffers(
        HEADERS, len(counts), [_validity(nulls), pa.py_buffer(offsets)], int(nulls.sum()), children=[pairs]
    )


def _header_spans(buffer: Buffer, fields: Fields, offsets: NDArray[np.int32]) -> NDArray[np.int64]:
    """Start and length of each header's key, then of its value, in the order of the records."""
    spans = np.empty((4, int(offsets[-1])), dtype=np.int64)
    step = 0
    records = np.flatnonzero(fields.header_counts)
    at = fields.header_starts[records]
    while len(records):
        ends = fields.ends[records]
        key_lengths, key_starts = buffer.read(at)
        _refuse(key_lengths < 0, "a record header has no key", records)
        key_ends = _ends(key_starts, key_lengths, ends, "a header's key does not fit its record", records)
        value_lengths, value_starts = buffer.read(key_ends)
        at = _ends(value_starts, value_lengths, ends, "a header's value does not fit its record", records)
        spans[:, offsets[records] + step] = key_starts, key_lengths, value_starts, value_lengths
        step += 1
        more = fields.header_counts[records] > step
        if not more.all():
            _refuse(~more & (at != ends), "a record does not end with its last header", records)
            records, at = records[more], at[more]
    return spans


def _ends(
    starts: Ints, lengths: Ints, ends: Ints, reason: str, records: NDArray[np.intp] | None = None
) -> Ints:
    """Returns the ends of fields, which must not be after their records."""
    lengths = np.maximum(lengths, 0)
    _refuse(lengths > ends - starts, reason, records)
    return starts + lengths


def _refuse(bad: NDArray[np.bool_], reason: str, records: NDArray[np.intp] | None = None) -> None:
    """`records` are the indices of the elements of `bad`, where those are not all records."""
    if bad.any():
        index = int(bad.argmax())
        raise Damaged(index if records is None else int(records[index]), reason)


def _validity(nulls: NDArray[np.bool_]) -> pa.Buffer:
    return pa.py_buffer(np.packbits(~nulls, bitorder="little"))


def _first_not_utf8(texts: pa.Array, offsets: NDArray[np.int32]) -> int:
    for index, key in enumerate(texts.cast(pa.binary()).to_pylist()):
        try:
            key.decode()
        except UnicodeDecodeError:
            return int(np.searchsorted(offsets, index, side="right")) - 1
    raise AssertionError("Arrow refused keys that are UTF-8")
