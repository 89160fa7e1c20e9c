"""Record batches of one partition become one Arrow batch, with no Python object for a record.

The records of all batches are laid end to end in one buffer (decompressed, where they are compressed). `boundaries`
says where each begins; from there every field of all records is read together, as arrays of positions that move over
the records in step. Keys and values are then gathered by Arrow: an array over that buffer whose odd elements are what
lies between, of which the even ones are taken.

All lengths are compared with the record that they stand in before Arrow sees any of them. A record that does not end
where its length says, or a field that does not fit its record, is a `ProtocolError` that names the partition and the
batch. Record headers cost more than everything else, so they are read, and checked, only when that column is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tidemill.claims.claim import URI_HEADER, Place, has_claim
from tidemill.claims.errors import ClaimUnresolved
from tidemill.errors import ProtocolError
from tidemill.protocol.records import DECOMPRESSED_BYTES_MAX, BatchHeader
from tidemill.spark.arrow import array_of, scalar_of
from tidemill.spark.arrow.boundaries import guess_positions, walk_positions
from tidemill.spark.arrow.fields import (
    HEADERS,
    Damaged,
    Fields,
    gather,
    read_fields,
    read_headers,
)
from tidemill.spark.arrow.layout import Batches, Layout, damaged
from tidemill.spark.arrow.varints import PADDING, Buffer, Ints
from tidemill.types import TopicPartition

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", HEADERS),
    ]
)

# Arrow's offsets of binary columns are int32.
_BYTES_MAX = (1 << 31) - 1 - PADDING - DECOMPRESSED_BYTES_MAX
_PART_BYTES = 16 << 20
_CLAIM = URI_HEADER.encode()
_TIMESTAMP_MS_MAX = ((1 << 63) - 1) // 1000


class Decoder:
    """Decodes what is fetched of [start_offset, end_offset) of a partition, some batches at a time."""

    def __init__(
        self, partition: TopicPartition, start_offset: int, end_offset: int, columns: Sequence[str]
    ) -> None:
        self._partition = partition
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._schema = pa.schema([SCHEMA.field(column) for column in columns])
        self._layout = Layout(partition)
        self._topics = pa.nulls(0, pa.string())
        self._partitions = pa.nulls(0, pa.int32())

    def decode(self, batches: Batches) -> pa.RecordBatch:
        """The records of these batches that lie in the range, in their order."""
        parts = list(self._decode(batches, _BYTES_MAX))
        if len(parts) > 1:
            raise ProtocolError(f"{self._partition}: {len(batches)} batches are too much to decode at once")
        return parts[0] if parts else pa.RecordBatch.from_pylist([], schema=self._schema)

    def parts(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """The same, in parts of a bounded size however well the batches were compressed."""
        return self._decode(batches, _PART_BYTES)

    def _decode(self, batches: Batches, bytes_max: int) -> Iterator[pa.RecordBatch]:
        left = [
            (header, batch)
            for header, batch in batches
            if header.last_offset >= self._start_offset and header.base_offset < self._end_offset
        ]
        while left:
            buffer, starts = self._layout.fill(left, bytes_max)
            yield self._rows(buffer, starts, [header for header, _ in left[: len(starts)]])
            left = left[len(starts) :]

    def _rows(self, buffer: Buffer, starts: Ints, headers: Sequence[BatchHeader]) -> pa.RecordBatch:
        counts = _int64(header.record_count for header in headers)
        # The batch of each record.
        owners = np.repeat(np.arange(len(headers)), counts)
        try:
            fields = _read_fields(buffer, starts, counts)
            offsets = _offsets(headers, owners, fields.offset_deltas)
            kept = self._inside(offsets)
            if kept is not None:
                fields, offsets, owners = fields.part(kept), offsets[kept], owners[kept]
            arrays = [
                self._column(name, buffer, fields, offsets, headers, owners) for name in self._schema.names
            ]
        except Damaged as damage:
            raise damaged(self._partition, headers[owners[damage.index]], damage.reason) from None
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _inside(self, offsets: Ints) -> slice | NDArray[np.intp] | None:
        """Returns the records that are in the range; None when all are."""
        inside = (offsets >= self._start_offset) & (offsets < self._end_offset)
        if inside.all():
            return None
        kept = np.flatnonzero(inside)
        if len(kept) and kept[-1] - kept[0] + 1 == len(kept):
            return slice(int(kept[0]), int(kept[-1]) + 1)
        return kept

    def _column(
        self,
        name: str,
        buffer: Buffer,
        fields: Fields,
        offsets: Ints,
        headers: Sequence[BatchHeader],
        owners: NDArray[np.intp],
    ) -> pa.Array:
        match name:
            case "key":
                return gather(buffer.raw, fields.key_starts, fields.key_lengths)
            case "value":
                if "headers" not in self._schema.names:
                    self._refuse_claims(buffer, fields, offsets)
                return gather(buffer.raw, fields.value_starts, fields.value_lengths)
            case "topic":
                return self._constants(len(offsets))[0]
            case "partition":
                return self._constants(len(offsets))[1]
            case "offset":
                return array_of(offsets)
            case "timestamp":
                return _timestamps(headers, owners, fields.timestamp_deltas)
            case "timestampType":
                return array_of(
                    _int64(header.is_log_append_time for header in headers).astype(np.int32)[owners]
                )
            case _:
                return read_headers(buffer, fields)

    def _refuse_claims(self, buffer: Buffer, fields: Fields, offsets: Ints) -> None:
        """Refuse an empty value that stands for a payload in an object store: the headers, which say so, are not read."""
        for index in np.flatnonzero((fields.value_lengths == 0) & (fields.header_counts > 0)).tolist():
            start, end = int(fields.header_starts[index]), int(fields.ends[index])
            if _CLAIM not in buffer.raw[start:end].tobytes():
                continue
            (headers,) = read_headers(buffer, fields.part(np.array([index]))).to_pylist()
            if has_claim(b"", ((each["key"], each["value"]) for each in headers)):
                raise unresolved(self._partition, int(offsets[index]))

    def _constants(self, count: int) -> tuple[pa.Array, pa.Array]:
        """Topic and partition of so many records, cut from what is kept of earlier calls."""
        if len(self._topics) < count:
            topic, partition = self._partition
            self._topics = pa.repeat(scalar_of(topic.encode(), pa.string()), count)
            self._partitions = array_of(np.full(count, partition, dtype=np.int32))
        return self._topics[:count], self._partitions[:count]


def unresolved(partition: TopicPartition, offset: int) -> ClaimUnresolved:
    """A query reads values and not headers, and this record's value stands for a payload elsewhere."""
    return ClaimUnresolved(
        f"{Place(*partition, offset)}: the payload is in an object store; name that with the "
        "option largePayloads, or read the column headers, which has the claim"
    )


def _int64(values: Iterable[int]) -> Ints:
    return np.fromiter(values, dtype=np.int64)


def _read_fields(buffer: Buffer, starts: Ints, counts: Ints) -> Fields:
    positions = guess_positions(buffer, starts, counts)
    if positions is not None:
        # A wrong guess is no damage: then the slow way tells.
        with suppress(Damaged):
            return read_fields(buffer, positions)
    return read_fields(buffer, walk_positions(buffer, starts, counts))


def _offsets(headers: Sequence[BatchHeader], owners: NDArray[np.intp], deltas: Ints) -> Ints:
    last_deltas = _int64(header.last_offset_delta for header in headers)
    bad = (deltas < 0) | (deltas > last_deltas[owners])
    if bad.any():
        raise Damaged(int(bad.argmax()), "a record's offset lies outside of its batch")
    return _int64(header.base_offset for header in headers)[owners] + deltas


def _timestamps(headers: Sequence[BatchHeader], owners: NDArray[np.intp], deltas: Ints) -> pa.Array:
    """In Spark's microseconds. In a batch with LogAppendTime all records have the batch's."""
    append = np.array([header.is_log_append_time for header in headers], dtype=np.bool_)
    bases = _int64(
        header.max_timestamp if header.is_log_append_time else header.base_timestamp for header in headers
    )
    if append.any():
        deltas = np.where(append[owners], 0, deltas)
    milliseconds = bases[owners] + deltas
    # A sum of two such numbers does not overflow.
    bad = (np.abs(deltas) > _TIMESTAMP_MS_MAX) | (np.abs(bases) > _TIMESTAMP_MS_MAX)[owners]
    bad |= np.abs(milliseconds) > _TIMESTAMP_MS_MAX
    if bad.any():
        raise Damaged(int(bad.argmax()), "a timestamp is out of the range of microseconds")
    return pa.Array.from_buffers(
        SCHEMA.field("timestamp").type, len(deltas), [None, pa.py_buffer(milliseconds * 1000)]
    )
