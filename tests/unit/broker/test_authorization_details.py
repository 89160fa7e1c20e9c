"""What Apache Kafka does beyond one operation on one resource; `make diff-acls` compares the rest."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from tests.unit.broker.authorized_node import (
    ADMIN,
    ALICE,
    CLUSTER_TYPE,
    CREATE,
    DESCRIBE,
    GROUP,
    LIMIT_S,
    PUBLIC,
    READ,
    SECRET,
    TOPIC,
    TRANSACTIONAL_ID,
    WRITE,
    Authorized,
)
from tidemill.controller.image import ResourceType
from tidemill.errors import ErrorCode
from tidemill.protocol.api import admin, cluster, data, groups, offsets, security, transactions
from tidemill.protocol.isolation import READ_COMMITTED, READ_HIDDEN, READ_WAITING
from tidemill.protocol.records import Header, Record, build_batch
from tidemill.security.principals import Principal

DELETE, DESCRIBE_CONFIGS, ALTER_CONFIGS = 6, 10, 11
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
ID_DENIED = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NO_OPERATIONS = -0x80000000
IS_TRANSACTIONAL = 0x10


# --- produce ---


async def produced(authorized: Authorized, transactional_id: str | None, *, is_transactional: bool) -> int:
    record = Record(offset=0, timestamp=0, key=None, value=b"v", headers=())
    batch = build_batch([record])
    if is_transactional:
        batch = build_batch(
            [record], attributes=IS_TRANSACTIONAL, producer_id=999, producer_epoch=0, base_sequence=0
        )
    partition = data.PartitionProduceData(index=0, records=bytes(batch))
    topic = data.TopicProduceData(name=PUBLIC, partition_data=[partition])
    request = data.ProduceRequest(
        transactional_id=transactional_id, acks=1, timeout_ms=1000, topic_data=[topic]
    )
    response = await authorized.ask(ALICE, request, 9)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


async def test_produce_needs_the_transactional_id_for_transactional_batches_alone(
    authorized: Authorized,
) -> None:
    await authorized.allow(WRITE, TOPIC, PUBLIC)
    assert await produced(authorized, "tx", is_transactional=False) == 0
    assert await produced(authorized, "tx", is_transactional=True) == ID_DENIED
    await authorized.allow(WRITE, TRANSACTIONAL_ID, "tx")
    assert await produced(authorized, "tx", is_transactional=True) not in (0, ID_DENIED)


async def test_transactional_batch_without_a_transactional_id_is_denied(authorized: Authorized) -> None:
    await authorized.allow(WRITE, TOPIC, PUBLIC)
    assert await produced(authorized, None, is_transactional=True) == ID_DENIED


# --- topics ---


async def deleted(authorized: Authorized, name: str) -> int:
    request = admin.DeleteTopicsRequest(topic_names=[name], timeout_ms=10_000)
    code: int = (await authorized.ask(ALICE, request, 5)).responses[0].error_code
    return code


async def test_missing_topic_is_denied_without_describe(authorized: Authorized) -> None:
    assert await deleted(authorized, "missing") == DENIED
    await authorized.allow(DESCRIBE, TOPIC, "missing")
    assert await deleted(authorized, "missing") == UNKNOWN


async def test_topics_are_deleted_by_a_right_on_the_topic_or_on_the_cluster(authorized: Authorized) -> None:
    await authorized.allow(DESCRIBE, TOPIC, PUBLIC)
    assert await deleted(authorized, PUBLIC) == DENIED
    await authorized.allow(DELETE, TOPIC, PUBLIC)
    assert await deleted(authorized, PUBLIC) == 0
    assert await deleted(authorized, SECRET) == DENIED
    await authorized.allow(DELETE, CLUSTER_TYPE, "kafka-cluster")
    assert await deleted(authorized, SECRET) == 0


async def test_topic_by_id_has_its_name_in_a_refused_deletion_when_it_may_be_described(
    authorized: Authorized,
) -> None:
    wanted = admin.DeleteTopicState(name=None, topic_id=authorized.topic_id(SECRET))
    request = admin.DeleteTopicsRequest(topics=[wanted], timeout_ms=10_000)
    (hidden,) = (await authorized.ask(ALICE, request)).responses
    assert (hidden.error_code, hidden.name) == (DENIED, None)
    await authorized.allow(DESCRIBE, TOPIC, SECRET)
    (seen,) = (await authorized.ask(ALICE, request)).responses
    assert (seen.error_code, seen.name) == (DENIED, SECRET)


async def test_configuration_of_a_new_topic_is_hidden_without_describe_configs(
    authorized: Authorized,
) -> None:
    await authorized.allow(CREATE, CLUSTER_TYPE, "kafka-cluster")

    async def created(name: str) -> admin.CreatableTopicResult:
        topic = admin.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        response = await authorized.ask(ALICE, admin.CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        result: admin.CreatableTopicResult = response.topics[0]
        assert result.error_code == 0
        return result

    hidden = await created("first")
    assert hidden.topic_config_error_code == DENIED
    assert (hidden.num_partitions, hidden.replication_factor, hidden.configs) == (-1, -1, [])
    await authorized.allow(DESCRIBE_CONFIGS, TOPIC, "second")
    seen = await created("second")
    assert (seen.topic_config_error_code, seen.num_partitions) == (0, 1)
    assert seen.configs


async def test_metadata_shows_operations_of_missing_topics_but_not_of_hidden_ones(
    authorized: Authorized,
) -> None:
    await authorized.allow(DESCRIBE, TOPIC, "missing")
    request = cluster.MetadataRequest(
        topics=[cluster.MetadataRequestTopic(name=name) for name in ("missing", SECRET)],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
    )
    response = await authorized.ask(ALICE, request)
    told = {each.name: (each.error_code, each.topic_authorized_operations) for each in response.topics}
    assert told == {"missing": (UNKNOWN, 1 << DESCRIBE), SECRET: (DENIED, NO_OPERATIONS)}


async def test_altering_loggers_the_old_way_is_invalid_whatever_the_principal_may_do(
    authorized: Authorized,
) -> None:
    logger = admin.AlterConfigsAlterConfigsResource(
        resource_type=ResourceType.BROKER_LOGGER, resource_name="0", configs=[]
    )
    (answer,) = (await authorized.ask(ALICE, admin.AlterConfigsRequest(resources=[logger]))).responses
    assert answer.error_code == ErrorCode.INVALID_REQUEST


async def test_rule_removed_under_a_waiting_fetch_denies_what_arrives_then(authorized: Authorized) -> None:
    await authorized.allow(READ, TOPIC, PUBLIC)
    wanted = data.FetchPartition(partition=0, partition_max_bytes=1000)
    topic = data.FetchTopic(topic_id=authorized.topic_id(PUBLIC), partitions=[wanted])
    fetch = data.FetchRequest(max_wait_ms=int(LIMIT_S * 1000), min_bytes=1, topics=[topic])
    waiting = asyncio.create_task(authorized.ask(ALICE, fetch))
    await asyncio.sleep(0)
    everything = security.DeleteAclsFilter(
        resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1
    )
    await authorized.ask(ADMIN, security.DeleteAclsRequest(filters=[everything]))
    assert not waiting.done()
    record = Record(offset=0, timestamp=0, key=None, value=b"secret")
    partition = data.PartitionProduceData(index=0, records=bytes(build_batch([record])))
    topic_data = data.TopicProduceData(name=PUBLIC, partition_data=[partition])
    request = data.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic_data])
    produced = await authorized.ask(ADMIN, request, 9)
    assert produced.responses[0].partition_responses[0].error_code == 0
    (answer,) = (await waiting).responses
    assert (answer.partitions[0].error_code, answer.partitions[0].records or b"") == (DENIED, b"")


async def test_listing_of_what_waits_needs_alter_configs_besides_read(authorized: Authorized) -> None:
    setting = admin.CreatableTopicConfig(name="tidemill.delays.enable", value="true")
    later = admin.CreatableTopic(name="later", num_partitions=1, replication_factor=1, configs=[setting])
    created = await authorized.ask(ADMIN, admin.CreateTopicsRequest(topics=[later], timeout_ms=10_000))
    assert [topic.error_code for topic in created.topics] == [0]
    record = Record(0, 0, b"k", b"secret", [Header("tidemill-delay", b"1h")])
    partition = data.PartitionProduceData(index=0, records=bytes(build_batch([record])))
    topic_data = data.TopicProduceData(name="later", partition_data=[partition])
    await authorized.ask(ADMIN, data.ProduceRequest(acks=1, timeout_ms=1000, topic_data=[topic_data]), 9)

    async def listed(level: int) -> tuple[int, bool]:
        wanted = data.FetchPartition(partition=0, partition_max_bytes=1000)
        topic = data.FetchTopic(topic_id=authorized.topic_id("later"), partitions=[wanted])
        fetch = data.FetchRequest(max_wait_ms=100, min_bytes=1, isolation_level=level, topics=[topic])
        (answer,) = (await authorized.ask(ALICE, fetch)).responses[0].partitions
        return answer.error_code, b"secret" in bytes(answer.records or b"")

    await authorized.allow(READ, TOPIC, "later")
    assert await listed(READ_COMMITTED) == (0, False)
    for level in (READ_WAITING, READ_WAITING | READ_COMMITTED, READ_HIDDEN, READ_HIDDEN | READ_COMMITTED):
        assert await listed(level) == (DENIED, False)
    await authorized.allow(ALTER_CONFIGS, TOPIC, "later")
    for level in (READ_WAITING, READ_HIDDEN):
        assert await listed(level) == (0, True)


async def test_rule_for_a_name_with_quotes_and_newlines_is_for_that_name_alone(
    authorized: Authorized,
) -> None:
    odd = "o\"hara', User:*\r\nUser:admin"
    await authorized.allow(DESCRIBE, TOPIC, SECRET, principal=f"User:{odd}")
    request = cluster.MetadataRequest(
        topics=[cluster.MetadataRequestTopic(name=SECRET)], allow_auto_topic_creation=False
    )
    codes = {
        name: (await authorized.ask(Principal.user(name), request)).topics[0].error_code
        for name in (odd, 'o"hara', "*", odd.replace("\r\n", ""))
    }
    assert codes == {odd: 0, 'o"hara': DENIED, "*": DENIED, odd.replace("\r\n", ""): DENIED}


# --- groups and transactions ---


async def joined(authorized: Authorized, **subscription: Any) -> groups.ConsumerGroupHeartbeatResponse:
    """A member of group `g` once its assignment is there; the administrator's unless `principal` says otherwise."""
    principal = subscription.pop("principal", ADMIN)
    await authorized.ask(ADMIN, cluster.FindCoordinatorRequest(coordinator_keys=["g"]))
    member = uuid.uuid4()
    epoch = 0
    async with asyncio.timeout(LIMIT_S):
        for _ in iter(int, 1):
            request = groups.ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=str(member),
                member_epoch=epoch,
                rebalance_timeout_ms=10_000,
                topic_partitions=[],
                **subscription,
            )
            answer = await authorized.ask(principal, request)
            # An answer that is there at once lets no other task run.
            await asyncio.sleep(0)
            if answer.error_code == 0:
                epoch = answer.member_epoch
                if answer.assignment is not None and answer.assignment.topic_partitions:
                    break
    assert isinstance(answer, groups.ConsumerGroupHeartbeatResponse)
    return answer


async def test_consumer_group_with_a_topic_that_may_not_be_described_is_not_described(
    authorized: Authorized,
) -> None:
    await joined(authorized, subscribed_topic_names=[PUBLIC, SECRET])
    await authorized.allow(DESCRIBE, GROUP, "g")
    await authorized.allow(DESCRIBE, TOPIC, PUBLIC)
    request = groups.ConsumerGroupDescribeRequest(group_ids=["g"], include_authorized_operations=True)
    (hidden,) = (await authorized.ask(ALICE, request)).groups
    assert (hidden.error_code, hidden.members, hidden.authorized_operations) == (DENIED, [], NO_OPERATIONS)
    await authorized.allow(DESCRIBE, TOPIC, SECRET)
    (seen,) = (await authorized.ask(ALICE, request)).groups
    assert (seen.error_code, len(seen.members)) == (0, 1)


@pytest.mark.parametrize("principal_sees_all", [False, True])
async def test_subscription_by_expression_leaves_out_topics_that_may_not_be_described(
    authorized: Authorized, principal_sees_all: bool
) -> None:
    await authorized.allow(READ, GROUP, "g")
    await authorized.allow(DESCRIBE, TOPIC, PUBLIC)
    principal = ADMIN if principal_sees_all else ALICE
    answer = await joined(
        authorized, principal=principal, subscribed_topic_names=None, subscribed_topic_regex="public|secret"
    )
    assert answer.assignment is not None
    names = {PUBLIC, SECRET} if principal_sees_all else {PUBLIC}
    assert {each.topic_id for each in answer.assignment.topic_partitions} == {
        authorized.topic_id(name) for name in names
    }


async def test_offsets_of_a_missing_group_are_missing_although_the_topic_is_denied(
    authorized: Authorized,
) -> None:
    await authorized.allow(DELETE, GROUP, "g")
    await authorized.ask(ADMIN, cluster.FindCoordinatorRequest(coordinator_keys=["g"]))
    topic = offsets.OffsetDeleteRequestTopic(
        name=SECRET, partitions=[offsets.OffsetDeleteRequestPartition(partition_index=0)]
    )
    request = offsets.OffsetDeleteRequest(group_id="g", topics=[topic])
    async with asyncio.timeout(LIMIT_S):
        for _ in iter(int, 1):
            answer = await authorized.ask(ALICE, request)
            await asyncio.sleep(0)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                break
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])


async def test_transaction_with_a_denied_topic_names_the_missing_ones(authorized: Authorized) -> None:
    await authorized.allow(WRITE, TRANSACTIONAL_ID, "tx")
    for name in (PUBLIC, "missing"):
        await authorized.allow(WRITE, TOPIC, name)
    request = transactions.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="tx",
        v3_and_below_topics=[
            transactions.AddPartitionsToTxnTopic(name=name, partitions=[0])
            for name in (SECRET, PUBLIC, "missing")
        ],
    )
    response = await authorized.ask(ALICE, request, 3)
    codes = {
        topic.name: topic.results_by_partition[0].partition_error_code
        for topic in response.results_by_topic_v3_and_below
    }
    assert codes == {SECRET: DENIED, PUBLIC: ErrorCode.OPERATION_NOT_ATTEMPTED, "missing": UNKNOWN}
