"""Replication throttles (Kafka: ReplicationQuotaManager): limit the rate at which replicas that are not in sync are filled.

A topic lists replicas as `partition:broker` pairs or as `*`; a broker has a rate as leader and one as follower. Replicas in
sync are never throttled, because acks wait for them. `tidemill reassign` sets and removes throttles.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.broker.partitions.partition import Partition
from tidemill.config import TOPIC_KEYS_BY_NAME, BrokerConfig, own_topic_value
from tidemill.controller.image import ConfigResource, MetadataImage, ResourceType
from tidemill.replication.throttle import UNLIMITED, RateLimit

_LEADER_REPLICAS = "leader.replication.throttled.replicas"
_FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
_LEADER_RATE = "leader.replication.throttled.rate"
_FOLLOWER_RATE = "follower.replication.throttled.rate"
_ALL = "*"


class Throttle:
    """The throttle of one side, leader or follower: its partitions and its rate."""

    def __init__(self, broker_id: int, replicas_key: str, rate_key: str) -> None:
        self._broker_id = broker_id
        self._replicas_key = replicas_key
        self._rate_key = rate_key
        self._limit = RateLimit()
        # By topic: the partitions; None for all.
        self._topics: dict[str, frozenset[int] | None] = {}

    def configure(self, image: MetadataImage, config: BrokerConfig, topics: Iterable[str]) -> None:
        text = image.broker_layers(config.node_id, config.properties).text(self._rate_key)
        self._limit.bytes_per_s = UNLIMITED if text is None else int(text)
        for topic in topics:
            pairs = own_topic_value(TOPIC_KEYS_BY_NAME[self._replicas_key], image.topic_config(topic))
            if not isinstance(pairs, tuple) or not pairs:
                self._topics.pop(topic, None)
            elif _ALL in pairs:
                self._topics[topic] = None
            else:
                own = f":{self._broker_id}"
                self._topics[topic] = frozenset(
                    int(pair.partition(":")[0]) for pair in pairs if pair.endswith(own)
                )

    def applies_to(self, partition: Partition, replica_id: int) -> bool:
        """Whether the records that go to this replica are limited."""
        if not self._topics or partition.name.topic not in self._topics:
            return False
        indexes = self._topics[partition.name.topic]
        is_listed = indexes is None or partition.index in indexes
        return is_listed and partition.image is not None and replica_id not in partition.image.isr

    def wait_ms(self, steady_ms: int) -> int:
        return self._limit.wait_ms(steady_ms)

    def charge(self, size: int, steady_ms: int) -> None:
        self._limit.charge(size, steady_ms)


class Throttles:
    def __init__(self, config: BrokerConfig) -> None:
        self._config = config
        self.leader = Throttle(config.node_id, _LEADER_REPLICAS, _LEADER_RATE)
        self.follower = Throttle(config.node_id, _FOLLOWER_REPLICAS, _FOLLOWER_RATE)

    def configure(self, image: MetadataImage, changed: Iterable[ConfigResource]) -> None:
        topics = [resource.name for resource in changed if resource.type == ResourceType.TOPIC]
        self.leader.configure(image, self._config, topics)
        self.follower.configure(image, self._config, topics)
