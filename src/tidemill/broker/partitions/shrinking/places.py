"""Finds the partition that stores what producers send to a partition (decision 18)."""

from __future__ import annotations

from tidemill.config import TopicConfig


def storing_partition(index: int, count: int, config: TopicConfig) -> int:
    """The partition that stores what producers send to a partition of a topic that has `count`.

    It is the partition itself, unless it is decommissioned or gone. The records of one that is gone go where they went last.
    """
    if index < count:
        active = config.tidemill_partitions_active
        return index % active if 0 < active <= index else index
    divisors = config.tidemill_partitions_divisors
    return index % int(divisors[-1]) if divisors and index < config.tidemill_partitions_former else index


def storing_partitions(index: int, config: TopicConfig) -> set[int]:
    """The other partitions that store, or have stored, what producers send to a partition."""
    divisors = map(int, config.tidemill_partitions_divisors)
    return {index % divisor for divisor in divisors if divisor <= index}
