"""The share coordinators of this broker: one `ShareStates` machine for each partition of `__share_group_state` it leads.

`runtime.py` hosts them. A request about several share partitions is split, since each may belong to another shard, and
the answers are put together in the order of the request. As in Kafka, a request without a group, a topic or a partition
gets an empty response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

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
    LettersOwed,
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
from tidemill.protocol.schema import Request, Response, Struct
from tidemill.protocol.share_state import (
    NO_CREATION_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateChange,
    ShareStateSummary,
    StateBatch,
)
from tidemill.types import TopicId

_ASKED_TOGETHER_MAX = 64


class ShareCoordinators:
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
        self.runtime: CoordinatorRuntime[ShareStates] = CoordinatorRuntime(
            topic, config, clock, replicas, controller, self
        )
        self._config = config
        self._replicas = replicas
        self._controller = controller
        # Called with share partitions whose leader is to write dead letters.
        self.on_letters_owed: Callable[[SharePartitionKey], None] = lambda _key: None

    # -- requests --------------------------------------------------------------------------------------------

    async def ask(self, request: ShareRequest) -> Any:
        """Returns the machine's reply about one share partition. `ApiError` refuses the request."""
        shard = self.runtime.shard_of(str(request.key))
        answer = self.runtime.ask_shard(partial(shard.handle, request))
        return await answer if isinstance(answer, Awaitable) else answer

    async def serve(self, request: Request) -> Response:
        """Answers one of the five APIs, each partition by its own shard."""
        api_of = _APIS[type(request)]
        return api_of.response(results=await self._results(api_of, request))

    async def _results(self, api_of: _Api, request: Any) -> list[Any]:
        """Returns the results for every partition of every topic of the request.

        Partitions are asked together, but not more than `_ASKED_TOGETHER_MAX`: the event loop has its turn in between.
        """
        if not request.group_id or not all(topic.partitions for topic in request.topics):
            return []
        wanted = [
            (SharePartitionKey(request.group_id, TopicId(topic.topic_id), each.partition), each)
            for topic in request.topics
            for each in topic.partitions
        ]
        found: list[Any] = []
        for start in range(0, len(wanted), _ASKED_TOGETHER_MAX):
            part = wanted[start : start + _ASKED_TOGETHER_MAX]
            found += await asyncio.gather(*(self._result(api_of, key, each) for key, each in part))
        results = iter(found)
        return [
            api_of.topic_result(
                topic_id=TopicId(topic.topic_id), partitions=list(islice(results, len(topic.partitions)))
            )
            for topic in request.topics
        ]

    async def _result(self, api_of: _Api, key: SharePartitionKey, wanted: Any) -> Any:
        """Returns the result for one partition; an error is in Kafka's words."""
        try:
            reply = await self.ask(api_of.request_of(key, wanted))
        except ApiError as error:
            message = error.message
            if error.code in _OF_THE_RUNTIME:
                message = f"Unable to {api_of.action}: {message}"
            return api_of.result(partition=key.partition, error_code=error.code, error_message=message)
        return api_of.result(partition=key.partition, **api_of.fields_of(reply, wanted))

    # -- following the metadata ------------------------------------------------------------------------------

    def metadata_changed(self, delta: MetadataDelta, image: MetadataImage) -> None:  # noqa: ARG002
        if delta.deleted_topics or any(topic.removed for topic in delta.changed_topics.values()):
            self.runtime.tell_all(TopicsDeleted())

    # -- the machines ----------------------------------------------------------------------------------------

    def make_machine(self, partition_index: int, leader_epoch: int) -> ShareStates:  # noqa: ARG002
        return ShareStates(self._config.share_coordinator, self._has_partition)

    def _has_partition(self, topic_id: TopicId, partition: int) -> bool:
        image = self._controller.image
        topic = image.topics_by_id.get(topic_id)
        return topic is not None and partition < len(image.partitions_of(topic))

    def carry_out(self, partition_index: int, leader_epoch: int, effect: Any) -> None:  # noqa: ARG002
        if isinstance(effect, PruneLog):
            partition, _ = self._replicas.find((self.runtime.topic.name, partition_index))
            if partition is not None and partition.is_leader and partition.log is not None:
                self._replicas.move_start(partition, effect.offset)
        elif isinstance(effect, LettersOwed):
            self.on_letters_owed(effect.key)

    def returned(self, machine: ShareStates, steady_ms: int) -> None:
        """The states have no deadlines."""

    def shard_closed(self, partition_index: int, leader_epoch: int) -> None:
        """Nothing outlives the shard."""


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
        wanted.creation_offset,
    )


class _Api(NamedTuple):
    """One of the five APIs: its messages, and how they become requests to the machine and replies of it."""

    # In the messages of errors.
    action: str
    request_of: Callable[[SharePartitionKey, Any], ShareRequest]
    # The messages of the five APIs have fields of the same names, which their common base does not declare.
    response: Callable[..., Response]
    topic_result: Callable[..., Struct]
    result: Callable[..., Struct]
    fields_of: Callable[[Any, Any], dict[str, Any]] = lambda _reply, _wanted: {}


def _state_fields(state: ShareState, wanted: api.ReadShareGroupStatePartitionData) -> dict[str, Any]:
    return {
        "state_epoch": state.state_epoch,
        "start_offset": state.start_offset,
        "state_batches": [api.StateBatch(**batch._asdict()) for batch in state.batches],
        "creation_offset": state.creation_offset if wanted.wants_creation_offset else NO_CREATION_OFFSET,
    }


def _summary_fields(
    summary: ShareStateSummary, wanted: api.ReadShareGroupStateSummaryPartitionData
) -> dict[str, Any]:
    if not wanted.wants_creation_offset:
        summary = replace(summary, creation_offset=NO_CREATION_OFFSET)
    return asdict(summary)


_APIS: Mapping[type[Request], _Api] = {
    api.InitializeShareGroupStateRequest: _Api(
        "initialize share group state",
        lambda key, wanted: Initialize(key, wanted.state_epoch, wanted.start_offset),
        api.InitializeShareGroupStateResponse,
        api.InitializeStateResult,
        api.InitializeShareGroupStatePartitionResult,
    ),
    api.ReadShareGroupStateRequest: _Api(
        "read share group state",
        lambda key, wanted: Read(key, wanted.leader_epoch),
        api.ReadShareGroupStateResponse,
        api.ReadStateResult,
        api.ReadShareGroupStatePartitionResult,
        _state_fields,
    ),
    api.WriteShareGroupStateRequest: _Api(
        "write share group state",
        lambda key, wanted: Write(key, _change_of(wanted)),
        api.WriteShareGroupStateResponse,
        api.WriteStateResult,
        api.WriteShareGroupStatePartitionResult,
    ),
    api.DeleteShareGroupStateRequest: _Api(
        "delete share group state",
        lambda key, _wanted: Delete(key),
        api.DeleteShareGroupStateResponse,
        api.DeleteStateResult,
        api.DeleteShareGroupStatePartitionResult,
    ),
    api.ReadShareGroupStateSummaryRequest: _Api(
        "read share group state summary",
        lambda key, _wanted: ReadSummary(key),
        api.ReadShareGroupStateSummaryResponse,
        api.ReadStateSummaryResult,
        api.ReadShareGroupStateSummaryPartitionResult,
        _summary_fields,
    ),
}
