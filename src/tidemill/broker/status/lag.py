"""Consumer lag: how far each group is behind, for the groups that this broker coordinates.

Lag is the distance from the committed offset to the end of what consumers may read. Where nothing is committed, it begins
at the log's start (`client/admin/lag.py`). It covers every partition of the topics that the group has committed something
of, or that its members subscribe to. It is known exactly for partitions that this broker leads, a fetch late for those
that it follows, and a partition without a replica here is reported without an end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.broker.partitions.replicas import Replicas
from tidemill.client.admin.lag import lag_of, partitions_to_read
from tidemill.coordinator.groups.group import Group
from tidemill.coordinator.groups.machine import Groups
from tidemill.types import TopicPartition


class PartitionLag(NamedTuple):
    group_id: str
    group_state: str
    topic: str
    partition: int
    committed_offset: int | None
    # The log's start and the high watermark; None when the partition has no replica here or is offline.
    start_offset: int | None
    end_offset: int | None

    @property
    def lag(self) -> int | None:
        return lag_of(self.committed_offset, self.start_offset, self.end_offset)


def lags_of(machine: Groups, group: Group, replicas: Replicas) -> Iterator[PartitionLag]:
    committed = {
        TopicPartition(topic, index): each.offset
        for topic, partitions in machine.offsets.of_group(group.group_id).items()
        for index, each in partitions.items()
    }
    image = replicas.image
    counts = {
        name: len(image.partitions_of(topic))
        for name in {tp.topic for tp in committed}.union(group.consumed_topics())
        if image is not None and (topic := image.topics_by_name.get(name)) is not None
    }
    known = committed.keys() | {TopicPartition(name, 0) for name in counts}
    for tp in partitions_to_read(known, counts):
        partition, _, _ = replicas.find_readable(tp)
        log = partition.log if partition is not None else None
        yield PartitionLag(
            group.group_id,
            group.state,
            tp.topic,
            tp.partition,
            committed.get(tp),
            log.log_start_offset if log is not None else None,
            partition.high_watermark if partition is not None and log is not None else None,
        )
