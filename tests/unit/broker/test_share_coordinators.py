"""The share coordinator of a node, over the wire: where its keys are found, and what its five APIs answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.authorized_node import ADMIN, ALICE, CLUSTER_ACTION, CLUSTER_TYPE, PUBLIC, Authorized
from tests.unit.broker.node_client import LIMIT_S, group_config
from tidemill.broker.node import Node
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api import share_state as api
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidemill.protocol.api.cluster import FindCoordinatorRequest
from tidemill.protocol.schema import Request
from tidemill.protocol.share_state import SharePartitionKey, ShareState, ShareStateChange, StateBatch
from tidemill.types import TopicId, uuid_text


@asynccontextmanager
async def running(data_dir: Path) -> AsyncIterator[Node]:
    config = group_config(data_dir, share_coordinator_state_topic_num_partitions="3")
    node = Node(config)
    async with asyncio.timeout(LIMIT_S):
        await node.start()
    try:
        yield node
    finally:
        node.request_stop()
        await node.stop()


async def create(node: Node, name: str = "jobs") -> TopicId:
    await node.broker.controller.ask(
        CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1)])
    )
    return node.broker.image.topics_by_name[name].id


async def test_state_survives_a_restart_of_the_node(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        key = SharePartitionKey("workers", await create(node), 1)
        client = node.broker.share_state
        await client.initialize(key, 1, 0)
        await client.write(key, ShareStateChange(1, 0, 0, (StateBatch(0, 3, 2, 1),), 4))
    async with running(tmp_path) as node:
        client = node.broker.share_state
        expected = ShareState(1, 0, (StateBatch(0, 3, 2, 1),), creation_offset=0)
        assert await client.read(key, 1) == expected
        summary = await client.read_summary(key)
        assert (summary.leader_epoch, summary.delivery_complete_count) == (1, 4)
        with pytest.raises(ApiError) as raised:
            await client.write(key, ShareStateChange(1, 0, 0))
        assert raised.value.code is ErrorCode.FENCED_LEADER_EPOCH
        await client.delete(key)
        assert (await client.read_summary(key)).start_offset == -1


async def test_state_goes_with_its_topic(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        key = SharePartitionKey("workers", await create(node), 0)
        await node.broker.share_state.initialize(key, 1, 0)
        await node.broker.controller.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="jobs")]))
        async with asyncio.timeout(LIMIT_S):
            for _ in iter(int, 1):
                if not any(machine.states for machine in node.broker.share_coordinators.runtime.machines()):
                    break
                await asyncio.sleep(0)


async def test_response_has_an_entry_for_every_partition(tmp_path: Path) -> None:
    async with running(tmp_path) as node:
        topic_id = await create(node)
        await node.broker.share_state.initialize(SharePartitionKey("workers", topic_id, 0), 1, 5)
        coordinators = node.broker.share_coordinators
        wanted = [
            api.ReadShareGroupStatePartitionData(partition=index, leader_epoch=0) for index in (1, 0, -1)
        ]
        topics = [api.ReadStateData(topic_id=topic_id, partitions=wanted)]
        request = api.ReadShareGroupStateRequest(group_id="workers", topics=topics)
        response = await coordinators.serve(request)
        assert isinstance(response, api.ReadShareGroupStateResponse)
        (result,) = response.results
        assert [(each.partition, each.error_code) for each in result.partitions] == [
            (1, ErrorCode.INVALID_REQUEST),
            (0, ErrorCode.NONE),
            (-1, ErrorCode.INVALID_REQUEST),
        ]
        assert result.partitions[1].start_offset == 5


async def test_long_request_asks_for_some_partitions_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of 20,000 partitions at once would be one turn of the event loop."""
    async with running(tmp_path) as node:
        coordinators = node.broker.share_coordinators
        ask = coordinators.ask
        under_way, most = 0, 0

        async def counted(request: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            try:
                return await ask(request)
            finally:
                under_way -= 1

        monkeypatch.setattr(coordinators, "ask", counted)
        topics = [
            api.ReadStateData(
                topic_id=number.to_bytes(16),
                partitions=[
                    api.ReadShareGroupStatePartitionData(partition=index, leader_epoch=0)
                    for index in range(number)
                ],
            )
            for number in (100, 1, 300)
        ]
        response = await coordinators.serve(api.ReadShareGroupStateRequest(group_id="workers", topics=topics))
        assert isinstance(response, api.ReadShareGroupStateResponse)
        assert [len(each.partitions) for each in response.results] == [100, 1, 300]
        assert [each.partition for each in response.results[2].partitions] == list(range(300))
        assert most <= 64


@pytest.mark.parametrize("group_id", ["", "workers"])
async def test_request_without_a_group_or_a_partition_gets_an_empty_response(
    tmp_path: Path, group_id: str
) -> None:
    async with running(tmp_path) as node:
        topics = [api.ReadStateData(topic_id=bytes(16), partitions=[])]
        request = api.ReadShareGroupStateRequest(group_id=group_id, topics=topics)
        assert await node.broker.share_coordinators.serve(request) == api.ReadShareGroupStateResponse()


def asked(topic_id: TopicId) -> list[Request]:
    kinds: tuple[tuple[Any, Any, Any], ...] = (
        (
            api.InitializeShareGroupStateRequest,
            api.InitializeStateData,
            api.InitializeShareGroupStatePartitionData,
        ),
        (api.ReadShareGroupStateRequest, api.ReadStateData, api.ReadShareGroupStatePartitionData),
        (api.WriteShareGroupStateRequest, api.WriteStateData, api.WriteShareGroupStatePartitionData),
        (
            api.ReadShareGroupStateSummaryRequest,
            api.ReadStateSummaryData,
            api.ReadShareGroupStateSummaryPartitionData,
        ),
        (api.DeleteShareGroupStateRequest, api.DeleteStateData, api.DeleteShareGroupStatePartitionData),
    )
    return [
        request(group_id="g", topics=[topic(topic_id=topic_id, partitions=[entry(partition=0)])])
        for request, topic, entry in kinds
    ]


async def test_every_api_needs_cluster_action(authorized: Authorized) -> None:
    topic_id = TopicId(authorized.topic_id(PUBLIC))
    key = SharePartitionKey("g", topic_id, 0)
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key)])
    for request in asked(topic_id):
        refused = await authorized.ask(ALICE, request)
        assert refused.results[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (found,) = (await authorized.ask(ALICE, find)).coordinators
    assert found.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    await authorized.allow(CLUSTER_ACTION, CLUSTER_TYPE, "kafka-cluster")
    (found,) = (await authorized.ask(ALICE, find)).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.NONE, authorized.node.config.node_id)
    # Until the shard is loaded.
    await authorized.node.broker.share_state.read_summary(key)
    for request in asked(topic_id):
        served = await authorized.ask(ALICE, request)
        assert served.results[0].partitions[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "key", ["g", "g:topic:0", f"g:{uuid_text(bytes(16))}", f":{uuid_text(bytes(16))}:0", ""]
)
async def test_bad_key_has_no_coordinator(authorized: Authorized, key: str) -> None:
    find = FindCoordinatorRequest(key_type=2, coordinator_keys=[key])
    (found,) = (await authorized.ask(ADMIN, find)).coordinators
    assert (found.error_code, found.node_id) == (ErrorCode.INVALID_REQUEST, -1)
