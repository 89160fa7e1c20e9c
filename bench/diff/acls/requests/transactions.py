"""Requests of transactions."""

from __future__ import annotations

from typing import Any

from bench.diff.acls.requests.dice import (
    GHOST_TOPICS,
    OPEN_TRANSACTION,
    TRANSACTIONAL_IDS,
    UNKNOWN_PRODUCER,
    Asks,
    Dice,
)

ASKS = Asks()


@ASKS.add
def init_producer_id(dice: Dice) -> dict[str, Any]:
    return {
        "transactional_id": None if dice.toss() else dice.transactional_id(),
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


@ASKS.add
def add_partitions_to_txn(dice: Dice) -> dict[str, Any]:
    name, topics = dice.transactional_id(), [{"name": n, "partitions": [0]} for n in dice.topics()]
    producer = {"producer_id": UNKNOWN_PRODUCER, "producer_epoch": 0}
    return {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": UNKNOWN_PRODUCER,
        "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": topics,
        "transactions": [
            {"transactional_id": name, "verify_only": dice.toss(), "topics": topics, **producer}
        ],
    }


@ASKS.add
def add_offsets_to_txn(dice: Dice) -> dict[str, Any]:
    return {
        "transactional_id": dice.transactional_id(),
        "producer_id": UNKNOWN_PRODUCER,
        "producer_epoch": 0,
        "group_id": dice.group(),
    }


@ASKS.add
def end_txn(dice: Dice) -> dict[str, Any]:
    name = dice.transactional_id()
    return {"transactional_id": name, "producer_id": UNKNOWN_PRODUCER, "producer_epoch": 0, "committed": True}


@ASKS.add
def txn_offset_commit(dice: Dice) -> dict[str, Any]:
    which = [
        {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
    ]
    return {
        "transactional_id": dice.transactional_id(),
        "group_id": dice.group(),
        "producer_id": UNKNOWN_PRODUCER,
        "producer_epoch": 0,
        "generation_id": -1,
        "member_id": "",
        "topics": [{"name": n, "partitions": which} for n in dice.topics()],
    }


@ASKS.add
def write_txn_markers(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "partition_indexes": [0]} for n in dice.sample(GHOST_TOPICS, 1)]
    return {"markers": [{"producer_id": UNKNOWN_PRODUCER, "transaction_result": True, "topics": topics}]}


@ASKS.add
def describe_transactions(dice: Dice) -> dict[str, Any]:
    return {"transactional_ids": dice.some(*TRANSACTIONAL_IDS, OPEN_TRANSACTION, OPEN_TRANSACTION + "x")}
