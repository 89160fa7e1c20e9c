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
from tidemill.broker.coordinators.share_group_states import Background, ShareGroupStates, outcome
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.config import BrokerConfig
from tidemill.controller.delta import MetadataDelta, TopicDelta
from tidemill.controller.image import ConfigResource, MetadataImage, ResourceType
from tidemill.controller.topics.fewer_partitions import removed_epochs
from tidemill.coordinator.consumer_groups.protocol import ConsumerGroupProtocol
from tidemill.coordinator.groups.group import Environment, GroupCall, RebalanceEvent, TopicsChanged
from tidemill.coordinator.groups.machine import Groups
from tidemill.coordinator.shard import Caller
from tidemill.coordinator.share_groups.protocol import ShareGroupProtocol
from tidemill.coordinator.share_groups.state_requests import (
    GroupDeletion,
    InitializedPartitions,
    InitializeState,
    OffsetsToAlter,
    ShareEvent,
    StateDeleted,
    StateInitialized,
    StateToDelete,
)
from tidemill.internal_topics import OFFSETS_TOPIC
from tidemill.log.transactions import TransactionEnd
from tidemill.protocol.api.share import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
    DeleteShareGroupOffsetsResponseTopic,
)
from tidemill.protocol.schema import Request, Response
from tidemill.protocol.share_state import ShareStateSummary
from tidemill.runtime import NO_TOKEN
from tidemill.types import TopicId

logger = logging.getLogger(__name__)

# The longest string of the protocol, without a dash and a uuid.
_MEMBER_PREFIX_BYTES_MAX = 32_767 - 37


class GroupCoordinators:
    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        replicas: Replicas,
        controller: ControllerDriver,
        new_uuid: Callable[[], bytes],
        uuid_text: Callable[[bytes], str],
        share_states: ShareGroupStates,
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
        self.runtime: CoordinatorRuntime[Groups] = CoordinatorRuntime(
            topic, config, clock, replicas, controller, self
        )
        self._config = config
        self._controller = controller
        self._new_uuid = new_uuid
        self._uuid_text = uuid_text
        self._share_states = share_states
        self._background = Background()

    # -- requests --------------------------------------------------------------------------------------------

    def ask(self, group_id: str, request: Request, caller: Caller) -> Response | Awaitable[Response]:
        """Returns the coordinator's response, at once where nothing is to be committed, as for nearly every heartbeat.

        `ApiError`, now or awaited, when this broker cannot give one.
        """
        shard = self.runtime.shard_of(group_id)
        answer: Response | Awaitable[Response] = self.runtime.ask_shard(
            partial(shard.handle, GroupCall(request, caller))
        )
        return answer

    async def ask_all(self, request: Request, caller: Caller, *, is_large: bool) -> list[Response]:
        return await self.runtime.ask_every_shard(GroupCall(request, caller), is_large=is_large)

    def end_transaction(self, partition_index: int, end: TransactionEnd) -> Awaitable[None]:
        """Writes the marker of a transaction to a partition of `__consumer_offsets`; done when it is committed.

        `ApiError`, now or awaited, when it is not.
        """
        answer = self.runtime.ask_shard(partial(self.runtime.shard_at(partition_index).end_transaction, end))
        return answer if isinstance(answer, Awaitable) else _done()

    def events_of(self, group_id: str) -> Sequence[RebalanceEvent]:
        """Returns the causes of the group's last rebalances."""
        hosted = self.runtime.hosted(self.runtime.partition_of(group_id))
        return () if hosted is None else hosted.machine.environment.events_of(group_id)

    # -- share groups ----------------------------------------------------------------------------------------

    async def ask_share(self, group_id: str, event: ShareEvent) -> Any:
        """Returns the reply of the group's machine to an event of share groups. Raises `ApiError`."""
        shard = self.runtime.shard_of(group_id)
        answer = self.runtime.ask_shard(partial(shard.handle, event))
        return await answer if isinstance(answer, Awaitable) else answer

    async def _asked(self, group_id: str, request: Request, caller: Caller) -> Any:
        answer: Any = self.ask(group_id, request, caller)
        return await answer if isinstance(answer, Awaitable) else answer

    async def alter_share_offsets(
        self, request: AlterShareGroupOffsetsRequest, caller: Caller
    ) -> AlterShareGroupOffsetsResponse:
        """Initialises partitions of an empty share group at the given offsets. Raises `ApiError`."""
        wanted: OffsetsToAlter = await self._asked(request.group_id, request, caller)
        errors = await self._share_states.initialize(wanted.initialize)
        done = outcome(wanted.initialize, errors).done
        if done:
            event = StateInitialized(request.group_id, wanted.initialize.state_epoch, done)
            await self.ask_share(request.group_id, event)
        for topic in wanted.response.responses:
            for each in topic.partitions:
                error = errors.get((TopicId(topic.topic_id), each.partition_index))
                if error is not None and not each.error_code:
                    each.error_code, each.error_message = error.code, error.message
        return wanted.response

    async def delete_share_offsets(
        self, request: DeleteShareGroupOffsetsRequest, caller: Caller
    ) -> DeleteShareGroupOffsetsResponse:
        """Deletes the state of topics of an empty share group. Raises `ApiError`."""
        wanted: StateToDelete = await self._asked(request.group_id, request, caller)
        errors = await self._share_states.delete(request.group_id, wanted.partitions)
        deleted = frozenset(topic_id for topic_id in wanted.partitions if topic_id not in errors)
        if deleted:
            await self.ask_share(request.group_id, StateDeleted(request.group_id, deleted))
        response = DeleteShareGroupOffsetsResponse()
        for topic_id, name in wanted.names.items():
            answer = DeleteShareGroupOffsetsResponseTopic(topic_id=topic_id, topic_name=name)
            if topic_id in errors:
                answer.error_code, answer.error_message = errors[topic_id].code, errors[topic_id].message
            response.responses.append(answer)
        response.responses += wanted.refused
        return response

    async def delete_share_state(self, group_id: str) -> None:
        """Deletes the state of a group that is about to be deleted, if it is a share group. Raises `ApiError`."""
        wanted: StateToDelete | None = await self.ask_share(group_id, GroupDeletion(group_id))
        if wanted is None:
            return
        for error in (await self._share_states.delete(group_id, wanted.partitions)).values():
            raise error

    async def share_offsets(
        self, group_id: str, partitions: Mapping[TopicId, list[int]] | None
    ) -> dict[tuple[TopicId, int], ShareStateSummary | None]:
        """Returns the state of the partitions, or of all that have any. None: no state. Raises `ApiError`."""
        if partitions is None:
            initialized = await self.ask_share(group_id, InitializedPartitions(group_id))
            partitions = {topic_id: sorted(indexes) for topic_id, indexes in initialized.items()}
        found = await self._share_states.summaries(group_id, partitions)
        return {
            (topic_id, partition): found.get((topic_id, partition))
            for topic_id, indexes in partitions.items()
            for partition in indexes
        }

    async def _initialize(self, partition_index: int, leader_epoch: int, wanted: InitializeState) -> None:
        event = outcome(wanted, await self._share_states.initialize(wanted))
        shard = self.runtime.hosted(partition_index)
        if shard is not None and shard.leader_epoch == leader_epoch:
            # When that cannot be written, a heartbeat has it initialised again.
            shard.handle(event, NO_TOKEN)

    # -- following the metadata ------------------------------------------------------------------------------

    def reconfigure(self, config: BrokerConfig) -> None:
        self._config = config
        for machine in self.runtime.all_machines():
            machine.reconfigure(config.groups, config.share_groups)

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:
        changed = delta.changed_topics.values()
        names = {topic.name for topic in changed}
        deleted = {topic.name: topic.id for topic in delta.deleted_topics.values()}
        removed = {topic.name: frozenset(topic.removed) for topic in changed if topic.removed}
        # The views of a topic get and lose its partitions with it.
        for source in [topic.name for topic in changed if _has_other_count(topic, delta, image)]:
            for view in image.views_of(source):
                names.add(view)
                if source in removed:
                    removed[view] = removed[source]
        if names or deleted:
            self.runtime.tell_all(TopicsChanged(frozenset(names), deleted, removed))

    # -- the machines ----------------------------------------------------------------------------------------

    def make_machine(self, partition_index: int, leader_epoch: int) -> Groups:  # noqa: ARG002
        environment = Environment(self._config.groups, _ImageTopics(self._controller), self._new_member_id)
        environment.group_configs = self._group_configs
        share_groups = self._config.share_groups
        return Groups(
            environment, ConsumerGroupProtocol, lambda groups: ShareGroupProtocol(groups, share_groups)
        )

    def carry_out(self, partition_index: int, leader_epoch: int, effect: Any) -> None:
        if isinstance(effect, RebalanceEvent):
            logger.info("%s", effect)
        elif isinstance(effect, InitializeState):
            self._background.start(partial(self._initialize, partition_index, leader_epoch, effect))

    def close(self) -> None:
        self._background.close()
        self.runtime.close()

    def returned(self, machine: Groups, steady_ms: int) -> None:
        """Heartbeats could not arrive meanwhile: the members get new sessions."""
        machine.on_loaded(steady_ms)

    def shard_closed(self, partition_index: int, leader_epoch: int) -> None:
        """Nothing outlives the shard."""

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


def _has_other_count(topic: TopicDelta, delta: MetadataDelta, image: MetadataImage) -> bool:
    """Whether the topic existed before with other partitions."""
    before = delta.image.topics_by_id.get(topic.id)
    return before is not None and (
        bool(topic.removed) or len(image.topics_by_id[topic.id].partitions) != len(before.partitions)
    )


async def _done() -> None:
    """An answer that is there already."""


class _ImageTopics:
    """The cluster's topics as groups see them."""

    def __init__(self, controller: ControllerDriver) -> None:
        self._controller = controller

    def partitions_of(self, name: str) -> int | None:
        topic = self._controller.image.topics_by_name.get(name)
        return len(self._controller.image.partitions_of(topic)) if topic else None

    def former_epoch(self, name: str, partition: int) -> int:
        image = self._controller.image
        source = image.source_of(name)
        configs = image.topic_config(name if source is None else source.name)
        return removed_epochs(configs).get(partition, -1) if configs else -1

    def id_of(self, name: str) -> TopicId | None:
        topic = self._controller.image.topics_by_name.get(name)
        return topic.id if topic else None

    def name_of(self, topic_id: TopicId) -> str | None:
        topic = self._controller.image.topics_by_id.get(topic_id)
        return topic.name if topic else None

    def names(self) -> Iterable[str]:
        return self._controller.image.topics_by_name
