"""Lag of groups and causes of rebalances, for metrics and the console."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from pathlib import Path

from tests.unit.broker.node_client import SESSION_MS, Client, group_config, join
from tests.wire.batches import encode
from tidemill.broker.node import Node
from tidemill.broker.status.lag import PartitionLag, lags_of
from tidemill.client.admin.lag import lag_of


def _lags(node: Node, group_id: str | None = None) -> Iterator[PartitionLag]:
    for machine in node.broker.groups.runtime.machines():
        for group in machine.groups.values():
            if group_id is None or group.group_id == group_id:
                yield from lags_of(machine, group, node.broker.replicas)


async def test_lag_is_what_lies_between_the_commit_and_the_end(tmp_path: Path) -> None:
    node = Node(group_config(tmp_path))
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        await _create_orders(client, partitions=1)
        member = await join(client, "billing", SESSION_MS)
        await _produce(client, 5)
        await _commit(client, member, 2)
        assert list(_lags(node)) == [
            PartitionLag("billing", "Stable", "orders", 0, committed_offset=2, start_offset=0, end_offset=5)
        ]
        await _produce(client, 4)
        (found,) = _lags(node, "billing")
        assert found.lag == 7
        await _commit(client, member, 9)
        (found,) = _lags(node, "billing")
        assert found.lag == 0
        assert list(_lags(node, "somebody else")) == []
    finally:
        await client.close()
        await node.stop()


async def test_a_partition_without_a_commit_is_all_unread(tmp_path: Path) -> None:
    """So the lag does not rise when the group commits something there."""
    node = Node(group_config(tmp_path))
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        await _create_orders(client, partitions=2)
        member = await join(client, "billing", SESSION_MS)
        await _produce(client, 5)
        await _produce(client, 4, partition=1)
        await _commit(client, member, 5)
        found = list(_lags(node, "billing"))
        assert [(each.partition, each.committed_offset, each.lag) for each in found] == [
            (0, 5, 0),
            (1, None, 4),
        ]
        await _commit(client, member, 1, partition=1)
        found = list(_lags(node, "billing"))
        assert [each.lag for each in found] == [0, 3]
    finally:
        await client.close()
        await node.stop()


def test_a_commit_beyond_the_end_is_no_lag_and_an_unknown_end_gives_none() -> None:
    assert lag_of(committed_offset=9, start_offset=0, end_offset=5) == 0
    assert lag_of(committed_offset=9, start_offset=None, end_offset=None) is None
    assert lag_of(committed_offset=None, start_offset=3, end_offset=5) == 2
    assert lag_of(committed_offset=None, start_offset=None, end_offset=5) is None


async def test_a_rebalance_can_be_asked_for_with_its_cause(tmp_path: Path) -> None:
    node = Node(group_config(tmp_path))
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        member = await join(client, "billing", SESSION_MS)
        (event,) = node.broker.groups.events_of("billing")
        assert (event.generation, event.members_before, event.members_after) == (1, 0, 1)
        assert f"member {member['member_id']} joined" in event.cause
        assert not node.broker.groups.events_of("somebody else")
    finally:
        await client.close()
        await node.stop()


async def test_a_topic_that_is_subscribed_to_and_not_committed_is_all_unread(tmp_path: Path) -> None:
    node = Node(group_config(tmp_path))
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        await _create_orders(client, partitions=2)
        await _produce(client, 5)
        # Version 0 of ConsumerProtocolSubscription: two topics, one of which does not exist, and no user data.
        metadata = struct.pack(">hih6sh4si", 0, 2, 6, b"orders", 4, b"none", -1)
        await join(client, "billing", SESSION_MS, metadata)
        found = list(_lags(node, "billing"))
        assert [(each.topic, each.partition, each.lag) for each in found] == [
            ("orders", 0, 5),
            ("orders", 1, 0),
        ]
    finally:
        await client.close()
        await node.stop()


async def _create_orders(client: Client, partitions: int) -> None:
    topic = {
        "name": "orders",
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [],
    }
    await client.ask("create_topics", 4, topics=[topic], timeout=10_000)


async def _produce(client: Client, count: int, partition: int = 0) -> None:
    data = {"index": partition, "records": encode([b"v"] * count)}
    answer = await client.ask(
        "produce", 7, acks=1, timeout=10_000, topic_data=[{"name": "orders", "partition_data": [data]}]
    )
    assert answer.responses[0].partition_responses[0].error_code == 0


async def _commit(client: Client, member: dict[str, object], offset: int, partition: int = 0) -> None:
    commit = {"partition_index": partition, "committed_offset": offset, "committed_metadata": None}
    answer = await client.ask(
        "offset_commit",
        5,
        group_id=member["group_id"],
        generation_id_or_member_epoch=member["generation_id"],
        member_id=member["member_id"],
        topics=[{"name": "orders", "partitions": [commit]}],
    )
    assert answer.topics[0].partitions[0].error_code == 0
