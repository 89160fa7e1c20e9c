"""Requests for the metadata of topics and brokers."""

from __future__ import annotations

from typing import Any

from bench.diff.acls.requests.dice import TOPICS, Asks, Dice, TopicId

ASKS = Asks()


@ASKS.add
def metadata(dice: Dice) -> dict[str, Any]:
    request: dict[str, Any] = {
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": dice.toss(),
        "include_cluster_authorized_operations": dice.toss(),
    }
    roll = dice.random()
    if roll < 0.2:
        return request | {"topics": None if dice.version >= 1 else []}
    if roll < 0.3:
        # Each is a new name: what one request creates is no other one's topic.
        name = f"{dice.choice(('a.', 'new-', 'z-'))}{dice.getrandbits(60):x}"
        return request | {"topics": [{"name": name}], "allow_auto_topic_creation": True}
    # Versions before 4 create what is missing.
    names = dice.topics() if dice.version >= 4 else dice.some(*TOPICS)
    if dice.version >= 12 and dice.toss():
        return request | {"topics": [{"name": None, "topic_id": TopicId(n)} for n in names]}
    return request | {"topics": [{"name": n} for n in names]}


@ASKS.add
def describe_topic_partitions(dice: Dice) -> dict[str, Any]:
    names = [] if dice.random() < 0.3 else dice.topics()
    return {"topics": [{"name": n} for n in names], "response_partition_limit": 2000}


@ASKS.add
def describe_cluster(dice: Dice) -> dict[str, Any]:
    return {"include_cluster_authorized_operations": dice.toss(), "endpoint_type": 1}


@ASKS.add
def describe_log_dirs(dice: Dice) -> dict[str, Any]:
    return {"topics": None if dice.toss() else [{"topic": n, "partitions": [0]} for n in dice.topics()]}


@ASKS.add
def describe_producers(dice: Dice) -> dict[str, Any]:
    return {"topics": [{"name": n, "partition_indexes": [0]} for n in dice.topics()]}
