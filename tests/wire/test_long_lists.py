"""A request that names very many things holds up no other connection."""

from __future__ import annotations

import select
from collections.abc import Mapping
from typing import Any

import pytest

from tests.brokers import RunningBroker, eventually

from . import messages
from .connection import Connection

NAMES = [f"name-{number}" for number in range(20_000)]

REQUESTS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "describe_configs": (4, {"resources": [{"resource_type": 32, "resource_name": name} for name in NAMES]}),
    "describe_groups": (5, {"groups": NAMES}),
    "consumer_group_describe": (0, {"group_ids": NAMES}),
    "offset_fetch": (8, {"groups": [{"group_id": name, "topics": None} for name in NAMES]}),
    "find_coordinator": (4, {"key_type": 0, "coordinator_keys": NAMES}),
    "incremental_alter_configs": (
        1,
        {
            "validate_only": True,
            "resources": [
                {
                    "resource_type": 32,
                    "resource_name": name,
                    "configs": [
                        {"name": "consumer.session.timeout.ms", "config_operation": 0, "value": "46000"}
                    ],
                }
                for name in NAMES
            ],
        },
    ),
    "alter_client_quotas": (
        1,
        {
            "validate_only": True,
            "entries": [
                {
                    "entity": [{"entity_type": "client-id", "entity_name": name}],
                    "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
                }
                for name in NAMES
            ],
        },
    ),
    "elect_leaders": (
        2,
        {"election_type": 0, "topic_partitions": [{"topic": name, "partitions": [0]} for name in NAMES]},
    ),
    "alter_partition_reassignments": (
        0,
        {
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "replicas": [1]}]} for name in NAMES
            ]
        },
    ),
    "offset_commit": (
        9,
        {
            "group_id": "group",
            "generation_id_or_member_epoch": -1,
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
                for name in NAMES
            ],
        },
    ),
    "txn_offset_commit": (
        3,
        {
            "group_id": "group",
            "transactional_id": "transaction",
            "generation_id": -1,
            "topics": [
                {"name": name, "partitions": [{"partition_index": 0, "committed_offset": 1}]}
                for name in NAMES
            ],
        },
    ),
    "describe_producers": (0, {"topics": [{"name": name, "partition_indexes": [0]} for name in NAMES]}),
    # An API that is not served: each entry has the error.
    "streams_group_describe": (0, {"group_ids": NAMES}),
}
ANSWERED = {
    "describe_configs": "results",
    "find_coordinator": "coordinators",
    "incremental_alter_configs": "responses",
    "alter_client_quotas": "entries",
    "elect_leaders": "replica_election_results",
    "alter_partition_reassignments": "responses",
    "describe_producers": "topics",
    "offset_commit": "topics",
    "txn_offset_commit": "topics",
}


@pytest.mark.parametrize("api", REQUESTS)
def test_another_connection_is_answered_in_between(target: RunningBroker, api: str) -> None:
    """The answers tell the order: ten of another connection are there before the one about 20,000 names."""
    version, fields = REQUESTS[api]
    with Connection(target) as busy, Connection(target) as other:
        # The broker has the whole request before the other connection sends anything.
        other.request("api_versions", 3, client_software_name="test", client_software_version="1")
        asked = busy.start(api, version, **fields)
        for _ in range(10):
            other.request("api_versions", 3, client_software_name="test", client_software_version="1")
        ready, _, _ = select.select([busy.socket], [], [], 0)
        assert not ready, f"{api} of {len(NAMES)} names was answered before ten small requests"
        answer = busy.finish(api, version, asked)
    assert len(getattr(answer, ANSWERED.get(api, "groups"))) == len(NAMES)


def test_the_partitions_of_one_topic_are_many_things(target: RunningBroker, topic: str) -> None:
    """A commit of 20,000 partitions is answered in pieces. It stores the offsets of the partitions that exist."""
    with Connection(target) as busy, Connection(target) as other:
        busy.create_topic(topic, partitions=10)
        group = f"group of {topic}"
        find = {"key_type": 0, "coordinator_keys": [group]}
        eventually(
            lambda: other.request("find_coordinator", 4, **find).coordinators[0].error_code == 0,
            "a coordinator of the group",
        )
        partitions = [{"partition_index": index, "committed_offset": 7} for index in range(len(NAMES))]
        commit = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "topics": [{"name": topic, "partitions": partitions}],
        }
        asked = busy.start("offset_commit", 9, **commit)
        for _ in range(10):
            other.request("api_versions", 3, client_software_name="test", client_software_version="1")
        ready, _, _ = select.select([busy.socket], [], [], 0)
        assert not ready, "20,000 partitions were answered before ten small requests"
        (answer,) = busy.finish("offset_commit", 9, asked).topics
        stored = busy.request("offset_fetch", 8, groups=[{"group_id": group, "topics": None}]).groups[0]
    assert [each.partition_index for each in answer.partitions] == list(range(len(NAMES)))
    assert [each.error_code == 0 for each in answer.partitions] == [index < 10 for index in range(len(NAMES))]
    assert [each.committed_offset for each in stored.topics[0].partitions] == [7] * 10


def test_a_long_request_that_does_not_parse_closes_its_connection(target: RunningBroker) -> None:
    whole = messages.request("describe_groups", 5, groups=NAMES)
    with Connection(target) as connection:
        connection.send(messages.frame(whole[4:-1_000]))
        assert connection.is_closed()
