"""Random requests of every API that clients use. None of them changes what later ones depend on, but for deleted topics.

An API that changes something is asked for what fails after it was authorised (an unknown producer, a session that is too
short), or for a dry run. `TopicId` stands for the id that a topic has at the broker that is asked.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.diff.acls.rules import TRANSACTIONAL_ID
from bench.diff.batches import batch, records

TOPICS = ("a", "a.b", "ab", "b")
GHOST_TOPICS = ("a.ghost", "c")
GROUPS = ("g", "g.1", "ga")
CONSUMER_GROUP = "gc"
GHOST_GROUPS = ("g.ghost", "h")
TRANSACTIONAL_IDS = ("t", "t.1", "u")
OPEN_TRANSACTION = "t.open"
TOPIC_CONFIG, BROKER_CONFIG, LOGGER_CONFIG, METRICS_CONFIG, GROUP_CONFIG = 2, 4, 8, 16, 32
NODE_ID = 1
UNKNOWN_PRODUCER = 999_999
TRANSACTIONAL_BATCH = 0x10


@dataclass(frozen=True)
class TopicId:
    name: str


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


class Dice(random.Random):
    """What is random in a request, and the version that it has."""

    version = 0

    def topics(self, most: int = 3) -> list[str]:
        return self.sample((*TOPICS, *GHOST_TOPICS), self.randint(1, most))

    def group(self) -> str:
        return self.choice((*GROUPS, *GHOST_GROUPS))

    def transactional_id(self) -> str:
        return self.choice(TRANSACTIONAL_IDS)

    def some(self, *choices: Any) -> list[Any]:
        return self.sample(choices, self.randint(1, min(3, len(choices))))

    def toss(self) -> bool:
        return self.random() < 0.5


Ask = Callable[[Dice], dict[str, Any]]
QUESTIONS: dict[str, Ask] = {}


def _asks(ask: Ask) -> Ask:
    QUESTIONS[ask.__name__] = ask
    return ask


def random_question(rng: random.Random, shared: dict[str, range]) -> Question:
    api = rng.choice([name for name in (*QUESTIONS, *FIXED) if name in shared])
    version = rng.choice(shared[api])
    if api in FIXED:
        return Question(api, version, FIXED[api])
    dice = Dice(rng.getrandbits(64))
    dice.version = version
    return Question(api, version, QUESTIONS[api](dice))


# --- records ---


@_asks
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


@_asks
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


@_asks
def list_offsets(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0, "timestamp": -2, "current_leader_epoch": -1}]
    return {"replica_id": -1, "topics": [{"name": n, "partitions": which} for n in dice.topics()]}


@_asks
def offset_for_leader_epoch(dice: Dice) -> dict[str, Any]:
    which = [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]
    return {"replica_id": -1, "topics": [{"topic": n, "partitions": which} for n in dice.topics()]}


@_asks
def delete_records(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0, "offset": 1 << 40}]
    return {"timeout": 5000, "topics": [{"name": n, "partitions": which} for n in dice.topics()]}


# --- metadata ---


@_asks
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


@_asks
def describe_topic_partitions(dice: Dice) -> dict[str, Any]:
    names = [] if dice.random() < 0.3 else dice.topics()
    return {"topics": [{"name": n} for n in names], "response_partition_limit": 2000}


@_asks
def describe_cluster(dice: Dice) -> dict[str, Any]:
    return {"include_cluster_authorized_operations": dice.toss(), "endpoint_type": 1}


@_asks
def describe_log_dirs(dice: Dice) -> dict[str, Any]:
    return {"topics": None if dice.toss() else [{"topic": n, "partitions": [0]} for n in dice.topics()]}


@_asks
def describe_producers(dice: Dice) -> dict[str, Any]:
    return {"topics": [{"name": n, "partition_indexes": [0]} for n in dice.topics()]}


# --- groups ---


@_asks
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


@_asks
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


@_asks
def find_coordinator(dice: Dice) -> dict[str, Any]:
    kind = dice.choice((0, 1)) if dice.version >= 1 else 0
    keys = dice.some(*((*GROUPS, *GHOST_GROUPS) if kind == 0 else TRANSACTIONAL_IDS))
    return {"key": keys[0], "key_type": kind, "coordinator_keys": keys}


@_asks
def join_group(dice: Dice) -> dict[str, Any]:
    return {
        "group_id": dice.group(),
        "session_timeout": 1,
        "rebalance_timeout": 1,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


@_asks
def heartbeat(dice: Dice) -> dict[str, Any]:
    return {"group_id": dice.group(), "generation_id": 3, "member_id": "stranger"}


@_asks
def leave_group(dice: Dice) -> dict[str, Any]:
    return {"group_id": dice.group(), "member_id": "stranger", "members": [{"member_id": "stranger"}]}


@_asks
def sync_group(dice: Dice) -> dict[str, Any]:
    return {
        "group_id": dice.group(),
        "generation_id": 3,
        "member_id": "stranger",
        "protocol_type": "consumer",
        "protocol_name": "range",
    }


@_asks
def describe_groups(dice: Dice) -> dict[str, Any]:
    return {"groups": dice.some(*GROUPS, *GHOST_GROUPS), "include_authorized_operations": dice.toss()}


@_asks
def consumer_group_describe(dice: Dice) -> dict[str, Any]:
    # The group whose members have topics is the interesting one.
    groups = [CONSUMER_GROUP] if dice.random() < 0.7 else dice.some(*GROUPS, *GHOST_GROUPS, CONSUMER_GROUP)
    return {"group_ids": groups, "include_authorized_operations": dice.toss()}


@_asks
def delete_groups(dice: Dice) -> dict[str, Any]:
    return {"groups_names": dice.some(*GHOST_GROUPS)}


@_asks
def offset_delete(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0}]
    return {"group_id": dice.group(), "topics": [{"name": n, "partitions": which} for n in dice.topics()]}


@_asks
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


# --- share groups ---


@_asks
def share_group_heartbeat(dice: Dice) -> dict[str, Any]:
    names = dice.topics()
    return {"group_id": dice.group(), "member_id": "s", "member_epoch": 7, "subscribed_topic_names": names}


@_asks
def share_group_describe(dice: Dice) -> dict[str, Any]:
    return {
        "group_ids": dice.some(*GROUPS, *GHOST_GROUPS, CONSUMER_GROUP),
        "include_authorized_operations": dice.toss(),
    }


@_asks
def describe_share_group_offsets(dice: Dice) -> dict[str, Any]:
    topics = [{"topic_name": n, "partitions": [0]} for n in dice.topics()]
    return {"groups": [{"group_id": dice.group(), "topics": None if dice.random() < 0.3 else topics}]}


@_asks
def alter_share_group_offsets(dice: Dice) -> dict[str, Any]:
    # A group of another kind: it is refused after it was authorised.
    where = [{"partition_index": 0, "start_offset": 0}]
    return {
        "group_id": dice.choice(GROUPS),
        "topics": [{"topic_name": n, "partitions": where} for n in dice.topics()],
    }


@_asks
def delete_share_group_offsets(dice: Dice) -> dict[str, Any]:
    return {"group_id": dice.choice(GROUPS), "topics": [{"topic_name": n} for n in dice.topics()]}


@_asks
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


@_asks
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


# --- transactions ---


@_asks
def init_producer_id(dice: Dice) -> dict[str, Any]:
    return {
        "transactional_id": None if dice.toss() else dice.transactional_id(),
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


@_asks
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


@_asks
def add_offsets_to_txn(dice: Dice) -> dict[str, Any]:
    return {
        "transactional_id": dice.transactional_id(),
        "producer_id": UNKNOWN_PRODUCER,
        "producer_epoch": 0,
        "group_id": dice.group(),
    }


@_asks
def end_txn(dice: Dice) -> dict[str, Any]:
    name = dice.transactional_id()
    return {"transactional_id": name, "producer_id": UNKNOWN_PRODUCER, "producer_epoch": 0, "committed": True}


@_asks
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


@_asks
def write_txn_markers(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "partition_indexes": [0]} for n in dice.sample(GHOST_TOPICS, 1)]
    return {"markers": [{"producer_id": UNKNOWN_PRODUCER, "transaction_result": True, "topics": topics}]}


@_asks
def describe_transactions(dice: Dice) -> dict[str, Any]:
    return {"transactional_ids": dice.some(*TRANSACTIONAL_IDS, OPEN_TRANSACTION, OPEN_TRANSACTION + "x")}


# --- administration ---


@_asks
def create_topics(dice: Dice) -> dict[str, Any]:
    return {
        "timeout": 5000,
        "validate_only": True,
        "topics": [{"name": n, "num_partitions": 1, "replication_factor": 1} for n in dice.topics()],
    }


@_asks
def delete_topics(dice: Dice) -> dict[str, Any]:
    names = dice.sample(GHOST_TOPICS, 1) if dice.random() < 0.5 else dice.topics(2)
    by_id = dice.toss()
    topics = [{"name": None, "topic_id": TopicId(n)} if by_id else {"name": n} for n in names]
    return {"timeout": 5000, "topic_names": names, "topics": topics}


@_asks
def create_partitions(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "count": 2, "assignments": None} for n in dice.topics()]
    return {"timeout": 5000, "validate_only": True, "topics": topics}


def _config_resources(dice: Dice, **of_each: Any) -> list[dict[str, Any]]:
    resources = [(TOPIC_CONFIG, n) for n in dice.topics(2)]
    resources += [(BROKER_CONFIG, dice.choice((str(NODE_ID), ""))), (GROUP_CONFIG, dice.group())]
    resources += [(METRICS_CONFIG, "sub"), (LOGGER_CONFIG, str(NODE_ID))]
    chosen = dice.sample(resources, dice.randint(1, 3))
    return [{"resource_type": kind, "resource_name": name, **of_each} for kind, name in chosen]


@_asks
def describe_configs(dice: Dice) -> dict[str, Any]:
    return {"resources": _config_resources(dice, configuration_keys=["retention.ms"])}


@_asks
def alter_configs(dice: Dice) -> dict[str, Any]:
    return {"validate_only": True, "resources": _config_resources(dice, configs=[])}


@_asks
def incremental_alter_configs(dice: Dice) -> dict[str, Any]:
    return {"validate_only": True, "resources": _config_resources(dice, configs=[])}


@_asks
def alter_replica_log_dirs(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "partitions": [0]} for n in dice.topics()]
    return {"dirs": [{"path": "/nowhere/at/all", "topics": topics}]}


@_asks
def elect_leaders(dice: Dice) -> dict[str, Any]:
    chosen = [{"topic": n, "partitions": [0]} for n in dice.topics()]
    return {"election_type": 0, "timeout": 5000, "topic_partitions": chosen}


@_asks
def alter_partition_reassignments(dice: Dice) -> dict[str, Any]:
    which = [{"partition_index": 0, "replicas": None}]
    topics = [{"name": n, "partitions": which} for n in dice.topics()]
    return {"timeout": 5000, "allow_replication_factor_change": True, "topics": topics}


@_asks
def list_partition_reassignments(dice: Dice) -> dict[str, Any]:
    topics = [{"name": n, "partition_indexes": [0]} for n in dice.topics()]
    return {"timeout": 5000, "topics": None if dice.toss() else topics}


_VOTER = uuid.uuid5(uuid.NAMESPACE_DNS, "voter")
# Requests without anything random in them.
# Of a topic that does not exist.
_SHARE_STATE = {"group_id": "s", "topics": [{"topic_id": TopicId("c"), "partitions": [{"partition": 0}]}]}
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
