"""The partitions of a share group that have state in the share coordinator (Kafka: ShareGroupStatePartitionMetadata).

    a member subscribes                 InitializeShareGroupState is done              offsets are deleted
    ───────────────────▶  initializing  ─────────────────────────────────▶  initialized  ───────────────────▶  deleting

Only initialized partitions are assigned to members. A topic that is deleted leaves every state, and so does a partition
that its topic loses: the share coordinator removes their state by itself. This is a value; every change makes a new one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from tidemill.coordinator.groups.assignors import Partitions
from tidemill.protocol.api.coordinator_records import (
    ShareGroupStatePartitionMetadataValue,
    TopicInfo,
    TopicPartitionsInfo,
)
from tidemill.types import TopicId


class TopicPartitions(NamedTuple):
    name: str
    partitions: frozenset[int]


Topics = Mapping[TopicId, TopicPartitions]


@dataclass(frozen=True, slots=True)
class PartitionStates:
    initializing: Topics = field(default_factory=dict)
    initialized: Topics = field(default_factory=dict)
    # Topics whose state is being removed, with their names.
    deleting: Mapping[TopicId, str] = field(default_factory=dict)

    @property
    def assignable(self) -> Partitions:
        return {topic_id: topic.partitions for topic_id, topic in self.initialized.items()}

    def partitions_of(self, topic_id: TopicId) -> frozenset[int]:
        """Returns the partitions that are initialized or about to be."""
        known = [topics[topic_id].partitions for topics in self._both() if topic_id in topics]
        return frozenset().union(*known)

    def _both(self) -> tuple[Topics, Topics]:
        return self.initialized, self.initializing

    def all_partitions(self) -> Partitions:
        """Returns the partitions that have state, or may have it."""
        return {
            topic_id: self.partitions_of(topic_id)
            for topic_id in dict.fromkeys([*self.initialized, *self.initializing])
        }

    def with_initializing(self, topics: Topics) -> PartitionStates:
        """A topic that is initialized anew is no longer being deleted."""
        kept = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in topics}
        return replace(self, initializing=_added(self.initializing, topics), deleting=kept)

    def with_initialized(self, topics: Topics) -> PartitionStates:
        return replace(
            self,
            initializing=_removed(self.initializing, topics),
            initialized=_added(self.initialized, topics),
        )

    def without_initializing(self, topics: Topics) -> PartitionStates:
        """The state could not be initialized; the next heartbeat tries again."""
        return replace(self, initializing=_removed(self.initializing, topics))

    def with_deleting(self, names: Mapping[TopicId, str]) -> PartitionStates:
        return replace(
            self,
            initialized={
                topic_id: topic for topic_id, topic in self.initialized.items() if topic_id not in names
            },
            deleting={**self.deleting, **names},
        )

    def with_all_deleting(self) -> PartitionStates:
        names = {topic_id: topics[topic_id].name for topics in self._both() for topic_id in topics}
        return PartitionStates(deleting={**self.deleting, **names})

    def without_deleting(self, topic_ids: Collection[TopicId]) -> PartitionStates:
        kept = {topic_id: name for topic_id, name in self.deleting.items() if topic_id not in topic_ids}
        return replace(self, deleting=kept)

    def without_topics(self, topic_ids: Collection[TopicId]) -> PartitionStates:
        """The topics are deleted. Returns the same object when none of them is known."""
        if not any(topic_id in part for part in (*self._both(), self.deleting) for topic_id in topic_ids):
            return self

        def others(topics: Topics) -> Topics:
            return {topic_id: topic for topic_id, topic in topics.items() if topic_id not in topic_ids}

        return replace(
            self.without_deleting(topic_ids),
            initializing=others(self.initializing),
            initialized=others(self.initialized),
        )

    def without_partitions(self, name: str, partitions: Collection[int]) -> PartitionStates:
        """The topic has lost the partitions: one with the same number is another. The same object when none is known."""
        gone = {
            topic_id: TopicPartitions(name, frozenset(partitions))
            for topics in self._both()
            for topic_id, topic in topics.items()
            if topic.name == name and not topic.partitions.isdisjoint(partitions)
        }
        if not gone:
            return self
        return replace(
            self,
            initializing=_removed(self.initializing, gone),
            initialized=_removed(self.initialized, gone),
        )

    def to_record(self) -> ShareGroupStatePartitionMetadataValue:
        return ShareGroupStatePartitionMetadataValue(
            initializing_topics=_to_record(self.initializing),
            initialized_topics=_to_record(self.initialized),
            deleting_topics=[
                TopicInfo(topic_id=topic_id, topic_name=name) for topic_id, name in self.deleting.items()
            ],
        )

    @staticmethod
    def from_record(value: ShareGroupStatePartitionMetadataValue) -> PartitionStates:
        return PartitionStates(
            _from_record(value.initializing_topics),
            _from_record(value.initialized_topics),
            {TopicId(each.topic_id): each.topic_name for each in value.deleting_topics},
        )


def _added(topics: Topics, more: Topics) -> Topics:
    merged = dict(topics)
    for topic_id, topic in more.items():
        known = topics.get(topic_id)
        partitions = topic.partitions if known is None else known.partitions | topic.partitions
        merged[topic_id] = TopicPartitions(topic.name, partitions)
    return merged


def _removed(topics: Topics, fewer: Topics) -> Topics:
    left = {}
    for topic_id, topic in topics.items():
        gone = fewer.get(topic_id)
        partitions = topic.partitions if gone is None else topic.partitions - gone.partitions
        if partitions:
            left[topic_id] = TopicPartitions(topic.name, partitions)
    return left


def _to_record(topics: Topics) -> list[TopicPartitionsInfo]:
    return [
        TopicPartitionsInfo(topic_id=topic_id, topic_name=topic.name, partitions=sorted(topic.partitions))
        for topic_id, topic in topics.items()
    ]


def _from_record(infos: Iterable[TopicPartitionsInfo]) -> Topics:
    return {
        TopicId(each.topic_id): TopicPartitions(each.topic_name, frozenset(each.partitions)) for each in infos
    }
