"""The partitions of one topic that this broker hosts, and those that the topic has had."""

from __future__ import annotations

from tidemill.broker.metrics.registry import TopicCounts
from tidemill.broker.partitions.partition import Partition
from tidemill.broker.partitions.shrinking.former_partition import FormerPartition
from tidemill.broker.partitions.shrinking.passing_on import PassingOnHost
from tidemill.config import TopicConfig
from tidemill.types import TopicPartition


def storing_partition(index: int, count: int, config: TopicConfig) -> int:
    """The partition that stores what producers send to a partition of a topic that has `count`.

    It is the partition itself, unless it is decommissioned or gone. The records of one that is gone go where they went last.
    """
    if index < count:
        active = config.tidemill_partitions_active
        return index % active if 0 < active <= index else index
    divisors = config.tidemill_partitions_divisors
    return index % int(divisors[-1]) if divisors and index < config.tidemill_partitions_former else index


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
        target = storing_partition(index, count, config)
        if target == index or index < count:
            return None
        former = self._former.get(index)
        if former is None or former.target != target:
            former = FormerPartition(TopicPartition(self.name, index), target, config, host)
            self._former[index] = former
        return former
