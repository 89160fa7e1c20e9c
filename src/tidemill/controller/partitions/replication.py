"""Changes of partitions when brokers register, stop or fail, and when configurations change.

`Replication` reads one image: which brokers may lead which replicas, the `min.insync.replicas` of a topic, and whether
it allows unclean elections. Its methods return the records for all partitions concerned. The rules for one partition
are in partition_changes.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from tidemill.config import TOPIC_KEYS_BY_NAME, BrokerLayers
from tidemill.config.topics import effective_topic_text
from tidemill.controller.image import (
    NO_DIRECTORY,
    BrokerImage,
    MetadataImage,
    PartitionImage,
    TopicImage,
    only_directory,
)
from tidemill.controller.partitions.partition_changes import Election, PartitionChange
from tidemill.controller.records import Record
from tidemill.types import BrokerId

_MIN_ISR = TOPIC_KEYS_BY_NAME["min.insync.replicas"]
_UNCLEAN = TOPIC_KEYS_BY_NAME["unclean.leader.election.enable"]

# The number of records in one background decision, so that no batch holds the controller for long.
ELECTIONS_PER_DECISION = 1_000


class Replication:
    def __init__(self, image: MetadataImage, layers: BrokerLayers) -> None:
        self.image = image
        self._layers = layers
        self._min_isr: dict[str, int] = {}
        self._unclean: dict[str, bool] = {}

    def partitions(self) -> Iterator[tuple[TopicImage, int, PartitionImage]]:
        for topic in self.image.topics_by_id.values():
            for index, partition in enumerate(topic.partitions):
                yield topic, index, partition

    def min_isr(self, topic: TopicImage) -> int:
        configured = self._min_isr.get(topic.name)
        if configured is None:
            text = effective_topic_text(_MIN_ISR, self.image.topic_config(topic.name), self._layers)
            configured = self._min_isr[topic.name] = int(text)
        return configured

    def allows_unclean(self, topic: TopicImage) -> bool:
        allowed = self._unclean.get(topic.name)
        if allowed is None:
            text = effective_topic_text(_UNCLEAN, self.image.topic_config(topic.name), self._layers)
            allowed = self._unclean[topic.name] = _UNCLEAN.parse(text) is True
        return allowed

    def change(
        self,
        topic: TopicImage,
        index: int,
        *,
        election: Election | None = None,
        added: BrokerId | None = None,
        removed: Collection[BrokerId] = (),
    ) -> PartitionChange:
        """Returns a change without targets. `added` may lead even when it is fenced; `removed` may not even when active."""
        partition = topic.partitions[index]
        if election is None:
            election = Election.UNCLEAN if self.allows_unclean(topic) else Election.ONLINE
        return PartitionChange(
            topic.id,
            index,
            partition,
            min_isr=self.min_isr(topic),
            may_lead=self._may_lead(partition, added, removed),
            election=election,
        )

    def _may_lead(
        self, partition: PartitionImage, added: BrokerId | None, removed: Collection[BrokerId]
    ) -> Callable[[BrokerId], bool]:
        def may_lead(replica: BrokerId) -> bool:
            broker = self.image.brokers.get(replica)
            if broker is None or replica in removed or not (replica == added or broker.is_active):
                return False
            directory = partition.directory(replica)
            return directory == NO_DIRECTORY or not broker.log_dirs or directory in broker.log_dirs

        return may_lead

    # -- brokers that come and go ----------------------------------------------------------------------------

    def without(self, broker_id: BrokerId) -> list[Record]:
        """Remove the broker from every ISR and leadership. It keeps its records, so it may become eligible (ELR)."""
        records: list[Record] = []
        for topic, index, partition in self.partitions():
            if broker_id in partition.isr or partition.leader == broker_id:
                change = self.change(topic, index, removed=(broker_id,))
                change.isr = tuple(each for each in partition.isr if each != broker_id)
                _collect(records, change)
        return records

    def after_unclean_stop(self, broker_id: BrokerId, log_dirs: Collection[bytes]) -> list[Record]:
        """Remove the broker from every ISR and ELR: it may have lost the end of its logs."""
        records: list[Record] = []
        for topic, index, partition in self.partitions():
            is_lost = self._is_lost(partition, broker_id, log_dirs)
            if is_lost or broker_id in partition.isr or broker_id in partition.elr:
                records += self._distrust(topic, index, broker_id, is_lost=is_lost, log_dirs=log_dirs)
        return records

    def after_loss(self, broker_id: BrokerId, log_dirs: Collection[bytes]) -> list[Record]:
        """The broker stopped cleanly, but no longer has some log directories: their replicas are lost."""
        records: list[Record] = []
        for topic, index, partition in self.partitions():
            if self._is_lost(partition, broker_id, log_dirs):
                records += self._distrust(topic, index, broker_id, is_lost=True, log_dirs=log_dirs)
        return records

    def _distrust(
        self,
        topic: TopicImage,
        index: int,
        broker_id: BrokerId,
        *,
        is_lost: bool,
        log_dirs: Collection[bytes],
    ) -> list[Record]:
        change = self.change(topic, index, removed=(broker_id,))
        change.isr = tuple(each for each in change.before.isr if each != broker_id)
        change.unclean = (broker_id,)
        if is_lost:
            # Followers of a last known leader with an empty disk would truncate the records that they still have.
            change.lost = (broker_id,)
            change.directories[broker_id] = only_directory(log_dirs)
        records: list[Record] = []
        _collect(records, change)
        return records

    def _is_lost(self, partition: PartitionImage, broker_id: BrokerId, log_dirs: Collection[bytes]) -> bool:
        if broker_id not in partition.replicas or not log_dirs:
            return False
        directory = partition.directory(broker_id)
        if directory != NO_DIRECTORY:
            return directory not in log_dirs
        known = self.image.brokers.get(broker_id)
        return known is not None and any(each not in log_dirs for each in known.log_dirs)

    def with_unfenced(self, broker_id: BrokerId) -> list[Record]:
        """The broker may lead again, so partitions without a leader may get one."""
        records: list[Record] = []
        for topic, index, partition in self.partitions():
            if not partition.has_leader:
                _collect(records, self.change(topic, index, added=broker_id))
        return records

    def without_directories(self, broker: BrokerImage, offline: Collection[bytes]) -> list[Record]:
        """Remove the replicas in failed log directories from their ISR."""
        records: list[Record] = []
        only = only_directory(broker.log_dirs)
        for topic, index, partition in self.partitions():
            if broker.id not in partition.isr:
                continue
            directory = partition.directory(broker.id)
            if (only if directory == NO_DIRECTORY else directory) in offline:
                change = self.change(topic, index, removed=(broker.id,))
                change.isr = tuple(each for each in partition.isr if each != broker.id)
                _collect(records, change)
        return records

    def after_min_isr_changed(self) -> list[Record]:
        """Clear the ELR of partitions with enough in-sync replicas. Their high watermark advances without it."""
        records: list[Record] = []
        for topic, index, partition in self.partitions():
            if partition.elr and len(partition.isr) >= min(self.min_isr(topic), len(partition.replicas)):
                _collect(records, self.change(topic, index, election=Election.ONLINE))
        return records

    # -- elections without a request -------------------------------------------------------------------------

    def preferred_elections(self) -> list[Record]:
        """Give partitions back to their preferred leaders, as many as one decision may change."""
        records: list[Record] = []
        for topic, index, partition in self.partitions():
            if partition.has_leader and partition.leader != partition.replicas[0]:
                _collect(records, self.change(topic, index, election=Election.PREFERRED))
                if len(records) >= ELECTIONS_PER_DECISION:
                    break
        return records

    def unclean_elections(self) -> list[Record]:
        """Elect leaders for partitions without one, in topics that allow unclean elections."""
        records: list[Record] = []
        for topic, index, partition in self.partitions():
            if not partition.has_leader and self.allows_unclean(topic):
                _collect(records, self.change(topic, index, election=Election.UNCLEAN))
                if len(records) >= ELECTIONS_PER_DECISION:
                    break
        return records


def _collect(records: list[Record], change: PartitionChange) -> None:
    record = change.record()
    if record is not None:
        records.append(record)
