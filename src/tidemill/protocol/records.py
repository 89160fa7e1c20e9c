"""Record batches on the wire and on disk: Kafka's message format v2.

The broker works with the 61-byte header. It verifies the CRC over the bytes after it, and stamps base offset and
leader epoch in place: both precede the checksummed part. So a batch goes from producer to disk to consumer without
being decoded. Only compaction, recompression and timestamp search (`record_walk.py`) and the metadata log
(`iterate_records`) decode records.

There are two kinds of failure. `ProtocolError` from `iterate_records` means that records cannot be decoded; under a
right checksum the client wrote them so. `InvalidBatch` carries the error code for a producer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from crc32c import crc32c

from tidemill.errors import ErrorCode, ProtocolError
from tidemill.protocol import compression

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = HEADER.size
# The bytes that `batch_length` does not count: the base offset and the length itself.
LENGTH_PREFIX = 12
MAGIC = 2

_LENGTH_POSITION = 8
_CRC_POSITION = 17
_CRC_START = 21
_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")

COMPRESSION_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
# The bits that Kafka does not use name the partition that a producer sent a batch to, when another one stores it.
_NAMED_PARTITION_SHIFT = 7
NAMED_PARTITION_MAX = 0x1FF
NAMED_PARTITION = ~((1 << _NAMED_PARTITION_SHIFT) - 1)

NO_SEQUENCE = -1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1
# A length, attributes, two deltas, two more lengths and a count have at least one byte each.
RECORD_BYTES_MIN = 7
# The number of records that a compressed batch may claim freely: their offsets differ, so none compresses to nothing.
_RECORDS_FREE = 100_000
_RECORDS_A_BYTE_MAX = 16
# The largest decompressed size of one batch. A larger one is rejected.
DECOMPRESSED_BYTES_MAX = 1 << 28
# Members of an enumeration are looked up by a Python function, and so is `_make` of a tuple: every batch would pay for it.
_LAST_CODEC = int(compression.CompressionType.ZSTD)
_new_tuple = tuple.__new__


class InvalidBatch(Exception):
    """A rejected batch, with the error code and message for its producer.

    `record_errors` are (index within the batch, message) of single invalid records.
    """

    def __init__(self, code: ErrorCode, reason: str, record_errors: Sequence[tuple[int, str]] = ()) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.record_errors = record_errors


class BatchHeader(NamedTuple):
    """The header fields in the order of the wire, and values derived from them."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LENGTH_PREFIX

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """The last sequence number. Sequence numbers wrap to zero after the largest int32."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF

    @property
    def codec(self) -> int:
        return self.attributes & COMPRESSION_MASK

    @property
    def named_partition(self) -> int:
        """The decommissioned partition that the producer named; 0 when it named the one that stores the batch."""
        return self.attributes >> _NAMED_PARTITION_SHIFT & NAMED_PARTITION_MAX

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


class Header(NamedTuple):
    """A record header."""

    key: str
    value: bytes | None


class Record(NamedTuple):
    """A decoded record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


def header_at(buffer: bytes | bytearray | memoryview, position: int = 0) -> BatchHeader:
    """The header at a position with at least 61 bytes."""
    return _new_tuple(BatchHeader, HEADER.unpack_from(buffer, position))


def checksum_matches(batch: memoryview, header: BatchHeader) -> bool:
    return crc32c(batch[_CRC_START : header.size]) == header.crc


def is_plausible(header: BatchHeader) -> bool:
    """Whether these bytes can be a batch header: the check of a scan before it trusts the length."""
    return (
        header.magic == MAGIC
        and header.batch_length >= HEADER_SIZE - LENGTH_PREFIX
        and header.base_offset >= 0
        and header.last_offset_delta >= 0
    )


def split_batches(data: memoryview) -> list[BatchHeader]:
    """The headers of the whole, verified batches in `data`. Raises `InvalidBatch` for anything else.

    The list is empty when the first batch is truncated.
    """
    headers = []
    for position, header in _walk_batches(data):
        if not checksum_matches(data[position:], header):
            raise _wrong_checksum()
        headers.append(header)
    return headers


def sole_batch(data: memoryview) -> BatchHeader:
    """The header of the single, verified batch that a producer may send. Raises `InvalidBatch` otherwise."""
    size = len(data)
    if size >= HEADER_SIZE:
        header = _new_tuple(BatchHeader, HEADER.unpack_from(data))
        if header.batch_length == size - LENGTH_PREFIX and header.magic == MAGIC:
            if crc32c(data[_CRC_START:]) != header.crc:
                raise _wrong_checksum()
            return header
    # As in Kafka, batches are counted before their checksums are verified.
    count = sum(1 for _ in _walk_batches(data))
    raise InvalidBatch(
        ErrorCode.INVALID_RECORD, f"exactly one batch a partition is allowed, {count} were sent"
    )


def _walk_batches(data: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    """The positions and headers of the whole batches in `data`; none when the first is truncated."""
    position, end = 0, len(data)
    while position < end:
        following = end + 1
        if end - position >= HEADER_SIZE:
            header = _new_tuple(BatchHeader, HEADER.unpack_from(data, position))
            following = position + header.batch_length + LENGTH_PREFIX
            if header.magic != MAGIC or following < position + HEADER_SIZE:
                raise _not_a_batch(header)
        if following > end:
            if position:
                reason = f"{end - position} bytes after the batch are no batch"
                raise InvalidBatch(ErrorCode.CORRUPT_MESSAGE, reason)
            return
        yield position, header
        position = following


def _wrong_checksum() -> InvalidBatch:
    return InvalidBatch(ErrorCode.CORRUPT_MESSAGE, "the CRC-32C of the batch does not match its content")


def _not_a_batch(header: BatchHeader) -> InvalidBatch:
    if 0 <= header.magic < MAGIC:
        return InvalidBatch(
            ErrorCode.INVALID_RECORD, f"batches must have magic {MAGIC}, this one has {header.magic}"
        )
    return InvalidBatch(
        ErrorCode.CORRUPT_MESSAGE, f"no batch has magic {header.magic} and a length of {header.batch_length}"
    )


def check_produced(header: BatchHeader) -> None:
    """Raise `InvalidBatch` for a batch that a producer must not send although its checksum is right."""
    attributes = header.attributes
    if (
        header.base_offset == 0 < header.record_count == header.last_offset_delta + 1
        and header.record_count <= header.batch_length
        and not attributes & (CONTROL | TRANSACTIONAL)
        and attributes & COMPRESSION_MASK <= _LAST_CODEC
        and (header.producer_id < 0 or header.base_sequence >= 0)
    ):
        return  # nearly every batch
    if header.base_offset:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"the broker gives offsets, so a batch begins at 0, not at {header.base_offset}",
        )
    if header.last_offset_delta < 0 or header.record_count <= 0:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"a batch must hold records, this one claims {header.record_count} up to delta "
            f"{header.last_offset_delta}",
        )
    if header.record_count != header.last_offset_delta + 1:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"{header.record_count} records do not match a last offset delta of {header.last_offset_delta}",
        )
    body_bytes = header.size - HEADER_SIZE
    records_max = (
        _RECORDS_FREE + body_bytes * _RECORDS_A_BYTE_MAX if header.codec else body_bytes // RECORD_BYTES_MIN
    )
    if header.record_count > records_max:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD, f"{header.record_count} records do not fit {body_bytes} bytes"
        )
    if header.is_control:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.is_transactional and header.producer_id < 0:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, "a transactional batch needs a producer id")
    if header.codec > compression.CompressionType.ZSTD:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, f"unknown compression codec {header.codec}")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise InvalidBatch(
            ErrorCode.INVALID_RECORD,
            f"producer {header.producer_id} sent the sequence number {header.base_sequence}",
        )


def stamp(buffer: memoryview, position: int, base_offset: int, leader_epoch: int) -> None:
    """Set the base offset and the leader epoch of a batch. Both precede the checksummed part."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + 12, leader_epoch)


def iterate_records(batch: memoryview, header: BatchHeader | None = None) -> Iterator[Record]:
    """Decode every record of one whole batch."""
    if header is None:
        if len(batch) < HEADER_SIZE:
            raise ProtocolError(f"{len(batch)} bytes are too few for a batch")
        header = header_at(batch)
    return iterate_decompressed(_decompressed(batch, header), header)


def _decompressed(batch: memoryview, header: BatchHeader) -> memoryview:
    body = batch[HEADER_SIZE : header.size]
    if header.codec:
        return memoryview(compression.decompress(header.codec, body, DECOMPRESSED_BYTES_MAX))
    return body


def check_fits(record_count: int, body_bytes: int) -> None:
    """Raise `ProtocolError` when this many records cannot fit into this many bytes."""
    if not 0 <= record_count * RECORD_BYTES_MIN <= body_bytes:
        raise ProtocolError(f"{record_count} records do not fit {body_bytes} bytes")


def iterate_decompressed(body: memoryview, header: BatchHeader) -> Iterator[Record]:
    """Decode every record of a batch whose records are decompressed."""
    check_fits(header.record_count, len(body))
    base_offset, base_timestamp = header.base_offset, header.base_timestamp
    last_offset_delta = header.last_offset_delta
    append_time = header.max_timestamp if header.is_log_append_time else None
    position = 0
    try:
        for _ in range(header.record_count):
            length, position = _varint(body, position)
            end = position + length
            if length < 0 or end > len(body):
                raise ProtocolError(f"a record of {length} bytes does not fit its batch")
            position += 1  # the record's attributes, which are unused
            timestamp_delta, position = _varint(body, position)
            offset_delta, position = _varint(body, position)
            key, position = _bytes(body, position, end)
            value, position = _bytes(body, position, end)
            headers, position = _headers(body, position, end)
            if position != end:
                raise ProtocolError(f"a record claims {length} bytes and has {length + position - end}")
            if not 0 <= offset_delta <= last_offset_delta:
                raise ProtocolError(f"a record's offset delta of {offset_delta} lies outside of its batch")
            timestamp = base_timestamp + timestamp_delta if append_time is None else append_time
            if not INT64_MIN <= timestamp <= INT64_MAX:
                raise ProtocolError(f"a record's timestamp of {timestamp} does not fit 64 bits")
            yield Record(base_offset + offset_delta, timestamp, key, value, headers)
    except IndexError as error:
        raise ProtocolError("a record is cut off") from error
    if position != len(body):
        raise ProtocolError(f"{len(body) - position} bytes follow the last record of a batch")


def build_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    codec: int = 0,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    last_offset_delta: int | None = None,
) -> bytearray:
    """Build a batch. The records' offsets are absolute, and the first is at least `base_offset`."""
    records = list(records)
    base_timestamp = records[0].timestamp if records else -1
    max_timestamp = max((record.timestamp for record in records), default=-1)
    body = bytearray()
    for record in records:
        encoded = _encode_record(record, base_offset, base_timestamp)
        append_varint(body, len(encoded))
        body += encoded
    payload = compression.compress(codec, body) if codec else body
    if last_offset_delta is None:
        last_offset_delta = records[-1].offset - base_offset if records else 0
    return assemble(
        BatchHeader(
            base_offset,
            HEADER_SIZE - LENGTH_PREFIX + len(payload),
            leader_epoch,
            MAGIC,
            0,
            (attributes & ~COMPRESSION_MASK) | codec,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            len(records),
        ),
        payload,
    )


def assemble(header: BatchHeader, payload: bytes | bytearray | memoryview) -> bytearray:
    """Header and (compressed) records as one batch, with length and checksum."""
    batch = bytearray(HEADER_SIZE + len(payload))
    HEADER.pack_into(batch, 0, *header)
    batch[HEADER_SIZE:] = payload
    _set_length_and_crc(batch, len(payload), crc32c(memoryview(batch)[_CRC_START:]))
    return batch


def batch_head(header: BatchHeader, payload: bytes | bytearray | memoryview) -> bytearray:
    """The header of a batch, with length and checksum, for separate (compressed) records."""
    head = bytearray(HEADER_SIZE)
    HEADER.pack_into(head, 0, *header)
    _set_length_and_crc(head, len(payload), crc32c(payload, crc32c(memoryview(head)[_CRC_START:])))
    return head


def _set_length_and_crc(head: bytearray, payload_bytes: int, crc: int) -> None:
    # Both stand before the checksummed bytes.
    _UINT32.pack_into(head, _LENGTH_POSITION, HEADER_SIZE - LENGTH_PREFIX + payload_bytes)
    _UINT32.pack_into(head, _CRC_POSITION, crc)


def stamp_append_time(batch: memoryview, header: BatchHeader, wall_ms: int) -> BatchHeader:
    """LogAppendTime: replace the batch's timestamps by the broker's clock, in place."""
    return restamp(
        batch, header._replace(attributes=header.attributes | LOG_APPEND_TIME, max_timestamp=wall_ms)
    )


def restamp(batch: memoryview, header: BatchHeader) -> BatchHeader:
    """Write a changed header and its checksum into a batch, in place."""
    HEADER.pack_into(batch, 0, *header)
    crc = crc32c(batch[_CRC_START : header.size])
    _UINT32.pack_into(batch, _CRC_POSITION, crc)
    return header._replace(crc=crc)


def with_named_partition(attributes: int, partition: int) -> int:
    """The attributes of a batch that a producer sent to `partition`; of one for the partition that stores it, with 0."""
    assert 0 <= partition <= NAMED_PARTITION_MAX, partition
    named = (attributes & ~NAMED_PARTITION) | partition << _NAMED_PARTITION_SHIFT
    return named - 0x10000 if named > 0x7FFF else named


def _encode_record(record: Record, base_offset: int, base_timestamp: int) -> bytearray:
    out = bytearray(1)
    append_varint(out, record.timestamp - base_timestamp)
    append_varint(out, record.offset - base_offset)
    for part in (record.key, record.value):
        if part is None:
            append_varint(out, -1)
        else:
            append_varint(out, len(part))
            out += part
    append_varint(out, len(record.headers))
    for key, value in record.headers:
        encoded_key = key.encode()
        append_varint(out, len(encoded_key))
        out += encoded_key
        if value is None:
            append_varint(out, -1)
        else:
            append_varint(out, len(value))
            out += value
    return out


def append_varint(out: bytearray, value: int) -> None:
    value = (value << 1) ^ (value >> 63)
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)


def _varint(buffer: memoryview, position: int) -> tuple[int, int]:
    byte = buffer[position]
    position += 1
    value = byte & 0x7F
    shift = 7
    while byte & 0x80:
        if shift > 63:
            raise ProtocolError("a varint in a record is longer than ten bytes")
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position


def _bytes(buffer: memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(buffer, position)
    if length < 0:
        return None, position
    if position + length > end:
        raise ProtocolError(f"a field of {length} bytes does not fit its record")
    return bytes(buffer[position : position + length]), position + length


def _headers(buffer: memoryview, position: int, end: int) -> tuple[Sequence[Header], int]:
    count, position = _varint(buffer, position)
    if count == 0:
        return (), position
    if not 0 < count <= end - position:
        raise ProtocolError(f"{count} headers do not fit their record")
    headers = []
    for _ in range(count):
        key, position = _bytes(buffer, position, end)
        if key is None:
            raise ProtocolError("a record header has no key")
        value, position = _bytes(buffer, position, end)
        # As in Java, a key that is not UTF-8 is no error.
        headers.append(Header(key.decode(errors="replace"), value))
    return headers, position
