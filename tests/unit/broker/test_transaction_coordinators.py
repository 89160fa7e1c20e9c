"""A node as transaction coordinator: its shards, restarts, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.broker.node_client import LIMIT_S, Client, group_config
from tidemill.broker.coordinators import transactions
from tidemill.broker.node import Node
from tidemill.config import BrokerConfig
from tidemill.controller.image import ConfigResource, ResourceType
from tidemill.errors import ErrorCode
from tidemill.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from tidemill.protocol.records import Record, build_batch

TRANSACTION = 1


def transaction_config(data_dir: Path, **settings: str) -> BrokerConfig:
    return group_config(data_dir, transaction_state_log_num_partitions="3", **settings)


@asynccontextmanager
async def running(config: BrokerConfig) -> AsyncIterator[tuple[Node, Client]]:
    node = Node(config)
    await node.start()
    client = Client(*await asyncio.open_connection("127.0.0.1", node.addresses[0][1]))
    try:
        yield node, client
    finally:
        await client.close()
        await node.stop()


async def loaded(client: Client, api: str, version: int, **fields: Any) -> Any:
    """The answer once the coordinator has loaded."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await client.ask(api, version, **fields)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answer


async def init(client: Client, transactional_id: str) -> dict[str, Any]:
    """A new producer; returns what its requests have to say."""
    found = await client.ask("find_coordinator", 1, key=transactional_id, key_type=TRANSACTION)
    assert found.error_code == 0
    given = await loaded(
        client, "init_producer_id", 4, transactional_id=transactional_id, transaction_timeout=60_000
    )
    assert given.error_code == 0
    return {
        "transactional_id": transactional_id,
        "producer_id": given.producer_id,
        "producer_epoch": given.producer_epoch,
    }


async def create(client: Client, topic: str) -> None:
    topics = [{"name": topic, "num_partitions": 1, "replication_factor": 1}]
    created = await client.ask("create_topics", 4, topics=topics)
    assert created.topics[0].error_code == 0


async def add(client: Client, producer: dict[str, Any], *topics: str) -> dict[str, int]:
    answer = await client.ask(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=producer["transactional_id"],
        v3_and_below_producer_id=producer["producer_id"],
        v3_and_below_producer_epoch=producer["producer_epoch"],
        v3_and_below_topics=[{"name": topic, "partitions": [0]} for topic in topics],
    )
    return {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in answer.results_by_topic_v3_and_below
    }


async def state_of(client: Client, transactional_id: str) -> str:
    listed = await loaded(client, "list_transactions", 0, state_filters=[], producer_id_filters=[])
    assert listed.error_code == 0
    states = {each.transactional_id: each.transaction_state for each in listed.transaction_states}
    return str(states[transactional_id])


async def until_state(client: Client, transactional_id: str, state: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while await state_of(client, transactional_id) != state:
            pass


async def test_find_coordinator_creates_the_topic(tmp_path: Path) -> None:
    settings = {"transaction.state.log.segment.bytes": "2000000", "transaction.state.log.min.isr": "2"}
    config = transaction_config(tmp_path, **{key.replace(".", "_"): each for key, each in settings.items()})
    async with running(config) as (node, client):
        found = await client.ask("find_coordinator", 1, key="tx", key_type=TRANSACTION)
        assert (found.error_code, found.node_id) == (0, 1)
        topic = node.broker.image.topics_by_name[TRANSACTIONS_TOPIC]
        assert len(topic.partitions) == 3
        assert node.broker.image.config(ConfigResource(ResourceType.TOPIC, TRANSACTIONS_TOPIC)) == {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": "2",
            "segment.bytes": "2000000",
            "unclean.leader.election.enable": "false",
        }
        # One replica is enough as long as there is only one broker.
        producer = await init(client, "tx")
        assert producer["producer_epoch"] == 0


async def test_a_transaction_under_way_survives_a_restart(tmp_path: Path) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await create(client, "t")
        producer = await init(client, "tx")
        assert await add(client, producer, "t") == {"t": 0}
    async with running(transaction_config(tmp_path)) as (_, client):
        assert await state_of(client, "tx") == "Ongoing"
        ended = await client.ask("end_txn", 3, **producer, committed=True)
        assert ended.error_code == 0
        await until_state(client, "tx", "CompleteCommit")


async def test_a_producer_that_goes_on_at_once_is_not_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "_COMPLETION_S_MAX", LIMIT_S)
    async with running(transaction_config(tmp_path)) as (_, client):
        await create(client, "t")
        producer = await init(client, "tx")
        for _ in range(3):
            assert await add(client, producer, "t") == {"t": 0}
            assert (await client.ask("end_txn", 3, **producer, committed=True)).error_code == 0


async def test_a_transaction_of_a_deleted_topic_ends(tmp_path: Path) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await create(client, "t")
        producer = await init(client, "tx")
        assert await add(client, producer, "t") == {"t": 0}
        deleted = await client.ask("delete_topics", 4, topic_names=["t"], timeout=10_000)
        assert deleted.responses[0].error_code == 0
        assert (await client.ask("end_txn", 3, **producer, committed=False)).error_code == 0
        await until_state(client, "tx", "CompleteAbort")


async def test_offsets_in_a_transaction_survive_a_restart_as_pending(tmp_path: Path) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await create(client, "t")
        await client.ask("find_coordinator", 1, key="g")
        producer = await init(client, "tx")
        assert (await client.ask("add_offsets_to_txn", 3, **producer, group_id="g")).error_code == 0
        await commit_in_transaction(client, producer, 42)
        assert await stable_offset(client) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
    async with running(transaction_config(tmp_path)) as (_, client):
        assert await stable_offset(client) == (ErrorCode.UNSTABLE_OFFSET_COMMIT, -1)
        assert (await loaded(client, "end_txn", 3, **producer, committed=True)).error_code == 0
        await until_state(client, "tx", "CompleteCommit")
        assert await stable_offset(client) == (0, 42)
    async with running(transaction_config(tmp_path)) as (_, client):
        assert await stable_offset(client) == (0, 42)


async def commit_in_transaction(client: Client, producer: dict[str, Any], offset: int) -> None:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await client.ask(
                "txn_offset_commit",
                3,
                **producer,
                group_id="g",
                topics=[{"name": "t", "partitions": [partition]}],
            )
            code = answer.topics[0].partitions[0].error_code
            if code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                assert code == 0
                return


async def stable_offset(client: Client) -> tuple[int, int]:
    topics = [{"name": "t", "partition_indexes": [0]}]
    async with asyncio.timeout(LIMIT_S):
        while True:
            answer = await client.ask("offset_fetch", 7, group_id="g", topics=topics, require_stable=True)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                (partition,) = answer.topics[0].partitions
                return partition.error_code, partition.committed_offset


async def test_when_one_partition_does_not_exist_none_is_added(tmp_path: Path) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await create(client, "t")
        producer = await init(client, "tx")
        assert await add(client, producer, "t", "none") == {
            "t": ErrorCode.OPERATION_NOT_ATTEMPTED,
            "none": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await state_of(client, "tx") == "Empty"
        answer = await client.ask(
            "add_partitions_to_txn",
            4,
            transactions=[
                {**producer, "verify_only": False, "topics": [{"name": topic, "partitions": [0]}]}
                for topic in ("none", "t")
            ],
        )
        assert [
            result.topic_results[0].results_by_partition[0].partition_error_code
            for result in answer.results_by_transaction
        ] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]


async def test_broker_without_shards_answers_not_coordinator_in_every_layout(tmp_path: Path) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await create(client, "t")
        producer = {"transactional_id": "tx", "producer_id": 1, "producer_epoch": 0}
        refused = ErrorCode.NOT_COORDINATOR
        given = await client.ask("init_producer_id", 4, transactional_id="tx", transaction_timeout=1000)
        assert (given.error_code, given.producer_id, given.producer_epoch) == (refused, -1, -1)
        assert await add(client, producer, "t") == {"t": refused}
        assert (await client.ask("add_offsets_to_txn", 3, **producer, group_id="g")).error_code == refused
        assert (await client.ask("end_txn", 3, **producer, committed=True)).error_code == refused
        described = await client.ask("describe_transactions", 0, transactional_ids=["tx"])
        assert described.transaction_states[0].error_code == refused
        listed = await client.ask(
            "list_transactions", 0, state_filters=["Ongoing", "Odd", "Odd"], producer_id_filters=[]
        )
        assert listed.error_code == 0
        assert listed.unknown_state_filters == ("Odd",)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"transactional_id": "", "transaction_timeout": 1000}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "tx", "transaction_timeout": 0}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        ({"transactional_id": "tx", "transaction_timeout": 900_001}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (
            {"transactional_id": "tx", "transaction_timeout": 1000, "producer_id": 5},
            ErrorCode.INVALID_REQUEST,
        ),
    ],
)
async def test_invalid_init_producer_id_is_refused(
    tmp_path: Path, fields: dict[str, Any], code: ErrorCode
) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await init(client, "tx")
        refused = await client.ask("init_producer_id", 4, **fields)
        assert (refused.error_code, refused.producer_id, refused.producer_epoch) == (code, -1, -1)


@pytest.mark.parametrize("topic", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC])
async def test_clients_do_not_add_what_coordinators_keep(tmp_path: Path, topic: str) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await create(client, "t")
        producer = await init(client, "tx")
        await client.ask("find_coordinator", 1, key="g")
        assert await add(client, producer, topic, "t") == {
            topic: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "t": ErrorCode.OPERATION_NOT_ATTEMPTED,
        }
        assert await state_of(client, "tx") == "Empty"


@pytest.mark.parametrize("topic", [TRANSACTIONS_TOPIC, OFFSETS_TOPIC])
async def test_clients_do_not_write_what_coordinators_keep(tmp_path: Path, topic: str) -> None:
    async with running(transaction_config(tmp_path)) as (_, client):
        await init(client, "tx")
        await client.ask("find_coordinator", 1, key="g")
        partition = {"index": 0, "records": bytes(build_batch([Record(0, 0, b"k", b"v")]))}
        answer = await client.ask(
            "produce",
            9,
            acks=1,
            timeout=1000,
            topic_data=[{"name": topic, "partition_data": [partition]}],
        )
        (result,) = answer.responses[0].partition_responses
        assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
