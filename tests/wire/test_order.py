"""Requests of one connection take effect in order, also when they come in one piece."""

from __future__ import annotations

from typing import Any

import pytest

from tests.brokers import eventually
from tests.wire import messages
from tests.wire.batches import NOW_MS, encode
from tests.wire.connection import Connection, fetch_fields, produce_fields
from tests.wire.test_record_bombs import bomb

ROUNDS = 20
TOPIC_RESOURCE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
EARLIEST, LATEST = -2, -1
# Longer than a test may take: what waits for it fails.
FOREVER_MS = 600_000

Sent = tuple[str, int, dict[str, Any]]


def in_one_piece(connection: Connection, *requests: Sent) -> list[Any]:
    """The answers to requests that were sent together."""
    connection.send(
        b"".join(messages.request(api, version, 1, **fields) for api, version, fields in requests)
    )
    return [
        messages.read_response(api, version, connection.receive_frame())[1] for api, version, _ in requests
    ]


def listed(topic: str, timestamp: int) -> Sent:
    partitions = [{"partition_index": 0, "timestamp": timestamp}]
    return "list_offsets", 7, {"replica_id": -1, "topics": [{"name": topic, "partitions": partitions}]}


def described(topic: str) -> Sent:
    return "metadata", 12, {"topics": [{"name": topic}], "allow_auto_topic_creation": False}


def creation(topic: str) -> Sent:
    new = {"name": topic, "num_partitions": 1, "replication_factor": 1}
    return "create_topics", 7, {"topics": [new], "timeout": 20_000}


def test_a_listing_sees_the_deletion_of_records_before_it(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    for offset in range(1, ROUNDS + 1):
        connection.produce(topic, encode([b"x"]))
        partitions = [{"partition_index": 0, "offset": offset}]
        deletion = {"topics": [{"name": topic, "partitions": partitions}], "timeout": 20_000}
        deleted, found = in_one_piece(connection, ("delete_records", 2, deletion), listed(topic, EARLIEST))
        assert deleted.topics[0].partitions[0].error_code == 0
        assert found.topics[0].partitions[0].offset == offset


def test_a_listing_sees_what_was_produced_without_a_response_before_it(
    connection: Connection, topic: str
) -> None:
    connection.create_topic(topic, configs={"compression.type": "gzip"})
    count = 20_000
    unanswered = produce_fields(topic, bomb(count, NOW_MS), 0, 0)
    name, version, fields = listed(topic, LATEST)
    for round_ in range(1, 4):
        connection.send(
            messages.request("produce", 9, **unanswered) + messages.request(name, version, 2, **fields)
        )
        _, found = messages.read_response(name, version, connection.receive_frame())
        assert found.topics[0].partitions[0].offset == round_ * count


def test_metadata_sees_the_creation_and_deletion_before_it(connection: Connection, topic: str) -> None:
    deletion: Sent = ("delete_topics", 6, {"topics": [{"name": topic, "topic_id": None}], "timeout": 20_000})
    for _ in range(ROUNDS):
        _, created, _, gone = in_one_piece(
            connection, creation(topic), described(topic), deletion, described(topic)
        )
        assert created.topics[0].error_code == 0
        assert gone.topics[0].error_code == UNKNOWN_TOPIC_OR_PARTITION


def test_metadata_sees_the_partitions_that_were_added_before_it(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    for count in range(2, ROUNDS):
        growth = {"topics": [{"name": topic, "count": count, "assignments": None}], "timeout": 20_000}
        _, found = in_one_piece(connection, ("create_partitions", 3, growth), described(topic))
        assert len(found.topics[0].partitions) == count


def test_a_description_sees_the_configuration_that_was_set_before_it(
    connection: Connection, topic: str
) -> None:
    connection.create_topic(topic)
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic}
    asked = {"resources": [resource | {"configuration_keys": ["retention.ms"]}]}
    for number in range(1, ROUNDS):
        value = str(number * 3_600_000)
        configs = [{"name": "retention.ms", "config_operation": 0, "value": value}]
        _, found = in_one_piece(
            connection,
            ("incremental_alter_configs", 1, {"resources": [resource | {"configs": configs}]}),
            ("describe_configs", 4, asked),
        )
        assert [each.value for each in found.results[0].configs] == [value]


def test_a_commit_is_fetched_by_what_follows_it(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)

    def has_coordinator() -> bool:
        connection.request("find_coordinator", 1, key=topic)
        answer = connection.request("describe_groups", 0, groups=[topic])
        return bool(answer.groups[0].error_code == 0)

    eventually(has_coordinator, "a coordinator")
    wanted = {"group_id": topic, "topics": [{"name": topic, "partition_indexes": [0]}]}
    for offset in range(ROUNDS):
        partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": ""}]
        commit = {
            "group_id": topic,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": partitions}],
        }
        _, found = in_one_piece(connection, ("offset_commit", 7, commit), ("offset_fetch", 5, wanted))
        assert found.topics[0].partitions[0].committed_offset == offset


@pytest.mark.parametrize("reading", ["list_offsets", "fetch"])
def test_a_read_sees_the_produce_before_it(connection: Connection, topic: str, reading: str) -> None:
    """Also one whose answer waits for the disk."""
    connection.create_topic(topic, configs={"flush.messages": "1"})
    for offset in range(ROUNDS):
        produce: Sent = ("produce", 9, produce_fields(topic, encode([b"x"])))
        if reading == "list_offsets":
            _, _, found = in_one_piece(connection, produce, produce, listed(topic, LATEST))
            assert found.topics[0].partitions[0].offset == 2 * offset + 2
        else:
            read: Sent = ("fetch", 12, fetch_fields(topic, 2 * offset + 1))
            _, _, found = in_one_piece(connection, produce, produce, read)
            assert found.responses[0].partitions[0].high_watermark == 2 * offset + 2


def test_a_fetch_that_waits_for_records_does_not_hold_back_the_produce_behind_it(
    connection: Connection, topic: str
) -> None:
    connection.create_topic(topic)
    fetched, produced = in_one_piece(
        connection,
        ("fetch", 12, fetch_fields(topic, 0, max_wait=FOREVER_MS)),
        ("produce", 9, produce_fields(topic, encode([b"x"]))),
    )
    assert produced.responses[0].partition_responses[0].base_offset == 0
    assert fetched.responses[0].partitions[0].high_watermark == 1


def test_a_request_held_back_behind_a_waiting_fetch_goes_on_with_the_answer_before_it(
    connection: Connection, topic: str
) -> None:
    """The third waits for the second, whose answer cannot be sent before the first has one."""
    connection.create_topic(topic)
    other = f"{topic}-other"
    produced: Sent = ("produce", 9, produce_fields(topic, encode([b"x"])))
    answers = in_one_piece(
        connection,
        ("fetch", 12, fetch_fields(topic, 0, max_wait=FOREVER_MS)),
        creation(other),
        described(other),
        produced,
    )
    assert answers[2].topics[0].error_code == 0
    assert answers[3].responses[0].partition_responses[0].error_code == 0
