"""Consumer lag: the one computation for the command line, the gateway, the console and the brokers' metrics.

A group has to read every partition of the topics that it reads, also those for which nothing is committed yet. Only its
members know where they would begin there. From outside, all of the partition is unread. So the lag never rises because
a consumer makes progress, and a group that has just begun is not shown as if it had caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.types import TopicPartition


def lag_of(committed_offset: int | None, start_offset: int | None, end_offset: int | None) -> int | None:
    """Offsets from the commit, or from the log's start where there is none, to the end; None when that is not known.

    Never negative: a commit beyond the end (of a topic that lost data) is no lag.
    """
    begin = start_offset if committed_offset is None else committed_offset
    if begin is None or end_offset is None:
        return None
    return max(0, end_offset - begin)


def partitions_to_read(
    known: Iterable[TopicPartition], partition_counts: Mapping[str, int]
) -> list[TopicPartition]:
    """Returns the partitions that a group has committed or is assigned, and all others of their topics."""
    found = set(known)
    for topic in {partition.topic for partition in found}:
        found.update(TopicPartition(topic, index) for index in range(partition_counts.get(topic, 0)))
    return sorted(found)
