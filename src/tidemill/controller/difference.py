"""The delta between two images without records between them: what a snapshot changes for metadata publishers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.controller.delta import MetadataDelta, TopicDelta
from tidemill.controller.image import MetadataImage, TopicImage
from tidemill.controller.topics.fewer_partitions import removed_epochs


def difference(old: MetadataImage, new: MetadataImage) -> MetadataDelta:
    """Returns what changed when `new` replaces `old`. This delta must not be applied."""
    delta = MetadataDelta(old)
    delta.end_offset = new.end_offset
    for topic_id, topic in old.topics_by_id.items():
        if topic_id not in new.topics_by_id:
            delta.deleted_topics[topic_id] = topic
    for topic_id, topic in new.topics_by_id.items():
        before = old.topics_by_id.get(topic_id)
        if before is not topic:
            removals = _removals(old, topic.name) if before else {}
            removed = [
                index for index, epoch in _removals(new, topic.name).items() if removals.get(index) != epoch
            ]
            _compare_partitions(delta, before, topic, removed if before else ())
    for broker_id in {**old.brokers, **new.brokers}:
        if old.brokers.get(broker_id) != new.brokers.get(broker_id):
            delta.changed_brokers[broker_id] = new.brokers.get(broker_id)
    for resource in {**old.configs, **new.configs}:
        if old.config(resource) != new.config(resource):
            delta.changed_configs[resource] = dict(new.config(resource))
    for name in {**old.features, **new.features}:
        if old.features.get(name) != new.features.get(name):
            delta.changed_features[name] = new.features.get(name, 0)
    delta.next_producer_id = new.next_producer_id
    return delta


def _removals(image: MetadataImage, name: str) -> Mapping[int, int]:
    return removed_epochs(image.topic_config(name))


def _compare_partitions(
    delta: MetadataDelta, before: TopicImage | None, topic: TopicImage, removed: Iterable[int]
) -> None:
    """`removed` are partitions that were removed in between. Others may have their numbers by now."""
    change = TopicDelta(before or TopicImage(topic.name, topic.id), is_new=before is None)
    known = before.partitions if before else ()
    for index, partition in enumerate(topic.partitions):
        if index >= len(known) or known[index] != partition:
            change.changed[index] = partition
    gone = {*removed, *range(len(topic.partitions), len(known))}
    change.removed.update(dict.fromkeys(sorted(index for index in gone if index < len(known))))
    if change.is_new or change.changed or change.removed:
        delta.changed_topics[topic.id] = change
