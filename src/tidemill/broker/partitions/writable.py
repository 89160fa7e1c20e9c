"""A replica that is written to, while this broker leads it.

`append` is the produce path from the batch's bytes to the page cache: check, stamp in place, one write. A partition with
one replica has nobody to wait for, and its appends do not pass through the leader's machine at all.

A batch of a transaction is appended when the transaction is open here already, or with the guard under which its
coordinator has confirmed it (`guards.py`). A marker ends the transaction and is a batch like others; the coordinators' own
records come in by `append_internal`.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Sequence

from tidemill.broker.partitions.guards import Guard, Guards
from tidemill.broker.partitions.partition_host import Host
from tidemill.broker.partitions.produce_rules import Inspected, ProduceRules
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.replica import Replica
from tidemill.config import TopicConfig
from tidemill.coordinator.shard import Writer
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.log.log import Log
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import (
    TRANSACTIONAL,
    BatchHeader,
    InvalidBatch,
    Record,
    build_batch,
    check_produced,
    header_at,
    stamp_append_time,
)
from tidemill.protocol.steps import NotAtOnce, Steps, run_first_step
from tidemill.replication.leader import Effect, PartitionLeader
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

_NO_TIMESTAMP = -1
_NO_ORDER = 0
_PASSING = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS)


class WritableReplica(Replica):
    __slots__ = (
        "_guards",
        "_is_alone",
        "_isr_size",
        "_leader",
        "_looked_into",
        "_min_isr",
        "_refusals",
        "_rules",
        "_writable",
    )

    def __init__(
        self,
        name: TopicPartition,
        topic_id: bytes,
        log: Log | None,
        config: TopicConfig,
        host: Host,
        high_watermark: int = 0,
        refusals: Refusals | None = None,
    ) -> None:
        super().__init__(name, topic_id, log, config, host, high_watermark)
        # The log and the leader's machine, while this broker leads the partition.
        self._writable: Log | None = None
        self._leader: PartitionLeader | None = None
        self._is_alone = False
        self._isr_size = 0
        self._min_isr = 1
        self._rules = ProduceRules(name.topic, config)
        self._refusals = refusals or Refusals()
        self._guards = Guards()
        # How many batches wait for their records to be looked at, or behind such a batch.
        self._looked_into = 0

    def _do(self, effects: Sequence[Effect]) -> None:
        """Carry out what the leader's machine says."""
        raise NotImplementedError

    # -- producing -------------------------------------------------------------------------------------------

    def append(
        self,
        data: memoryview,
        acks: int,
        now_ms: int,
        *,
        allows_zstd: bool = True,
        allows_transactions: bool = False,
        guard: Guard | None = None,
        inspected: Inspected | Exception | None = None,
    ) -> ProduceResult:
        """`guard` is that of a transaction that is not open here yet and may be, as its coordinator says.

        `NotAtOnce` when it takes long to look into the batch, or into one that came before it: `append_later` does so.
        """
        if self._looked_into and inspected is None:
            raise NotAtOnce
        log = self._writable
        if log is None:
            return self._refused_for_now(data, *self._not_writable())
        if acks == -1 and self._isr_size < self._min_isr:
            return self._refused_for_now(
                data,
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.name} has {self._isr_size} replicas in sync, "
                f"min.insync.replicas is {self.config.min_insync_replicas}",
            )
        rules = self._rules
        try:
            header = rules.received(data, allows_zstd, allows_transactions)
        except InvalidBatch as error:
            return self._refused(error.code, error.reason)
        try:
            check_produced(header)
            if isinstance(inspected, Exception):
                raise inspected
            if inspected is not None:
                data, header = inspected
            elif rules.looks_inside(header, now_ms):
                data, header = run_first_step(rules.inspect(data, header, now_ms))
            if header.producer_id >= 0:
                if header.attributes & TRANSACTIONAL:
                    duplicate = self._guards.duplicate_of(log.producers, header, guard)
                else:
                    duplicate = log.producers.duplicate_of(header)
                if duplicate is not None:
                    end_offset = duplicate.last_offset + 1
                    return self._accepted(log, duplicate.base_offset, end_offset, duplicate.timestamp, acks)
                if self._refusals and log.producers.get(header.producer_id) is None:
                    self._refuse_successor(header)
            if rules.rewrites_timestamps:
                header = stamp_append_time(data, header, now_ms)
            base_offset = log.append(data, (header,), self.leader_epoch, now_ms)
            if guard is not None:
                self._guards.forget(header.producer_id)
        except InvalidBatch as error:
            code = error.code
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                code = self._refusals.before(header, self._host.steady_ms()) or code
            return self._refused(code, error.reason, log.log_start_offset, error.record_errors)
        except ProtocolError as error:
            return self._refused(ErrorCode.INVALID_RECORD, str(error), log.log_start_offset)
        except OSError as error:
            self._refusals.note(header, ErrorCode.KAFKA_STORAGE_ERROR, self._host.steady_ms())
            return self._append_failed(error)
        size = len(data)
        counts = self.counts
        counts.messages_in += header.record_count
        counts.bytes_in += size
        self._appended(log, size)
        return self._accepted(log, base_offset, log.log_end_offset, now_ms, acks)

    def append_later(
        self,
        data: memoryview,
        acks: int,
        settled: Callable[[ProduceResult], None],
        *,
        allows_zstd: bool = True,
        allows_transactions: bool = False,
        guard: Guard | None = None,
    ) -> None:
        """Append what `append` did not append at once. `data` stays as it is; batches keep their order."""
        self._looked_into += 1

        def inspect() -> Steps[Inspected]:
            # What has no such header is refused by `append`.
            header = self._rules.received(data, allows_zstd, allows_transactions)
            check_produced(header)
            now_ms = self._host.wall_ms()
            if self._rules.looks_inside(header, now_ms):
                return (yield from self._rules.inspect(data, header, now_ms))
            return data, header

        def inspected(found: Inspected, error: Exception | None) -> None:
            self._looked_into -= 1
            if error is not None and not isinstance(error, InvalidBatch | ProtocolError):
                logger.error("%s: looking into a batch failed", self.name, exc_info=error)
                settled(self._refused(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error)))
                return
            settled(
                self.append(
                    data,
                    acks,
                    self._host.wall_ms(),
                    allows_zstd=allows_zstd,
                    allows_transactions=allows_transactions,
                    guard=guard,
                    inspected=found if error is None else error,
                )
            )

        self._host.long_work.submit(inspect, inspected)

    def _appended(self, log: Log, size: int) -> None:
        """A batch stands at the end of the log: who may count on it, and who wants to copy it?"""
        end_offset = log.log_end_offset
        if self._is_alone and self.config.flush_messages > 1:
            before, self.high_watermark = self.high_watermark, end_offset
            if self._fetches:
                for fetch in list(self._fetches):
                    fetch(size)
            if self._stable_fetches:
                self._tell_stable(before, size)
            return
        leader = self._leader
        assert leader is not None
        self.delayed_fetches.appended(end_offset, size)
        if not self._is_alone:
            now_ms = self._host.steady_ms()
            leader.appended(end_offset, now_ms)
            if self.config.flush_messages > 1:
                self._do(leader.synced(end_offset, now_ms))
        if self.config.flush_messages == 1:
            self._sync(log)

    def _refused_for_now(self, data: memoryview, code: ErrorCode, message: str) -> ProduceResult:
        with contextlib.suppress(InvalidBatch):
            header = self._rules.received(data, allows_zstd=True, allows_transactions=True)
            self._refusals.note(header, code, self._host.steady_ms())
        return self._refused(code, message)

    def refuse_unverified(self, header: BatchHeader, code: ErrorCode, message: str) -> ProduceResult:
        """The coordinator did not confirm a batch's transaction. Where it may yet, those behind it hear the same."""
        if code in _PASSING:
            self._refusals.note(header, code, self._host.steady_ms())
        return self._refused(code, message)

    def _refuse_successor(self, header: BatchHeader) -> None:
        code = self._refusals.before(header, self._host.steady_ms())
        if code is not None:
            raise InvalidBatch(code, f"an earlier batch of producer {header.producer_id} comes first")

    def _not_writable(self) -> tuple[ErrorCode, str]:
        if self.log is None:
            return ErrorCode.KAFKA_STORAGE_ERROR, f"{self.name} is offline on this broker"
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.name}"

    def _refused(
        self,
        code: ErrorCode,
        message: str,
        log_start_offset: int = -1,
        record_errors: Sequence[tuple[int, str]] = (),
    ) -> ProduceResult:
        self.counts.failed_produce_requests += 1
        return ProduceResult(
            self.index,
            code,
            log_start_offset=log_start_offset,
            message=message,
            record_errors=record_errors,
        )

    def _accepted(
        self, log: Log, base_offset: int, end_offset: int, append_time_ms: int, acks: int
    ) -> ProduceResult:
        if not self._rules.rewrites_timestamps:
            append_time_ms = _NO_TIMESTAMP
        sync_to = commit_to = None
        if (
            log.log_end_offset - log.recovery_point >= self.config.flush_messages
            and end_offset > log.recovery_point
        ):
            sync_to = end_offset
        if acks == -1 and end_offset > self.high_watermark:
            commit_to = end_offset
        return ProduceResult(
            self.index,
            ErrorCode.NONE,
            base_offset,
            append_time_ms,
            log.log_start_offset,
            None,
            (),
            sync_to,
            commit_to,
        )

    def _append_failed(self, error: OSError) -> ProduceResult:
        message = f"{self.name}: cannot write: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # The torn write was cut off again: the partition serves readers and recovers with the next free byte.
            logger.error("%s; free some space, producers will retry", message)
        else:
            self.fence(message)
        return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, message)

    # -- coordinators ----------------------------------------------------------------------------------------

    def append_internal(
        self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int, writer: Writer | None = None
    ) -> int:
        """Write the records of one decision as one batch; the log's end after it. `ApiError` when that fails.

        They are committed when the high watermark has passed that end. With a writer they are part of its transaction.
        """
        log = self._writable_with_enough_in_sync()
        if writer is not None:
            self._refuse_old_epoch(log, writer)
        batch_records = [Record(number, now_ms, key, value) for number, (key, value) in enumerate(records)]
        if writer is None:
            batch = build_batch(batch_records)
        else:
            # As Kafka's coordinators: the sequence says nothing, since nobody sends these records again.
            batch = build_batch(
                batch_records, attributes=TRANSACTIONAL, **writer._asdict(), base_sequence=_NO_ORDER
            )
        if len(batch) > self.config.max_message_bytes:
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE)
        try:
            log.append(memoryview(batch), (header_at(batch),), self.leader_epoch, now_ms)
        except OSError as error:
            raise ApiError(self._append_failed(error).error) from error
        if writer is not None:
            self._guards.forget(writer.producer_id)
        end_offset = log.log_end_offset
        self._appended(log, len(batch))
        return end_offset

    def _refuse_old_epoch(self, log: Log, writer: Writer) -> None:
        state = log.producers.get(writer.producer_id)
        if state is not None and writer.producer_epoch < state.epoch:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH)

    def append_marker(self, end: TransactionEnd, now_ms: int) -> int:
        """End a producer's transaction in this partition; the log's end after the marker. `ApiError` when that fails.

        What the coordinator has confirmed of that producer before is void from here on (failure 6).
        """
        log = self._writable_with_enough_in_sync()
        size_before = log.size
        try:
            end_offset = log.append_marker(end, self.leader_epoch, now_ms)
        except InvalidBatch as error:
            raise ApiError(error.code, error.reason) from error
        except OSError as error:
            raise ApiError(self._append_failed(error).error) from error
        self._guards.ended(end)
        self._appended(log, log.size - size_before)
        return end_offset

    def _writable_with_enough_in_sync(self) -> Log:
        log = self._writable
        if log is None:
            raise ApiError(*self._not_writable())
        if self._isr_size < self._min_isr:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return log

    # -- transactions that are about to begin ----------------------------------------------------------------

    def guard_for_writer(self, writer: Writer, *, adds: bool) -> Guard | None:
        """As `guard_for`, for records of a coordinator that will be part of a transaction."""
        return self._guard(*writer, _NO_ORDER, adds)

    def drop_guard(self, producer_id: int, guard: Guard) -> None:
        """It was taken for an epoch that the producer does not have: nobody may be kept out by it."""
        if self._guards.is_present(producer_id, guard):
            self._guards.forget(producer_id)

    def check_writer(self, writer: Writer, guard: Guard) -> None:
        """`ApiError` when a marker came since the guard was taken: what the coordinator then confirmed is over."""
        log = self._writable
        if (
            log is None
            or log.producers.is_open(*writer)
            or self._guards.is_present(writer.producer_id, guard)
        ):
            return
        raise ApiError(ErrorCode.INVALID_TXN_STATE)

    def guard_for(self, header: BatchHeader, *, adds: bool) -> Guard | None:
        """Under what a batch of a transaction may be appended when the coordinator confirms it; None when it need not."""
        return self._guard(header.producer_id, header.producer_epoch, header.base_sequence, adds)

    def _guard(self, producer_id: int, producer_epoch: int, sequence: int, adds: bool) -> Guard | None:
        log = self._writable
        if log is None or log.producers.is_open(producer_id, producer_epoch):
            return None
        return self._guards.enter(producer_id, producer_epoch, sequence, adds)
