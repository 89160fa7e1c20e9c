"""What an answer says about rights: error codes, authorised operations, and which names are there.

Everything else (offsets, ids, texts, addresses) is taken out. The order of entries does not count.
"""

from __future__ import annotations

import uuid
from typing import Any

from bench.diff.messages import Tree

# The fields that name an entry.
NAMES = {
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "resource_name",
    "resource_type",
    "group_id",
    "transactional_id",
    "key",
    "user",
    "partition_index",
    "partition",
    "index",
}
# Lists that say nothing about rights.
DROPPED = {
    "brokers",
    "node_endpoints",
    "nodes",
    "configs",
    "controllers",
    "voters",
    "observers",
    "aborted_transactions",
}
# Topics that users create as they go.
CREATED = ("new-", "z-")
GHOST_CREATED_CHARS = 12


def outcome(answer: Tree, topic_names: dict[uuid.UUID, str]) -> Tree:
    return _reduced(answer, topic_names)


def _reduced(value: Any, names: dict[uuid.UUID, str]) -> Any:
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for field, item in value.items():
            if isinstance(item, list | tuple):
                entries = [
                    _reduced(each, names) for each in item if isinstance(each, dict) and not _is_created(each)
                ]
                if entries and field not in DROPPED:
                    kept[field] = sorted(entries, key=repr)
            elif isinstance(item, dict):
                kept[field] = _reduced(item, names)
            elif field.endswith(("error_code", "authorized_operations")):
                kept[field] = item
            elif field in NAMES and item is not None:
                kept[field] = _topic_of(item, names) if isinstance(item, uuid.UUID) else item
        return kept
    return value


def _topic_of(topic_id: uuid.UUID, names: dict[uuid.UUID, str]) -> str:
    return "none" if topic_id.int == 0 else names.get(topic_id, "another")


def _is_created(entry: dict[str, Any]) -> bool:
    """Whether a user's Metadata request made the topic, which another answer may or may not see yet."""
    name = entry.get("name", entry.get("topic"))
    if not isinstance(name, str) or entry.get("error_code", "NONE(0)") != "NONE(0)":
        return False
    return name.startswith(CREATED) or (name.startswith("a.") and len(name) > GHOST_CREATED_CHARS)


def is_refused(answer: Tree) -> bool:
    return "AUTHORIZATION_FAILED" in repr(answer)
