"""Decides whether this broker still leads a partition when the metadata may be out of date.

A leader that is replaced learns it from the metadata, perhaps late. It must not answer as the leader for long after that,
and its successor must not answer before that.
"""

from __future__ import annotations

from collections.abc import Callable

from tidemill.broker.partitions.partition import Partition

# A follower fetches twice a second, even at rest. Below the shortest session timeout of a group member.
_SILENCE_MS_MAX = 3_000


class Succession:
    def __init__(
        self, broker_id: int, steady_ms: Callable[[], int], metadata_known_ms: Callable[[], int]
    ) -> None:
        """`metadata_known_ms` is the last time up to which every committed change of the metadata is known here."""
        self._broker_id = broker_id
        self._steady_ms = steady_ms
        self._metadata_known_ms = metadata_known_ms

    def is_deserted(self, partition: Partition) -> bool:
        """Whether another broker may lead the partition by now, without the metadata having reached this one.

        One of two proves that this broker led it until lately: the metadata is known up to then, or every other member
        of the ISR followed it then. A new leader would be one of these. A sole member of the ISR cannot have been
        replaced.
        """
        image = partition.image
        if image is None or len(image.isr) < 2:
            return False
        since_ms = self._steady_ms() - _SILENCE_MS_MAX
        if self._metadata_known_ms() >= since_ms:
            return False
        return not all(
            partition.delayed.is_followed_by(broker_id, since_ms)
            for broker_id in image.isr
            if broker_id != self._broker_id
        )

    def is_over(self, partition: Partition, since_ms: int) -> bool:
        """Whether the leader before this one serves no more; this one is known to lead since then.

        A fetch of the old leader proves that it knows of the new one. It may have left the ISR, so all replicas must have
        fetched. One that does not know takes itself for deserted after a while.
        """
        leader, image = partition.leader, partition.image
        return (
            leader is not None
            and image is not None
            and (
                self._steady_ms() - since_ms > _SILENCE_MS_MAX
                or all(leader.has_fetched(each) for each in image.replicas if each != self._broker_id)
            )
        )
