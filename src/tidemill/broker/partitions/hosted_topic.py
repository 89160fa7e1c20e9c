"""The partitions of one topic that this broker hosts, and those that the topic has had."""

from __future__ import annotations

from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.shrinking.former_partition import FormerPartition
from tidemill.broker.partitions.shrinking.passing_on import PassingOnHost
from tidemill.config import TopicConfig
from tidemill.types import TopicPartition


class HostedTopic(dict[int, Partition]):
    """The hosted partitions of a topic, by their index, and the topic's counts."""

    __slots__ = ("_former", "counts", "name")

    def __init__(self, name: str, counts: TopicCounts) -> None:
        super().__init__()
        self.name = name
        self.counts = counts
        self._former: dict[int, FormerPartition] = {}

    def former_partition(
        self, index: int, count: int, config: TopicConfig, host: PassingOnHost
    ) -> FormerPartition | None:
        """The partition that the topic had at `index`, now that it has `count`; None when it never had one there."""
        if not count <= index < config.tidemill_partitions_former:
            return None
        target = index % (config.tidemill_partitions_active or count)
        former = self._former.get(index)
        if former is None or former.target != target:
            former = FormerPartition(TopicPartition(self.name, index), target, config, host)
            self._former[index] = former
        return former
