"""The simulated administrator: creates the topics, then changes the cluster while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tidemill.config import VIEW_FILTER, VIEW_SOURCE
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
    IncrementalAlterConfigsResponse,
)
from tidemill.protocol.api.replicas import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from tidemill.sim.clients.base import Client
from tidemill.types import TopicPartition

_TOPIC_RESOURCE = 2
_GROUP_RESOURCE = 32
_SET = 0
_PREFERRED = 0


class Admin:
    """The administrator's client."""

    def __init__(
        self, client: Client, note: Callable[[str], None], broker_ids: Sequence[int], pause_s_max: float
    ) -> None:
        self._client = client
        self._note = note
        self._broker_ids = list(broker_ids)
        self._pause_s_max = pause_s_max
        self._topics: list[str] = []
        self._scratch = 0
        self.is_ready = False
        self.is_done = False

    async def create(
        self, topics: Mapping[str, int], replicas: int, configs: Mapping[str, Mapping[str, str]]
    ) -> None:
        """Create the topics that all other clients wait for."""
        self._topics = list(topics)
        for name, partitions in topics.items():
            await self._create(name, partitions, replicas, configs.get(name, {}))
        while True:
            await self._client.refresh(self._topics)
            known = [tp for topic in self._topics for tp in self._client.partitions_of(topic)]
            if len(known) == sum(topics.values()) and all(self._client.leader_of(tp) for tp in known):
                break
            await self._client.back_off()
        self.is_ready = True

    async def create_view(self, name: str, source: str, where: str) -> None:
        await self._create(name, -1, -1, {VIEW_SOURCE: source, VIEW_FILTER: where})

    async def configure_group(self, group: str, configs: Mapping[str, str]) -> None:
        """Set the configuration of a group before it has members."""
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=_GROUP_RESOURCE,
                    resource_name=group,
                    configs=[
                        IncrementalAlterConfigsAlterableConfig(name=name, config_operation=_SET, value=value)
                        for name, value in configs.items()
                    ],
                )
            ]
        )
        while True:
            answer = await self._client.ask_any(request, IncrementalAlterConfigsResponse)
            if answer.responses and not answer.responses[0].error_code:
                return
            await self._client.back_off()

    async def _create(self, name: str, partitions: int, replicas: int, configs: Mapping[str, str]) -> None:
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        while True:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=5_000)
            answer = await self._client.ask_any(request, CreateTopicsResponse)
            code = answer.topics[0].error_code if answer.topics else ErrorCode.UNKNOWN_SERVER_ERROR
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            await self._client.back_off()

    async def run(self) -> None:
        """Make a change from time to time, until the end."""
        actions: list[Callable[[], Awaitable[str]]] = [
            self._elect,
            self._reassign,
            self._alter_config,
            self._create_and_delete,
        ]
        record = self._client.record
        while not record.is_ending:
            await asyncio.sleep(self._client.rng.uniform(1, self._pause_s_max))
            if record.is_ending:
                break
            self._note(await self._client.rng.choice(actions)())
        self.is_done = True

    async def _elect(self) -> str:
        """Elect the preferred leader of every partition."""
        request = ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=None, timeout_ms=5_000)
        answer = await self._client.ask_any(request, ElectLeadersResponse)
        return f"preferred leaders: {ErrorCode(answer.error_code).name}"

    async def _reassign(self) -> str:
        client = self._client
        await client.refresh(self._topics)
        tps = [tp for topic in self._topics for tp in client.partitions_of(topic)]
        tp = client.rng.choice(tps)
        replicas = self._new_replicas(tp)
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=5_000,
            topics=[
                ReassignableTopic(
                    name=tp.topic,
                    partitions=[ReassignablePartition(partition_index=tp.partition, replicas=replicas)],
                )
            ],
        )
        answer = await client.ask_any(request, AlterPartitionReassignmentsResponse)
        codes = [p.error_code for topic in answer.responses for p in topic.partitions]
        code = next(filter(None, [answer.error_code, *codes]), 0)
        return f"reassign {tp} to {replicas}: {ErrorCode(code).name}"

    def _new_replicas(self, tp: TopicPartition) -> list[int]:
        """As many replicas as before, in another order and, if there are more brokers, on other brokers."""
        count = len(self._client.leaders[tp].replicas)
        return self._client.rng.sample(self._broker_ids, count)

    async def _alter_config(self) -> str:
        name = self._client.rng.choice(self._topics)
        value = str(self._client.rng.choice((20_000, 60_000, 300_000)))
        request = IncrementalAlterConfigsRequest(
            resources=[
                IncrementalAlterConfigsResource(
                    resource_type=_TOPIC_RESOURCE,
                    resource_name=name,
                    configs=[
                        IncrementalAlterConfigsAlterableConfig(
                            name="segment.ms", config_operation=_SET, value=value
                        )
                    ],
                )
            ]
        )
        answer = await self._client.ask_any(request, IncrementalAlterConfigsResponse)
        return f"segment.ms of {name} = {value}: {_first_error(answer.responses)}"

    async def _create_and_delete(self) -> str:
        """Create, extend and delete a topic whose name is used again."""
        name = f"scratch-{self._scratch % 2}"
        self._scratch += 1
        replicas = min(3, len(self._broker_ids))
        await self._create(name, 1, replicas, {})
        grow = CreatePartitionsTopic(name=name, count=2, assignments=None)
        grown = await self._client.ask_any(
            CreatePartitionsRequest(topics=[grow], timeout_ms=5_000), CreatePartitionsResponse
        )
        await asyncio.sleep(self._client.rng.random() * 5)
        deleted = await self._client.ask_any(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], topic_names=[name], timeout_ms=5_000),
            DeleteTopicsResponse,
        )
        outcome = f"{_first_error(grown.results)}, {_first_error(deleted.responses)}"
        return f"{name} made, grown, deleted: {outcome}"


def _first_error(results: Sequence[Any]) -> str:
    """The error of a single result. A broker that finds no controller in time may return none."""
    return ErrorCode(results[0].error_code).name if results else "nothing"
