"""One partition that this broker hosts: its log, its leadership, and who waits for it to grow.

`append` is the produce path from the batch's bytes to the page cache: check, stamp in place, one write. Records are
looked into only when the topic's configuration asks for it (a compacted topic refuses records without a key, a
`compression.type` recompresses). A refusal is a `ProduceResult` with the protocol's error; a disk error fences this
partition alone.

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
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    Record,
    build_batch,
    check_produced,
    header_at,
    iterate_records,
    recompress,
    split_batches,
    stamp_append_time,
)
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
_NEVER = (1 << 63) - 1


class RejectedRecords(InvalidBatch):
    """Some records of a batch are not allowed in this topic."""

    def __init__(self, reason: str, record_errors: Sequence[tuple[int, str]]) -> None:
        super().__init__(ErrorCode.INVALID_RECORD, reason)
        self.record_errors = record_errors


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
            header = self._checked(data, now_ms, allows_zstd)
            if header.producer_id >= 0:
                duplicate = log.producers.duplicate_of(header)
                if duplicate is not None:
                    return self._accepted(log, duplicate.base_offset, duplicate.last_offset + 1, now_ms)
            if self._rewrites_batches:
                data, header = self._as_configured(data, header, now_ms)
            base_offset = log.append(data, (header,), self.leader_epoch, now_ms)
        except InvalidBatch as error:
            records = error.record_errors if isinstance(error, RejectedRecords) else ()
            return self._refused(error.code, error.reason, records)
        except ProtocolError as error:
            return self._refused(ErrorCode.INVALID_RECORD, str(error))
        except OSError as error:
            return self._append_failed(error)
        if config.flush_messages > 1:
            self.advance_high_watermark(log.log_end_offset, len(data))
        return self._accepted(log, base_offset, log.log_end_offset, now_ms)

    def append_internal(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> int:
        """Write the records of one decision as one batch; the log's end after it. `ApiError` when that fails."""
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
        self.advance_high_watermark(log.log_end_offset, len(batch))
        return log.log_end_offset

    def _refused(
        self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]] = ()
    ) -> ProduceResult:
        return ProduceResult(self.index, code, message=message, record_errors=record_errors)

    def _accepted(self, log: Log, base_offset: int, end_offset: int, now_ms: int) -> ProduceResult:
        append_time_ms = now_ms if self._rewrites_timestamps else -1
        sync_to = None
        if (
            log.log_end_offset - log.recovery_point >= self.config.flush_messages
            and end_offset > log.recovery_point
        ):
            sync_to = end_offset
        return ProduceResult(
            self.index, ErrorCode.NONE, base_offset, append_time_ms, log.log_start_offset, None, (), sync_to
        )

    def _checked(self, data: memoryview, now_ms: int, allows_zstd: bool) -> BatchHeader:
        config = self.config
        headers = split_batches(data)
        if len(headers) != 1:
            raise InvalidBatch(
                ErrorCode.INVALID_RECORD,
                f"exactly one batch a partition is allowed, {len(headers)} were sent",
            )
        header = headers[0]
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
        check_produced(header)
        if header.attributes & TRANSACTIONAL:
            raise InvalidBatch(ErrorCode.INVALID_TXN_STATE, "transactions are not served")
        if not allows_zstd and header.codec == compression.CompressionType.ZSTD:
            raise InvalidBatch(
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, "zstd needs Produce version 7 or later"
            )
        if not self._rewrites_timestamps:
            self._check_timestamps(header, now_ms)
        if self._needs_keys:
            self._check_keys(data, header)
        return header

    def _check_timestamps(self, header: BatchHeader, now_ms: int) -> None:
        config = self.config
        newest = now_ms + config.message_timestamp_after_max_ms
        if header.max_timestamp <= newest and config.message_timestamp_before_max_ms == _NEVER:
            return
        oldest = now_ms - config.message_timestamp_before_max_ms
        for timestamp in (header.max_timestamp, header.base_timestamp):
            if timestamp > newest or 0 <= timestamp < oldest:
                raise InvalidBatch(
                    ErrorCode.INVALID_TIMESTAMP,
                    f"timestamp {timestamp} of a record is outside of what {self.name.topic} allows at "
                    f"{now_ms} (message.timestamp.before.max.ms, message.timestamp.after.max.ms)",
                )

    def _check_keys(self, data: memoryview, header: BatchHeader) -> None:
        reason = f"{self.name.topic} is compacted: every record needs a key"
        without_key = [
            (number, reason)
            for number, record in enumerate(iterate_records(data, header))
            if record.key is None
        ]
        if without_key:
            raise RejectedRecords(reason, without_key)

    def _as_configured(
        self, data: memoryview, header: BatchHeader, now_ms: int
    ) -> tuple[memoryview, BatchHeader]:
        if self._codec is not None and header.codec != self._codec:
            data = memoryview(recompress(data, header, self._codec))
            (header,) = split_batches(data)
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
