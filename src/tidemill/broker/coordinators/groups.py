"""The group coordinators of this broker: one `Groups` machine for each partition of `__consumer_offsets` that it leads.

`runtime.py` hosts them. The machines read the cluster's topics from the metadata image and get a `TopicsChanged` when
those change.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from tidemill.broker.clock import Clock
from tidemill.broker.coordinators.runtime import CoordinatorRuntime, InternalTopic
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.config import BrokerConfig
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import ConfigResource, MetadataImage, ResourceType
from tidemill.coordinator.consumer_groups.protocol import ConsumerGroupProtocol
from tidemill.coordinator.groups.group import Environment, GroupCall, RebalanceEvent, TopicsChanged
from tidemill.coordinator.groups.machine import Groups
from tidemill.coordinator.shard import Caller
from tidemill.internal_topics import OFFSETS_TOPIC
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.schema import Request, Response
from tidemill.types import TopicId

logger = logging.getLogger(__name__)

# The longest string of the protocol, without a dash and a uuid.
_MEMBER_PREFIX_BYTES_MAX = 32_767 - 37


class GroupCoordinators(CoordinatorRuntime[Groups]):
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        replicas: Replicas,
        controller: ControllerDriver,
        new_uuid: Callable[[], bytes],
        uuid_text: Callable[[bytes], str],
    ) -> None:
        settings = config.offsets_topic
        topic = InternalTopic(
            OFFSETS_TOPIC,
            settings.num_partitions,
            settings.replication_factor,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(settings.segment_bytes),
            },
        )
        super().__init__(topic, config, clock, replicas, controller)
        self._new_uuid = new_uuid
        self._uuid_text = uuid_text

    # -- requests --------------------------------------------------------------------------------------------

    def ask(self, group_id: str, request: Request, caller: Caller) -> Response | Awaitable[Response]:
        """Returns the coordinator's response, at once where nothing is to be committed, as for nearly every heartbeat.

        `ApiError`, now or awaited, when this broker cannot give one.
        """
        shard = self.shard_of(group_id)
        answer: Response | Awaitable[Response] = self.ask_shard(
            partial(shard.handle, GroupCall(request, caller))
        )
        return answer

    async def ask_all(self, request: Request, caller: Caller) -> list[Response]:
        return await self.ask_every_shard(GroupCall(request, caller))

    def end_transaction(self, partition_index: int, end: TransactionEnd) -> Awaitable[None]:
        """Writes the marker of a transaction to a partition of `__consumer_offsets`; done when it is committed.

        `ApiError`, now or awaited, when it is not.
        """
        answer = self.ask_shard(partial(self.shard_at(partition_index).end_transaction, end))
        return answer if isinstance(answer, Awaitable) else _done()

    def events_of(self, group_id: str) -> Sequence[RebalanceEvent]:
        """Returns the causes of the group's last rebalances."""
        hosted = self._shards.get(self.partition_of(group_id))
        return () if hosted is None else hosted.machine.environment.events_of(group_id)

    # -- following the metadata ------------------------------------------------------------------------------

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        super().apply(delta, image)
        names = frozenset(topic.name for topic in delta.changed_topics.values())
        deleted = {topic.name: topic.id for topic in delta.deleted_topics.values()}
        if names or deleted:
            self.tell_all(TopicsChanged(names, deleted))

    # -- the machines ----------------------------------------------------------------------------------------

    def _machine(self, partition_index: int, leader_epoch: int) -> Groups:  # noqa: ARG002
        environment = Environment(self._config.groups, _ImageTopics(self._controller), self._new_member_id)
        environment.group_configs = self._group_configs
        return Groups(environment, ConsumerGroupProtocol)

    def _report(self, partition_index: int, leader_epoch: int, effect: Any) -> None:  # noqa: ARG002
        if isinstance(effect, RebalanceEvent):
            logger.info("%s", effect)

    def _returned(self, machine: Groups, steady_ms: int) -> None:
        """Heartbeats could not arrive meanwhile: the members get new sessions."""
        machine.on_loaded(steady_ms)

    def _group_configs(self, group_id: str) -> Mapping[str, str]:
        return self._controller.image.config(ConfigResource(ResourceType.GROUP, group_id))

    def _new_member_id(self, prefix: str | None) -> str:
        """As Kafka: the prefix and a dashed uuid, or a uuid in base64 when there is no prefix."""
        unique = self._new_uuid()
        if prefix is None:
            return self._uuid_text(unique)
        # The whole has to fit a string of the protocol, and the prefix, a client's own name, may fill one.
        shown = prefix.encode()[:_MEMBER_PREFIX_BYTES_MAX].decode(errors="ignore")
        return f"{shown}-{uuid.UUID(bytes=unique)}"


async def _done() -> None:
    """An answer that is there already."""


class _ImageTopics:
    """The cluster's topics as groups see them."""

    def __init__(self, controller: ControllerDriver) -> None:
        self._controller = controller

    def partitions_of(self, name: str) -> int | None:
        topic = self._controller.image.topics_by_name.get(name)
        return len(self._controller.image.partitions_of(topic)) if topic else None

    def id_of(self, name: str) -> TopicId | None:
        topic = self._controller.image.topics_by_name.get(name)
        return topic.id if topic else None

    def name_of(self, topic_id: TopicId) -> str | None:
        topic = self._controller.image.topics_by_id.get(topic_id)
        return topic.name if topic else None

    def names(self) -> Iterable[str]:
        return self._controller.image.topics_by_name
