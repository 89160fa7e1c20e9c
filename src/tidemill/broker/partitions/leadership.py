"""Leads a partition while the metadata says so: drives `replication.PartitionLeader` and carries out its effects.

Owns the machine, which exists while this broker leads, and what follows from it. That is the log that may be written
to, the leader epoch, and whether enough replicas are in sync. Machines decide, this shell steps them and writes none of
their fields.

A sole replica waits for no other replica: its appends are committed at once and bypass the machine. The machine gets their
outcome as one event when the replicas change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from tidemill.broker.partitions.delayed_operations import DelayedOperations, Settled, Waiter
from tidemill.broker.partitions.flush import LogFlush
from tidemill.broker.partitions.reader import PartitionReader
from tidemill.config import TopicConfig
from tidemill.controller.image import PartitionImage
from tidemill.errors import ErrorCode
from tidemill.log.log import Log
from tidemill.replication.leader import (
    AdvanceHighWatermark,
    Effect,
    IsrMember,
    PartitionLeader,
    ProposeIsr,
    StaleFollower,
)
from tidemill.types import NO_BROKER, NO_LEADER_EPOCH


class LeadershipHost(Protocol):
    """The part of the broker that leading a partition uses."""

    @property
    def broker_id(self) -> int: ...
    @property
    def lag_time_max_ms(self) -> int: ...
    def steady_ms(self) -> int:
        """Time that does not jump, for lags."""

    def eligible_epoch(self, broker_id: int) -> int | None:
        """The epoch of a broker that may be in an ISR; None for one that may not."""


class Leadership:
    __slots__ = (
        "_config",
        "_delayed",
        "_flush",
        "_host",
        "_is_sole_replica",
        "_propose",
        "_reader",
        "_reconsider_later",
        "_sent_offsets",
        "commits_at_once",
        "is_under_min_isr",
        "leader_epoch",
        "machine",
        "writable_log",
    )

    def __init__(
        self,
        config: TopicConfig,
        host: LeadershipHost,
        reader: PartitionReader,
        flush: LogFlush,
        delayed: DelayedOperations,
        *,
        propose: Callable[[ProposeIsr], None],
        reconsider_later: Callable[[], None],
    ) -> None:
        self._config = config
        self._host = host
        self._reader = reader
        self._flush = flush
        self._delayed = delayed
        self._propose = propose
        self._reconsider_later = reconsider_later
        # These three are set together, while this broker leads.
        self.machine: PartitionLeader | None = None
        self.writable_log: Log | None = None
        self.leader_epoch: int = NO_LEADER_EPOCH
        self.is_under_min_isr = False
        self._is_sole_replica = False
        # Whether an append is committed as soon as it is in the log: no other replica, no sync to wait for.
        self.commits_at_once = False
        # By follower: where the records began that it was sent last.
        self._sent_offsets: dict[int, int] = {}

    # -- the part that the metadata assigns ------------------------------------------------------------------

    def configure(self, config: TopicConfig) -> None:
        self._config = config
        machine, log = self.machine, self.writable_log
        if machine is None or log is None:
            return
        self.commits_at_once = self._is_sole_replica and config.flush_messages > 1
        steady_ms = self._host.steady_ms()
        self._isr_changed(machine, machine.configured(config.min_insync_replicas, steady_ms))
        if not self._is_sole_replica:
            self._carry_out(machine.synced(self._synced_end(log), steady_ms))

    def lead(self, log: Log, image: PartitionImage) -> None:
        """Lead, or go on leading, with the replicas, ISR and epochs of the image."""
        steady_ms = self._host.steady_ms()
        machine, was_sole_replica = self.machine, self._is_sole_replica
        if machine is not None and was_sole_replica:
            machine.appended_alone(log.log_end_offset, self._synced_end(log), self._reader.high_watermark)
        self._is_sole_replica = len(image.replicas) == 1
        self.commits_at_once = self._is_sole_replica and self._config.flush_messages > 1
        self.leader_epoch = image.leader_epoch
        if machine is None or image.leader_epoch > machine.leader_epoch + 1:
            # After a gap another broker may have led in between, and what the followers then fetched is not known here.
            machine = self._begin(log, image, steady_ms)
        elif image.leader_epoch > machine.leader_epoch:
            log.epochs.assign(image.leader_epoch, log.log_end_offset)
            machine.new_epoch(
                image.replicas, image.isr, (image.leader_epoch, image.partition_epoch), steady_ms
            )
        else:
            self._isr_changed(
                machine, machine.image_changed(image.replicas, image.isr, image.partition_epoch, steady_ms)
            )
        self._isr_changed(machine, machine.configured(self._config.min_insync_replicas, steady_ms))
        is_unsynced = machine.synced_end_offset < machine.end_offset
        if was_sole_replica and not self._is_sole_replica and is_unsynced:
            self._flush.request(log)

    def _begin(self, log: Log, image: PartitionImage, steady_ms: int) -> PartitionLeader:
        # Written down although it has no records yet: a replica that wrote in an epoch between must find out here.
        log.epochs.assign(image.leader_epoch, log.log_end_offset)
        high_watermark = self._reader.high_watermark
        synced_end = log.log_end_offset
        if not self._is_sole_replica:
            synced_end = max(self._synced_end(log), high_watermark)
        self.machine = PartitionLeader(
            self._host.broker_id,
            image.replicas,
            image.isr,
            image.leader_epoch,
            image.partition_epoch,
            end_offset=log.log_end_offset,
            synced_end_offset=synced_end,
            high_watermark=high_watermark,
            min_insync_replicas=self._config.min_insync_replicas,
            lag_time_max_ms=self._host.lag_time_max_ms,
            eligible_epoch=self._host.eligible_epoch,
            steady_ms=steady_ms,
        )
        if synced_end < log.log_end_offset:
            self._flush.request(log)
        self.writable_log = log
        self._sent_offsets.clear()
        return self.machine

    def _synced_end(self, log: Log) -> int:
        """The end that this replica may vouch for: what is on disk, where acks wait for that."""
        return log.log_end_offset if self._config.flush_messages > 1 else log.recovery_point

    def resign(self) -> None:
        """Stop leading. Whatever waits for a commit or a deletion fails."""
        if self.machine is None:
            return
        self.machine = self.writable_log = None
        self._is_sole_replica = self.commits_at_once = False
        self._delayed.acks.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._delayed.deletions.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    # -- events ----------------------------------------------------------------------------------------------

    def appended(self, log: Log, size: int) -> None:
        """A batch stands at the end of the log, and is not committed at once (`commits_at_once`)."""
        machine, end_offset = self.machine, log.log_end_offset
        assert machine is not None
        self._delayed.appended(end_offset, size)
        if not self._is_sole_replica:
            steady_ms = self._host.steady_ms()
            machine.appended(end_offset, steady_ms)
            if self._config.flush_messages > 1:
                self._carry_out(machine.synced(end_offset, steady_ms))
        if self._config.flush_messages == 1:
            self._flush.request(log)

    def synced(self, end_offset: int) -> None:
        """Everything below an offset is on disk."""
        machine = self.machine
        if machine is None:
            return
        if self._is_sole_replica:
            self._advance_high_watermark(end_offset)
        else:
            self._carry_out(machine.synced(end_offset, self._host.steady_ms()))

    @property
    def in_sync_count(self) -> int:
        return 0 if self.machine is None else len(self.machine.isr)

    def follower_fetched(
        self, broker_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int
    ) -> bool:
        """A follower has everything below `fetch_offset`. False for an incarnation that was replaced."""
        machine = self.machine
        assert machine is not None
        try:
            effects = machine.follower_fetched(
                broker_id, broker_epoch, fetch_offset, log_start_offset, self._host.steady_ms()
            )
        except StaleFollower:
            return False
        if effects:
            self._carry_out(effects)
        if self._delayed.deletions:
            self._complete_deletions()
        return True

    def remember_sent(self, broker_id: int, fetch_offset: int) -> None:
        """Records from `fetch_offset` on were sent to a follower."""
        machine = self.machine
        if machine is not None and broker_id in machine.followers:
            self._sent_offsets[broker_id] = fetch_offset

    def was_sent(self, broker_id: int, fetch_offset: int) -> bool:
        """Whether the last records that a follower was sent began there."""
        return self._sent_offsets.get(broker_id) == fetch_offset

    def reconsider(self) -> None:
        """Look for followers that fell behind or may return to the ISR, and for what a full disk left unsynced."""
        machine, log = self.machine, self.writable_log
        if machine is None or log is None:
            return
        if self._config.flush_messages == 1:
            self._flush.request_rest(log)
        if not self._is_sole_replica:
            self._carry_out(machine.reconsidered(self._host.steady_ms()))

    def isr_committed(self, proposal: ProposeIsr, isr: Sequence[int], epochs: tuple[int, int]) -> None:
        """The controller applied a proposal: (leader epoch, partition epoch)."""
        machine = self.machine
        if machine is not None and epochs[0] == machine.leader_epoch:
            self._isr_changed(
                machine, machine.isr_committed(proposal, isr, epochs[1], self._host.steady_ms())
            )

    def retirement(self) -> ProposeIsr | None:
        """The proposal to remove this partition; None unless it is empty here and all replicas are in sync.

        Its ISR is of no broker, and has the end of the log in the place of a broker epoch.
        """
        machine, log = self.machine, self.writable_log
        if machine is None or log is None or set(machine.isr) != set(machine.replicas):
            return None
        if not log.log_start_offset == self._reader.high_watermark == log.log_end_offset:
            return None
        if log.producers.open_transactions():
            return None
        of_no_broker = IsrMember(NO_BROKER, log.log_end_offset)
        return ProposeIsr((of_no_broker,), machine.leader_epoch, machine.partition_epoch)

    def isr_refused(self, proposal: ProposeIsr, code: ErrorCode) -> None:
        machine = self.machine
        if machine is not None:
            self._carry_out(machine.isr_refused(proposal, code))

    def _isr_changed(self, machine: PartitionLeader, effects: Sequence[Effect]) -> None:
        # Before the effects: the acks that they complete depend on it.
        self.is_under_min_isr = machine.is_under_min_isr
        self._carry_out(effects)

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, AdvanceHighWatermark):
                self._advance_high_watermark(effect.offset)
            elif isinstance(effect, ProposeIsr):
                self._propose(effect)
            else:
                self._reconsider_later()

    def _advance_high_watermark(self, offset: int) -> None:
        is_short = self.is_under_min_isr
        self._reader.advance_high_watermark(
            offset, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND if is_short else ErrorCode.NONE
        )

    # -- waiting ---------------------------------------------------------------------------------------------

    @property
    def is_high_watermark_behind(self) -> bool:
        """Whether this broker has just begun to lead, and the ISR has not confirmed what was committed before."""
        machine = self.machine
        return machine is not None and self._reader.high_watermark < machine.leader_epoch_start_offset

    def when_committed(self, end_offset: int, settled: Settled) -> Waiter:
        """Call when the high watermark has passed an offset, or when this broker stops leading."""
        waiter = self._delayed.acks.add(end_offset, settled)
        if self.machine is None:
            self._delayed.acks.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        else:
            self._delayed.acks.reached(self._reader.high_watermark)
        return waiter

    def when_deleted(self, offset: int, settled: Settled) -> None:
        """Call when no live replica has anything before an offset, or when this broker stops leading."""
        self._delayed.deletions.add(offset, settled)
        self._complete_deletions()

    def _complete_deletions(self) -> None:
        machine, log = self.machine, self.writable_log
        if machine is None or log is None:
            self._delayed.deletions.fail(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        starts = [log.log_start_offset, *(state.log_start_offset for state in machine.live_followers())]
        self._delayed.deletions.reached(min(starts))
