"""One partition that this broker hosts, and its part in the replication of it.

It leads, follows or waits for a leader, as the metadata image says (`apply`). As leader it lets
`replication.PartitionLeader` say what is committed, and tells those who wait for that. How it is written to is in
`WritableReplica`, what every copy does in `Replica`.

A failing disk fences this partition; whether more than that follows is for `Replicas` to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.broker.partitions.delayed_operations import OffsetWaiters, Settled, Waiter
from tidemill.broker.partitions.partition_host import Host
from tidemill.broker.partitions.produce_rules import ProduceRules
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.writable import WritableReplica
from tidemill.config import TopicConfig
from tidemill.controller.image import PartitionImage
from tidemill.errors import ErrorCode
from tidemill.log.log import Log
from tidemill.replication.leader import (
    AdvanceHighWatermark,
    Effect,
    FollowerState,
    PartitionLeader,
    ProposeIsr,
    StaleFollower,
)
from tidemill.types import TopicPartition


class Partition(WritableReplica):
    __slots__ = ("_commits", "_deletions", "is_leader")

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
        super().__init__(name, topic_id, log, config, host, high_watermark, refusals)
        self.is_leader = False
        self._commits, self._deletions = OffsetWaiters(), OffsetWaiters()
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
        self._guards.clear()
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

    # -- what is committed -----------------------------------------------------------------------------------

    def _synced_to(self, end_offset: int) -> None:
        if self._is_alone:
            self._show(end_offset)
        elif self._leader is not None:
            self._do(self._leader.synced(end_offset, self._host.steady_ms()))

    def _sync_refused(self) -> None:
        self._host.reconsider_later(self)

    def _committed_to(self, offset: int) -> None:
        is_short = self._isr_size < self._min_isr
        self._commits.reached(
            offset, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if is_short else ErrorCode.NONE
        )

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
