"""Random requests of every API that clients use. None of them changes what later ones depend on, but for deleted topics.

A request that would change something fails after it was authorised (an unknown producer, a session that is too short),
or is a dry run. `requests/` has the requests of each family of APIs.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

from bench.diff.acls.requests import (
    administration,
    groups,
    metadata,
    records,
    share_groups,
    transactions,
)
from bench.diff.acls.requests.dice import METRICS_CONFIG, Ask, Dice, TopicId
from bench.diff.acls.rules import TRANSACTIONAL_ID

# A seed gives the same requests as long as their order stays.
QUESTIONS: dict[str, Ask] = {
    **records.ASKS,
    **metadata.ASKS,
    **groups.ASKS,
    **share_groups.ASKS,
    **transactions.ASKS,
    **administration.ASKS,
}

_VOTER = uuid.uuid5(uuid.NAMESPACE_DNS, "voter")
# Of a topic that does not exist.
_SHARE_STATE = {"group_id": "s", "topics": [{"topic_id": TopicId("c"), "partitions": [{"partition": 0}]}]}
# Requests without anything random in them.
FIXED: dict[str, dict[str, Any]] = {
    "initialize_share_group_state": _SHARE_STATE,
    "read_share_group_state": _SHARE_STATE,
    "write_share_group_state": _SHARE_STATE,
    "delete_share_group_state": _SHARE_STATE,
    "read_share_group_state_summary": _SHARE_STATE,
    "list_groups": {},
    "list_transactions": {"state_filters": [], "producer_id_filters": [], "duration_filter": -1},
    "list_config_resources": {"resource_types": [METRICS_CONFIG]},
    "describe_quorum": {
        "topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    },
    "unregister_broker": {"broker_id": 77},
    "update_features": {
        "timeout": 5000,
        "validate_only": True,
        "feature_updates": [{"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}],
    },
    "describe_acls": {
        "resource_type_filter": TRANSACTIONAL_ID,
        "pattern_type_filter": 1,
        "operation": 1,
        "permission_type": 1,
    },
    # Refused after it was authorised: the cluster has another name.
    "create_acls": {
        "creations": [
            {
                "resource_type": 4,
                "resource_name": "another",
                "resource_pattern_type": 3,
                "principal": "User:x",
                "host": "*",
                "operation": 3,
                "permission_type": 3,
            }
        ]
    },
    "delete_acls": {
        "filters": [
            {
                "resource_type_filter": 1,
                "pattern_type_filter": 1,
                "principal_filter": "User:nobody",
                "operation": 1,
                "permission_type": 1,
            }
        ]
    },
    "describe_client_quotas": {"components": [], "strict": False},
    "alter_client_quotas": {
        "validate_only": True,
        "entries": [
            {
                "entity": [{"entity_type": "user", "entity_name": "dora"}],
                "ops": [{"key": "producer_byte_rate", "value": 1000.0, "remove": False}],
            }
        ],
    },
    # Kafka leaves a refused request for all users (null) without an answer.
    "describe_user_scram_credentials": {"users": [{"name": "alice"}]},
    "alter_user_scram_credentials": {"deletions": [{"name": "dora", "mechanism": 1}], "upsertions": []},
    "add_raft_voter": {
        "cluster_id": "another",
        "timeout": 1000,
        "voter_id": 5,
        "voter_directory_id": _VOTER,
        "listeners": [{"name": "CONTROLLER", "host": "localhost", "port": 1}],
    },
    "remove_raft_voter": {"cluster_id": "another", "voter_id": 5, "voter_directory_id": _VOTER},
}


@dataclass(frozen=True)
class Question:
    api: str
    version: int
    request: dict[str, Any]

    def for_broker(self, ids: dict[str, uuid.UUID]) -> dict[str, Any]:
        resolved: dict[str, Any] = _resolve(self.request, ids)
        return resolved


def _resolve(value: Any, ids: dict[str, uuid.UUID]) -> Any:
    if isinstance(value, TopicId):
        return ids.get(value.name) or uuid.uuid5(uuid.NAMESPACE_DNS, value.name)
    if isinstance(value, dict):
        return {name: _resolve(item, ids) for name, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, ids) for item in value]
    return value


def random_question(rng: random.Random, shared: dict[str, range]) -> Question:
    api = rng.choice([name for name in (*QUESTIONS, *FIXED) if name in shared])
    version = rng.choice(shared[api])
    if api in FIXED:
        return Question(api, version, FIXED[api])
    dice = Dice(rng.getrandbits(64))
    dice.version = version
    return Question(api, version, QUESTIONS[api](dice))
