"""Requests that write and read records."""

from __future__ import annotations

from typing import Any

from bench.diff.acls.requests.dice import TRANSACTIONAL_BATCH, UNKNOWN_PRODUCER, Asks, Dice, TopicId
from bench.diff.batches import batch, records

ASKS = Asks()


@ASKS.add
def produce(dice: Dice) -> dict[str, Any]:
    is_transactional = dice.random() < 0.3
    header: dict[str, Any] = {"attributes": TRANSACTIONAL_BATCH, "producer_id": UNKNOWN_PRODUCER}
    header |= {"producer_epoch": 0, "base_sequence": 0}
    data = batch(records(1), **(header if is_transactional else {}))
    names_transaction = is_transactional if dice.random() < 0.8 else not is_transactional
    return {
        "transactional_id": dice.transactional_id() if names_transaction else None,
        "acks": dice.choice((1, -1)),
        "timeout": 5000,
        "topic_data": [
            {"name": n, "topic_id": TopicId(n), "partition_data": [{"index": 0, "records": data}]}
            for n in dice.topics()
        ],
    }


@ASKS.add
def fetch(dice: Dice) -> dict[str, Any]:
    replica = dice.choice((-1, -1, -1, -1, 2))
    return {
        "replica_id": replica,
        "replica_state": {"replica_id": replica, "replica_epoch": -1},
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "session_epoch": -1,
        "topics": [
            {
                "topic": n,
                "topic_id": TopicId(n),
                "partitions": [
                    {
                        "partition": 0,
                        "fetch_offset": 0,
                        "partition_max_bytes": 1000,
                        "current_leader_epoch": -1,
                    }
                ],
            }
            for n in dice.topics()
        ],
    }


@ASKS.add
def list_offsets(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0, "timestamp": -2, "current_leader_epoch": -1}]
    return {"replica_id": -1, "topics": [{"name": n, "partitions": which} for n in dice.topics()]}


@ASKS.add
def offset_for_leader_epoch(dice: Dice) -> dict[str, Any]:
    which = [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]
    return {"replica_id": -1, "topics": [{"topic": n, "partitions": which} for n in dice.topics()]}


@ASKS.add
def delete_records(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0, "offset": 1 << 40}]
    return {"timeout": 5000, "topics": [{"name": n, "partitions": which} for n in dice.topics()]}
