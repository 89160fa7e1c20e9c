"""What is not served or cannot be done is refused where the client looks for it, or by a closed connection."""

from __future__ import annotations

from typing import Any

import pytest

from tests.brokers import eventually
from tests.wire import messages
from tests.wire.batches import encode
from tests.wire.connection import Connection
from tidemill.protocol.api.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tidemill.protocol.frames import request_frame

UNSUPPORTED_VERSION = 35
SECURITY_DISABLED = 54
RESOURCE_NOT_FOUND = 91
INVALID_UPDATE_VERSION = 95
NO_COORDINATOR_YET = (14, 15, 16)
LOWEST_OFFSET = -(2**63) + 2
LONG = "x" * 32_760
LONGEST = "y" * 32_767

ACL = {
    "resource_type": 2,
    "resource_name": "secret",
    "resource_pattern_type": 3,
    "principal": "User:eve",
    "host": "*",
    "operation": 3,
    "permission_type": 2,
}
UNSERVED: list[tuple[str, int, dict[str, Any]]] = [
    ("streams_group_describe", 0, {"group_ids": ["g"]}),
]


def entries_of(response: Any) -> list[Any]:
    lists = [
        value for name in response.__dataclass_fields__ if isinstance(value := getattr(response, name), tuple)
    ]
    (entries,) = lists
    return list(entries)


ACLS: list[tuple[str, int, dict[str, Any]]] = [
    ("create_acls", 3, {"creations": [ACL, ACL]}),
    ("delete_acls", 3, {"filters": [{"resource_type_filter": 2, "pattern_type_filter": 3}] * 2}),
]


@pytest.mark.parametrize(("api", "version", "fields"), ACLS, ids=[api for api, _, _ in ACLS])
def test_each_rule_is_refused_while_there_is_no_authorizer(
    connection: Connection, api: str, version: int, fields: dict[str, Any]
) -> None:
    entries = entries_of(connection.request(api, version, **fields))
    assert [each.error_code for each in entries] == [SECURITY_DISABLED] * 2


def test_rules_cannot_be_listed_while_there_is_no_authorizer(connection: Connection) -> None:
    wanted = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
    assert connection.request("describe_acls", 3, **wanted).error_code == SECURITY_DISABLED


@pytest.mark.parametrize(("api", "version", "fields"), UNSERVED, ids=[api for api, _, _ in UNSERVED])
def test_each_entry_of_an_unserved_api_is_refused(
    connection: Connection, api: str, version: int, fields: dict[str, Any]
) -> None:
    served = {each.api_key for each in connection.request("api_versions", 0).api_keys}
    assert messages.API_KEYS[api] not in served, "it is served now; name another one here"
    asked = next(value for value in fields.values() if value)
    entries = entries_of(connection.request(api, version, **fields))
    assert [each.error_code for each in entries] == [UNSUPPORTED_VERSION] * len(asked)


def test_a_commit_that_is_to_be_kept_for_ever_is_committed(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    # kio holds durations of this length for impossible.
    request = OffsetCommitRequest(
        group_id=topic,
        retention_time_ms=(1 << 63) - 1,
        topics=[
            OffsetCommitRequestTopic(
                name=topic, partitions=[OffsetCommitRequestPartition(partition_index=0, committed_offset=5)]
            )
        ],
    )

    def committed() -> bool:
        connection.request("find_coordinator", 1, key=topic)
        connection.send(request_frame(request, 3, 1))
        _, answer = messages.read_response("offset_commit", 3, connection.receive_frame())
        return [part.error_code for part in answer.topics[0].partitions] == [0]

    eventually(committed, "the commit")


def config_resources(name: str) -> dict[str, Any]:
    return {
        "resources": [{"resource_type": 2, "resource_name": name, "configs": [{"name": name, "value": ""}]}]
    }


UNSPEAKABLE: list[tuple[str, int, dict[str, Any]]] = [
    ("delete_topics", 5, {"topic_names": [LONG]}),
    ("delete_topics", 6, {"topics": [{"name": LONG, "topic_id": None}]}),
    ("create_topics", 7, {"topics": [{"name": LONG, "num_partitions": 1, "replication_factor": 1}]}),
    (
        "create_topics",
        7,
        {
            "topics": [
                {
                    "name": "unspeakable",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "configs": [{"name": LONG, "value": LONG}],
                }
            ]
        },
    ),
    (
        "create_topics",
        7,
        {
            "topics": [
                {
                    "name": "unspeakable",
                    "num_partitions": 1,
                    "replication_factor": 1,
                    "configs": [{"name": "retention.ms", "value": LONG}],
                }
            ]
        },
    ),
    ("create_partitions", 3, {"topics": [{"name": LONG, "count": 2, "assignments": None}]}),
    ("alter_configs", 2, config_resources(LONG)),
    (
        "incremental_alter_configs",
        1,
        {
            "resources": [
                {
                    "resource_type": 2,
                    "resource_name": LONG,
                    "configs": [{"name": LONG, "config_operation": 0, "value": LONG}],
                }
            ]
        },
    ),
    ("elect_leaders", 2, {"topic_partitions": [{"topic": LONG, "partitions": [0]}]}),
    ("describe_configs", 4, {"resources": [{"resource_type": 2, "resource_name": LONG}]}),
    ("describe_configs", 4, {"resources": [{"resource_type": 4, "resource_name": LONG}]}),
    ("describe_groups", 6, {"groups": [LONG]}),
    ("delete_groups", 2, {"groups_names": [LONG]}),
    ("consumer_group_describe", 0, {"group_ids": [LONG]}),
    ("metadata", 12, {"topics": [{"name": LONG}]}),
    ("describe_topic_partitions", 0, {"topics": [{"name": LONG}], "response_partition_limit": 10}),
    ("describe_producers", 0, {"topics": [{"name": LONG, "partition_indexes": [0]}]}),
    ("describe_transactions", 0, {"transactional_ids": [LONG]}),
    ("list_offsets", 7, {"topics": [{"name": LONG, "partitions": [{"timestamp": -1}]}]}),
    ("find_coordinator", 4, {"key_type": 0, "coordinator_keys": [LONG]}),
    (
        "consumer_group_heartbeat",
        0,
        {
            "group_id": "unspeakable",
            "member_id": "",
            "member_epoch": 0,
            "rebalance_timeout": 1000,
            "server_assignor": LONGEST,
            "subscribed_topic_names": ["a"],
            "topic_partitions": [],
        },
    ),
    (
        "consumer_group_heartbeat",
        1,
        {"group_id": LONG, "member_id": LONGEST, "member_epoch": 1, "subscribed_topic_regex": None},
    ),
    (
        "join_group",
        5,
        {
            "group_id": LONG,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "member_id": LONGEST,
            "protocol_type": "consumer",
            "protocols": [{"name": LONG, "metadata": b""}],
        },
    ),
]


@pytest.mark.parametrize(
    ("api", "version", "fields"), UNSPEAKABLE, ids=[f"{api}-v{version}" for api, version, _ in UNSPEAKABLE]
)
def test_names_that_fill_a_string_are_answered(
    connection: Connection, api: str, version: int, fields: dict[str, Any]
) -> None:
    """Texts about them would not fit. The connection goes on, and nothing of it is a bug in the log."""
    connection.request(api, version, **fields)
    assert connection.request("api_versions", 0).error_code == 0


def test_a_user_whose_name_fills_a_string_is_not_found(connection: Connection) -> None:
    answer = connection.request("describe_user_scram_credentials", 0, users=[{"name": LONG}])
    assert answer.error_code == 0
    (user,) = answer.results
    assert (user.user, user.error_code) == (LONG, RESOURCE_NOT_FOUND)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_feature_whose_name_fills_a_string_is_refused(connection: Connection, version: int) -> None:
    updates = [{"feature": LONG, "max_version_level": 1}]
    answer = connection.request("update_features", version, feature_updates=updates)
    assert answer.error_code == INVALID_UPDATE_VERSION


def test_the_lag_behind_an_offset_that_no_record_can_have_is_told(connection: Connection, topic: str) -> None:
    """An offset that is set by hand may be any; the lag has to fit its field."""
    connection.create_topic(topic)
    for _ in range(3):
        connection.produce(topic, encode([b"value"]))
    connection.request("find_coordinator", 4, key_type=0, coordinator_keys=[topic])
    partition = {"partition_index": 0, "start_offset": LOWEST_OFFSET}
    altered = {"group_id": topic, "topics": [{"topic_name": topic, "partitions": [partition]}]}

    def alter() -> Any:
        answer = connection.request("alter_share_group_offsets", 0, **altered)
        return None if answer.error_code in NO_COORDINATOR_YET else answer

    answer: Any = eventually(alter, "a coordinator of the group")
    assert answer.error_code == answer.responses[0].partitions[0].error_code == 0, answer
    asked = [{"group_id": topic, "topics": None}]
    described = connection.request("describe_share_group_offsets", 1, groups=asked).groups[0]
    assert described.error_code == 0, described
    assert described.topics[0].partitions[0].lag == 3
