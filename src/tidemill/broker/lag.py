"""Consumer lag: how far each group is behind, for the groups that this broker coordinates.

Lag is the distance from the committed offset to the end of what consumers may read. It is known exactly for partitions that
this broker leads, a fetch late for those that it follows, and a partition without a replica here is reported without an end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tidemill.broker.coordinators import GroupCoordinators
from tidemill.broker.replicas import Replicas
from tidemill.coordinator.group import Group
from tidemill.coordinator.groups import Groups


class PartitionLag(NamedTuple):
    group_id: str
    group_state: str
    topic: str
    partition: int
    committed_offset: int
    # The high watermark; None when the partition has no replica here or is offline.
    end_offset: int | None

    @property
    def lag(self) -> int | None:
        """Never negative: a commit beyond the end (of a topic that lost data) is no lag."""
        return None if self.end_offset is None else max(0, self.end_offset - self.committed_offset)


def lags(
    groups: GroupCoordinators, replicas: Replicas, group_id: str | None = None
) -> Iterator[PartitionLag]:
    """Of one group, or of all that are coordinated here."""
    for machine in groups.machines():
        for group in machine.groups.values():
            if group_id is None or group.group_id == group_id:
                yield from lags_of(machine, group, replicas)


def lags_of(machine: Groups, group: Group, replicas: Replicas) -> Iterator[PartitionLag]:
    for topic, partitions in machine.offsets.of_group(group.group_id).items():
        for index, committed in partitions.items():
            partition, _ = replicas.find((topic, index))
            is_here = partition is not None and partition.log is not None
            yield PartitionLag(
                group.group_id,
                group.state,
                topic,
                index,
                committed.offset,
                partition.high_watermark if partition is not None and is_here else None,
            )
