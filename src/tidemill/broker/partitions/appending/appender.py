"""Appends to a partition while this broker leads it.

`append` is the produce path from the batch's bytes to the page cache: check, stamp in place, one write. Owns the topic's
rules, the refusals that producers will retry, and the verification guards. Whether this broker leads, in which epoch, and
whether enough replicas are in sync is the leadership's.

A batch of a transaction is appended when the transaction is open here already, or with the guard under which its
coordinator has verified it (`guards.py`). A marker ends the transaction and is a batch like others. Coordinators write their
own records through `append_internal`.

A decommissioned partition stores nothing new (decision 18). `append` refuses its batches as it does those that take long,
and `append_later` passes them on (`passing_on.py`). The partition that stores them appends them with `is_passed_on`. When
another partition may have stored batches of this one, `append_later` looks there first (`stored_elsewhere.py`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from tidemill.broker.disk.long_work import GivenUp, LongWork, Owner
from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.appending.guards import NO_SEQUENCE, Guard, Guards
from tidemill.broker.partitions.appending.held_batches import HeldBatches
from tidemill.broker.partitions.appending.produce_rules import Inspected, ProduceRules
from tidemill.broker.partitions.leadership import Leadership
from tidemill.broker.partitions.reader import PartitionReader
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.shrinking.passing_on import (
    PassingOn,
    PassingOnHost,
    is_committed,
    is_outdated,
    knows_sequence,
    next_where_stored,
    stored_before,
    taken_over,
)
from tidemill.broker.partitions.shrinking.places import storing_partitions
from tidemill.broker.partitions.shrinking.stored_elsewhere import StoredElsewhere, StoredElsewhereHost
from tidemill.config import TopicConfig
from tidemill.coordinator.shard import Writer
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.log.log import Log
from tidemill.log.producer_state.producers import AppendedBatch, later_sequence
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import (
    NAMED_PARTITION,
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
from tidemill.types import TopicPartition

logger = logging.getLogger(__name__)

_NO_TIMESTAMP = -1
_NONE = ErrorCode.NONE
# The coordinator may verify the same batch when it is sent again.
_RETRIABLE = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.CONCURRENT_TRANSACTIONS)


class AppenderHost(PassingOnHost, StoredElsewhereHost, Protocol):
    """The part of the broker that appending uses."""

    @property
    def long_work(self) -> LongWork: ...
    def wall_ms(self) -> int: ...
    def storing(self, topic: str, index: int) -> tuple[int, int]:
        """The partition that stores what producers send to a partition, and the end of the metadata since which it does."""


class _NotKnownYet(Exception):
    """Whether a batch is stored elsewhere, or will be, is not known yet."""


class Appender:
    __slots__ = (
        "_config",
        "_elsewhere",
        "_fence",
        "_held",
        "_host",
        "_inspecting",
        "_leadership",
        "_name",
        "_origins",
        "_reader",
        "_refusals",
        "_rules",
        "counts",
        "guards",
        "passing_on",
        "stays",
    )

    def __init__(
        self,
        name: TopicPartition,
        config: TopicConfig,
        host: AppenderHost,
        reader: PartitionReader,
        leadership: Leadership,
        counts: TopicCounts,
        refusals: Refusals | None,
        *,
        fence: Callable[[str], None],
    ) -> None:
        self._name = name
        self._host = host
        self._reader = reader
        self._leadership = leadership
        self.counts = counts
        self._refusals = refusals or Refusals()
        self._fence = fence
        self.guards = Guards(leadership)
        # How many batches wait until their records are inspected, or behind such a batch.
        self._inspecting = 0
        # Those that wait until the partition takes appends. While it takes none, that counts as a batch that waits.
        self._held = HeldBatches()
        # Set while the partition is decommissioned. It counts as a batch that waits, so `append` has no test of its own.
        self.passing_on: PassingOn | None = None
        # Partitions that may have stored batches of this one; and what they store, as long as it matters. That counts, too.
        self._origins: tuple[int, ...] = ()
        self._elsewhere: StoredElsewhere | None = None
        # Whether a batch is stored here although the partition is decommissioned: it cancels delayed records of this one.
        self.stays: Callable[[memoryview, BatchHeader], Steps[bool]] | None = None
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self._config = config
        self._rules = ProduceRules(self._name.topic, config)
        index, active = self._name.partition, config.tidemill_partitions_active
        target = index % active if active else index
        before = self.passing_on
        if before is not None and before.target != target:
            self.passing_on = None
            self._inspecting -= 1
            before.close()
        if self.passing_on is None and target != index:
            self.passing_on = PassingOn(self._name, target, self._host, self._refusals)
            self._inspecting += 1
        origins = storing_partitions(index, config) - {target}
        if origins != set(self._origins):
            self._origins = tuple(sorted(origins))
            self._look_elsewhere()

    def _look_elsewhere(self) -> None:
        """Forget what other partitions store for this one. It is asked for when it is needed."""
        self._inspecting -= self._elsewhere is not None
        self._elsewhere = StoredElsewhere(self._name, self._origins, self._host) if self._origins else None
        self._inspecting += self._elsewhere is not None

    @property
    def is_decommissioned(self) -> bool:
        return self.passing_on is not None

    def began_to_lead(self) -> None:
        """Ask early what other partitions store for this one. The first batch is refused until they have answered."""
        if self._elsewhere is not None:
            self._elsewhere.ask()

    def resigned(self) -> None:
        """This broker stopped leading: what coordinators verified here is void."""
        self.guards.clear()
        if self.passing_on is not None:
            self.passing_on.close()
            self.passing_on = PassingOn(self._name, self.passing_on.target, self._host, self._refusals)
        self._look_elsewhere()

    # -- holding batches back --------------------------------------------------------------------------------

    @property
    def holds_batches(self) -> bool:
        return len(self._held) > 0

    def hold(self) -> None:
        """Let batches of producers wait from now on."""
        if self._held.is_open:
            self._held.is_open = False
            self._inspecting += 1

    def let_in(self, records_max: int, *, takes_any_first: bool = False) -> int:
        """Append some of the batches that wait (`HeldBatches.let_in`)."""
        return self._held.let_in(records_max, takes_any_first=takes_any_first)

    def release(self) -> None:
        """Append all batches that wait, and hold none any more."""
        if not self._held.is_open:
            self._inspecting -= 1
            self._held.release()

    # -- producing -------------------------------------------------------------------------------------------

    def append(
        self,
        data: memoryview,
        acks: int,
        wall_ms: int,
        *,
        allows_zstd: bool = True,
        allows_transactions: bool = False,
        guard: Guard | None = None,
        inspected: Inspected | Exception | None = None,
        is_passed_on: bool | None = None,
        first_sequence: int | None = None,
    ) -> ProduceResult:
        """Append one batch. `guard` is that of a transaction that its coordinator has verified and is not open here yet.

        `first_sequence` follows the producer's last one in another log.
        `NotAtOnce` when inspecting the records of this batch, or of one before it, takes long: use `append_later`.
        """
        if self._inspecting and inspected is None:
            raise NotAtOnce
        leadership = self._leadership
        log = leadership.writable_log
        if log is None:
            return self._refused_for_now(data, *self._not_writable())
        if acks == -1 and leadership.is_under_min_isr:
            return self._refused_for_now(data, ErrorCode.NOT_ENOUGH_REPLICAS, self._too_few_in_sync())
        rules = self._rules
        try:
            header = rules.received(data, allows_zstd, allows_transactions, is_passed_on=is_passed_on)
        except InvalidBatch as error:
            return self._refused(error.code, error.reason)
        if header.attributes & NAMED_PARTITION:
            partition, since = self._host.storing(self._name.topic, header.named_partition)
            if partition != self._name.partition or is_outdated(header, since):
                return self._refused(*self._not_storing(header.named_partition))
            header, stated = taken_over(header)
            first_sequence = next_where_stored(log.producers, header, stated)
        try:
            check_produced(header)
            if isinstance(inspected, Exception):
                raise inspected
            if inspected is not None:
                data, header = inspected
            elif rules.looks_inside(header, wall_ms):
                data, header = run_first_step(rules.inspect(data, header, wall_ms))
            if header.producer_id >= 0:
                if header.attributes & TRANSACTIONAL:
                    duplicate = self.guards.duplicate_of(log.producers, header, guard, first_sequence)
                else:
                    duplicate = log.producers.duplicate_of(header, first_sequence)
                if duplicate is not None:
                    end_offset = duplicate.last_offset + 1
                    return self._accepted(log, duplicate.base_offset, end_offset, duplicate.timestamp, acks)
                if self._refusals and not knows_sequence(log.producers, header):
                    self._refuse_successor(header)
            if rules.rewrites_timestamps:
                header = stamp_append_time(data, header, wall_ms)
            base_offset = log.append(data, (header,), leadership.leader_epoch, wall_ms)
            if guard is not None:
                self.guards.forget(header.producer_id)
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
        end_offset = log.log_end_offset
        if leadership.commits_at_once:
            self._reader.appended_and_committed(end_offset, size)
        else:
            leadership.appended(log, size)
        return self._accepted(log, base_offset, end_offset, wall_ms, acks)

    def append_later(
        self,
        data: memoryview,
        acks: int,
        settled: Callable[[ProduceResult], None],
        *,
        allows_zstd: bool = True,
        allows_transactions: bool = False,
        guard: Guard | None = None,
        transactional_id: str | None = None,
        is_passed_on: bool = False,
        owner: Owner | None = None,
    ) -> None:
        """Append a batch for which `append` raised `NotAtOnce`, or pass it on where the partition is decommissioned.

        Nothing else may change `data`; the batches of an owner keep their order. `is_passed_on` says that a node sent it.
        """
        self._inspecting += 1
        was_decommissioned = self.is_decommissioned
        stays = False

        def inspect() -> Steps[Inspected]:
            nonlocal stays
            # A batch without a valid header is refused by `append`.
            header = self._rules.received(data, allows_zstd, allows_transactions, is_passed_on=is_passed_on)
            found = yield from self._rules.inspect_received(data, header, self._host.wall_ms())
            if self.passing_on is not None and self.stays is not None:
                stays = yield from self.stays(*found)
            return found

        def inspected(found: Inspected, error: Exception | None) -> None:
            self._held.admit(found[1].record_count if error is None else 0, partial(store, found, error))

        def store(found: Inspected, error: Exception | None) -> None:
            self._inspecting -= 1
            if error is not None and not isinstance(error, InvalidBatch | ProtocolError):
                settled(self._not_inspected(data, error))
                return
            if was_decommissioned != self.is_decommissioned:
                # A transaction was not verified here while it was to be verified elsewhere.
                reason = f"{self._name} has just changed its role"
                settled(self._refused_for_now(data, ErrorCode.NOT_LEADER_OR_FOLLOWER, reason))
                return
            try:
                if error is not None:
                    raise error
                duplicate, first_sequence = self._stored_elsewhere(found[1])
            except _NotKnownYet as unknown:
                settled(self._refused_for_now(data, ErrorCode.NOT_ENOUGH_REPLICAS, str(unknown)))
                return
            except (InvalidBatch, ProtocolError) as refused:
                error, duplicate, first_sequence = refused, None, None
            if duplicate is not None:
                self._refusals.forget(found[1])
                # An offset of another partition would be wrong for this one.
                settled(ProduceResult(self._name.partition, ErrorCode.NONE, -found[1].record_count))
                return
            if self.passing_on is not None and not stays:
                self._pass_on(self.passing_on, found, error, acks, transactional_id, first_sequence, settled)
                return
            if first_sequence is not None and self._may_leave_gap(found[1]):
                first_sequence = later_sequence(found[1].base_sequence, first_sequence)
            settled(
                self.append(
                    data,
                    acks,
                    self._host.wall_ms(),
                    allows_zstd=allows_zstd,
                    allows_transactions=allows_transactions,
                    guard=guard,
                    inspected=found if error is None else error,
                    is_passed_on=is_passed_on,
                    first_sequence=first_sequence,
                )
            )
            self._forget_elsewhere(found[1] if error is None else None)

        self._host.long_work.submit(inspect, inspected, owner, len(data))

    def _not_inspected(self, data: memoryview, error: Exception) -> ProduceResult:
        if isinstance(error, GivenUp):
            return self._refused_for_now(data, ErrorCode.NETWORK_EXCEPTION, "the connection is closed")
        logger.error("%s: inspecting a batch failed", self._name, exc_info=error)
        return self._refused(ErrorCode.UNKNOWN_SERVER_ERROR, repr(error))

    def _stored_elsewhere(self, header: BatchHeader) -> tuple[AppendedBatch | None, int | None]:
        """The batch of another partition that this one repeats, and the sequence that follows what is stored there."""
        elsewhere = self._elsewhere
        if elsewhere is None or header.producer_id < 0 or header.attributes & NAMED_PARTITION:
            return None, None
        if not elsewhere.is_known:
            elsewhere.ask()
            raise _NotKnownYet(elsewhere.not_known)
        return elsewhere.find(header)

    def _forget_elsewhere(self, header: BatchHeader | None) -> None:
        elsewhere, log = self._elsewhere, self._leadership.writable_log
        if elsewhere is None or log is None:
            return
        if header is not None:
            elsewhere.forget_older(log.producers.get(header.producer_id))
        if elsewhere.is_empty:
            self._elsewhere = None
            self._inspecting -= 1

    def _pass_on(
        self,
        passing_on: PassingOn,
        found: Inspected,
        error: Exception | None,
        acks: int,
        transactional_id: str | None,
        first_elsewhere: int | None,
        settled: Callable[[ProduceResult], None],
    ) -> None:
        """Answer a batch that this log holds already. Pass any other one on."""
        log = self._leadership.writable_log
        if log is None:
            settled(self._refused(*self._not_writable()))
            return
        try:
            if error is not None:
                raise error
            data, header = found
            if header.attributes & NAMED_PARTITION:
                # On its way while the number of partitions changed: its sender finds the right place.
                raise InvalidBatch(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._name} is decommissioned")
            duplicate, first_sequence = stored_before(log.producers, header)
            if first_elsewhere is not None:
                first_sequence = later_sequence(first_elsewhere, first_sequence)
            if duplicate is None and not is_committed(log.producers, header, self._reader.high_watermark):
                raise _NotKnownYet(f"{self._name} is not committed up to its end yet")
        except _NotKnownYet as unknown:
            settled(self._refused_for_now(data, ErrorCode.NOT_ENOUGH_REPLICAS, str(unknown)))
            return
        except InvalidBatch as refused:
            settled(self._refused(refused.code, refused.reason, log.log_start_offset, refused.record_errors))
            return
        except ProtocolError as refused:
            settled(self._refused(ErrorCode.INVALID_RECORD, str(refused), log.log_start_offset))
            return
        if duplicate is not None:
            end_offset = duplicate.last_offset + 1
            settled(self._accepted(log, duplicate.base_offset, end_offset, duplicate.timestamp, acks))
            return
        may_leave_gap = self._may_leave_gap(header)
        passing_on.submit(
            header, data, acks, transactional_id, first_sequence, settled, may_leave_gap=may_leave_gap
        )

    def _may_leave_gap(self, header: BatchHeader) -> bool:
        """Whether batches before this one may have been in a log, or in a part of this one, that is gone."""
        log = self._leadership.writable_log
        if log is None:
            return False
        was_removed = self._name.partition < self._config.tidemill_partitions_former
        return (was_removed or not log.producers.is_complete) and not knows_sequence(log.producers, header)

    def _not_storing(self, named: int) -> tuple[ErrorCode, str]:
        """One of two brokers does not know yet that the number of partitions has changed."""
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self._name} stores nothing sent to partition {named}"

    def _appended(self, log: Log, size: int) -> None:
        if self._leadership.commits_at_once:
            self._reader.appended_and_committed(log.log_end_offset, size)
        else:
            self._leadership.appended(log, size)

    def _refused_for_now(self, data: memoryview, code: ErrorCode, message: str) -> ProduceResult:
        with contextlib.suppress(InvalidBatch, NotAtOnce):
            header = self._rules.received(data, allows_zstd=True, allows_transactions=True)
            self._refusals.note(header, code, self._host.steady_ms())
        return self._refused(code, message)

    def refuse_unverified(self, header: BatchHeader, code: ErrorCode, message: str) -> ProduceResult:
        """The coordinator did not verify a batch's transaction. If a retry may succeed, later batches are refused alike."""
        if code in _RETRIABLE:
            self._refusals.note(header, code, self._host.steady_ms())
        return self._refused(code, message)

    def _refuse_successor(self, header: BatchHeader) -> None:
        code = self._refusals.before(header, self._host.steady_ms())
        if code is not None:
            self._refusals.note(header, code, self._host.steady_ms())
            raise InvalidBatch(code, f"an earlier batch of producer {header.producer_id} comes first")

    def _not_writable(self) -> tuple[ErrorCode, str]:
        if self._reader.log is None:
            return ErrorCode.KAFKA_STORAGE_ERROR, f"{self._name} is offline on this broker"
        return ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self._name}"

    def _too_few_in_sync(self) -> str:
        in_sync, least = self._leadership.in_sync_count, self._config.min_insync_replicas
        return f"{self._name} has {in_sync} replicas in sync, min.insync.replicas is {least}"

    def _refused(
        self,
        code: ErrorCode,
        message: str,
        log_start_offset: int = -1,
        record_errors: Sequence[tuple[int, str]] = (),
    ) -> ProduceResult:
        self.counts.failed_produce_requests += 1
        return ProduceResult(
            self._name.partition,
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
            log.log_end_offset - log.recovery_point >= self._config.flush_messages
            and end_offset > log.recovery_point
        ):
            sync_to = end_offset
        if acks == -1 and end_offset > self._reader.high_watermark:
            commit_to = end_offset
        # A tuple's own constructor: that of a named tuple is a Python function, and every batch would pay for it.
        sent = (self._name.partition, _NONE, base_offset, append_time_ms, log.log_start_offset)
        return tuple.__new__(ProduceResult, (*sent, None, (), sync_to, commit_to))

    def _append_failed(self, error: OSError) -> ProduceResult:
        message = f"{self._name}: cannot write: {error.strerror or error}"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            # The torn write was cut off again: the partition still serves reads, and writes as soon as there is space.
            logger.error("%s; free some space, producers will retry", message)
        else:
            self._fence(message)
        return self._refused(ErrorCode.KAFKA_STORAGE_ERROR, message)

    # -- coordinators ----------------------------------------------------------------------------------------

    def append_internal(
        self, records: Sequence[tuple[bytes, bytes | None]], timestamp_ms: int, writer: Writer | None = None
    ) -> int:
        """Write the records of one decision as one batch; returns the log's end after it. `ApiError` when that fails.

        They are committed when the high watermark has passed that end. With a writer they are part of its transaction.
        """
        log = self._writable_with_enough_in_sync()
        state = None if writer is None else log.producers.get(writer.producer_id)
        if state is not None and writer is not None and writer.producer_epoch < state.epoch:
            raise ApiError(ErrorCode.INVALID_PRODUCER_EPOCH)
        batch_records = [
            Record(number, timestamp_ms, key, value) for number, (key, value) in enumerate(records)
        ]
        if writer is None:
            batch = build_batch(batch_records)
        else:
            batch = build_batch(
                batch_records, attributes=TRANSACTIONAL, **writer._asdict(), base_sequence=NO_SEQUENCE
            )
        if len(batch) > self._config.max_message_bytes:
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE)
        try:
            log.append(memoryview(batch), (header_at(batch),), self._leadership.leader_epoch, timestamp_ms)
        except OSError as error:
            raise ApiError(self._append_failed(error).error) from error
        if writer is not None:
            self.guards.forget(writer.producer_id)
        end_offset = log.log_end_offset
        self._appended(log, len(batch))
        return end_offset

    def append_copies(self, batch: bytearray, wall_ms: int) -> None:
        """Write a batch of copies of delayed records. `ApiError` when that fails.

        A copy has more headers than its original, so the limit of produced batches does not apply.
        """
        log = self._writable_with_enough_in_sync()
        try:
            log.append(memoryview(batch), (header_at(batch),), self._leadership.leader_epoch, wall_ms)
        except OSError as error:
            raise ApiError(self._append_failed(error).error) from error
        self._appended(log, len(batch))

    def append_marker(self, end: TransactionEnd, timestamp_ms: int) -> int:
        """End a producer's transaction in this partition; returns the log's end after the marker. `ApiError` if that fails.

        What the coordinator verified for that producer before is void from here on (failure 6). A repetition of a
        marker that was written adds none (failure 7).
        """
        log = self._writable_with_enough_in_sync()
        if log.producers.has_ended(end):
            return log.log_end_offset
        if self.passing_on is not None and not log.producers.is_open_for(end.producer_id):
            # Its records are elsewhere, if it has any. A marker would keep this partition from getting empty.
            self.guards.ended(end)
            return log.log_end_offset
        size_before = log.size
        try:
            end_offset = log.append_marker(end, self._leadership.leader_epoch, timestamp_ms)
        except InvalidBatch as error:
            raise ApiError(error.code, error.reason) from error
        except OSError as error:
            raise ApiError(self._append_failed(error).error) from error
        self.guards.ended(end)
        self._appended(log, log.size - size_before)
        return end_offset

    def _writable_with_enough_in_sync(self) -> Log:
        log = self._leadership.writable_log
        if log is None:
            raise ApiError(*self._not_writable())
        if self._leadership.is_under_min_isr:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        return log
