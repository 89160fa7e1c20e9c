"""Takes out of an answer what must differ between two clusters, and nothing else.

Ids that a broker made up (topics, producers, members, sessions, itself) become names that say what they stand for,
so that a wrong id still shows. Times close to now, sizes of a disk, paths and addresses become
placeholders. Error texts are marked as such: `compare` wants Tidemill's to begin with Kafka's words.
"""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from bench.diff import batches

NEAR_MS = 3_600_000
DROPPED = {"throttle_time"}
ERROR_TEXTS = {"error_message", "batch_index_error_message"}
TEXT = "<text>"
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
# Kafka's two ways to write a new uuid: after a prefix in the classic protocol, alone in the consumer protocol.
MEMBER_IDS = {"member_id", "leader"}
MEMBER_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
MEMBER_BASE64 = re.compile(r"[A-Za-z0-9_-]{22}$")
PRODUCER_IDS = {"producer_id", "ongoing_txn_producer_id"}
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
    """The names and ids that differ between the two brokers."""

    node_id: int = -1
    prefix: str = ""
    topic_names: dict[uuid.UUID, str] = field(default_factory=dict)
    producer_ids: dict[int, str] = field(default_factory=dict)
    # In the order in which they were first seen.
    member_ids: dict[str, str] = field(default_factory=dict)


def normalise(tree: Any, facts: Facts) -> Any:
    return _any("", tree, facts)


def shorten(request: Any, facts: Facts) -> Any:
    """A request as it is shown: the same for every version, where only names differ."""
    if isinstance(request, dict):
        return {
            k: facts.producer_ids.get(v, v) if k.endswith("producer_id") else shorten(v, facts)
            for k, v in request.items()
        }
    if isinstance(request, list | tuple):
        return [shorten(item, facts) for item in request]
    if isinstance(request, bytes):
        return f"<{len(request)} bytes>"
    if isinstance(request, uuid.UUID | str):
        is_member = isinstance(request, str) and request in facts.member_ids
        return _scalar("member_id" if is_member else "", request, facts)
    return request


def _any(name: str, value: Any, facts: Facts) -> Any:
    if isinstance(value, dict):
        if value.get("name") in LOCAL_CONFIGS and "value" in value:
            value = {**value, "value": "<local>", "config_source": "<local>", "synonyms": "<local>"}
        if isinstance(value.get("topic_id"), uuid.UUID) and isinstance(value.get("name"), str):
            facts.topic_names.setdefault(value["topic_id"], value["name"])
        return {k: _any(k, v, facts) for k, v in value.items() if k not in DROPPED}
    if isinstance(value, list | tuple):
        items = [_any(name, item, facts) for item in value]
        return sorted(items, key=_member_order) if name == "members" else items
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
        if name in ERROR_TEXTS:
            return f"{TEXT} {_short(value, facts)}" if value else ""
        if name == "documentation":
            return TEXT if value else ""
        if name in MEMBER_IDS:
            return _member_id(value, facts)
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
    if name in PRODUCER_IDS:
        return facts.producer_ids.get(value, value)
    if abs(value - time.time() * 1000) < NEAR_MS:
        return "<now>"
    return value


def _member_id(value: str, facts: Facts) -> str:
    """The id with its unique part replaced by a number; an id of another form stays as it is."""
    if value not in facts.member_ids:
        number = len(facts.member_ids) + 1
        is_dashed = MEMBER_UUID.search(value) is not None
        if not is_dashed and MEMBER_BASE64.match(value) is None:
            return _short(value, facts)
        form, shown = (
            (MEMBER_UUID, f"<uuid {number}>") if is_dashed else (MEMBER_BASE64, f"<base64 {number}>")
        )
        facts.member_ids[value] = form.sub(shown, value)
    return _short(facts.member_ids[value], facts)


def _member_order(item: Any) -> str:
    """Kafka keeps members in a hash map; only the results of LeaveGroup are in the order of the request."""
    return "" if "error_code" in item else str(item["member_id"])


def _short(text: str, facts: Facts) -> str:
    return text.replace(facts.prefix, "~") if facts.prefix else text
