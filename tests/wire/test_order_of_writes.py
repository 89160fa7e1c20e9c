"""A read sees the write before it on its connection, for each API that writes and whatever holds its state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.brokers import Broker, eventually
from tests.wire.connection import Connection
from tests.wire.test_order import Sent, in_one_piece

ROUNDS = 10
TOPIC_RESOURCE = 2
RESOURCE_NOT_FOUND = 91
GROUP_ID_NOT_FOUND = 69
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}


@pytest.fixture
def group(connection: Connection, topic: str) -> str:
    """A topic, and the name of a group whose coordinator serves. Both have the same name."""
    connection.create_topic(topic, partitions=2)

    def has_coordinator() -> bool:
        connection.request("find_coordinator", 1, key=topic)
        return bool(connection.request("describe_groups", 0, groups=[topic]).groups[0].error_code == 0)

    eventually(has_coordinator, "a coordinator")
    return topic


def commit(group: str, offset: int) -> Sent:
    partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
    member = {"generation_id_or_member_epoch": -1, "member_id": ""}
    topics = [{"name": group, "partitions": partitions}]
    return "offset_commit", 7, {"group_id": group, "topics": topics, **member}


def test_client_quotas(connection: Connection, topic: str) -> None:
    component = {"entity_type": "client-id", "match_type": 0, "match": topic}
    asked: Sent = ("describe_client_quotas", 1, {"components": [component], "strict": True})
    for number in range(1, ROUNDS):
        entity = [{"entity_type": "client-id", "entity_name": topic}]
        ops = [{"key": "producer_byte_rate", "value": 1e9 + number, "remove": False}]
        change = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
        _, found = in_one_piece(connection, ("alter_client_quotas", 1, change), asked)
        assert [each.value for each in found.entries[0].values] == [1e9 + number]
    ops = [{"key": "producer_byte_rate", "value": 0.0, "remove": True}]
    change = {"entries": [{"entity": entity, "ops": ops}], "validate_only": False}
    _, found = in_one_piece(connection, ("alter_client_quotas", 1, change), asked)
    assert not found.entries


def test_scram_credentials(connection: Connection, topic: str) -> None:
    asked: Sent = ("describe_user_scram_credentials", 0, {"users": [{"name": topic}]})
    for number in range(ROUNDS):
        upsertion = {"name": topic, "mechanism": 1, "iterations": 4096 + number}
        upsertion |= {"salt": b"s" * 16, "salted_password": b"p" * 32}
        removal = {"deletions": [{"name": topic, "mechanism": 1}], "upsertions": []}
        _, found, _, gone = in_one_piece(
            connection,
            ("alter_user_scram_credentials", 0, {"deletions": [], "upsertions": [upsertion]}),
            asked,
            ("alter_user_scram_credentials", 0, removal),
            asked,
        )
        assert [each.iterations for each in found.results[0].credential_infos] == [4096 + number]
        assert gone.results[0].error_code == RESOURCE_NOT_FOUND


@pytest.fixture
def authorizing(start: Callable[..., Broker]) -> Iterator[Connection]:
    with Connection(start(AUTHORIZER)) as connection:
        yield connection


def test_acls(authorizing: Connection) -> None:
    for number in range(ROUNDS):
        name = f"secret-{number}"
        rule = {"resource_type": 2, "resource_name": name, "resource_pattern_type": 3}
        rule |= {"principal": "User:eve", "host": "*", "operation": 3, "permission_type": 2}
        wanted = {"resource_type_filter": 2, "resource_name_filter": name, "pattern_type_filter": 3}
        wanted |= {"principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}
        asked: Sent = ("describe_acls", 3, wanted)
        _, found, _, gone = in_one_piece(
            authorizing,
            ("create_acls", 3, {"creations": [rule]}),
            asked,
            ("delete_acls", 3, {"filters": [wanted]}),
            asked,
        )
        assert [each.resource_name for each in found.resources] == [name]
        assert not gone.resources


def test_a_shrink(connection: Connection, topic: str) -> None:
    connection.create_topic(topic, partitions=8)
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic}
    key = "tidemill.partitions.active"
    asked: Sent = ("describe_configs", 4, {"resources": [resource | {"configuration_keys": [key]}]})
    for active in ("4", None) * 3:
        configs = [{"name": key, "config_operation": 1 if active is None else 0, "value": active}]
        change = {"resources": [resource | {"configs": configs}], "validate_only": False}
        altered, found = in_one_piece(connection, ("incremental_alter_configs", 1, change), asked)
        assert altered.responses[0].error_code == 0, altered
        assert [each.value for each in found.results[0].configs] == ([active] if active else [])


def test_offsets_that_are_deleted(connection: Connection, group: str) -> None:
    removal = {
        "group_id": group,
        "topics": [{"name": group, "partitions": [{"partition_index": 0}]}],
    }
    asked: Sent = (
        "offset_fetch",
        5,
        {"group_id": group, "topics": [{"name": group, "partition_indexes": [0]}]},
    )
    for offset in range(ROUNDS):
        _, found, _, gone = in_one_piece(
            connection, commit(group, offset), asked, ("offset_delete", 0, removal), asked
        )
        assert found.topics[0].partitions[0].committed_offset == offset
        assert gone.topics[0].partitions[0].committed_offset == -1


def test_groups_that_are_deleted(connection: Connection, group: str) -> None:
    asked: Sent = ("describe_groups", 6, {"groups": [group]})
    for offset in range(ROUNDS):
        _, found, _, gone = in_one_piece(
            connection, commit(group, offset), asked, ("delete_groups", 2, {"groups_names": [group]}), asked
        )
        assert found.groups[0].error_code == 0
        assert gone.groups[0].error_code == GROUP_ID_NOT_FOUND


def test_members_of_consumer_groups(connection: Connection, group: str) -> None:
    asked: Sent = ("consumer_group_describe", 1, {"group_ids": [group]})
    for number in range(ROUNDS):
        member = {"group_id": group, "member_id": f"member-{number}"}
        joining = {"rebalance_timeout": 3000, "subscribed_topic_names": [group], "topic_partitions": []}
        _, found, _, gone = in_one_piece(
            connection,
            ("consumer_group_heartbeat", 1, member | joining | {"member_epoch": 0}),
            asked,
            ("consumer_group_heartbeat", 1, member | {"member_epoch": -1}),
            asked,
        )
        assert [each.member_id for each in found.groups[0].members] == [member["member_id"]]
        assert not gone.groups[0].members


def test_members_of_share_groups(connection: Connection, group: str) -> None:
    asked: Sent = ("share_group_describe", 1, {"group_ids": [group]})
    for number in range(ROUNDS):
        member = {"group_id": group, "member_id": f"member-{number}"}
        _, found, _, gone = in_one_piece(
            connection,
            ("share_group_heartbeat", 1, member | {"member_epoch": 0, "subscribed_topic_names": [group]}),
            asked,
            ("share_group_heartbeat", 1, member | {"member_epoch": -1}),
            asked,
        )
        assert [each.member_id for each in found.groups[0].members] == [member["member_id"]]
        assert not gone.groups[0].members


def test_offsets_of_share_groups(connection: Connection, group: str) -> None:
    asked: Sent = ("describe_share_group_offsets", 0, {"groups": [{"group_id": group, "topics": None}]})
    for offset in range(ROUNDS):
        partitions = [{"partition_index": 0, "start_offset": offset}]
        change = {"group_id": group, "topics": [{"topic_name": group, "partitions": partitions}]}
        removal = {"group_id": group, "topics": [{"topic_name": group}]}
        _, found, _, gone = in_one_piece(
            connection,
            ("alter_share_group_offsets", 0, change),
            asked,
            ("delete_share_group_offsets", 0, removal),
            asked,
        )
        assert [each.start_offset for each in found.groups[0].topics[0].partitions] == [offset]
        assert not gone.groups[0].topics


def test_transactions(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    for number in range(ROUNDS):
        name = f"{topic}-{number}"
        producer = _producer(connection, name)
        asked: Sent = ("describe_transactions", 0, {"transactional_ids": [name]})
        adding: dict[str, Any] = {f"v3_and_below_{field}": value for field, value in producer.items()}
        adding |= {
            "v3_and_below_transactional_id": name,
            "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
        }
        _, found, ended, after = in_one_piece(
            connection,
            ("add_partitions_to_txn", 3, adding),
            asked,
            ("end_txn", 3, {"transactional_id": name, "committed": number % 2 == 0, **producer}),
            asked,
        )
        assert found.transaction_states[0].transaction_state == "Ongoing"
        assert ended.error_code == 0
        assert after.transaction_states[0].transaction_state != "Ongoing"


def _producer(connection: Connection, transactional_id: str) -> dict[str, int]:
    asked = {"transactional_id": transactional_id, "transaction_timeout": 60_000}

    def began() -> Any:
        connection.request("find_coordinator", 1, key=transactional_id, key_type=1)
        answer = connection.request("init_producer_id", 5, producer_id=-1, producer_epoch=-1, **asked)
        return answer if answer.error_code == 0 else None

    answer: Any = eventually(began, "a coordinator")
    return {"producer_id": answer.producer_id, "producer_epoch": answer.producer_epoch}
