"""What a topic accepts from producers, and how it wants it stored: checks of one batch before it is appended.

Records are looked into only when the topic's configuration asks for it: a compacted topic refuses records without a key,
a `compression.type` recompresses, `message.timestamp.before.max.ms` refuses old ones. A refusal is an `InvalidBatch` with
the protocol's error.
"""

from __future__ import annotations

from tidemill.config import TopicConfig
from tidemill.controller.topic_names import INTERNAL_TOPICS
from tidemill.errors import ErrorCode
from tidemill.protocol import compression
from tidemill.protocol.records import (
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    check_record_count,
    header_at,
    iterate_records,
    recompress,
    restamp,
    sole_batch,
    stamp_append_time,
)

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_NEVER = (1 << 63) - 1
_NO_TIMESTAMP = -1


class ProduceRules:
    __slots__ = (
        "_codec",
        "_config",
        "_is_internal",
        "_topic",
        "needs_keys",
        "rewrites_batches",
        "rewrites_timestamps",
    )

    def __init__(self, topic: str, config: TopicConfig) -> None:
        self._topic = topic
        self._config = config
        self._is_internal = topic in INTERNAL_TOPICS
        self._codec = _CODECS.get(config.compression_type)
        self.rewrites_timestamps = config.is_log_append_time
        self.rewrites_batches = self.rewrites_timestamps or self._codec is not None
        self.needs_keys = config.is_compacted

    def received(self, data: memoryview, allows_zstd: bool, allows_transactions: bool = False) -> BatchHeader:
        """The batch's header, when it is one that this topic can take at all."""
        config = self._config
        if self._is_internal:
            raise InvalidBatch(
                ErrorCode.INVALID_TOPIC_EXCEPTION, f"{self._topic} is written by coordinators only"
            )
        header = sole_batch(data)
        if len(data) > config.max_message_bytes:
            raise InvalidBatch(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(data)} bytes; {self._topic} allows {config.max_message_bytes} "
                "(max.message.bytes)",
            )
        if len(data) > config.segment_bytes:
            raise InvalidBatch(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {len(data)} bytes does not fit a segment of {config.segment_bytes}",
            )
        if header.attributes & (TRANSACTIONAL | LOG_APPEND_TIME):
            if header.is_transactional and not allows_transactions:
                # As Kafka: without a transactional id nobody may write into a transaction.
                code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
                raise InvalidBatch(code, code.message)
            # Only the broker says whose clock a batch's timestamps are by.
            if header.is_log_append_time:
                header = restamp(data, header._replace(attributes=header.attributes & ~LOG_APPEND_TIME))
        if not allows_zstd and header.codec == compression.CompressionType.ZSTD:
            raise InvalidBatch(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
            )
        return header

    def with_fair_timestamps(self, data: memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
        """The header, when every record is within the topic's limits; the records are asked only if they must be."""
        config = self._config
        newest = now_ms + config.message_timestamp_after_max_ms
        if (
            _NO_TIMESTAMP <= header.max_timestamp <= newest
            and config.message_timestamp_before_max_ms == _NEVER
        ):
            return header
        oldest = now_ms - config.message_timestamp_before_max_ms
        timestamps = [record.timestamp for record in iterate_records(data, header)]
        wrong = [
            (number, f"timestamp {timestamp} is not between {oldest} and {newest}")
            for number, timestamp in enumerate(timestamps)
            if timestamp != _NO_TIMESTAMP and not oldest <= timestamp <= newest
        ]
        if wrong:
            raise InvalidBatch(
                ErrorCode.INVALID_TIMESTAMP,
                f"{len(wrong)} record(s) are older or newer than {self._topic} allows "
                "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                wrong,
            )
        max_timestamp = max(_NO_TIMESTAMP, *timestamps)
        if max_timestamp != header.max_timestamp:
            return restamp(data, header._replace(max_timestamp=max_timestamp))
        return header

    def check_keys(self, data: memoryview, header: BatchHeader) -> None:
        reason = f"{self._topic} is compacted: every record needs a key"
        without_key = [
            (number, reason)
            for number, record in enumerate(iterate_records(data, header))
            if record.key is None
        ]
        if without_key:
            raise InvalidBatch(ErrorCode.INVALID_RECORD, reason, without_key)

    def as_configured(
        self, data: memoryview, header: BatchHeader, now_ms: int
    ) -> tuple[memoryview, BatchHeader]:
        if self._codec is not None and header.codec != self._codec:
            data = memoryview(recompress(data, header, self._codec))
            header = header_at(data)
        elif self._codec == compression.CompressionType.NONE:
            check_record_count(data, header)
        if self.rewrites_timestamps:
            header = stamp_append_time(data, header, now_ms)
        return data, header
