"""Requests of consumer groups and committed offsets."""

from __future__ import annotations

from typing import Any

from bench.diff.acls.requests.dice import (
    CONSUMER_GROUP,
    GHOST_GROUPS,
    GROUPS,
    TRANSACTIONAL_IDS,
    Asks,
    Dice,
    TopicId,
)

ASKS = Asks()


@ASKS.add
def offset_commit(dice: Dice) -> dict[str, Any]:
    which = [
        {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    ]
    return {
        "group_id": dice.choice(GROUPS),
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": n, "topic_id": TopicId(n), "partitions": which} for n in dice.topics()],
    }


@ASKS.add
def offset_fetch(dice: Dice) -> dict[str, Any]:
    def topics(**by_id: bool) -> list[dict[str, Any]] | None:
        if dice.version >= 2 and dice.random() < 0.4:
            return None
        return [
            {"name": n, "partition_indexes": [0], **({"topic_id": TopicId(n)} if by_id else {})}
            for n in dice.topics()
        ]

    groups = dice.some(*GROUPS, *GHOST_GROUPS, CONSUMER_GROUP)
    return {
        "group_id": groups[0],
        "topics": topics(),
        "groups": [
            {"group_id": g, "topics": topics(by_id=True), "member_id": None, "member_epoch": -1}
            for g in groups
        ],
    }


@ASKS.add
def find_coordinator(dice: Dice) -> dict[str, Any]:
    kind = dice.choice((0, 1)) if dice.version >= 1 else 0
    keys = dice.some(*((*GROUPS, *GHOST_GROUPS) if kind == 0 else TRANSACTIONAL_IDS))
    return {"key": keys[0], "key_type": kind, "coordinator_keys": keys}


@ASKS.add
def join_group(dice: Dice) -> dict[str, Any]:
    return {
        "group_id": dice.group(),
        "session_timeout": 1,
        "rebalance_timeout": 1,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


@ASKS.add
def heartbeat(dice: Dice) -> dict[str, Any]:
    return {"group_id": dice.group(), "generation_id": 3, "member_id": "stranger"}


@ASKS.add
def leave_group(dice: Dice) -> dict[str, Any]:
    return {"group_id": dice.group(), "member_id": "stranger", "members": [{"member_id": "stranger"}]}


@ASKS.add
def sync_group(dice: Dice) -> dict[str, Any]:
    return {
        "group_id": dice.group(),
        "generation_id": 3,
        "member_id": "stranger",
        "protocol_type": "consumer",
        "protocol_name": "range",
    }


@ASKS.add
def describe_groups(dice: Dice) -> dict[str, Any]:
    return {"groups": dice.some(*GROUPS, *GHOST_GROUPS), "include_authorized_operations": dice.toss()}


@ASKS.add
def consumer_group_describe(dice: Dice) -> dict[str, Any]:
    # The group whose members have topics is the interesting one.
    groups = [CONSUMER_GROUP] if dice.random() < 0.7 else dice.some(*GROUPS, *GHOST_GROUPS, CONSUMER_GROUP)
    return {"group_ids": groups, "include_authorized_operations": dice.toss()}


@ASKS.add
def delete_groups(dice: Dice) -> dict[str, Any]:
    return {"groups_names": dice.some(*GHOST_GROUPS)}


@ASKS.add
def offset_delete(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0}]
    return {"group_id": dice.group(), "topics": [{"name": n, "partitions": which} for n in dice.topics()]}


@ASKS.add
def consumer_group_heartbeat(dice: Dice) -> dict[str, Any]:
    has_regex = dice.version >= 1 and dice.random() < 0.3
    return {
        "group_id": dice.group(),
        "member_id": "stranger",
        "member_epoch": 7,
        "rebalance_timeout": 1000,
        "subscribed_topic_names": None if has_regex else dice.topics(),
        "subscribed_topic_regex": "a.*" if has_regex else None,
        "topic_partitions": [],
    }
