"""Conversations about what Tidemill adds to Kafka, and about share groups: frames meet records that wait or are locked."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from tests.wire.batches import Header, Record, encode
from tests.wire.connection import fetch_fields, produce_fields
from tests.wire.fuzz.talk import Talk
from tests.wire.fuzz.values import PASSING_TOPICS, SHARE_GROUPS, TOPICS, VIEWS

_SHRUNK_FROM, _SHRUNK_TO = 4, 1


def _batch(*records: Record) -> bytes:
    return encode(records, Header(base_timestamp_ms=int(time.time() * 1000)))


async def delayed_records(talk: Talk) -> None:
    """Some are due soon, some never; some recur, are replaced and cancelled."""
    key = b"k%d" % talk.random.randrange(5)
    named = ("tidemill-schedule-id", b"s")
    for headers in (
        (("tidemill-delay", b"20ms"),),
        (("tidemill-delay", b"1d"),),
        (("tidemill-schedule", b"@every 1s"), named),
        (("tidemill-delay", b"1d"), named),
        (named, ("tidemill-cancel", b"")),
        (("tidemill-cancel", b"%d" % talk.random.randrange(50)),),
    ):
        batch = _batch(Record(b"later", key, headers=headers))
        await talk.ask("produce", 9, **produce_fields("fuzz-delays", batch))
    for topic in ("fuzz-delays", "fuzz-view-of-delays"):
        await talk.ask("fetch", 12, **fetch_fields(topic, 0, max_wait=20, max_bytes=100_000))


async def views(talk: Talk) -> None:
    """Reads by session, while the filter changes and the view comes and goes."""
    source, name = talk.random.choice(TOPICS), f"{talk.random.choice(PASSING_TOPICS)}-view"
    await talk.ask(
        "produce", 9, **produce_fields(source, _batch(Record(b"seen", b"k"), Record(b"not", b"n")))
    )
    configs = {"tidemill.view.source": source, "tidemill.view.filter": "key starts with 'k'"}
    view: dict[str, Any] = {"name": name, "num_partitions": -1, "replication_factor": -1}
    view["configs"] = [{"name": key, "value": value} for key, value in configs.items()]
    await talk.ask("create_topics", 7, topics=[view], timeout=5000)
    opened = await talk.ask("fetch", 12, **fetch_fields(name, 0, session_id=0, session_epoch=0))
    change = {"name": "tidemill.view.filter", "config_operation": 0, "value": "not key exists"}
    resource = {"resource_type": 2, "resource_name": name, "configs": [change]}
    await talk.ask("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    if opened.session_id:
        again = fetch_fields(name, 1, session_id=opened.session_id, session_epoch=1, max_wait=20)
        await talk.ask("fetch", 12, **again)
    if talk.random.random() < 0.7:
        await talk.ask("delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=5000)


async def fewer_partitions(talk: Talk) -> None:
    """A topic shrinks, takes batches for partitions that it leaves, grows again or is deleted on the way."""
    name = f"{talk.random.choice(PASSING_TOPICS)}-shrinks"
    new: dict[str, Any] = {"name": name, "num_partitions": _SHRUNK_FROM, "replication_factor": -1}
    new["configs"] = [{"name": "tidemill.partitions.kept.ms", "value": "0"}]
    await talk.ask("create_topics", 7, topics=[new], timeout=5000)
    for active in (_SHRUNK_TO, talk.random.choice((_SHRUNK_TO, _SHRUNK_FROM))):
        for partition in range(_SHRUNK_FROM):
            batch = _batch(Record(b"value", b"key"))
            await talk.ask("produce", 9, **produce_fields(name, batch, partition))
        change = {"name": "tidemill.partitions.active", "config_operation": 0, "value": str(active)}
        resource = {"resource_type": 2, "resource_name": name, "configs": [change]}
        await talk.ask("incremental_alter_configs", 1, resources=[resource], validate_only=False)
    emptied = [{"partition_index": index, "offset": -1} for index in range(_SHRUNK_FROM)]
    await talk.ask("delete_records", 2, topics=[{"name": name, "partitions": emptied}], timeout=5000)
    await talk.ask("metadata", 12, topics=[{"name": name}], allow_auto_topic_creation=False)
    if talk.random.random() < 0.5:
        await talk.ask("delete_topics", 6, topics=[{"name": name, "topic_id": None}], timeout=5000)


async def share_group(talk: Talk) -> None:
    """Joins, fetches under locks, acknowledges some of it, and leaves or not."""
    group, member = talk.random.choice(SHARE_GROUPS), f"sharer-{talk.random.randrange(20)}"
    topic = talk.random.choice((*TOPICS, *VIEWS))
    member_fields = {"group_id": group, "member_id": member}
    joined = await talk.ask(
        "share_group_heartbeat", 1, member_epoch=0, subscribed_topic_names=[topic], **member_fields
    )
    if joined.error_code or topic not in talk.pools.topic_ids:
        return
    topic_id = UUID(bytes=talk.pools.topic_ids[topic])
    talk.pools.members.append((member, joined.member_epoch))
    acknowledged = {"first_offset": 0, "last_offset": talk.random.randrange(5), "acknowledge_types": [1]}
    for epoch in (0, 1, -1):
        partition = {"partition_index": 0, "acknowledgement_batches": [acknowledged] if epoch else []}
        await talk.ask(
            "share_fetch",
            1,
            share_session_epoch=epoch,
            max_wait=20,
            min_bytes=1,
            max_bytes=100_000,
            max_records=10,
            batch_size=10,
            topics=[{"topic_id": topic_id, "partitions": [partition]}],
            **member_fields,
        )
    if talk.random.random() < 0.7:
        await talk.ask("share_group_heartbeat", 1, member_epoch=-1, **member_fields)


FEATURES: list[Callable[[Talk], Awaitable[None]]] = [delayed_records, views, fewer_partitions, share_group]
