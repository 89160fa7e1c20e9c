"""One partition that this broker hosts: its log, its leadership, and who waits for it to grow.

`append` is the produce path from the batch's bytes to the page cache: check, stamp in place, one write. Records are
looked into only when the topic's configuration asks for it (a compacted topic refuses records without a key, a
`compression.type` recompresses, `message.timestamp.before.max.ms` refuses old ones). A refusal is a `ProduceResult`
with the protocol's error; a disk error fences this partition alone.

A record becomes visible when the high watermark passes it: at once for most topics, after the sync for topics with
`flush.messages=1`, so that nobody reads what a power failure could take back.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence

from tidemill.config import TopicConfig
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.log.log import Log
from tidemill.protocol import compression
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import (
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    Record,
    build_batch,
    check_produced,
    check_record_count,
    header_at,
    iterate_records,
    recompress,
    restamp,
    sole_batch,
    stamp_append_time,
)
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_NEVER = (1 << 63) - 1
_NO_TIMESTAMP = -1


class Partition:
    __slots__ = (
        "_codec",
        "_needs_keys",
        "_rewrites_batches",
        "_rewrites_timestamps",
        "_waiters",
        "config",
        "high_watermark",
        "in_sync_replicas",
        "index",
        "leader_epoch",
        "log",
        "name",
        "on_offline",
        "replicas",
        "topic_id",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: bytes,
        log: Log | None,
        config: TopicConfig,
        leader_epoch: int,
        replicas: int,
        in_sync_replicas: int,
        on_offline: Callable[[Partition, str], None],
    ) -> None:
        self.name = name
        self.index = name.partition
        self.topic_id = topic_id
        # None while the partition is offline: its log could not be opened or its disk failed.
        self.log = log
        self.leader_epoch = leader_epoch
        # How many there are, and how many of them are in sync.
        self.replicas = replicas
        self.in_sync_replicas = in_sync_replicas
        self.high_watermark = log.log_end_offset if log else 0
        self.on_offline = on_offline
        self._waiters: dict[Callable[[int], None], None] = {}
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self._codec = _CODECS.get(config.compression_type)
        self._rewrites_timestamps = config.is_log_append_time
        self._rewrites_batches = self._rewrites_timestamps or self._codec is not None
        self._needs_keys = config.is_compacted
        if self.log is not None:
            self.log.configure(config)

    # -- producing -------------------------------------------------------------------------------------------

    def append(self, data: memoryview, acks: int, now_ms: int, *, allows_zstd: bool = True) -> ProduceResult:
        log = self.log
        if log is None:
            return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline on this broker")
        config = self.config
        if acks == -1 and self.in_sync_replicas < min(config.min_insync_replicas, self.replicas):
            return self._refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.name} has {self.in_sync_replicas} replicas in sync, "
                f"min.insync.replicas is {config.min_insync_replicas}",
            )
        try:
            header = self._received(data, allows_zstd)
        except InvalidBatch as error:
            return self._refused(error.code, error.reason)
        try:
            check_produced(header)
            if not self._rewrites_timestamps:
                header = self._with_fair_timestamps(data, header, now_ms)
            if self._needs_keys:
                self._check_keys(data, header)
            if header.producer_id >= 0:
                duplicate = log.producers.duplicate_of(header)
                if duplicate is not None:
                    end_offset = duplicate.last_offset + 1
                    return self._accepted(log, duplicate.base_offset, end_offset, duplicate.timestamp)
            if self._rewrites_batches:
                data, header = self._as_configured(data, header, now_ms)
            base_offset = log.append(data, (header,), self.leader_epoch, now_ms)
        except InvalidBatch as error:
            return self._refused(error.code, error.reason, log.log_start_offset, error.record_errors)
        except ProtocolError as error:
            return self._refused(ErrorCode.INVALID_RECORD, str(error), log.log_start_offset)
        except OSError as error:
            return self._append_failed(error)
        if config.flush_messages > 1:
            self.advance_high_watermark(log.log_end_offset, len(data))
        return self._accepted(log, base_offset, log.log_end_offset, now_ms)

    def append_internal(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> int:
        """Write the records of one decision as one batch; the log's end after it. `ApiError` when that fails.

        On a topic with `flush.messages=1` the caller has them synced and then moves the high watermark.
        """
        log = self.log
        if log is None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR)
        if self.in_sync_replicas < min(self.config.min_insync_replicas, self.replicas):
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        batch = build_batch(Record(number, now_ms, key, value) for number, (key, value) in enumerate(records))
        if len(batch) > self.config.max_message_bytes:
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE)
        try:
            log.append(memoryview(batch), (header_at(batch),), self.leader_epoch, now_ms)
        except OSError as error:
            raise ApiError(self._append_failed(error).error) from error
        if self.config.flush_messages > 1:
            self.advance_high_watermark(log.log_end_offset, len(batch))
        return log.log_end_offset

    def _refused(
        self,
        code: ErrorCode,
        message: str,
        log_start_offset: int = -1,
        record_errors: Sequence[tuple[int, str]] = (),
    ) -> ProduceResult:
        return ProduceResult(
            self.index,
            code,
            log_start_offset=log_start_offset,
            message=message,
            record_errors=record_errors,
        )

    def _accepted(self, log: Log, base_offset: int, end_offset: int, append_time_ms: int) -> ProduceResult:
        if not self._rewrites_timestamps:
            append_time_ms = _NO_TIMESTAMP
        sync_to = None
        if (
            log.log_end_offset - log.recovery_point >= self.config.flush_messages
            and end_offset > log.recovery_point
        ):
            sync_to = end_offset
        return ProduceResult(
            self.index, ErrorCode.NONE, base_offset, append_time_ms, log.log_start_offset, None, (), sync_to
        )

    def _received(self, data: memoryview, allows_zstd: bool) -> BatchHeader:
        """The batch's header, when it is one that this topic can take at all."""
        config = self.config
        header = sole_batch(data)
        if len(data) > config.max_message_bytes:
            raise InvalidBatch(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {len(data)} bytes; {self.name.topic} allows {config.max_message_bytes} "
                "(max.message.bytes)",
            )
        if len(data) > config.segment_bytes:
            raise InvalidBatch(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {len(data)} bytes does not fit a segment of {config.segment_bytes}",
            )
        if header.attributes & (TRANSACTIONAL | LOG_APPEND_TIME):
            if header.is_transactional:
                raise InvalidBatch(ErrorCode.INVALID_TXN_STATE, "transactions are not served")
            # Only the broker says whose clock a batch's timestamps are by.
            header = restamp(data, header._replace(attributes=header.attributes & ~LOG_APPEND_TIME))
        if not allows_zstd and header.codec == compression.CompressionType.ZSTD:
            raise InvalidBatch(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
            )
        return header

    def _with_fair_timestamps(self, data: memoryview, header: BatchHeader, now_ms: int) -> BatchHeader:
        """The header, when every record is within the topic's limits; the records are asked only if they must be."""
        config = self.config
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
                f"{len(wrong)} record(s) are older or newer than {self.name.topic} allows "
                "(message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                wrong,
            )
        max_timestamp = max(_NO_TIMESTAMP, *timestamps)
        if max_timestamp != header.max_timestamp:
            return restamp(data, header._replace(max_timestamp=max_timestamp))
        return header

    def _check_keys(self, data: memoryview, header: BatchHeader) -> None:
        reason = f"{self.name.topic} is compacted: every record needs a key"
        without_key = [
            (number, reason)
            for number, record in enumerate(iterate_records(data, header))
            if record.key is None
        ]
        if without_key:
            raise InvalidBatch(ErrorCode.INVALID_RECORD, reason, without_key)

    def _as_configured(
        self, data: memoryview, header: BatchHeader, now_ms: int
    ) -> tuple[memoryview, BatchHeader]:
        if self._codec is not None and header.codec != self._codec:
            data = memoryview(recompress(data, header, self._codec))
            header = header_at(data)
        elif self._codec == compression.CompressionType.NONE:
            check_record_count(data, header)
        if self.config.is_log_append_time:
            header = stamp_append_time(data, header, now_ms)
        return data, header

    def _append_failed(self, error: OSError) -> ProduceResult:
        message = f"{self.name}: cannot write: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # The torn write was cut off again: the partition serves readers and recovers with the next free byte.
            logger.error("%s; free some space, producers will retry", message)
        else:
            self.fence(message)
        return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, message)

    def fence(self, reason: str) -> None:
        """The disk under this partition failed: stop serving it, touch nothing."""
        if self.log is not None:
            log, self.log = self.log, None
            log.release()
            self.on_offline(self, reason)
            self.wake_waiters()

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """What a client hears that believes in another leader epoch; it may also claim to know none."""
        if epoch in (-1, self.leader_epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # -- visibility ------------------------------------------------------------------------------------------

    def advance_high_watermark(self, offset: int, added_bytes: int) -> None:
        if offset > self.high_watermark:
            self.high_watermark = offset
            if self._waiters:
                for waiter in list(self._waiters):
                    waiter(added_bytes)

    def wait(self, waiter: Callable[[int], None]) -> None:
        """Call `waiter` with the bytes that became visible, each time some do."""
        self._waiters[waiter] = None

    def stop_waiting(self, waiter: Callable[[int], None]) -> None:
        self._waiters.pop(waiter, None)

    def wake_waiters(self) -> None:
        """Something other than new data happened (deletion, new epoch): let every waiter look again."""
        for waiter in list(self._waiters):
            waiter(1 << 62)
