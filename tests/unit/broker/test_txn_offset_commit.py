"""Offsets that are committed in transactions, through a node in the test's own loop.

Clients up to version 4 add the group to the transaction themselves, and are verified; for those of version 5 the group's
coordinator adds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.node_client import LIMIT_S, Client, group_config
from tidemill.broker.node import Node
from tidemill.broker.platform import real_platform
from tidemill.errors import ErrorCode
from tidemill.log.transactions import TransactionEnd
from tidemill.types import TopicPartition

TRANSACTION = 1
ADDS = 5
NOT_READY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
)


class Producer:
    """A transactional producer that commits offsets of the topic `t`."""

    def __init__(self, node: Node, client: Client) -> None:
        self.node = node
        self.client = client
        self.producer_id = self.producer_epoch = -1

    async def ask(self, api: str, version: int, **fields: Any) -> Any:
        return await self.client.ask(
            api,
            version,
            transactional_id="tx",
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            **fields,
        )

    async def start(self) -> None:
        topics = [{"name": "t", "num_partitions": 2, "replication_factor": 1}]
        created = await self.client.ask("create_topics", 5, topics=topics, timeout=int(LIMIT_S) * 1000)
        assert created.topics[0].error_code == 0
        for key_type, key in ((TRANSACTION, "tx"), (0, "g")):
            found = await self.client.ask("find_coordinator", 3, key=key, key_type=key_type)
            assert found.error_code == 0
        async with asyncio.timeout(LIMIT_S):
            while (begun := await self.ask("init_producer_id", 5, transaction_timeout=60_000)).error_code:
                assert begun.error_code in NOT_READY
            while (await self.client.ask("offset_fetch", 7, group_id="g", topics=None)).error_code:
                pass
        self.producer_id, self.producer_epoch = begun.producer_id, begun.producer_epoch

    async def commit(
        self, version: int, *partitions: tuple[str, int, int], group_id: str = "g", epoch: int | None = None
    ) -> list[tuple[str, int, int]]:
        topics: dict[str, list[dict[str, int]]] = {}
        for topic, index, offset in partitions or (("t", 0, 1),):
            topics.setdefault(topic, []).append({"partition_index": index, "committed_offset": offset})
        member = {"generation_id": -1} if version >= 3 else {}
        answer = await self.client.ask(
            "txn_offset_commit",
            version,
            transactional_id="tx",
            group_id=group_id,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch if epoch is None else epoch,
            topics=[{"name": name, "partitions": each} for name, each in topics.items()],
            **member,
        )
        return [
            (topic.name, each.partition_index, each.error_code)
            for topic in answer.topics
            for each in topic.partitions
        ]

    async def end(self, is_commit: bool) -> None:
        async with asyncio.timeout(LIMIT_S):
            while (ended := await self.ask("end_txn", 5, committed=is_commit)).error_code:
                assert ended.error_code in NOT_READY
        self.producer_id, self.producer_epoch = ended.producer_id, ended.producer_epoch

    async def fetch(self, index: int = 0, *, is_stable: bool = True) -> tuple[int, int]:
        topics = [{"name": "t", "partition_indexes": (index,)}]
        answer = await self.client.ask(
            "offset_fetch", 7, group_id="g", topics=topics, require_stable=is_stable
        )
        partition = answer.topics[0].partitions[0]
        return partition.committed_offset, partition.error_code

    async def settled(self) -> tuple[int, int]:
        """The offset when no transaction is open any more."""
        async with asyncio.timeout(LIMIT_S):
            while (fetched := await self.fetch())[1] == ErrorCode.UNSTABLE_OFFSET_COMMIT:
                pass
        return fetched


@contextlib.asynccontextmanager
async def started(data_dir: Path) -> AsyncIterator[Producer]:
    node = Node(group_config(data_dir, transaction_state_log_num_partitions="1"), real_platform())
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        yield Producer(node, client)
    finally:
        await client.close()
        await node.stop()


@pytest.fixture
async def producer(tmp_path: Path) -> AsyncIterator[Producer]:
    async with started(tmp_path) as producer:
        await producer.start()
        yield producer


async def test_offsets_are_pending_until_the_transaction_ends(producer: Producer) -> None:
    assert await producer.commit(ADDS, ("t", 0, 5)) == [("t", 0, 0)]
    assert await producer.fetch() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert await producer.fetch(is_stable=False) == (-1, 0)
    await producer.end(is_commit=True)
    assert await producer.settled() == (5, 0)
    assert await producer.commit(ADDS, ("t", 0, 9)) == [("t", 0, 0)]
    await producer.end(is_commit=False)
    assert await producer.settled() == (5, 0)


async def test_commit_without_add_offsets_to_txn_is_refused(producer: Producer) -> None:
    assert await producer.commit(4) == [("t", 0, ErrorCode.TRANSACTION_ABORTABLE)]
    assert await producer.commit(3) == [("t", 0, ErrorCode.INVALID_TXN_STATE)]
    assert await producer.commit(0) == [("t", 0, ErrorCode.INVALID_TXN_STATE)]
    assert await producer.fetch() == (-1, 0)
    added = await producer.ask("add_offsets_to_txn", 3, group_id="g")
    assert added.error_code == 0
    for version in (4, 3, 0):
        assert await producer.commit(version) == [("t", 0, 0)]
    assert await producer.fetch() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


async def test_commit_of_an_older_epoch_is_fenced(producer: Producer) -> None:
    assert await producer.commit(ADDS) == [("t", 0, 0)]
    await producer.end(is_commit=True)
    await producer.settled()
    old = producer.producer_epoch - 1
    assert await producer.commit(ADDS, epoch=old) == [("t", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]


async def test_refused_future_epoch_fences_no_producer(producer: Producer) -> None:
    future = producer.producer_epoch + 1
    assert await producer.commit(ADDS, epoch=future) == [("t", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]
    assert await producer.commit(ADDS) == [("t", 0, 0)]


async def test_log_fences_a_producer_that_was_verified_too_late(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await producer.commit(ADDS) == [("t", 0, 0)]
    await producer.end(is_commit=True)
    await producer.settled()

    async def check(*question: Any, adds: bool) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(question[-1], ErrorCode.NONE)

    monkeypatch.setattr(producer.node.broker.verification, "check", check)
    old = producer.producer_epoch - 1
    assert await producer.commit(ADDS, epoch=old) == [("t", 0, ErrorCode.INVALID_PRODUCER_EPOCH)]


@pytest.mark.parametrize("is_commit", [True, False])
async def test_pending_offsets_survive_a_restart(tmp_path: Path, is_commit: bool) -> None:
    async with started(tmp_path) as producer:
        await producer.start()
        assert await producer.commit(ADDS, ("t", 0, 5)) == [("t", 0, 0)]
        await producer.end(is_commit=True)
        await producer.settled()
        assert await producer.commit(ADDS, ("t", 0, 8)) == [("t", 0, 0)]
        identity = producer.producer_id, producer.producer_epoch
    async with started(tmp_path) as producer:
        producer.producer_id, producer.producer_epoch = identity
        async with asyncio.timeout(LIMIT_S):
            while (await producer.client.ask("offset_fetch", 7, group_id="g", topics=None)).error_code:
                pass
        assert await producer.fetch() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert await producer.fetch(is_stable=False) == (5, 0)
        await producer.end(is_commit)
        assert await producer.settled() == ((8 if is_commit else 5), 0)


async def test_missing_partitions_come_first_and_others_are_committed(producer: Producer) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await producer.commit(ADDS, ("nothing", 0, 1), ("t", 7, 1)) == [
        ("nothing", 0, unknown),
        ("t", 7, unknown),
    ]
    assert await producer.commit(ADDS, ("t", 0, 1), ("t", 7, 1), ("nothing", 0, 1), ("t", 1, 1)) == [
        ("t", 7, unknown),
        ("t", 0, 0),
        ("t", 1, 0),
        ("nothing", 0, unknown),
    ]


async def test_commit_to_a_group_without_a_name_is_refused(producer: Producer) -> None:
    assert await producer.commit(ADDS, group_id="") == [("t", 0, ErrorCode.INVALID_GROUP_ID)]


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.NETWORK_EXCEPTION, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.NETWORK_EXCEPTION, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 5, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.NOT_COORDINATOR, 4, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.TRANSACTION_ABORTABLE, 5, ErrorCode.TRANSACTION_ABORTABLE),
    ],
)
async def test_failed_verification_becomes_commit_error(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, code: ErrorCode, version: int, told: ErrorCode
) -> None:
    asked = []

    async def check(
        transactional_id: str, producer_id: int, epoch: int, partitions: list[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        asked.append((transactional_id, producer_id, epoch, *partitions, adds))
        return dict.fromkeys(partitions, code)

    monkeypatch.setattr(producer.node.broker.verification, "check", check)
    assert await producer.commit(version) == [("t", 0, told)]
    place = TopicPartition("__consumer_offsets", 0)
    assert asked == [("tx", producer.producer_id, producer.producer_epoch, place, version >= ADDS)]


@pytest.mark.parametrize("is_commit", [True, False])
async def test_failure_07_repeated_marker_does_not_decide_the_next_transactions_offsets(
    producer: Producer, is_commit: bool
) -> None:
    end = TransactionEnd(producer.producer_id, producer.producer_epoch, 0, is_commit, ordinal=5)
    end_transaction = producer.node.broker.groups.end_transaction
    assert (await producer.ask("add_offsets_to_txn", 3, group_id="g")).error_code == 0
    assert await producer.commit(4, ("t", 0, 5)) == [("t", 0, 0)]
    await end_transaction(0, end)
    ended = (5 if is_commit else -1, 0)
    assert await producer.fetch() == ended
    assert await producer.commit(4, ("t", 0, 9)) == [("t", 0, 0)]
    await end_transaction(0, end)
    assert await producer.fetch() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert await producer.fetch(is_stable=False) == ended
    await end_transaction(0, end._replace(ordinal=6, is_commit=True))
    assert await producer.fetch() == (9, 0)


async def test_failure_06_a_marker_that_overtakes_the_verification_makes_it_void(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def check(
        _transactional_id: str, producer_id: int, epoch: int, partitions: list[TopicPartition], *, adds: bool
    ) -> dict[TopicPartition, ErrorCode]:
        end = TransactionEnd(producer_id, epoch, coordinator_epoch=0, is_commit=False)
        await producer.node.broker.groups.end_transaction(0, end)
        return dict.fromkeys(partitions, ErrorCode.NONE)

    monkeypatch.setattr(producer.node.broker.verification, "check", check)
    assert await producer.commit(4) == [("t", 0, ErrorCode.INVALID_TXN_STATE)]
    assert await producer.fetch() == (-1, 0)
