"""ShareFetch, ShareAcknowledge and what is in flight need Read, or Describe, on the group and on each topic."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tests.unit.broker.authorized_node import (
    ADMIN,
    ALICE,
    DESCRIBE,
    GROUP,
    LIMIT_S,
    PUBLIC,
    READ,
    SECRET,
    TOPIC,
    WRITE,
    Authorized,
)
from tidemill.errors import ErrorCode
from tidemill.protocol.api import admin, data, share
from tidemill.protocol.api.cluster import FindCoordinatorRequest
from tidemill.protocol.records import Record, build_batch

WORKERS = "workers"
ACCEPT, REJECT = 1, 3


async def ready(authorized: Authorized) -> None:
    """Two records in each topic, and a group that begins with the first."""
    for name in (PUBLIC, SECRET):
        records = bytes(
            build_batch([Record(offset=at, timestamp=0, key=None, value=b"v", headers=()) for at in range(2)])
        )
        entry = data.TopicProduceData(
            name=name,
            topic_id=authorized.topic_id(name),
            partition_data=[data.PartitionProduceData(index=0, records=records)],
        )
        produced = await authorized.ask(
            ADMIN, data.ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[entry])
        )
        assert produced.responses[0].partition_responses[0].error_code == 0
    altered = share.AlterShareGroupOffsetsRequest(
        group_id=WORKERS,
        topics=[
            share.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[share.AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)],
            )
            for name in (PUBLIC, SECRET)
        ],
    )
    async with asyncio.timeout(LIMIT_S):
        while True:
            await authorized.ask(ADMIN, FindCoordinatorRequest(key_type=0, coordinator_keys=[WORKERS]))
            answer = await authorized.ask(ADMIN, altered)
            codes = {each.error_code for topic in answer.responses for each in topic.partitions}
            if codes == {ErrorCode.NONE}:
                return
            # The coordinators are being made.
            await asyncio.sleep(0.02)


async def fetch(authorized: Authorized, epoch: int, *acknowledged: str) -> Any:
    return await authorized.ask(
        ALICE,
        share.ShareFetchRequest(
            group_id=WORKERS,
            member_id="m",
            share_session_epoch=epoch,
            max_wait_ms=0,
            min_bytes=1,
            max_bytes=1 << 20,
            max_records=1,
            batch_size=1,
            topics=[
                share.FetchTopic(
                    topic_id=authorized.topic_id(name),
                    partitions=[
                        share.FetchPartition(
                            partition_index=0,
                            acknowledgement_batches=[accepted()] if name in acknowledged else [],
                        )
                    ],
                )
                for name in (PUBLIC, SECRET)
            ],
        ),
    )


def accepted(kind: int = ACCEPT, offset: int = 0) -> share.AcknowledgementBatch:
    return share.AcknowledgementBatch(first_offset=offset, last_offset=offset, acknowledge_types=[kind])


async def acknowledge(
    authorized: Authorized, epoch: int, *topics: str, kind: int = ACCEPT, offset: int = 0
) -> Any:
    partition = share.AcknowledgePartition(
        partition_index=0, acknowledgement_batches=[accepted(kind, offset)]
    )
    request = share.ShareAcknowledgeRequest(
        group_id=WORKERS,
        member_id="m",
        share_session_epoch=epoch,
        topics=[
            share.AcknowledgeTopic(topic_id=authorized.topic_id(name), partitions=[partition])
            for name in topics
        ],
    )
    return await authorized.ask(ALICE, request)


def by_topic(authorized: Authorized, response: Any) -> dict[str, Any]:
    names = {authorized.topic_id(name): name for name in (PUBLIC, SECRET)}
    return {names[each.topic_id]: each.partitions[0] for each in response.responses}


async def acquired(authorized: Authorized) -> int:
    """Fetches until a record of the public topic is there; returns the next epoch of the session."""
    for epoch in range(1, 1000):
        found = by_topic(authorized, await fetch(authorized, epoch))
        assert found[SECRET].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert (found[SECRET].acquired_records, bytes(found[SECRET].records or b"")) == ([], b"")
        if PUBLIC in found and found[PUBLIC].acquired_records:
            return epoch + 1
        await asyncio.sleep(0.01)
    raise AssertionError("no record was acquired")


async def test_share_fetch_and_acknowledge_need_read_on_the_group(authorized: Authorized) -> None:
    await ready(authorized)
    await authorized.allow(READ, TOPIC, PUBLIC)
    await authorized.allow(DESCRIBE, GROUP, WORKERS)
    for refused in (await fetch(authorized, 0), await acknowledge(authorized, 1, PUBLIC)):
        assert (refused.error_code, refused.responses) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
    assert len(authorized.node.broker.share.sessions) == 0


async def test_share_fetch_and_acknowledge_refuse_each_topic_by_itself(authorized: Authorized) -> None:
    await ready(authorized)
    await authorized.allow(READ, GROUP, WORKERS)
    await authorized.allow(READ, TOPIC, PUBLIC)
    await authorized.allow(DESCRIBE, TOPIC, SECRET)
    assert (await fetch(authorized, 0)).error_code == ErrorCode.NONE
    epoch = await acquired(authorized)
    found = by_topic(authorized, await acknowledge(authorized, epoch, PUBLIC, SECRET))
    assert found[PUBLIC].error_code == ErrorCode.NONE
    assert found[SECRET].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    # The same for acknowledgements that ride on a fetch; the record of the public topic is done already.
    found = by_topic(authorized, await fetch(authorized, epoch + 1, PUBLIC, SECRET))
    assert found[PUBLIC].acknowledge_error_code == ErrorCode.INVALID_RECORD_STATE
    assert found[SECRET].acknowledge_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found[SECRET].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_right_that_is_taken_away_ends_within_the_session(authorized: Authorized) -> None:
    await ready(authorized)
    await authorized.allow(READ, GROUP, WORKERS)
    await authorized.allow(READ, TOPIC, PUBLIC)
    await fetch(authorized, 0)
    epoch = await acquired(authorized)
    await authorized.allow(READ, TOPIC, PUBLIC, permission_type=2)
    found = by_topic(authorized, await fetch(authorized, epoch, PUBLIC))
    assert found[PUBLIC].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found[PUBLIC].acknowledge_error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    found = by_topic(authorized, await acknowledge(authorized, epoch + 1, PUBLIC))
    assert found[PUBLIC].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_in_flight_records_need_describe_on_group_and_topic(authorized: Authorized) -> None:
    await ready(authorized)
    topics = [
        share.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=[0])
        for name in (PUBLIC, SECRET)
    ]
    group = share.DescribeShareGroupOffsetsRequestGroup(group_id=WORKERS, topics=topics)
    request = share.DescribeShareGroupOffsetsRequest(groups=[group], wants_in_flight=True)
    (refused,) = (await authorized.ask(ALICE, request)).groups
    assert (refused.error_code, refused.topics) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
    await authorized.allow(DESCRIBE, GROUP, WORKERS)
    await authorized.allow(DESCRIBE, TOPIC, PUBLIC)
    (shown,) = (await authorized.ask(ALICE, request)).groups
    found = {each.topic_name: each.partitions[0] for each in shown.topics}
    assert (found[PUBLIC].error_code, found[PUBLIC].in_flight.acquired) == (ErrorCode.NONE, 0)
    assert found[SECRET].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert found[SECRET].in_flight is None


async def test_partition_that_is_named_twice_is_read_once(authorized: Authorized) -> None:
    await ready(authorized)
    topic = share.DescribeShareGroupOffsetsRequestTopic(topic_name=PUBLIC, partitions=[0, 0])
    group = share.DescribeShareGroupOffsetsRequestGroup(group_id=WORKERS, topics=[topic])
    (shown,) = (await authorized.ask(ADMIN, share.DescribeShareGroupOffsetsRequest(groups=[group]))).groups
    (described,) = shown.topics
    assert {each.partition_index: each.error_code for each in described.partitions} == {0: ErrorCode.NONE}
    # A read of the state that nothing awaits would be reported now.
    gc.collect()


async def test_reminder_of_dead_letters_needs_cluster_action(authorized: Authorized) -> None:
    await ready(authorized)
    topic = share.DescribeShareGroupOffsetsRequestTopic(topic_name=PUBLIC, partitions=[0, 7])
    group = share.DescribeShareGroupOffsetsRequestGroup(group_id=WORKERS, topics=[topic])
    request = share.DescribeShareGroupOffsetsRequest(groups=[group], owes_letters=True)
    await authorized.allow(DESCRIBE, GROUP, WORKERS)
    await authorized.allow(DESCRIBE, TOPIC, PUBLIC)
    (refused,) = (await authorized.ask(ALICE, request)).groups
    assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    (answer,) = (await authorized.ask(ADMIN, request)).groups
    assert answer.error_code == ErrorCode.NONE


async def test_dead_letter_topic_that_brokers_may_not_write_is_reported_and_does_not_hold_the_group(
    authorized: Authorized, caplog: pytest.LogCaptureFixture
) -> None:
    await ready(authorized)
    enabled = admin.IncrementalAlterConfigsAlterableConfig(
        name="errors.deadletterqueue.group.enable", value="true"
    )
    named = admin.IncrementalAlterConfigsAlterableConfig(
        name="errors.deadletterqueue.topic.name", value=SECRET
    )
    altered = await authorized.ask(
        ADMIN,
        admin.IncrementalAlterConfigsRequest(
            resources=[
                admin.IncrementalAlterConfigsResource(
                    resource_type=2, resource_name=SECRET, configs=[enabled]
                ),
                admin.IncrementalAlterConfigsResource(
                    resource_type=32, resource_name=WORKERS, configs=[named]
                ),
            ]
        ),
    )
    assert [each.error_code for each in altered.responses] == [0, 0]
    await authorized.allow(READ, GROUP, WORKERS)
    await authorized.allow(READ, TOPIC, PUBLIC)
    await fetch(authorized, 0)
    epoch = await acquired(authorized)
    led = authorized.node.broker.share.find(WORKERS, authorized.topic_id(PUBLIC), 0)
    letters = authorized.node.broker.replicas.find_readable((authorized.topic_id(SECRET), 0))[0]
    assert led is not None
    assert led.machine is not None
    assert letters is not None
    assert (await acknowledge(authorized, epoch, PUBLIC, kind=REJECT)).error_code == ErrorCode.NONE
    async with asyncio.timeout(LIMIT_S):
        while led.machine.start_offset == 0:  # noqa: ASYNC110 - the broker has no event for tests
            await asyncio.sleep(0.02)
    assert sum("without a dead letter" in each.message for each in caplog.records) == 1
    assert letters.high_watermark == 2
    # Brokers are ANONYMOUS here, and no super user.
    await authorized.allow(WRITE, TOPIC, SECRET, principal="User:ANONYMOUS")
    await fetch(authorized, epoch + 1)
    assert led.machine.in_flight_counts().acquired == 1
    await acknowledge(authorized, epoch + 2, PUBLIC, kind=REJECT, offset=1)
    async with asyncio.timeout(LIMIT_S):
        while letters.high_watermark < 3:  # noqa: ASYNC110 - the broker has no event for tests
            await asyncio.sleep(0.02)
