"""The share coordinators of this broker: one `ShareStates` machine for each partition of `__share_group_state` it leads.

`runtime.py` hosts them. A request about several share partitions is split, since each may belong to another shard, and
the answers are put together in the order of the request. As in Kafka, a request without a group, a topic or a partition
gets an empty response.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

from tidemill.broker.clock import Clock
from tidemill.broker.coordinators.runtime import CoordinatorRuntime, InternalTopic
from tidemill.broker.partitions.replicas import Replicas
from tidemill.broker.quorum.driver import ControllerDriver
from tidemill.config import BrokerConfig
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.coordinator.share_state.machine import (
    Delete,
    Initialize,
    PruneLog,
    Read,
    ReadSummary,
    ShareRequest,
    ShareStates,
    TopicsDeleted,
    Write,
)
from tidemill.errors import ApiError, ErrorCode
from tidemill.internal_topics import SHARE_STATE_TOPIC
from tidemill.protocol.api import share_state as api
from tidemill.protocol.share_state import (
    SharePartitionKey,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
    StateBatch,
)
from tidemill.types import TopicId

logger = logging.getLogger(__name__)


class ShareCoordinators(CoordinatorRuntime[ShareStates]):
    def __init__(
        self, config: BrokerConfig, clock: Clock, replicas: Replicas, controller: ControllerDriver
    ) -> None:
        settings = config.share_coordinator
        topic = InternalTopic(
            SHARE_STATE_TOPIC,
            settings.state_topic_num_partitions,
            settings.state_topic_replication_factor,
            {
                # Snapshots of one key replace updates of another key: pruning, not compaction, keeps the log short.
                "cleanup.policy": "delete",
                "compression.type": "producer",
                "segment.bytes": str(settings.state_topic_segment_bytes),
                "min.insync.replicas": str(settings.state_topic_min_isr),
                "retention.ms": "-1",
            },
        )
        super().__init__(topic, config, clock, replicas, controller)

    # -- requests --------------------------------------------------------------------------------------------

    async def ask(self, request: ShareRequest) -> Any:
        """Returns the machine's reply about one share partition. `ApiError` refuses the request."""
        shard = self.shard_of(str(request.key))
        answer = self.ask_shard(partial(shard.handle, request))
        return await answer if isinstance(answer, Awaitable) else answer

    async def initialize(
        self, request: api.InitializeShareGroupStateRequest
    ) -> api.InitializeShareGroupStateResponse:
        async def one(
            key: SharePartitionKey, wanted: api.InitializeShareGroupStatePartitionData
        ) -> api.InitializeShareGroupStatePartitionResult:
            result = api.InitializeShareGroupStatePartitionResult(partition=key.partition)
            await self._settle(result, Initialize(key, wanted.state_epoch, wanted.start_offset), "initialize")
            return result

        results = await _each(request, one, api.InitializeStateResult)
        return api.InitializeShareGroupStateResponse(results=results)

    async def read(self, request: api.ReadShareGroupStateRequest) -> api.ReadShareGroupStateResponse:
        async def one(
            key: SharePartitionKey, wanted: api.ReadShareGroupStatePartitionData
        ) -> api.ReadShareGroupStatePartitionResult:
            result = api.ReadShareGroupStatePartitionResult(partition=key.partition)
            state = await self._settle(result, Read(key, wanted.leader_epoch), "read")
            if isinstance(state, ShareState):
                result.state_epoch = state.state_epoch
                result.start_offset = state.start_offset
                result.state_batches = [api.StateBatch(**batch._asdict()) for batch in state.batches]
            return result

        results = await _each(request, one, api.ReadStateResult)
        return api.ReadShareGroupStateResponse(results=results)

    async def write(self, request: api.WriteShareGroupStateRequest) -> api.WriteShareGroupStateResponse:
        async def one(
            key: SharePartitionKey, wanted: api.WriteShareGroupStatePartitionData
        ) -> api.WriteShareGroupStatePartitionResult:
            result = api.WriteShareGroupStatePartitionResult(partition=key.partition)
            await self._settle(result, Write(key, _change_of(wanted)), "write")
            return result

        results = await _each(request, one, api.WriteStateResult)
        return api.WriteShareGroupStateResponse(results=results)

    async def delete(self, request: api.DeleteShareGroupStateRequest) -> api.DeleteShareGroupStateResponse:
        async def one(
            key: SharePartitionKey, _wanted: api.DeleteShareGroupStatePartitionData
        ) -> api.DeleteShareGroupStatePartitionResult:
            result = api.DeleteShareGroupStatePartitionResult(partition=key.partition)
            await self._settle(result, Delete(key), "delete")
            return result

        results = await _each(request, one, api.DeleteStateResult)
        return api.DeleteShareGroupStateResponse(results=results)

    async def read_summary(
        self, request: api.ReadShareGroupStateSummaryRequest
    ) -> api.ReadShareGroupStateSummaryResponse:
        async def one(
            key: SharePartitionKey, _wanted: api.ReadShareGroupStateSummaryPartitionData
        ) -> api.ReadShareGroupStateSummaryPartitionResult:
            result = api.ReadShareGroupStateSummaryPartitionResult(partition=key.partition)
            summary = await self._settle(result, ReadSummary(key), "read", " summary")
            if isinstance(summary, ShareStateSummary):
                result.state_epoch = summary.state_epoch
                result.leader_epoch = summary.leader_epoch
                result.start_offset = summary.start_offset
                result.delivery_complete_count = summary.delivery_complete_count
            return result

        results = await _each(request, one, api.ReadStateSummaryResult)
        return api.ReadShareGroupStateSummaryResponse(results=results)

    async def _settle(self, result: Any, request: ShareRequest, verb: str, noun: str = "") -> Any:
        """Asks the shard and returns its reply; an error goes into the result, in Kafka's words."""
        try:
            return await self.ask(request)
        except ApiError as error:
            result.error_code, result.error_message = error.code, error.message
            if error.code in _OF_THE_RUNTIME:
                result.error_message = f"Unable to {verb} share group state{noun}: {error.message}"
            return None

    # -- following the metadata ------------------------------------------------------------------------------

    def apply(self, delta: MetadataDelta, image: MetadataImage) -> None:
        super().apply(delta, image)
        if delta.deleted_topics or any(topic.removed for topic in delta.changed_topics.values()):
            self.tell_all(TopicsDeleted())

    # -- the machines ----------------------------------------------------------------------------------------

    def _machine(self, partition_index: int, leader_epoch: int) -> ShareStates:  # noqa: ARG002
        return ShareStates(self._config.share_coordinator, self._has_partition)

    def _has_partition(self, topic_id: TopicId, partition: int) -> bool:
        image = self._controller.image
        topic = image.topics_by_id.get(topic_id)
        return topic is not None and partition < len(image.partitions_of(topic))

    def _report(self, partition_index: int, leader_epoch: int, effect: Any) -> None:  # noqa: ARG002
        if isinstance(effect, PruneLog):
            partition, _ = self._replicas.find((self.topic.name, partition_index))
            if partition is not None and partition.is_leader and partition.log is not None:
                self._replicas.move_start(partition, effect.offset)


# Errors that say nothing about the state: the shard is elsewhere, loads, or could not write.
_OF_THE_RUNTIME = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)


def _change_of(wanted: api.WriteShareGroupStatePartitionData) -> ShareStateChange:
    return ShareStateChange(
        wanted.state_epoch,
        wanted.leader_epoch,
        wanted.start_offset,
        tuple(
            StateBatch(each.first_offset, each.last_offset, each.delivery_state, each.delivery_count)
            for each in wanted.state_batches
        ),
        wanted.delivery_complete_count,
    )


async def _each(
    request: Any, one: Callable[[SharePartitionKey, Any], Awaitable[Any]], result_type: Any
) -> list[Any]:
    """Returns the results for every partition of every topic of the request, all asked at once."""
    if not request.group_id or not all(topic.partitions for topic in request.topics):
        return []

    async def of_topic(topic: Any) -> Any:
        keys = (
            SharePartitionKey(request.group_id, TopicId(topic.topic_id), each.partition)
            for each in topic.partitions
        )
        answers = (one(key, each) for key, each in zip(keys, topic.partitions, strict=True))
        return result_type(topic_id=topic.topic_id, partitions=await asyncio.gather(*answers))

    topics: Iterable[Any] = request.topics
    return await asyncio.gather(*(of_topic(topic) for topic in topics))
