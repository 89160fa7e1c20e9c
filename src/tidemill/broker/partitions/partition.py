"""One partition that this broker hosts (Kafka: Partition): the parts of it, and the role that the metadata gives it.

Owns its parts, each with one job: `delayed` (what waits), `reader` (the log and its high watermark), `flush` (the disk),
`leadership` (the leader's machine), `appender` (writes) and `delivery` (delayed records). `apply` lets it lead, follow or
wait for a leader. Requests use the parts directly.

A failing disk fences this partition; whether more than that follows is decided by `Replicas`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from tidemill.broker.disk.syncer import Syncer
from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.appending.appender import Appender, AppenderHost
from tidemill.broker.partitions.delayed_operations import DelayedOperations
from tidemill.broker.partitions.delivery import DelayedDelivery, DeliveryHost
from tidemill.broker.partitions.flush import LogFlush
from tidemill.broker.partitions.leadership import Leadership, LeadershipHost
from tidemill.broker.partitions.reader import PartitionReader
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.shrinking.passing_on import PassingOn
from tidemill.config import TopicConfig
from tidemill.controller.image import PartitionImage
from tidemill.errors import ErrorCode
from tidemill.log.log import Log
from tidemill.protocol.records import BatchHeader
from tidemill.replication.leader import PartitionLeader, ProposeIsr
from tidemill.types import NO_BROKER, NO_LEADER_EPOCH, TopicPartition


class Host(LeadershipHost, AppenderHost, DeliveryHost, Protocol):
    """The part of the broker that a partition uses; `Replicas` implements it."""

    @property
    def syncer(self) -> Syncer: ...
    def propose(self, partition: Partition, proposal: ProposeIsr) -> None: ...
    def reconsider_later(self, partition: Partition) -> None: ...
    def went_offline(self, partition: Partition, reason: str) -> None: ...


class Partition:
    __slots__ = (
        "_host",
        "appender",
        "config",
        "counts",
        "delayed",
        "delivery",
        "flush",
        "has_undecodable",
        "image",
        "index",
        "leader_epoch",
        "leader_id",
        "leadership",
        "name",
        "reader",
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
        counts: TopicCounts | None = None,
        refusals: Refusals | None = None,
    ) -> None:
        self.name = name
        self.index = name.partition
        self.topic_id = topic_id
        self.config = config
        self._host = host
        self.counts = counts or TopicCounts()
        self.image: PartitionImage | None = None
        self.leader_id: int = NO_BROKER
        self.leader_epoch: int = NO_LEADER_EPOCH
        # Whether a search met records that do not decode, which is logged once.
        self.has_undecodable = False
        self.delayed = DelayedOperations()
        self.reader = PartitionReader(name, log, high_watermark, self.delayed)
        reconsider_later = partial(host.reconsider_later, self)
        self.flush = LogFlush(
            self.reader,
            host.syncer,
            on_synced=self._synced_to,
            on_disk_full=reconsider_later,
            fence=self.fence,
        )
        self.leadership = Leadership(
            config,
            host,
            self.reader,
            self.flush,
            self.delayed,
            propose=partial(host.propose, self),
            reconsider_later=reconsider_later,
        )
        self.appender = Appender(
            name, config, host, self.reader, self.leadership, self.counts, refusals, fence=self.fence
        )
        self.delivery = DelayedDelivery(
            name, config, host, self.reader, self.leadership, self.appender, self.counts
        )
        self.appender.stays = self.delivery.stays
        self.configure(config)

    def configure(self, config: TopicConfig) -> None:
        self.config = config
        self.appender.configure(config)
        if self.log is not None:
            self.log.configure(config)
        self.leadership.configure(config)
        self.delivery.configure(config)

    # -- what is read of it outside of the path of a request -------------------------------------------------

    @property
    def log(self) -> Log | None:
        """None while the partition is offline."""
        return self.reader.log

    @property
    def high_watermark(self) -> int:
        return self.reader.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.reader.last_stable_offset

    @property
    def leader(self) -> PartitionLeader | None:
        """The leader's machine, while this broker leads."""
        return self.leadership.machine

    @property
    def is_leader(self) -> bool:
        return self.leadership.machine is not None

    @property
    def is_replicated(self) -> bool:
        return self.image is not None and len(self.image.replicas) > 1

    def check_leader_epoch(self, epoch: int) -> ErrorCode:
        """The error for a client that assumes another leader epoch; -1 assumes none."""
        if epoch in (-1, self.leader_epoch):
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH if epoch < self.leader_epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    # -- its role --------------------------------------------------------------------------------------------

    def apply(self, image: PartitionImage) -> None:
        """Take the role that the metadata gives this broker."""
        is_new_epoch = image.leader_epoch != self.leader_epoch or image.leader != self.leader_id
        self.image = image
        self.leader_id, self.leader_epoch = image.leader, image.leader_epoch
        if self.log is not None and image.leader == self._host.broker_id:
            self.leadership.lead(self.log, image)
            if is_new_epoch:
                self.appender.began_to_lead()
        else:
            self._stop_leading()
        self.delivery.update()
        if is_new_epoch:
            self.delayed.wake_fetches()

    def hand_over(self) -> PassingOn | None:
        """Gives up the queue of batches to pass on, which outlives this decommissioned partition when it is removed."""
        passing_on, self.appender.passing_on = self.appender.passing_on, None
        return passing_on

    def _stop_leading(self) -> None:
        self.appender.resigned()
        self.leadership.resign()

    def _synced_to(self, end_offset: int) -> None:
        self.leadership.synced(end_offset)

    # -- following -------------------------------------------------------------------------------------------

    def append_fetched(self, data: memoryview, headers: Sequence[BatchHeader], wall_ms: int) -> None:
        """Append what the leader sent, checked. `OSError` and `InvalidBatch` are for the caller to handle."""
        log = self.log
        assert log is not None
        log.append_fetched(data, headers, wall_ms)
        self.counts.replication_bytes_in += len(data)
        self.delayed.appended(log.log_end_offset, len(data))

    def follow_high_watermark(self, offset: int) -> None:
        """Take over the leader's high watermark, as far as this replica has the records."""
        assert self.log is not None
        self.reader.advance_high_watermark(min(offset, self.log.log_end_offset))

    def truncated(self) -> None:
        """The log was cut, or replaced by one that ends earlier."""
        self.flush.truncated()
        self.reader.truncated()

    # -- going offline and coming back -----------------------------------------------------------------------

    def open(self, log: Log) -> None:
        """Use a log that was repaired."""
        self.reader.log = log
        self.truncated()

    def fence(self, reason: str) -> None:
        """The disk under this partition failed: stop serving it, touch nothing."""
        if self.log is None:
            return
        self.release().release()
        self._host.went_offline(self, reason)

    def release(self) -> Log:
        """Let go of the log, and fail or wake everything that waits for it."""
        log, self.reader.log = self.log, None
        assert log is not None
        self._stop_leading()
        self.delivery.update()
        self.flush.fail()
        self.delayed.wake_fetches()
        return log
