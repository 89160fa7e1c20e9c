"""The changes from one metadata image to the next (Kafka's MetadataDelta).

Records are replayed into a `MetadataDelta`; `apply` returns the new image. The cost is proportional to the changes,
plus a copy of each top-level map that changed. Maps are copied once per delta, not per record: a topic of 4,000
partitions is 4,001 records and one delta. Metadata publishers read from the delta which topics, partitions, brokers
and configurations have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tidemill.config import PARTITIONS_TOTAL, TOPIC_KEYS_BY_NAME, own_topic_value
from tidemill.controller.image import (
    BrokerImage,
    ConfigResource,
    ControllerImage,
    Endpoint,
    MetadataImage,
    PartitionImage,
    ResourceType,
    TopicImage,
    topic_resource,
)
from tidemill.controller.security_image import SECURITY_RECORDS, SecurityDelta
from tidemill.protocol.api.metadata import (
    BrokerRegistrationChangeRecord,
    ClearElrRecord,
    ClusterIdRecord,
    ConfigRecord,
    FeatureLevelRecord,
    FenceBrokerRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RegisterControllerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnfenceBrokerRecord,
    UnregisterBrokerRecord,
)
from tidemill.protocol.schema import DataMessage
from tidemill.types import BrokerEpoch, BrokerId, LeaderEpoch, PartitionEpoch, ProducerId, TopicId

_LEADER_UNCHANGED = -2
_RECOVERY_UNCHANGED = -1


class TopicDelta:
    """A topic that is new or has new or changed partitions."""

    def __init__(self, base: TopicImage, *, is_new: bool) -> None:
        self.base = base
        self.is_new = is_new
        self.changed: dict[int, PartitionImage] = {}
        # Partitions that are gone. One with the same number may have been added since.
        self.removed: dict[int, None] = {}

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def id(self) -> TopicId:
        return self.base.id

    def partition(self, index: int) -> PartitionImage:
        changed = self.changed.get(index)
        return self.base.partitions[index] if changed is None else changed

    def cut(self, count: int) -> None:
        """Remove the partitions from `count` on."""
        last = max([len(self.base.partitions) - 1, *self.changed])
        self.removed.update(dict.fromkeys(range(count, last + 1)))
        self.base = replace(self.base, partitions=self.base.partitions[:count])
        self.changed = {index: each for index, each in self.changed.items() if index < count}

    def apply(self) -> TopicImage:
        partitions = list(self.base.partitions)
        for index in sorted(self.changed):
            if index < len(partitions):
                partitions[index] = self.changed[index]
            else:
                assert index == len(partitions), f"{self.name}-{index} does not follow {len(partitions) - 1}"
                partitions.append(self.changed[index])
        return TopicImage(self.name, self.id, tuple(partitions))


class MetadataDelta:
    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.end_offset = image.end_offset
        self.changed_topics: dict[TopicId, TopicDelta] = {}
        self.deleted_topics: dict[TopicId, TopicImage] = {}
        self.changed_brokers: dict[BrokerId, BrokerImage | None] = {}
        self.changed_configs: dict[ConfigResource, dict[str, str]] = {}
        self.changed_features: dict[str, int] = {}
        self.changed_controllers: dict[int, ControllerImage] = {}
        self.cluster_id = image.cluster_id
        self.next_producer_id = image.next_producer_id
        self._security = SecurityDelta(image.security)
        self._names: dict[str, TopicId | None] = {}

    @property
    def is_empty(self) -> bool:
        return self.end_offset == self.image.end_offset

    def replay(self, record: DataMessage, offset: int | None = None) -> None:
        """Apply the next record to the delta. Its offset may be left out when every record has the next offset."""
        handler = _HANDLERS.get(type(record))
        if handler is None:
            raise ValueError(f"{type(record).__name__} has no place in the metadata image")
        handler(self, record)
        self.end_offset = (self.end_offset if offset is None else offset) + 1

    def apply(self) -> MetadataImage:
        """Returns the image after the records. The old image stays unchanged."""
        if self.is_empty:
            return self.image
        topics_by_name, topics_by_id = self._apply_topics()
        return MetadataImage(
            cluster_id=self.cluster_id,
            end_offset=self.end_offset,
            topics_by_name=topics_by_name,
            topics_by_id=topics_by_id,
            brokers=_merged(self.image.brokers, self.changed_brokers),
            configs=_merged(
                self.image.configs,
                {key: dict(values) or None for key, values in self.changed_configs.items()},
            ),
            features=_merged(
                self.image.features, {name: level or None for name, level in self.changed_features.items()}
            ),
            next_producer_id=self.next_producer_id,
            controllers=_merged(self.image.controllers, self.changed_controllers),
            security=self._security.apply(),
        )

    def _apply_topics(self) -> tuple[Mapping[str, TopicImage], Mapping[TopicId, TopicImage]]:
        if not self.changed_topics and not self.deleted_topics:
            return self.image.topics_by_name, self.image.topics_by_id
        by_name = dict(self.image.topics_by_name)
        by_id = dict(self.image.topics_by_id)
        for topic_id, topic in self.deleted_topics.items():
            if by_id.pop(topic_id, None) is not None:
                del by_name[topic.name]
        for topic_id, delta in self.changed_topics.items():
            by_name[delta.name] = by_id[topic_id] = delta.apply()
        return by_name, by_id

    def _topic(self, topic_id: TopicId) -> TopicDelta:
        delta = self.changed_topics.get(topic_id)
        if delta is None:
            assert topic_id not in self.deleted_topics, f"topic {topic_id.hex()} is deleted"
            delta = TopicDelta(self.image.topics_by_id[topic_id], is_new=False)
            self.changed_topics[topic_id] = delta
        return delta

    def _topic_id(self, name: str) -> TopicId:
        return self._names.get(name) or self.image.topics_by_name[name].id

    def _replay_topic(self, record: TopicRecord) -> None:
        topic_id = TopicId(record.topic_id)
        self.changed_topics[topic_id] = TopicDelta(TopicImage(record.name, topic_id), is_new=True)
        self._names[record.name] = topic_id

    def _replay_remove_topic(self, record: RemoveTopicRecord) -> None:
        topic_id = TopicId(record.topic_id)
        delta = self.changed_topics.pop(topic_id, None)
        topic = self.image.topics_by_id[topic_id] if delta is None else delta.apply()
        self.deleted_topics[topic_id] = topic
        self._names[topic.name] = None
        resource = topic_resource(topic.name)
        if self.image.config(resource) or resource in self.changed_configs:
            self.changed_configs[resource] = {}

    def _replay_partition(self, record: PartitionRecord) -> None:
        self._topic(TopicId(record.topic_id)).changed[record.partition_id] = PartitionImage(
            replicas=_broker_ids(record.replicas),
            isr=_broker_ids(record.isr),
            leader=BrokerId(record.leader),
            leader_epoch=LeaderEpoch(record.leader_epoch),
            partition_epoch=PartitionEpoch(record.partition_epoch),
            removing_replicas=_broker_ids(record.removing_replicas),
            adding_replicas=_broker_ids(record.adding_replicas),
            elr=_broker_ids(record.eligible_leader_replicas or ()),
            last_known_elr=_broker_ids(record.last_known_elr or ()),
            leader_recovery_state=record.leader_recovery_state,
            directories=tuple(record.directories),
        )

    def _replay_partition_change(self, record: PartitionChangeRecord) -> None:
        topic = self._topic(TopicId(record.topic_id))
        before = topic.partition(record.partition_id)
        topic.changed[record.partition_id] = merge_change(before, record)

    def _replay_clear_elr(self, record: ClearElrRecord) -> None:
        names = [record.topic_name] if record.topic_name else list(self.image.topics_by_name)
        for name in names:
            topic = self._topic(self._topic_id(name))
            count = max(len(topic.base.partitions), len(topic.changed))
            for index in range(count):
                before = topic.partition(index)
                if before.elr or before.last_known_elr:
                    topic.changed[index] = replace(
                        before,
                        elr=(),
                        last_known_elr=(),
                        partition_epoch=PartitionEpoch(before.partition_epoch + 1),
                    )

    def _replay_config(self, record: ConfigRecord) -> None:
        resource = ConfigResource(record.resource_type, record.resource_name)
        configs = self.changed_configs.get(resource)
        if configs is None:
            configs = self.changed_configs[resource] = dict(self.image.config(resource))
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value
            if record.name == PARTITIONS_TOTAL and resource.type == ResourceType.TOPIC:
                self._cut(record)

    def _cut(self, record: ConfigRecord) -> None:
        """Remove the last partitions of a topic. A topic keeps one at least, whatever the log says."""
        name = record.resource_name
        count = own_topic_value(TOPIC_KEYS_BY_NAME[PARTITIONS_TOTAL], {PARTITIONS_TOTAL: record.value or ""})
        is_known = self._names[name] is not None if name in self._names else name in self.image.topics_by_name
        if isinstance(count, int) and count > 0 and is_known:
            self._topic(self._topic_id(name)).cut(count)

    def _replay_register_broker(self, record: RegisterBrokerRecord) -> None:
        broker_id = BrokerId(record.broker_id)
        self.changed_brokers[broker_id] = BrokerImage(
            id=broker_id,
            epoch=BrokerEpoch(record.broker_epoch),
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            rack=record.rack,
            is_fenced=record.fenced,
            is_in_controlled_shutdown=record.in_controlled_shutdown,
            features=_features(record.features),
            log_dirs=tuple(record.log_dirs),
        )

    def _replay_unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._registered(record.broker_id, record.broker_epoch)
        self.changed_brokers[BrokerId(record.broker_id)] = None

    def _replay_broker_change(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._registered(record.broker_id, record.broker_epoch)
        changes: dict[str, Any] = {}
        if record.fenced:
            changes["is_fenced"] = record.fenced > 0
        if record.in_controlled_shutdown:
            changes["is_in_controlled_shutdown"] = True
        if record.log_dirs:
            changes["log_dirs"] = tuple(record.log_dirs)
        self.changed_brokers[broker.id] = replace(broker, **changes)

    def _replay_fence(self, record: FenceBrokerRecord) -> None:
        broker = self._registered(record.id, record.epoch)
        self.changed_brokers[broker.id] = replace(broker, is_fenced=True)

    def _replay_unfence(self, record: UnfenceBrokerRecord) -> None:
        broker = self._registered(record.id, record.epoch)
        self.changed_brokers[broker.id] = replace(broker, is_fenced=False)

    def _registered(self, broker_id: int, epoch: int) -> BrokerImage:
        key = BrokerId(broker_id)
        broker = self.changed_brokers[key] if key in self.changed_brokers else self.image.brokers.get(key)
        assert broker is not None, f"broker {broker_id} is not registered"
        assert broker.epoch == epoch, f"broker {broker_id} has epoch {broker.epoch}, the record {epoch}"
        return broker

    def _replay_register_controller(self, record: RegisterControllerRecord) -> None:
        self.changed_controllers[record.controller_id] = ControllerImage(
            id=record.controller_id,
            incarnation_id=record.incarnation_id,
            endpoints=_endpoints(record.end_points),
            features=_features(record.features),
        )

    def _replay_cluster_id(self, record: ClusterIdRecord | NoOpRecord) -> None:
        """A no-op record without an id only moves the offset."""
        if record.cluster_id is None:
            return
        assert self.cluster_id in ("", record.cluster_id), f"{self.cluster_id} is not {record.cluster_id}"
        self.cluster_id = record.cluster_id

    def _replay_feature(self, record: FeatureLevelRecord) -> None:
        self.changed_features[record.name] = record.feature_level

    def _replay_security(self, record: DataMessage) -> None:
        self._security.replay(record)

    def _replay_producer_ids(self, record: ProducerIdsRecord) -> None:
        self.next_producer_id = ProducerId(record.next_producer_id)


_HANDLERS: dict[type[DataMessage], Callable[[MetadataDelta, Any], None]] = {
    TopicRecord: MetadataDelta._replay_topic,
    RemoveTopicRecord: MetadataDelta._replay_remove_topic,
    PartitionRecord: MetadataDelta._replay_partition,
    PartitionChangeRecord: MetadataDelta._replay_partition_change,
    ClearElrRecord: MetadataDelta._replay_clear_elr,
    ConfigRecord: MetadataDelta._replay_config,
    RegisterBrokerRecord: MetadataDelta._replay_register_broker,
    UnregisterBrokerRecord: MetadataDelta._replay_unregister_broker,
    BrokerRegistrationChangeRecord: MetadataDelta._replay_broker_change,
    FenceBrokerRecord: MetadataDelta._replay_fence,
    UnfenceBrokerRecord: MetadataDelta._replay_unfence,
    RegisterControllerRecord: MetadataDelta._replay_register_controller,
    ClusterIdRecord: MetadataDelta._replay_cluster_id,
    FeatureLevelRecord: MetadataDelta._replay_feature,
    ProducerIdsRecord: MetadataDelta._replay_producer_ids,
    NoOpRecord: MetadataDelta._replay_cluster_id,
    **dict.fromkeys(SECURITY_RECORDS, MetadataDelta._replay_security),
}


def merge_change(before: PartitionImage, record: PartitionChangeRecord) -> PartitionImage:
    changes: dict[str, Any] = {"partition_epoch": PartitionEpoch(before.partition_epoch + 1)}
    if record.leader != _LEADER_UNCHANGED:
        # Naming the leader, even the same one, begins a new leader epoch.
        changes["leader"] = BrokerId(record.leader)
        changes["leader_epoch"] = LeaderEpoch(before.leader_epoch + 1)
    if record.leader_recovery_state != _RECOVERY_UNCHANGED:
        changes["leader_recovery_state"] = record.leader_recovery_state
    for name, ids in (
        ("isr", record.isr),
        ("replicas", record.replicas),
        ("removing_replicas", record.removing_replicas),
        ("adding_replicas", record.adding_replicas),
        ("elr", record.eligible_leader_replicas),
        ("last_known_elr", record.last_known_elr),
    ):
        if ids is not None:
            changes[name] = _broker_ids(ids)
    if record.directories is not None:
        changes["directories"] = tuple(record.directories)
    return replace(before, **changes)


def _broker_ids(ids: Any) -> tuple[BrokerId, ...]:
    return tuple(ids)


def _endpoints(listeners: Any) -> dict[str, Endpoint]:
    return {each.name: Endpoint(each.host, each.port, each.security_protocol) for each in listeners}


def _features(features: Any) -> dict[str, tuple[int, int]]:
    return {each.name: (each.min_supported_version, each.max_supported_version) for each in features}


def _merged(base: Mapping[Any, Any], changes: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Returns the base with the changes, where None removes a key; the base itself when nothing changes."""
    if not changes:
        return base
    merged = dict(base)
    for key, value in changes.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    return merged
