"""Takes out of an answer what must differ between two clusters, and nothing else.

Ids that a broker made up (topics, producers, sessions, itself) become names that say what they stand for,
so that a wrong id still shows. Times close to now, sizes of a disk, paths and addresses become
placeholders. Error texts are free, but whether there is one is not.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from bench.diff import batches

NEAR_MS = 3_600_000
DROPPED = {"throttle_time"}
TEXTS = {"error_message", "batch_index_error_message", "documentation"}
NODE_IDS = {
    "node_id",
    "broker_id",
    "leader_id",
    "controller_id",
    "replica_nodes",
    "isr_nodes",
    "offline_replicas",
    "eligible_leader_replicas",
    "last_known_elr",
}
PLACEHOLDERS = {"cluster_id": "<cluster>", "host": "<host>", "port": "<port>", "log_dir": "<dir>"}
SIZES = {"total_bytes", "usable_bytes"}
# Settings whose value is the machine's or the start script's, not the broker's.
LOCAL_CONFIGS = {
    "advertised.listeners",
    "broker.id",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "listener.security.protocol.map",
    "listeners",
    "log.dir",
    "log.dirs",
    "metadata.log.dir",
    "node.id",
    "offsets.topic.replication.factor",
    "process.roles",
    "share.coordinator.state.topic.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "transaction.state.log.replication.factor",
}


@dataclass
class Facts:
    """What this broker calls things that the other calls something else."""

    node_id: int = -1
    prefix: str = ""
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    producer_ids: dict[int, str] = field(default_factory=dict)


def normalise(tree: Any, facts: Facts) -> Any:
    return _any("", tree, facts)


def shorten(request: Any, facts: Facts) -> Any:
    """A request as it is shown: the same for every version, where only names differ."""
    if isinstance(request, dict):
        return {k: shorten(v, facts) for k, v in request.items()}
    if isinstance(request, list | tuple):
        return [shorten(item, facts) for item in request]
    if isinstance(request, bytes):
        return f"<{len(request)} bytes>"
    if isinstance(request, uuid.UUID | str):
        return _scalar("", request, facts)
    return request


def _any(name: str, value: Any, facts: Facts) -> Any:
    if isinstance(value, dict):
        if value.get("name") in LOCAL_CONFIGS and "value" in value:
            value = {**value, "value": "<local>", "config_source": "<local>", "synonyms": "<local>"}
        if isinstance(value.get("topic_id"), uuid.UUID) and isinstance(value.get("name"), str):
            facts.topic_names.setdefault(value["topic_id"], value["name"])
        return {k: _any(k, v, facts) for k, v in value.items() if k not in DROPPED}
    if isinstance(value, list | tuple):
        return [_any(name, item, facts) for item in value]
    if isinstance(value, bytes):
        described = batches.describe(value) if name == "records" else value.hex()
        return _any("batches", described, facts) if isinstance(described, list) else described
    return _scalar(name, value, facts)


def _scalar(name: str, value: Any, facts: Facts) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, uuid.UUID):
        known = facts.topic_names.get(value)
        return f"<id of {_short(known, facts)}>" if known else str(value)
    if isinstance(value, str):
        if name in TEXTS:
            return "<text>" if value else ""
        return PLACEHOLDERS.get(name) or _short(value, facts)
    if isinstance(value, int):
        return _number(name, value, facts)
    return value


def _number(name: str, value: int, facts: Facts) -> Any:
    if name in NODE_IDS and value == facts.node_id:
        return "<node>"
    if name in PLACEHOLDERS or (name in SIZES and value > 0):
        return PLACEHOLDERS.get(name, "<bytes>")
    if name == "session_id" and value != 0:
        return "<session>"
    if name == "finalized_features_epoch" and value >= 0:
        return "<epoch>"
    if name == "producer_id":
        return facts.producer_ids.get(value, value)
    if abs(value - time.time() * 1000) < NEAR_MS:
        return "<now>"
    return value


def _short(text: str, facts: Facts) -> str:
    return text.replace(facts.prefix, "~") if facts.prefix else text
