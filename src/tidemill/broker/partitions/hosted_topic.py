"""The partitions of one topic that this broker hosts, and those that the topic has had."""

from __future__ import annotations

from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.appending.former_partition import FormerPartition, FormerPartitionHost
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.refusals import Refusals
from tidemill.broker.partitions.shrinking.places import storing_partition
from tidemill.config import TopicConfig
from tidemill.controller.image import MetadataImage
from tidemill.types import TopicPartition


class HostedTopic(dict[int, Partition]):
    """The hosted partitions of a topic, by their index, and the topic's counts."""

    __slots__ = ("_former", "_shape", "_storing", "counts", "name")

    def __init__(self, name: str, counts: TopicCounts) -> None:
        super().__init__()
        self.name = name
        self.counts = counts
        self._former: dict[int, FormerPartition] = {}
        # For each partition that producers may name: the one that stores for it, and since which metadata.
        self._storing: dict[int, tuple[int, int]] = {}
        self._shape: tuple[int, TopicConfig] | None = None

    def note_storing(self, count: int, config: TopicConfig, image: MetadataImage | None) -> None:
        """Remember since when each partition stores for which others. Topics that never shrank have no such partitions."""
        assert image is not None
        if not config.tidemill_partitions_divisors or self._shape == (count, config):
            return
        self._shape = (count, config)
        for index in range(max(count, config.tidemill_partitions_former)):
            target = storing_partition(index, count, config)
            if index not in self._storing or self._storing[index][0] != target:
                self._storing[index] = (target, image.end_offset)

    def storing_since(self, index: int) -> int:
        """The end of the metadata by which one partition began to store what is sent to `index`, and does still."""
        return self._storing[index][1] if index in self._storing else 0

    def former_partition(
        self, index: int, count: int, config: TopicConfig, host: FormerPartitionHost
    ) -> FormerPartition | None:
        """The partition that the topic had at `index`, now that it has `count`; None when it never had one there."""
        if index < count or storing_partition(index, count, config) == index:
            return None
        former = self._former.get(index)
        if former is None:
            former = self._former[index] = FormerPartition(
                TopicPartition(self.name, index), count, config, host
            )
        return former

    def retire(
        self, index: int, count: int, config: TopicConfig, host: FormerPartitionHost
    ) -> Partition | None:
        """Take out a partition that is removed. What it was passing on is finished under its former number."""
        partition = self.pop(index, None)
        passing_on = None if partition is None else partition.hand_over()
        if passing_on is not None:
            if index < count or storing_partition(index, count, config) == index:
                passing_on.close()
            else:
                name = TopicPartition(self.name, index)
                self._former[index] = FormerPartition(name, count, config, host, passing_on)
        return partition

    def replace_former(self, index: int) -> Refusals | None:
        """The topic has a partition under this number again. Returns what was refused under it, late batches included.

        A batch that was under way is refused now. The partition must know it before it takes a later one.
        """
        former = self._former.pop(index, None)
        if former is None:
            return None
        former.close()
        return former.refusals

    def configure_former(self, count: int, config: TopicConfig, image: MetadataImage | None) -> None:
        """Follow a change of the topic."""
        self.note_storing(count, config, image)
        for index, former in list(self._former.items()):
            if index < count or storing_partition(index, count, config) == index:
                self._former.pop(index).close()
            else:
                former.configure(count, config)
