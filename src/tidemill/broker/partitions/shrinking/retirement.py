"""Finds decommissioned partitions that are empty, so that they can be removed (decision 18)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tidemill.broker.partitions.partition import Partition
from tidemill.controller.image import MetadataImage
from tidemill.controller.topics.fewer_partitions import going_together
from tidemill.replication.leader import ProposeIsr


def retirements(
    partitions: Iterable[Partition], image: MetadataImage
) -> Iterator[tuple[Partition, ProposeIsr]]:
    """What the leaders of empty decommissioned partitions propose. The highest partitions of a topic go first."""
    for partition in list(partitions):
        passing_on = partition.appender.passing_on
        topic = image.topics_by_name.get(partition.name.topic)
        if passing_on is None or topic is None:
            continue
        going = going_together(image.topic_config(topic.name), len(topic.partitions))
        if partition.index not in going:
            continue
        proposal = partition.leadership.retirement()
        has_producers = partition.log is not None and len(partition.log.producers) > 0
        kept_ms = partition.config.tidemill_partitions_kept_ms if has_producers else 0
        if passing_on.may_go(is_empty=proposal is not None, kept_ms=kept_ms) and proposal is not None:
            yield partition, proposal
