"""Valid conversations, so that frames meet groups with members, open transactions and fetch sessions.

Each learns what only an answer tells (member ids, generations, producer ids, session ids) and puts it into the pools.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from tests.brokers import RunningBroker
from tests.wire.batches import TRANSACTIONAL, Header, encode
from tests.wire.connection import fetch_fields, produce_fields
from tests.wire.fuzz.attack import Ledger
from tests.wire.fuzz.features import FEATURES
from tests.wire.fuzz.talk import Talk
from tests.wire.fuzz.topics import changed_configs, new_topics, new_views
from tests.wire.fuzz.values import GROUPS, PASSING_TOPICS, TOPICS, TRANSACTIONAL_IDS, VIEWS, Pools

_MEMBER_ID_REQUIRED = 79
_SUBSCRIPTION = b"\0\0\0\0\0\1\0\x0afuzz-plain\xff\xff\xff\xff"


async def classic_group(talk: Talk) -> None:
    group = talk.random.choice(GROUPS[:6])
    joining: dict[str, Any] = {
        "group_id": group,
        "session_timeout": 1000,
        "rebalance_timeout": 300,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": _SUBSCRIPTION}],
    }
    joined = await talk.ask("join_group", 9, member_id="", **joining)
    if joined.error_code == _MEMBER_ID_REQUIRED:
        talk.pools.members.append((joined.member_id, -1))
        joined = await talk.ask("join_group", 9, member_id=joined.member_id, **joining)
    if joined.error_code:
        return
    member = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}
    talk.pools.members.append((joined.member_id, joined.generation_id))
    assignments = [{"member_id": each.member_id, "assignment": b"x"} for each in joined.members]
    await talk.ask(
        "sync_group", 5, protocol_type="consumer", protocol_name="range", assignments=assignments, **member
    )
    await talk.ask("heartbeat", 4, **member)
    committed = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    topics = [{"name": TOPICS[0], "partitions": [committed]}]
    offset_member = member | {"generation_id_or_member_epoch": joined.generation_id}
    del offset_member["generation_id"]
    await talk.ask("offset_commit", 9, topics=topics, **offset_member)
    await talk.ask("offset_fetch", 8, groups=[{"group_id": group, "topics": None}])
    if talk.random.random() < 0.5:
        members = [{"member_id": joined.member_id, "reason": "enough"}]
        await talk.ask("leave_group", 5, group_id=group, members=members)


async def consumer_group(talk: Talk) -> None:
    group = talk.random.choice(GROUPS[6:])
    member_id = f"member-{talk.random.randrange(20)}"
    names = [talk.random.choice(TOPICS)]
    epoch = 0
    for _ in range(3):
        first = epoch == 0
        answer = await talk.ask(
            "consumer_group_heartbeat",
            1,
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            rebalance_timeout=300 if first else -1,
            subscribed_topic_names=names if first else None,
            topic_partitions=[] if first else None,
        )
        if answer.error_code:
            break
        epoch = answer.member_epoch
        talk.pools.members.append((member_id, epoch))
    await talk.ask("consumer_group_describe", 1, group_ids=[group])
    if talk.random.random() < 0.5:
        await talk.ask("consumer_group_heartbeat", 1, group_id=group, member_id=member_id, member_epoch=-1)


async def transaction(talk: Talk) -> None:
    name, topic = talk.random.choice(TRANSACTIONAL_IDS), talk.random.choice(TOPICS)
    await talk.ask("find_coordinator", 6, key_type=1, coordinator_keys=[name])
    began = await talk.ask(
        "init_producer_id",
        5,
        transactional_id=name,
        transaction_timeout=2000,
        producer_id=-1,
        producer_epoch=-1,
    )
    if began.error_code:
        return
    producer = {"producer_id": began.producer_id, "producer_epoch": began.producer_epoch}
    talk.pools.producers.append((began.producer_id, began.producer_epoch))
    partitions = [{"name": topic, "partitions": [0]}]
    await talk.ask(
        "add_partitions_to_txn",
        3,
        v3_and_below_transactional_id=name,
        v3_and_below_producer_id=began.producer_id,
        v3_and_below_producer_epoch=began.producer_epoch,
        v3_and_below_topics=partitions,
    )
    header = Header(
        attributes=TRANSACTIONAL, base_sequence=0, base_timestamp_ms=int(time.time() * 1000), **producer
    )
    batch = encode([b"in a transaction"], header)
    await talk.ask("produce", 11, transactional_id=name, **produce_fields(topic, batch))
    group = talk.random.choice(GROUPS[:6])
    await talk.ask("add_offsets_to_txn", 3, transactional_id=name, group_id=group, **producer)
    await talk.ask(
        "txn_offset_commit",
        3,
        transactional_id=name,
        group_id=group,
        generation_id=-1,
        topics=[{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 1}]}],
        **producer,
    )
    if talk.random.random() < 0.7:
        await talk.ask("end_txn", 3, transactional_id=name, committed=talk.random.random() < 0.5, **producer)


async def fetch_session(talk: Talk) -> None:
    topic = talk.random.choice(TOPICS)
    opened = await talk.ask("fetch", 12, **fetch_fields(topic, 0, session_id=0, session_epoch=0))
    if opened.session_id:
        talk.pools.fetch_sessions.append(opened.session_id)
        for epoch in (1, 2):
            fields = fetch_fields(
                topic, epoch, session_id=opened.session_id, session_epoch=epoch, max_wait=20
            )
            await talk.ask("fetch", 12, **fields)


async def telemetry(talk: Talk) -> None:
    told = await talk.ask("get_telemetry_subscriptions", 0, client_instance_id=None)
    instance = told.client_instance_id
    if instance is not None:
        talk.pools.telemetry.append((instance.bytes, told.subscription_id))
        fields = {"client_instance_id": instance, "subscription_id": told.subscription_id}
        await talk.ask("push_telemetry", 0, terminating=False, compression_type=0, metrics=b"", **fields)


async def topics_come_and_go(talk: Talk) -> None:
    """Also those that frames created by accident: what is left would make every later answer larger."""
    described = await talk.ask("metadata", 12, topics=None, allow_auto_topic_creation=False)
    kept = {*TOPICS, *VIEWS, "innocent"}
    doomed = [each.name for each in described.topics if each.name not in kept and not each.is_internal]
    for each in described.topics:
        if each.name in (*TOPICS, *VIEWS, *PASSING_TOPICS):
            talk.pools.topic_ids[each.name] = each.topic_id.bytes
    if len(doomed) > 30:
        await talk.ask(
            "delete_topics", 6, topics=[{"name": name, "topic_id": None} for name in doomed], timeout=5000
        )
    name = talk.random.choice(PASSING_TOPICS)
    new = {"name": name, "num_partitions": 2, "replication_factor": -1}
    await talk.ask("create_topics", 7, topics=[new], timeout=5000)
    await talk.ask(
        "produce",
        9,
        **produce_fields(name, encode([b"passing"], Header(base_timestamp_ms=int(time.time() * 1000)))),
    )


async def topics_become_themselves_again(talk: Talk) -> None:
    """A frame may have deleted them, or changed their settings."""
    replicas = len(talk.pools.broker_ids)
    for new in (new_topics(replicas), new_views()):
        await talk.ask("create_topics", 7, topics=new, timeout=5000)
    await talk.ask("incremental_alter_configs", 1, resources=changed_configs(), validate_only=False)


SEQUENCES: list[Callable[[Talk], Awaitable[None]]] = [
    classic_group,
    classic_group,
    consumer_group,
    transaction,
    transaction,
    fetch_session,
    telemetry,
    topics_come_and_go,
    topics_become_themselves_again,
    *FEATURES,
]


async def converse(listener: RunningBroker, ledger: Ledger, pools: Pools, number: int) -> None:
    """One sequence after the other until the attack is over."""
    rng = random.Random(f"{ledger.seed} sequence {number}")
    while not ledger.is_over():
        talk = Talk(ledger, pools, rng)
        try:
            await talk.open(listener)
            for _ in range(rng.randrange(1, 6)):
                await rng.choice(SEQUENCES)(talk)
                await asyncio.sleep(0.01)
        except (OSError, asyncio.IncompleteReadError):
            await asyncio.sleep(0.05)
        finally:
            talk.close()
