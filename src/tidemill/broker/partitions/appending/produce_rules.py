"""Validates one produced batch by its topic's configuration (Kafka: LogValidator).

Records are inspected only when the configuration needs it, or when a header claims a time that is too new. A compacted
topic refuses records without a key, a `compression.type` recompresses, and `message.timestamp.before.max.ms` refuses
old records. Inspection runs in steps, because a small batch may hold very many records. A refusal is an `InvalidBatch`
with the protocol's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from tidemill.broker.partitions.shrinking.passing_on import is_passed_on_batch, taken_over
from tidemill.config import TopicConfig
from tidemill.delays.requests import Cancel, Limits, inspect, may_hold_requests, meaning_of
from tidemill.errors import ErrorCode
from tidemill.internal_topics import INTERNAL_TOPICS
from tidemill.protocol import compression
from tidemill.protocol.record_walk import RECORDS_A_STEP, compress_in_steps, records_in_steps, walk
from tidemill.protocol.records import (
    COMPRESSION_MASK,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    NAMED_PARTITION,
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    Record,
    assemble,
    check_produced,
    header_at,
    iterate_decompressed,
    restamp,
    sole_batch,
    stamp_append_time,
    with_named_partition,
)
from tidemill.protocol.steps import NotAtOnce, Steps

# A batch and its header.
Inspected: TypeAlias = tuple[memoryview, BatchHeader]

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_NEVER = (1 << 63) - 1
_NO_TIMESTAMP = -1
# An error response names at most so many of the invalid records.
_RECORD_ERRORS_MAX = 100
# Records whose delay headers are read within a step.
_MEANINGS_A_STEP = 100


class ProduceRules:
    __slots__ = (
        "_after_max_ms",
        "_always_looks_inside",
        "_codec",
        "_config",
        "_delays",
        "_is_internal",
        "_level",
        "_size_max",
        "_topic",
        "needs_keys",
        "rewrites_timestamps",
    )

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self._topic = topic
        self._config = config
        self._is_internal = topic in INTERNAL_TOPICS
        self._size_max = min(config.max_message_bytes, config.segment_bytes)
        self._codec = _CODECS.get(config.compression_type)
        self._level = config.compression_level
        self.rewrites_timestamps = config.is_log_append_time
        self.needs_keys = config.is_compacted
        self._after_max_ms = config.message_timestamp_after_max_ms
        self._delays = None
        if config.tidemill_delays_enable:
            self._delays = Limits(config.tidemill_delays_max_ms, config.tidemill_delays_interval_min_ms)
        self._always_looks_inside = (
            self.needs_keys
            or config.tidemill_delays_enable
            or (not self.rewrites_timestamps and config.message_timestamp_before_max_ms != _NEVER)
        )

    def received(
        self,
        data: memoryview,
        allows_zstd: bool,
        allows_transactions: bool = False,
        *,
        is_passed_on: bool | None = None,
    ) -> BatchHeader:
        """Check what the header alone shows; returns the header.

        A batch that another partition passed on keeps the number of that partition in its attributes. `NotAtOnce` when it
        looks like one, and `is_passed_on` does not say whether it is.
        """
        if self._is_internal:
            raise InvalidBatch(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{self._topic} is written by coordinators only"
            )
        header = sole_batch(data)
        if len(data) > self._size_max:
            raise self._too_large(len(data))
        if header.attributes & (TRANSACTIONAL | LOG_APPEND_TIME | NAMED_PARTITION):
            if header.is_transactional and not allows_transactions:
                # As in Kafka: a transactional batch needs a request with a transactional id.
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                raise InvalidBatch(code, code.message)
            # Only the broker decides whether timestamps are the append time.
            if header.is_log_append_time:
                header = restamp(data, header._replace(attributes=header.attributes & ~LOG_APPEND_TIME))
            if header.attributes & NAMED_PARTITION and not (is_passed_on and is_passed_on_batch(header)):
                if is_passed_on is None and is_passed_on_batch(header):
                    raise NotAtOnce
                # Kafka accepts bits that have no meaning. Here they have one, so they are cleared.
                header = restamp(data, header._replace(attributes=with_named_partition(header.attributes, 0)))
        if not allows_zstd and header.codec == compression.CompressionType.ZSTD:
            raise InvalidBatch(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
            )
        return header

    def _too_large(self, size: int) -> InvalidBatch:
        config = self._config
        if size > config.max_message_bytes:
            return InvalidBatch(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {size} bytes; {self._topic} allows {config.max_message_bytes} (max.message.bytes)",
            )
        return InvalidBatch(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"a batch of {size} bytes does not fit a segment of {config.segment_bytes}",
        )

    def looks_inside(self, header: BatchHeader, wall_ms: int) -> bool:
        """Whether the records must be inspected: because of the configuration, or of a suspicious header."""
        if self._always_looks_inside:
            return True
        codec = self._codec
        if codec is not None and (codec != header.attributes & COMPRESSION_MASK or not codec):
            return True
        return (
            not self.rewrites_timestamps
            and not _NO_TIMESTAMP <= header.max_timestamp <= wall_ms + self._after_max_ms
        )

    def inspect_received(self, data: memoryview, header: BatchHeader, wall_ms: int) -> Steps[Inspected]:
        """As `inspect`, where that is needed. `data` keeps the base offset of a batch that was passed on."""
        plain, _ = taken_over(header)
        check_produced(plain)
        if not self.looks_inside(header, wall_ms):
            return data, header
        found = yield from self.inspect(data, plain, wall_ms)
        if plain is not header:
            restamp(data, header_at(data)._replace(base_offset=header.base_offset))
        return found

    def inspect(self, data: memoryview, header: BatchHeader, wall_ms: int) -> Steps[Inspected]:
        """Check the records; returns the batch as it is to be stored. `InvalidBatch` or `ProtocolError` when refused."""
        body = yield from records_in_steps(data, header)
        findings = _Findings()
        check_times, check_keys = not self.rewrites_timestamps, self.needs_keys
        oldest = wall_ms - self._config.message_timestamp_before_max_ms
        newest = wall_ms + self._after_max_ms
        base_timestamp = header.base_timestamp
        max_timestamp = _NO_TIMESTAMP
        for number, (_, _, timestamp_delta, _, key, _) in enumerate(walk(body, header)):
            if number % RECORDS_A_STEP == RECORDS_A_STEP - 1:
                yield None
            timestamp = base_timestamp + timestamp_delta
            if timestamp > max_timestamp:
                max_timestamp = timestamp
            if check_times and timestamp != _NO_TIMESTAMP and not oldest <= timestamp <= newest:
                findings.add_unfair(
                    number,
                    f"Timestamp {timestamp} of message with offset {number} is not between {oldest} and {newest}",
                )
            if check_keys and key is None:
                findings.add_keyless(
                    number, f"Compacted topic cannot accept message without key: {self._topic}"
                )
        findings.refuse(self._topic)
        if self._delays is not None and may_hold_requests(body):
            header = yield from _checked_delays(data, header, body, wall_ms, self._delays)
            check_times = check_times and not header.is_log_append_time
        if self._codec is not None and header.codec != self._codec:
            payload = yield from compress_in_steps(self._codec, body, self._level)
            # As in Kafka: the size that counts is the stored one.
            if HEADER_SIZE + len(payload) > self._size_max:
                raise self._too_large(HEADER_SIZE + len(payload))
            attributes = (header.attributes & ~COMPRESSION_MASK) | self._codec
            data = memoryview(assemble(header._replace(attributes=attributes), payload))
            header = header_at(data)
        if check_times and max_timestamp != header.max_timestamp:
            header = restamp(data, header._replace(max_timestamp=max_timestamp))
        return data, header


def _checked_delays(
    data: memoryview, header: BatchHeader, body: bytes, wall_ms: int, limits: Limits
) -> Steps[BatchHeader]:
    """Refuse delay headers that ask for nothing sensible. What counts from the append gets the append time."""
    records: list[Record] = []
    for record in iterate_decompressed(memoryview(body), header):
        records.append(record)
        if len(records) % RECORDS_A_STEP == 0:
            yield None
    found = yield from inspect(records, wall_ms, limits)
    if header.attributes & NAMED_PARTITION:
        yield from _refuse_foreign_offsets(records)
    if found.errors:
        reason = f"One or more records have been rejected: {found.errors[0][1]}"
        raise InvalidBatch(ErrorCode.INVALID_RECORD, reason, found.errors)
    return stamp_append_time(data, header, wall_ms) if found.needs_append_time else header


def _refuse_foreign_offsets(records: Sequence[Record]) -> Steps[None]:
    """Refuse cancels by offset in a batch that was passed on: another record may have that offset here."""
    reason = (
        "the record to cancel is in a decommissioned partition: it is delivered there, "
        "or dropped with the records of that partition"
    )
    errors: list[tuple[int, str]] = []
    for number, record in enumerate(records):
        if isinstance(meaning := meaning_of(record), Cancel) and meaning.offset is not None:
            errors.append((number, reason))
        if number % _MEANINGS_A_STEP == _MEANINGS_A_STEP - 1:
            yield None
    if errors:
        raise InvalidBatch(ErrorCode.INVALID_RECORD, reason, errors)


class _Findings:
    """Errors of single records. The first few are named, all are counted."""

    def __init__(self) -> None:
        self._unfair: list[tuple[int, str]] = []
        self._unfair_count = 0
        self._keyless: list[tuple[int, str]] = []

    def add_unfair(self, number: int, reason: str) -> None:
        self._unfair_count += 1
        if len(self._unfair) < _RECORD_ERRORS_MAX:
            self._unfair.append((number, reason))

    def add_keyless(self, number: int, reason: str) -> None:
        if len(self._keyless) < _RECORD_ERRORS_MAX:
            self._keyless.append((number, reason))

    def refuse(self, topic: str) -> None:
        if self._unfair:
            raise InvalidBatch(
                ErrorCode.INVALID_TIMESTAMP,
                f"One or more records have been rejected: {self._unfair_count} are older or newer than {topic} allows "
                "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                self._unfair,
            )
        if self._keyless:
            message = f"One or more records have been rejected: {self._keyless[0][1]}"
            raise InvalidBatch(ErrorCode.INVALID_RECORD, message, self._keyless)
