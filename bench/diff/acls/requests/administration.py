"""Requests that create, change and delete."""

from __future__ import annotations

from typing import Any

from bench.diff.acls.requests.dice import (
    BROKER_CONFIG,
    GHOST_TOPICS,
    GROUP_CONFIG,
    LOGGER_CONFIG,
    METRICS_CONFIG,
    NODE_ID,
    TOPIC_CONFIG,
    Asks,
    Dice,
    TopicId,
)

ASKS = Asks()


@ASKS.add
def create_topics(dice: Dice) -> dict[str, Any]:
    return {
        "timeout": 5000,
        "validate_only": True,
        "topics": [{"name": n, "num_partitions": 1, "replication_factor": 1} for n in dice.topics()],
    }


@ASKS.add
def delete_topics(dice: Dice) -> dict[str, Any]:
    names = dice.sample(GHOST_TOPICS, 1) if dice.random() < 0.5 else dice.topics(2)
    by_id = dice.toss()
    topics = [{"name": None, "topic_id": TopicId(n)} if by_id else {"name": n} for n in names]
    return {"timeout": 5000, "topic_names": names, "topics": topics}


@ASKS.add
def create_partitions(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "count": 2, "assignments": None} for n in dice.topics()]
    return {"timeout": 5000, "validate_only": True, "topics": topics}


def _config_resources(dice: Dice, **of_each: Any) -> list[dict[str, Any]]:
    resources = [(TOPIC_CONFIG, n) for n in dice.topics(2)]
    resources += [(BROKER_CONFIG, dice.choice((str(NODE_ID), ""))), (GROUP_CONFIG, dice.group())]
    resources += [(METRICS_CONFIG, "sub"), (LOGGER_CONFIG, str(NODE_ID))]
    chosen = dice.sample(resources, dice.randint(1, 3))
    return [{"resource_type": kind, "resource_name": name, **of_each} for kind, name in chosen]


@ASKS.add
def describe_configs(dice: Dice) -> dict[str, Any]:
    return {"resources": _config_resources(dice, configuration_keys=["retention.ms"])}


@ASKS.add
def alter_configs(dice: Dice) -> dict[str, Any]:
    return {"validate_only": True, "resources": _config_resources(dice, configs=[])}


@ASKS.add
def incremental_alter_configs(dice: Dice) -> dict[str, Any]:
    return {"validate_only": True, "resources": _config_resources(dice, configs=[])}


@ASKS.add
def alter_replica_log_dirs(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "partitions": [0]} for n in dice.topics()]
    return {"dirs": [{"path": "/nowhere/at/all", "topics": topics}]}


@ASKS.add
def elect_leaders(dice: Dice) -> dict[str, Any]:
    chosen = [{"topic": n, "partitions": [0]} for n in dice.topics()]
    return {"election_type": 0, "timeout": 5000, "topic_partitions": chosen}


@ASKS.add
def alter_partition_reassignments(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0, "replicas": None}]
    topics = [{"name": n, "partitions": which} for n in dice.topics()]
    return {"timeout": 5000, "allow_replication_factor_change": True, "topics": topics}


@ASKS.add
def list_partition_reassignments(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "partition_indexes": [0]} for n in dice.topics()]
    return {"timeout": 5000, "topics": None if dice.toss() else topics}
