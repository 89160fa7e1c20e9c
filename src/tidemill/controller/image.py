"""The cluster's metadata at one offset of its log. An image is immutable, so readers share it.

`MetadataDelta` (delta.py) makes the next image, which shares all unchanged parts with the old one.
Topics are found by name and by id, partitions by their index in the topic's tuple.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from tidemill.config import VIEW_SOURCE, BrokerLayers
from tidemill.controller.security_image import SecurityImage
from tidemill.errors import ApiError, ErrorCode
from tidemill.types import (
    NO_BROKER,
    BrokerEpoch,
    BrokerId,
    LeaderEpoch,
    PartitionEpoch,
    ProducerId,
    TopicId,
)

_FIRST_LEADER_EPOCH = LeaderEpoch(0)
_FIRST_PARTITION_EPOCH = PartitionEpoch(0)
_FIRST_PRODUCER_ID = ProducerId(0)

NO_DIRECTORY = bytes(16)


def only_directory(log_dirs: Collection[bytes]) -> bytes:
    """The log directory of every replica on a broker that has one; with several, the controller does not know it."""
    return next(iter(log_dirs)) if len(log_dirs) == 1 else NO_DIRECTORY


class ResourceType(IntEnum):
    """The kind of resource that a configuration belongs to, with its number on the wire and in the log."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigResource(NamedTuple):
    type: int
    name: str


# The broker resource without a name holds the settings for all brokers.
CLUSTER_DEFAULT = ConfigResource(ResourceType.BROKER, "")


def topic_resource(name: str) -> ConfigResource:
    return ConfigResource(ResourceType.TOPIC, name)


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int
    security_protocol: int


@dataclass(frozen=True, slots=True)
class BrokerImage:
    id: BrokerId
    epoch: BrokerEpoch
    incarnation_id: bytes
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None
    is_fenced: bool = True
    is_in_controlled_shutdown: bool = False
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    log_dirs: tuple[bytes, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether the broker may lead partitions and be in their ISR."""
        return not self.is_fenced and not self.is_in_controlled_shutdown


@dataclass(frozen=True, slots=True)
class ControllerImage:
    """A controller, as it registered with the active one (KIP-919)."""

    id: int
    incarnation_id: bytes
    endpoints: Mapping[str, Endpoint]
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """`leader` is NO_BROKER when no replica may lead.

    `elr`, the eligible leader replicas (KIP-966), were in sync when fewer than `min.insync.replicas` were left, so they have
    every committed record. A leader is elected from them when the ISR is empty. `last_known_elr` names the last leader of a
    partition whose ISR and ELR are both empty. `directories` are the log directories of the replicas, in their order; empty
    when none is known.
    """

    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch = _FIRST_LEADER_EPOCH
    partition_epoch: PartitionEpoch = _FIRST_PARTITION_EPOCH
    removing_replicas: tuple[BrokerId, ...] = ()
    adding_replicas: tuple[BrokerId, ...] = ()
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()
    leader_recovery_state: int = 0
    directories: tuple[bytes, ...] = ()

    @property
    def has_leader(self) -> bool:
        return self.leader != NO_BROKER

    @property
    def is_reassigned(self) -> bool:
        return bool(self.adding_replicas or self.removing_replicas)

    def directory(self, replica: BrokerId) -> bytes:
        """The log directory of a replica; NO_DIRECTORY when none is known."""
        for known, directory in zip(self.replicas, self.directories, strict=False):
            if known == replica:
                return directory
        return NO_DIRECTORY


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic, or a view of one, which has no partitions of its own."""

    name: str
    id: TopicId
    partitions: tuple[PartitionImage, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataImage:
    """`end_offset` is the offset of the first record that is not in the image. The cluster id is empty at first."""

    cluster_id: str = ""
    end_offset: int = 0
    topics_by_name: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[TopicId, TopicImage] = field(default_factory=dict)
    brokers: Mapping[BrokerId, BrokerImage] = field(default_factory=dict)
    configs: Mapping[ConfigResource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)
    next_producer_id: ProducerId = _FIRST_PRODUCER_ID
    controllers: Mapping[int, ControllerImage] = field(default_factory=dict)
    security: SecurityImage = field(default_factory=SecurityImage)

    def config(self, resource: ConfigResource) -> Mapping[str, str]:
        """The settings of the resource itself, without inherited ones."""
        return self.configs.get(resource, {})

    def topic_config(self, name: str) -> Mapping[str, str]:
        return self.config(topic_resource(name))

    def broker_layers(self, broker_id: BrokerId, static: Mapping[str, str]) -> BrokerLayers:
        """The layers of a broker's configuration: its file, its own settings and those for all brokers."""
        return BrokerLayers(
            static=static,
            dynamic=self.config(ConfigResource(ResourceType.BROKER, str(broker_id))),
            cluster_default=self.config(CLUSTER_DEFAULT),
        )

    def source_of(self, name: str) -> TopicImage | None:
        """The topic that a view shows; None for a topic that is no view."""
        source = self.topic_config(name).get(VIEW_SOURCE)
        return None if source is None else self.topics_by_name.get(source)

    def views_of(self, name: str) -> list[str]:
        """The names of the views that show a topic."""
        return sorted(
            resource.name
            for resource, configs in self.configs.items()
            if configs.get(VIEW_SOURCE) == name and resource.type == ResourceType.TOPIC
        )

    def partitions_of(self, topic: TopicImage) -> tuple[PartitionImage, ...]:
        """The partitions as clients see them: those of a view are its source's."""
        if topic.partitions:
            return topic.partitions
        source = self.source_of(topic.name)
        return () if source is None else source.partitions

    def partition(self, topic: str, index: int) -> PartitionImage | None:
        found = self.topics_by_name.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    def broker_in_epoch(self, broker_id: int, epoch: int) -> BrokerImage:
        """The broker that registered with this epoch. `ApiError` when there is none."""
        broker = self.brokers.get(BrokerId(broker_id))
        if broker is None:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} is not registered")
        if broker.epoch != epoch:
            raise ApiError(
                ErrorCode.STALE_BROKER_EPOCH, f"Broker {broker_id} has epoch {broker.epoch}, not {epoch}"
            )
        return broker

    def check_invariants(self) -> None:
        """Raise AssertionError when the image contradicts itself."""
        assert len(self.topics_by_name) == len(self.topics_by_id)
        for topic_id, topic in self.topics_by_id.items():
            assert topic.id == topic_id
            assert self.topics_by_name[topic.name] is topic, topic.name
            assert self.partitions_of(topic), topic.name
            assert not topic.partitions or self.source_of(topic.name) is None, topic.name
            for index, partition in enumerate(topic.partitions):
                self._check_partition(f"{topic.name}-{index}", partition)
        for resource, configs in self.configs.items():
            assert configs, resource
            if resource.type == ResourceType.TOPIC:
                assert resource.name in self.topics_by_name, resource

    def _check_partition(self, label: str, partition: PartitionImage) -> None:
        replicas = set(partition.replicas)
        assert partition.replicas, label
        for ids in (partition.replicas, partition.isr, partition.elr, partition.last_known_elr):
            assert len(set(ids)) == len(ids), label
        assert set(partition.isr) <= replicas, label
        assert set(partition.elr) <= replicas - set(partition.isr), label
        assert set(partition.adding_replicas) | set(partition.removing_replicas) <= replicas, label
        assert not partition.directories or len(partition.directories) == len(partition.replicas), label
        assert partition.leader_epoch >= 0, label
        assert partition.partition_epoch >= 0, label
        if partition.has_leader:
            # The ISR may be empty only while there is no leader.
            assert partition.leader in partition.isr, label
            broker = self.brokers.get(partition.leader)
            assert broker is not None, label
            assert not broker.is_fenced, label
