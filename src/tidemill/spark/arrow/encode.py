"""Rows of Arrow become the records of batches, with no Python object for a row.

A record is a head (its length, deltas and the key's length), the key, the value's length, the value, and the headers.
Heads and lengths are written as varints of all rows together. Then Arrow joins the pieces row by row, so that its
result is the bytes of all records, end to end. Headers are joined in the same way first, header by header.

Rows are cut into batches before that, by sizes that assume the longest deltas. A batch is never larger than it may be,
except that of a single large record. It is seldom a few bytes a record smaller. A batch holds rows of one part, such as
a partition: all parts are encoded together, because the columns cost as much for few rows as for many. The producer
adds the header, the checksum and the compression.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.errors import TidemillError
from tidemill.spark.arrow import scalar_of
from tidemill.spark.arrow.varints import Bytes, Ints, sizes, write, zigzag

_NO_HEADERS = scalar_of(b"\0", pa.binary())
_NOTHING = scalar_of(b"", pa.binary())
# Arrow's offsets of binary columns are int32.
_JOINED_BYTES_MAX = 1 << 30


class EncodedBatch(NamedTuple):
    """A batch's records, uncompressed; their offsets begin at 0."""

    records: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int
    # Which of the parts its rows belong to.
    part: int = 0


def encode(
    rows: pa.RecordBatch, *, wall_ms: int, batch_bytes_max: int, starts: Sequence[int] = (0,)
) -> Iterator[EncodedBatch]:
    """The rows' records in their order, in batches of at most that many bytes, or of one record.

    The columns are key and value, binary or string, and where they are there headers and timestamp. A timestamp that is
    null is `wall_ms`. `starts` has the first row of each part.
    """
    return _encode(rows, wall_ms, batch_bytes_max, starts, 0)


def _encode(
    rows: pa.RecordBatch, wall_ms: int, batch_bytes_max: int, starts: Sequence[int], first_part: int
) -> Iterator[EncodedBatch]:
    count = rows.num_rows
    if count == 0:
        return
    pieces = _pieces(rows, wall_ms)
    if count > 1 and int(pieces.sizes.sum()) > _JOINED_BYTES_MAX:
        middle = count // 2
        # The part that begins at the middle row, or that the cut goes through.
        part = bisect_right(starts, middle) - 1
        before = starts[: part + 1] if starts[part] < middle else starts[:part]
        behind = [0, *(start - middle for start in starts[part + 1 :])]
        yield from _encode(rows.slice(0, middle), wall_ms, batch_bytes_max, before, first_part)
        yield from _encode(rows.slice(middle), wall_ms, batch_bytes_max, behind, first_part + part)
        return
    firsts = _cut(pieces, batch_bytes_max, starts)
    counts = np.diff(firsts, append=count)
    records, ends = _join(pieces, np.repeat(firsts, counts))
    maxima = np.maximum.reduceat(pieces.timestamps, firsts)
    parts = np.searchsorted(starts, firsts, side="right") - 1 + first_part
    start = 0
    for first, record_count, maximum, part in zip(
        firsts.tolist(), counts.tolist(), maxima.tolist(), parts.tolist(), strict=True
    ):
        end = int(ends[first + record_count - 1])
        base_timestamp = int(pieces.timestamps[first])
        yield EncodedBatch(records[start:end], record_count, base_timestamp, maximum, part)
        start = end


class _Pieces(NamedTuple):
    """The parts of records as columns; `sizes` is what a record takes without its length and deltas."""

    keys: pa.Array | pa.Scalar
    key_lengths: Ints
    value_prefixes: pa.Array
    values: pa.Array | pa.Scalar
    headers: list[pa.Array | pa.Scalar]
    timestamps: Ints
    sizes: Ints


def _pieces(rows: pa.RecordBatch, wall_ms: int) -> _Pieces:
    keys, key_lengths = _binary(rows.column("key"))
    values, value_lengths = _binary(rows.column("value"))
    headers, header_sizes = _headers(rows)
    prefixes = zigzag(value_lengths)
    # One for the attributes.
    taken = 1 + sizes(zigzag(key_lengths)) + np.maximum(key_lengths, 0)
    taken += sizes(prefixes) + np.maximum(value_lengths, 0) + header_sizes
    return _Pieces(
        keys, key_lengths, _varints(value_lengths), values, headers, _timestamps(rows, wall_ms), taken
    )


def _binary(column: pa.Array) -> tuple[pa.Array | pa.Scalar, Ints]:
    """A column's bytes, and their lengths, negative for null."""
    if column.null_count == len(column):
        return _NOTHING, np.full(len(column), -1, dtype=np.int64)
    if not _is_bytes(column.type):
        raise TidemillError(f"keys, values and headers are binary or string, not {column.type}: cast them")
    column = column.cast(pa.binary())
    return column, pc.binary_length(column).fill_null(-1).to_numpy().astype(np.int64)


def _is_bytes(of: pa.DataType) -> bool:
    return of in (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())


def _headers(rows: pa.RecordBatch) -> tuple[list[pa.Array | pa.Scalar], Ints]:
    """The number of headers and the headers of each row, and how many bytes both take."""
    count = rows.num_rows
    if "headers" in rows.schema.names:
        lists = rows.column("headers")
        pairs = lists.flatten() if lists.null_count < count else ()
        if len(pairs):
            lengths = pc.list_value_length(lists).fill_null(0).to_numpy().astype(np.int64)
            joined, ends = _header_bytes(pairs)
            bounds = np.concatenate(([0], ends))[np.concatenate(([0], np.cumsum(lengths)))]
            of_rows = pa.Array.from_buffers(
                pa.binary(), count, [None, pa.py_buffer(bounds.astype(np.int32)), pa.py_buffer(joined)]
            )
            return [_varints(lengths), of_rows], sizes(zigzag(lengths)) + np.diff(bounds)
    return [_NO_HEADERS], np.ones(count, dtype=np.int64)


def _header_bytes(pairs: pa.StructArray) -> tuple[memoryview, Ints]:
    """Headers as they stand in records, end to end, and where each ends."""
    names, values = pairs.flatten()
    if names.null_count:
        raise TidemillError("a record header has no key: give each header a key, or leave it out")
    names, name_lengths = _binary(names)
    values, value_lengths = _binary(values)
    return _joined([_varints(name_lengths), names, _varints(value_lengths), values])


def _timestamps(rows: pa.RecordBatch, wall_ms: int) -> Ints:
    """In milliseconds, rounded down."""
    if "timestamp" not in rows.schema.names or rows.column("timestamp").null_count == rows.num_rows:
        return np.full(rows.num_rows, wall_ms, dtype=np.int64)
    column = rows.column("timestamp")
    if not pa.types.is_timestamp(column.type):
        raise TidemillError(f"the timestamp column is {column.type}: cast it to timestamp")
    times = column.cast(pa.int64())
    milliseconds: Ints = times.fill_null(0).to_numpy()
    match column.type.unit:
        case "s":
            milliseconds = milliseconds * 1000
        case "us":
            milliseconds = milliseconds // 1000
        case "ns":
            milliseconds = milliseconds // 1_000_000
    if times.null_count:
        milliseconds = np.where(times.is_null().to_numpy(zero_copy_only=False), wall_ms, milliseconds)
    return milliseconds


def _cut(pieces: _Pieces, batch_bytes_max: int, starts: Sequence[int]) -> Ints:
    """The first row of each batch."""
    timestamps = pieces.timestamps
    spread = np.array(
        [timestamps.max() - timestamps.min(), timestamps.min() - timestamps.max(), len(timestamps)]
    )
    deltas = sizes(zigzag(spread))
    lengths = pieces.sizes + int(deltas[:2].max() + deltas[2])
    ends = np.cumsum(lengths + sizes(zigzag(lengths)))
    firsts = []
    for first, end in zip(starts, [*starts[1:], len(ends)], strict=True):
        while first < end:
            firsts.append(first)
            before = int(ends[first - 1]) if first else 0
            fitting = int(np.searchsorted(ends, before + batch_bytes_max, side="right"))
            first = max(min(fitting, end), first + 1)
    return np.array(firsts, dtype=np.int64)


def _join(pieces: _Pieces, firsts: Ints) -> tuple[memoryview, Ints]:
    """All records, end to end, and where each ends. `firsts` is the first row of each row's batch."""
    timestamp_deltas = zigzag(pieces.timestamps - pieces.timestamps[firsts])
    offset_deltas = zigzag(np.arange(len(firsts)) - firsts)
    lengths = zigzag(pieces.sizes + sizes(timestamp_deltas) + sizes(offset_deltas))
    keys = zigzag(pieces.key_lengths)
    head_ends = np.cumsum(sizes(lengths) + 1 + sizes(timestamp_deltas) + sizes(offset_deltas) + sizes(keys))
    # Attributes are zero, and so is what is not written.
    heads = np.zeros(int(head_ends[-1]), dtype=np.uint8)
    at = write(heads, np.concatenate(([0], head_ends[:-1])), lengths) + 1
    for words in (timestamp_deltas, offset_deltas, keys):
        at = write(heads, at, words)
    return _joined(
        [_array(heads, head_ends), pieces.keys, pieces.value_prefixes, pieces.values, *pieces.headers]
    )


def _varints(values: Ints) -> pa.Array:
    words = zigzag(values)
    ends = np.cumsum(sizes(words))
    out = np.empty(int(ends[-1]), dtype=np.uint8)
    write(out, np.concatenate(([0], ends[:-1])), words)
    return _array(out, ends)


def _array(data: Bytes, ends: Ints) -> pa.Array:
    offsets = np.zeros(len(ends) + 1, dtype=np.int32)
    offsets[1:] = ends
    return pa.Array.from_buffers(pa.binary(), len(ends), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _joined(columns: list[pa.Array | pa.Scalar]) -> tuple[memoryview, Ints]:
    """The columns' bytes, row by row, and where each row ends."""
    columns = [column for column in columns if column is not _NOTHING]
    handling = (
        "replace" if any(isinstance(column, pa.Array) and column.null_count for column in columns) else "skip"
    )
    _, offsets, data = pc.binary_join_element_wise(
        *columns, _NOTHING, null_handling=handling, null_replacement=b""
    ).buffers()
    return memoryview(data), np.frombuffer(offsets, dtype=np.int32)[1:].astype(np.int64)
