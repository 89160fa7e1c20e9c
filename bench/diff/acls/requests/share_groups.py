"""Requests of share groups."""

from __future__ import annotations

import uuid
from typing import Any

from bench.diff.acls.requests.dice import CONSUMER_GROUP, GHOST_GROUPS, GROUPS, Asks, Dice, TopicId

ASKS = Asks()


@ASKS.add
def share_group_heartbeat(dice: Dice) -> dict[str, Any]:
    names = dice.topics()
    return {"group_id": dice.group(), "member_id": "s", "member_epoch": 7, "subscribed_topic_names": names}


@ASKS.add
def share_group_describe(dice: Dice) -> dict[str, Any]:
    return {
        "group_ids": dice.some(*GROUPS, *GHOST_GROUPS, CONSUMER_GROUP),
        "include_authorized_operations": dice.toss(),
    }


@ASKS.add
def describe_share_group_offsets(dice: Dice) -> dict[str, Any]:
    topics = [{"topic_name": n, "partitions": [0]} for n in dice.topics()]
    return {"groups": [{"group_id": dice.group(), "topics": None if dice.random() < 0.3 else topics}]}


@ASKS.add
def alter_share_group_offsets(dice: Dice) -> dict[str, Any]:
    # A group of another kind: it is refused after it was authorised.
    where = [{"partition_index": 0, "start_offset": 0}]
    return {
        "group_id": dice.choice(GROUPS),
        "topics": [{"topic_name": n, "partitions": where} for n in dice.topics()],
    }


@ASKS.add
def delete_share_group_offsets(dice: Dice) -> dict[str, Any]:
    return {"group_id": dice.choice(GROUPS), "topics": [{"topic_name": n} for n in dice.topics()]}


@ASKS.add
def share_fetch(dice: Dice) -> dict[str, Any]:
    # There is no session of that epoch.
    return {
        "group_id": dice.group(),
        "member_id": str(uuid.UUID(int=7)),
        "share_session_epoch": 7,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "max_records": 1,
        "batch_size": 1,
        "topics": _share_topics(dice),
        "forgotten_topics_data": [],
    }


@ASKS.add
def share_acknowledge(dice: Dice) -> dict[str, Any]:
    return {
        "group_id": dice.group(),
        "member_id": str(uuid.UUID(int=7)),
        "share_session_epoch": 7,
        "topics": _share_topics(dice),
    }


def _share_topics(dice: Dice) -> list[dict[str, Any]]:
    partitions = [{"partition_index": 0, "acknowledgement_batches": []}]
    return [{"topic_id": TopicId(n), "partitions": partitions} for n in dice.topics()]
