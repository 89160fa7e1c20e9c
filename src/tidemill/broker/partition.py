"""One partition that this broker hosts: its log, its part in the replication of it, and who waits for it to grow.

It leads, follows or waits for a leader, as the metadata image says (`apply`). As leader it takes appends and lets
`replication.PartitionLeader` say what is committed; as follower it takes what `Fetchers` copied. `append` is the produce
path from the batch's bytes to the page cache: check, stamp in place, one write. A partition with one replica has
nobody to wait for, and its appends do not pass through the machine at all.

A record becomes visible when the high watermark passes it: when all in sync have it, and for topics with
`flush.messages=1` when this replica has synced it, so that nobody reads what a power failure could take back. A failing disk
fences this partition; whether more than that follows is for `Replicas` to say.
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Sequence
from functools import partial

from tidemill.broker.partition_host import Host
from tidemill.broker.produce_rules import ProduceRules
from tidemill.broker.refusals import Refusals
from tidemill.broker.waiters import Audience, OffsetWaiters, Settled, Waiter
from tidemill.config import TopicConfig
from tidemill.controller.image import PartitionImage
from tidemill.errors import ApiError, ErrorCode, ProtocolError
from tidemill.log.log import Log
from tidemill.log.recovery import DiskFull
from tidemill.protocol.produce import ProduceResult
from tidemill.protocol.records import (
    BatchHeader,
    InvalidBatch,
    Record,
    build_batch,
    check_produced,
    header_at,
)
from tidemill.replication.leader import (
    AdvanceHighWatermark,
    Effect,
    FollowerState,
    PartitionLeader,
    ProposeIsr,
    StaleFollower,
)
from tidemill.types import NO_BROKER, NO_LEADER_EPOCH, TopicPartition

logger = logging.getLogger(__name__)

_NO_TIMESTAMP = -1


class Partition:
    __slots__ = (
        "_commits",
        "_deletions",
        "_fetches",
        "_host",
        "_is_alone",
        "_isr_size",
        "_leader",
        "_min_isr",
        "_refusals",
        "_rules",
        "_sync_asked_end",
        "_syncs",
        "_writable",
        "audience",
        "config",
        "high_watermark",
        "image",
        "index",
        "is_leader",
        "leader_epoch",
        "leader_id",
        "log",
        "name",
        "topic_id",
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
        self.name = name
        self.index = name.partition
        self.topic_id = topic_id
        # None while the partition is offline: its log could not be opened or its disk failed.
        self.log = log
        # The same while this broker leads the partition.
        self._writable: Log | None = None
        self._host = host
        self.image: PartitionImage | None = None
        self.leader_id: int = NO_BROKER
        self.leader_epoch: int = NO_LEADER_EPOCH
        self._leader: PartitionLeader | None = None
        self.is_leader = False
        self._is_alone = False
        self._isr_size = 0
        self._min_isr = 1
        self._refusals = refusals or Refusals()
        self.high_watermark = 0
        if log is not None:
            self.high_watermark = max(log.log_start_offset, min(high_watermark, log.log_end_offset))
        self.audience = Audience()
        self._fetches = self.audience.fetches
        self._commits, self._syncs, self._deletions = OffsetWaiters(), OffsetWaiters(), OffsetWaiters()
        # The log's end when a sync was last asked for.
        self._sync_asked_end = 0
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self._rules = ProduceRules(self.name.topic, config)
        if self.log is not None:
            self.log.configure(config)
        if self._leader is not None:
            now_ms = self._host.steady_ms()
            effects = self._leader.configured(config.min_insync_replicas, now_ms)
            self._note_isr(self._leader)
            self._do(effects)
            if not self._is_alone and self.log is not None:
                self._do(self._leader.synced(self._synced_end(self.log), now_ms))

    # -- the part it plays -----------------------------------------------------------------------------------

    @property
    def leader(self) -> PartitionLeader | None:
        """The leader's machine, while this broker leads."""
        return self._leader

    @property
    def is_replicated(self) -> bool:
        return self.image is not None and len(self.image.replicas) > 1

    def apply(self, image: PartitionImage) -> None:
        """The metadata says this of the partition now."""
        is_new_epoch = image.leader_epoch != self.leader_epoch or image.leader != self.leader_id
        self.image = image
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        if self.log is not None and image.leader == self._host.broker_id:
            self._lead(self.log, image)
        else:
            self._stop_leading()
        if is_new_epoch:
            self.wake_waiters()

    def _lead(self, log: Log, image: PartitionImage) -> None:
        now_ms = self._host.steady_ms()
        leader = self._leader
        if leader is not None and self._is_alone:
            # What was appended while there was nobody else did not pass through the machine.
            leader.end_offset = log.log_end_offset
            leader.synced_end_offset = self._synced_end(log)
            leader.high_watermark = self.high_watermark
        was_alone, self._is_alone = self._is_alone, len(image.replicas) == 1
        if leader is None:
            leader = self._begin_leading(log, image, now_ms)
        elif image.leader_epoch > leader.leader_epoch + 1:
            # Somebody else may have led in between, and what the followers said then is not known here.
            leader = self._begin_leading(log, image, now_ms)
        elif image.leader_epoch > leader.leader_epoch:
            log.epochs.assign(image.leader_epoch, log.log_end_offset)
            leader.new_epoch(image.replicas, image.isr, (image.leader_epoch, image.partition_epoch), now_ms)
        else:
            effects = leader.image_changed(image.replicas, image.isr, image.partition_epoch, now_ms)
            self._note_isr(leader)
            self._do(effects)
        effects = leader.configured(self.config.min_insync_replicas, now_ms)
        self._note_isr(leader)
        self._do(effects)
        if was_alone and not self._is_alone and leader.synced_end_offset < leader.end_offset:
            self._sync(log)

    def _begin_leading(self, log: Log, image: PartitionImage, now_ms: int) -> PartitionLeader:
        # Written down although it has no records yet: whoever wrote in an epoch between must find out here.
        log.epochs.assign(image.leader_epoch, log.log_end_offset)
        leader = self._leader = PartitionLeader(
            self._host.broker_id,
            image.replicas,
            image.isr,
            image.leader_epoch,
            image.partition_epoch,
            end_offset=log.log_end_offset,
            high_watermark=self.high_watermark,
            min_insync_replicas=self.config.min_insync_replicas,
            lag_time_max_ms=self._host.lag_time_max_ms,
            eligible_epoch=self._host.eligible_epoch,
            now_ms=now_ms,
        )
        if not self._is_alone:
            leader.synced_end_offset = max(self._synced_end(log), self.high_watermark)
            if leader.synced_end_offset < leader.end_offset:
                self._sync(log)
        self._writable = log
        self.is_leader = True
        return leader

    def _synced_end(self, log: Log) -> int:
        """What this replica may vouch for: what is on disk, where acks wait for that."""
        return log.log_end_offset if self.config.flush_messages > 1 else log.recovery_point

    def _note_isr(self, leader: PartitionLeader) -> None:
        self._isr_size = len(leader.isr)
        self._min_isr = leader.min_insync_replicas

    def _stop_leading(self) -> None:
        if self._leader is None:
            return
        self._leader = self._writable = None
        self.is_leader = self._is_alone = False
        self._commits.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._deletions.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def _do(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, AdvanceHighWatermark):
                self._show(effect.offset)
            elif isinstance(effect, ProposeIsr):
                self._host.propose(self, effect)
            else:
                self._host.reconsider_later(self)

    # -- producing -------------------------------------------------------------------------------------------

    def append(self, data: memoryview, acks: int, now_ms: int, *, allows_zstd: bool = True) -> ProduceResult:
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
            header = rules.received(data, allows_zstd)
        except InvalidBatch as error:
            return self._refused(error.code, error.reason)
        try:
            check_produced(header)
            if not rules.rewrites_timestamps:
                header = rules.with_fair_timestamps(data, header, now_ms)
            if rules.needs_keys:
                rules.check_keys(data, header)
            if header.producer_id >= 0:
                duplicate = log.producers.duplicate_of(header)
                if duplicate is not None:
                    end_offset = duplicate.last_offset + 1
                    return self._accepted(log, duplicate.base_offset, end_offset, duplicate.timestamp, acks)
                if self._refusals and log.producers.get(header.producer_id) is None:
                    self._refuse_successor(header)
            if rules.rewrites_batches:
                data, header = rules.as_configured(data, header, now_ms)
            base_offset = log.append(data, (header,), self.leader_epoch, now_ms)
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
        self._appended(log, len(data))
        return self._accepted(log, base_offset, log.log_end_offset, now_ms, acks)

    def _appended(self, log: Log, size: int) -> None:
        """A batch stands at the end of the log: who may count on it, and who wants to copy it?"""
        end_offset = log.log_end_offset
        if self._is_alone and self.config.flush_messages > 1:
            self.high_watermark = end_offset
            if self._fetches:
                for fetch in list(self._fetches):
                    fetch(size)
            return
        leader = self._leader
        assert leader is not None
        self.audience.appended(end_offset, size)
        if not self._is_alone:
            now_ms = self._host.steady_ms()
            leader.appended(end_offset, now_ms)
            if self.config.flush_messages > 1:
                self._do(leader.synced(end_offset, now_ms))
        if self.config.flush_messages == 1:
            self._sync(log)

    def append_internal(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> int:
        """Write the records of one decision as one batch; the log's end after it. `ApiError` when that fails.

        They are committed when the high watermark has passed that end.
        """
        log = self._writable
        if log is None:
            raise ApiError(*self._not_writable())
        if self._isr_size < self._min_isr:
            raise ApiError(ErrorCode.NOT_ENOUGH_REPLICAS)
        batch = build_batch(Record(number, now_ms, key, value) for number, (key, value) in enumerate(records))
        if len(batch) > self.config.max_message_bytes:
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE)
        try:
            log.append(memoryview(batch), (header_at(batch),), self.leader_epoch, now_ms)
        except OSError as error:
            raise ApiError(self._append_failed(error).error) from error
        end_offset = log.log_end_offset
        self._appended(log, len(batch))
        return end_offset

    def _refused_for_now(self, data: memoryview, code: ErrorCode, message: str) -> ProduceResult:
        with contextlib.suppress(InvalidBatch):
            self._refusals.note(self._rules.received(data, allows_zstd=True), code, self._host.steady_ms())
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

    def fence(self, reason: str) -> None:
        """The disk under this partition failed: stop serving it, touch nothing."""
        if self.log is None:
            return
        self.release().release()
        self._host.went_offline(self, reason)

    def release(self) -> Log:
        """Let go of the log, and send away everybody who waits for it."""
        assert self.log is not None
        log, self.log = self.log, None
        self._stop_leading()
        self._syncs.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        self.wake_waiters()
        return log

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """What a client hears that believes in another leader epoch; it may also claim to know none."""
        if epoch in (-1, self.leader_epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # -- durability ------------------------------------------------------------------------------------------

    def _sync(self, log: Log) -> None:
        self._sync_asked_end = log.log_end_offset
        self._host.syncer.sync(log, partial(self._synced, log, log.log_end_offset))

    def when_synced(self, end_offset: int, settled: Settled) -> Waiter:
        """Call when everything below an offset is on disk."""
        log = self.log
        waiter = self._syncs.add(end_offset, settled)
        if log is None:
            self._syncs.fail(ErrorCode.KAFKA_STORAGE_ERROR)
        elif self._sync_asked_end < end_offset:
            self._sync(log)
        return waiter

    def _synced(self, log: Log, end_offset: int, error: OSError | None) -> None:
        if self.log is not log:
            return
        if isinstance(error, DiskFull):
            self._sync_asked_end = 0
            self._syncs.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            self._host.reconsider_later(self)
            return
        if error is not None:
            # The kernel may have dropped what it could not write: a second sync would "succeed" without it.
            self.fence(f"cannot sync {self.name}: {error.strerror or error}")
            return
        # Less than was asked for when the log was cut meanwhile.
        end_offset = min(end_offset, log.recovery_point)
        if self._is_alone:
            self._show(end_offset)
        elif self._leader is not None:
            self._do(self._leader.synced(end_offset, self._host.steady_ms()))
        self._syncs.reached(log.recovery_point)

    # -- following -------------------------------------------------------------------------------------------

    def append_fetched(self, data: memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        """As follower: what the leader sent, checked. `OSError` and `InvalidBatch` are the caller's to judge."""
        assert self.log is not None
        assert self._leader is None
        self.log.append_fetched(data, headers, now_ms)
        self.audience.appended(self.log.log_end_offset, len(data))

    def follow_high_watermark(self, offset: int) -> None:
        """What the leader says is committed, as far as this replica has it."""
        assert self.log is not None
        self._show(min(offset, self.log.log_end_offset))

    def log_start_moved(self) -> None:
        """Records went away at the front: readers find out, followers are told."""
        log = self.log
        if log is not None and self.high_watermark < log.log_start_offset:
            self._show(log.log_start_offset)
        self.wake_waiters()

    def was_cut(self) -> None:
        """The log was truncated: nothing above its end is known to be committed here."""
        assert self.log is not None
        if self.high_watermark > self.log.log_end_offset:
            logger.warning(
                "%s was truncated to %d, below its high watermark of %d",
                self.name,
                self.log.log_end_offset,
                self.high_watermark,
            )
        self.high_watermark = max(
            self.log.log_start_offset, min(self.high_watermark, self.log.log_end_offset)
        )
        self._sync_asked_end = 0
        self.audience.truncated()

    # -- leading ---------------------------------------------------------------------------------------------

    def follower_state(self, broker_id: int) -> FollowerState | None:
        return self._leader.followers.get(broker_id) if self._leader is not None else None

    def follower_fetched(
        self, broker_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int
    ) -> bool:
        """A follower has everything below `fetch_offset`. False when it is of an incarnation that was replaced."""
        assert self._leader is not None
        try:
            effects = self._leader.follower_fetched(
                broker_id, broker_epoch, fetch_offset, log_start_offset, self._host.steady_ms()
            )
        except StaleFollower:
            return False
        if effects:
            self._do(effects)
        if self._deletions:
            self._note_deletions()
        return True

    def reconsider(self) -> None:
        """Look for followers that fell behind or may return to the ISR, and for what a full disk left unsynced."""
        log = self._writable
        if (
            log is not None
            and self.config.flush_messages == 1
            and self._sync_asked_end < log.log_end_offset
            and log.recovery_point < log.log_end_offset
        ):
            self._sync(log)
        if self._leader is not None and not self._is_alone:
            self._do(self._leader.reconsidered(self._host.steady_ms()))

    def isr_committed(self, proposal: ProposeIsr, isr: Sequence[int], epochs: tuple[int, int]) -> None:
        """The controller's answer to a proposal: (leader epoch, partition epoch)."""
        leader = self._leader
        if leader is not None and epochs[0] == leader.leader_epoch:
            effects = leader.isr_committed(proposal, isr, epochs[1], self._host.steady_ms())
            self._note_isr(leader)
            self._do(effects)

    def isr_refused(self, proposal: ProposeIsr, code: ErrorCode) -> None:
        if self._leader is not None:
            self._do(self._leader.isr_refused(proposal, code))

    # -- visibility ------------------------------------------------------------------------------------------

    def _show(self, offset: int) -> None:
        """The high watermark moves: tell those who wait for their write, then those who wait for data."""
        if offset <= self.high_watermark:
            return
        self.high_watermark = offset
        is_short = self._isr_size < self._min_isr
        self._commits.reached(
            offset, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if is_short else ErrorCode.NONE
        )
        self.audience.shown(offset)

    @property
    def is_high_watermark_behind(self) -> bool:
        """Whether this broker has just begun to lead, and those in sync have not confirmed what was before."""
        leader = self._leader
        return leader is not None and self.high_watermark < leader.leader_epoch_start_offset

    def when_committed(self, end_offset: int, settled: Settled) -> Waiter:
        """Call when the high watermark has passed an offset, or when this broker stops to lead."""
        waiter = self._commits.add(end_offset, settled)
        if self._leader is None:
            self._commits.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._commits.reached(self.high_watermark)
        return waiter

    def when_deleted(self, offset: int, settled: Settled) -> None:
        """Call when no live replica has anything before an offset, or when this broker stops to lead."""
        self._deletions.add(offset, settled)
        self._note_deletions()

    def _note_deletions(self) -> None:
        leader, log = self._leader, self.log
        if leader is None or log is None:
            self._deletions.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        starts = [log.log_start_offset, *(state.log_start_offset for state in leader.live_followers())]
        self._deletions.reached(min(starts))

    def wait(self, waiter: Callable[[int], None]) -> None:
        """Call `waiter` with the bytes that became visible, each time some do."""
        self._fetches[waiter] = None

    def stop_waiting(self, waiter: Callable[[int], None]) -> None:
        self._fetches.pop(waiter, None)

    def wake_waiters(self) -> None:
        """Something other than new data happened (deletion, new epoch): let every waiter look again."""
        self.audience.wake()
