"""What stock clients check and home-made brokers get wrong: versions, metadata, configs, offsets."""

from __future__ import annotations

import dataclasses
import struct
import uuid
from typing import Any

import pytest

from tests.brokers import RunningBroker, eventually
from tests.wire import messages
from tests.wire.batches import NOW_MS, Header, Record, encode
from tests.wire.connection import Connection

UNKNOWN_TOPIC_OR_PARTITION = 3
INVALID_TOPIC = 17
UNSUPPORTED_VERSION = 35
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
FENCED_LEADER_EPOCH = 74
UNKNOWN_LEADER_EPOCH = 75
OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_ID = 100

TOPIC_RESOURCE = 2
BROKER_RESOURCE = 4
EARLIEST, LATEST, NEWEST, EARLIEST_LOCAL = -2, -1, -3, -4

# Every API that a client library may send, and the newest version it may send it with.
CLIENT_APIS = {
    "offset_commit": 8,
    "offset_fetch": 8,
    "find_coordinator": 6,
    "join_group": 9,
    "heartbeat": 4,
    "leave_group": 5,
    "sync_group": 5,
    "describe_groups": 5,
    "list_groups": 5,
    "delete_groups": 2,
    "add_partitions_to_txn": 3,
    "add_offsets_to_txn": 4,
    "end_txn": 4,
    "txn_offset_commit": 4,
    "describe_acls": 3,
    "create_acls": 3,
    "delete_acls": 3,
    "elect_leaders": 2,
    "alter_partition_reassignments": 0,
    "list_partition_reassignments": 0,
    "offset_delete": 0,
    "describe_client_quotas": 1,
    "alter_client_quotas": 1,
    "describe_producers": 0,
    "list_transactions": 1,
    "describe_transactions": 0,
    "consumer_group_heartbeat": 0,
    "consumer_group_describe": 0,
    "describe_user_scram_credentials": 0,
}
ANY_ACL = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def _error_codes(entity: Any) -> list[int]:
    """Every `error_code` anywhere in a response."""
    codes = []
    for field in dataclasses.fields(entity):
        value = getattr(entity, field.name)
        if field.name == "error_code":
            codes.append(int(value))
        for one in value if isinstance(value, tuple) else (value,):
            if dataclasses.is_dataclass(one):
                codes += _error_codes(one)
    return codes


class TestApiVersions:
    @pytest.mark.parametrize("version", [5, 99, 32767])
    def test_unknown_version_gets_the_range_in_the_v0_layout(
        self, connection: Connection, version: int
    ) -> None:
        connection.send(messages.frame(struct.pack(">hhih", 18, version, 9, -1) + b"\0" + bytes(10)))
        correlation_id, body = messages.read_response("api_versions", 0, connection.receive_frame())
        assert correlation_id == 9
        assert body.error_code == UNSUPPORTED_VERSION
        (own,) = body.api_keys
        assert own.api_key == 18
        assert own.min_version == 0
        assert own.max_version >= 3
        assert connection.request("api_versions", own.max_version - 1).error_code in (0, INVALID_REQUEST)

    @pytest.mark.parametrize("version", range(5))
    def test_each_version_decodes(self, connection: Connection, version: int) -> None:
        named = {"client_software_name": "test", "client_software_version": "1.0"} if version >= 3 else {}
        body = connection.request("api_versions", version, **named)
        assert body.error_code == 0
        ranges = {one.api_key: (one.min_version, one.max_version) for one in body.api_keys}
        assert set(ranges) >= {0, 1, 2, 3, 18, 19, 20, 22, 32, 33, 37, 44}
        assert all(low <= high for low, high in ranges.values())

    def test_produce_is_listed_from_v0_for_librdkafka(self, connection: Connection) -> None:
        ranges = {one.api_key: one for one in connection.request("api_versions", 0).api_keys}
        assert ranges[0].min_version == 0

    @pytest.mark.parametrize("name", ["", "-bad", "has space", "x\n"])
    def test_a_bad_client_name_is_an_invalid_request(self, connection: Connection, name: str) -> None:
        body = connection.request("api_versions", 3, client_software_name=name, client_software_version="1")
        assert body.error_code == INVALID_REQUEST

    @pytest.mark.parametrize("api", CLIENT_APIS)
    def test_an_api_that_is_not_served_says_so_in_its_own_layout(
        self, connection: Connection, api: str
    ) -> None:
        """Never a dropped connection. What is served is judged elsewhere."""
        served = {one.api_key for one in connection.request("api_versions", 0).api_keys}
        version = CLIENT_APIS[api]
        body = connection.request(api, version, **(ANY_ACL if api == "describe_acls" else {}))
        if messages.API_KEYS[api] not in served:
            codes = _error_codes(body)
            assert set(codes) <= {UNSUPPORTED_VERSION}
        assert connection.request("api_versions", 0).error_code == 0

    def test_unknown_tagged_fields_are_skipped(self, connection: Connection) -> None:
        tags = b"\x02" + b"\x63\x03abc" + b"\xc8\x01\x00"
        header = messages.request_header("metadata", 12, 3)[:-1] + tags
        body = messages.request_body("metadata", 12, topics=[])[:-1] + tags
        connection.send(messages.frame(header + body))
        correlation_id, answer = messages.read_response("metadata", 12, connection.receive_frame())
        assert correlation_id == 3
        assert len(answer.brokers) == 1


class TestMetadata:
    def test_a_missing_topic_without_auto_creation(self, connection: Connection, topic: str) -> None:
        described = connection.metadata(topic)
        assert (described.error_code, described.partitions) == (UNKNOWN_TOPIC_OR_PARTITION, ())

    def test_auto_creation_goes_on_behind_the_first_answer(self, connection: Connection, topic: str) -> None:
        first = connection.metadata(topic, create=True)
        assert (first.error_code, first.partitions) == (UNKNOWN_TOPIC_OR_PARTITION, ())
        eventually(lambda: len(connection.metadata(topic).partitions) == 1, "the created topic")

    def test_auto_creation_of_an_internal_topic_gives_it_its_own_settings(
        self, connection: Connection
    ) -> None:
        name = "__transaction_state"
        connection.metadata(name, create=True)
        eventually(lambda: len(connection.metadata(name).partitions) == 50, "fifty partitions")

    @pytest.mark.parametrize("name", ["a b", "", ".", "..", "x" * 250, "a/b", "ä"])
    def test_an_invalid_name(self, connection: Connection, name: str) -> None:
        assert connection.metadata(name, create=True).error_code == INVALID_TOPIC

    def test_null_means_all_topics_and_empty_means_none(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        everything = connection.request("metadata", 12, topics=None)
        assert topic in {one.name for one in everything.topics}
        nothing = connection.request("metadata", 12, topics=[])
        assert nothing.topics == ()
        assert len(nothing.brokers) == 1

    def test_empty_list_means_all_topics_in_v0(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        assert topic in {one.name for one in connection.request("metadata", 0, topics=[]).topics}

    def test_by_topic_id(self, connection: Connection, topic: str) -> None:
        topic_id = connection.create_topic(topic)
        asked = [{"topic_id": topic_id, "name": None}]
        (described,) = connection.request("metadata", 12, topics=asked).topics
        assert (described.error_code, described.name) == (0, topic)

    def test_a_topic_id_before_brokers_heeded_it(self, connection: Connection, topic: str) -> None:
        asked = [{"topic_id": connection.create_topic(topic), "name": topic}]
        (described,) = connection.request("metadata", 11, topics=asked).topics
        assert described.error_code == INVALID_REQUEST

    def test_an_unknown_topic_id(self, connection: Connection) -> None:
        asked = [{"topic_id": uuid.uuid4(), "name": None}]
        (described,) = connection.request("metadata", 12, topics=asked).topics
        assert described.error_code == UNKNOWN_TOPIC_ID

    def test_names_the_address_that_was_dialled_and_a_controller(
        self, connection: Connection, target: RunningBroker
    ) -> None:
        body = connection.request("metadata", 12, topics=[])
        (broker,) = body.brokers
        assert (broker.host, broker.port) == (target.host, target.port)
        assert body.controller_id == broker.node_id
        assert body.cluster_id

    def test_describe_cluster_agrees(self, connection: Connection) -> None:
        body = connection.request("metadata", 12, topics=[])
        cluster = connection.request("describe_cluster", 1, endpoint_type=1)
        assert cluster.error_code == 0
        assert cluster.cluster_id == body.cluster_id
        assert [(one.broker_id, one.host, one.port) for one in cluster.brokers] == [
            (one.node_id, one.host, one.port) for one in body.brokers
        ]

    def test_describe_topic_partitions_pages_with_a_cursor(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic, partitions=5)
        seen: list[int] = []
        cursor = None
        for _ in range(3):
            body = connection.request(
                "describe_topic_partitions",
                0,
                topics=[{"name": topic}],
                response_partition_limit=2,
                cursor=cursor,
            )
            (described,) = body.topics
            seen += [one.partition_index for one in described.partitions]
            if body.next_cursor is None:
                break
            cursor = {
                "topic_name": body.next_cursor.topic_name,
                "partition_index": body.next_cursor.partition_index,
            }
        assert seen == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(
        ("suffix", "index"), [("", -1), ("-other", 0)], ids=["negative", "not asked for"]
    )
    def test_describe_topic_partitions_refuses_a_bad_cursor(
        self, connection: Connection, topic: str, suffix: str, index: int
    ) -> None:
        connection.create_topic(topic)
        cursor = {"topic_name": topic + suffix, "partition_index": index}
        asked = {"topics": [{"name": topic}], "response_partition_limit": 2, "cursor": cursor}
        (described,) = connection.request("describe_topic_partitions", 0, **asked).topics
        assert (described.error_code, described.partitions) == (INVALID_REQUEST, ())


class TestTopics:
    def _create(self, connection: Connection, **new: Any) -> Any:
        body = connection.request("create_topics", 7, topics=[new], timeout=20_000)
        return body.topics[0]

    @pytest.mark.parametrize("name", ["a b", "", ".", "..", "x" * 250, "a/b"])
    def test_an_invalid_name(self, connection: Connection, name: str) -> None:
        answer = self._create(connection, name=name, num_partitions=1, replication_factor=1)
        assert answer.error_code == INVALID_TOPIC

    @pytest.mark.parametrize("count", [0, -2])
    def test_an_invalid_number_of_partitions(self, connection: Connection, topic: str, count: int) -> None:
        answer = self._create(connection, name=topic, num_partitions=count, replication_factor=1)
        assert answer.error_code == INVALID_PARTITIONS

    def test_a_billion_partitions(self, connection: Connection, topic: str) -> None:
        answer = self._create(connection, name=topic, num_partitions=1_000_000_000, replication_factor=1)
        assert answer.error_code in (INVALID_PARTITIONS, POLICY_VIOLATION)
        assert connection.metadata(topic).error_code == UNKNOWN_TOPIC_OR_PARTITION

    def test_a_billion_more_partitions(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        asked = [{"name": topic, "count": 1_000_000_000, "assignments": None}]
        (answer,) = connection.request("create_partitions", 3, topics=asked, timeout=20_000).results
        assert answer.error_code != 0
        assert len(connection.metadata(topic).partitions) == 1

    @pytest.mark.parametrize("factor", [0, 2, 100, -2])
    def test_an_impossible_replication_factor(self, connection: Connection, topic: str, factor: int) -> None:
        answer = self._create(connection, name=topic, num_partitions=1, replication_factor=factor)
        assert answer.error_code == INVALID_REPLICATION_FACTOR

    def test_defaults_for_minus_one(self, connection: Connection, topic: str) -> None:
        answer = self._create(connection, name=topic, num_partitions=-1, replication_factor=-1)
        assert (answer.error_code, answer.num_partitions, answer.replication_factor) == (0, 1, 1)

    def test_validate_only_creates_nothing(self, connection: Connection, topic: str) -> None:
        new = {"name": topic, "num_partitions": 2, "replication_factor": 1}
        body = connection.request("create_topics", 7, topics=[new], timeout=20_000, validate_only=True)
        assert body.topics[0].error_code == 0
        assert connection.metadata(topic).error_code == UNKNOWN_TOPIC_OR_PARTITION

    def test_a_manual_assignment(self, connection: Connection, topic: str) -> None:
        node = connection.request("metadata", 12, topics=[]).brokers[0].node_id
        assignments = [{"partition_index": index, "broker_ids": [node]} for index in range(2)]
        answer = self._create(
            connection, name=topic, num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        assert (answer.error_code, answer.num_partitions) == (0, 2)

    @pytest.mark.parametrize("indexes", [[1], [0, 2]])
    def test_a_manual_assignment_with_holes(
        self, connection: Connection, topic: str, indexes: list[int]
    ) -> None:
        node = connection.request("metadata", 12, topics=[]).brokers[0].node_id
        assignments = [{"partition_index": index, "broker_ids": [node]} for index in indexes]
        answer = self._create(
            connection, name=topic, num_partitions=-1, replication_factor=-1, assignments=assignments
        )
        assert answer.error_code == INVALID_REPLICA_ASSIGNMENT

    def test_the_same_name_twice_in_one_request(self, connection: Connection, topic: str) -> None:
        new = {"name": topic, "num_partitions": 1, "replication_factor": 1}
        body = connection.request("create_topics", 7, topics=[new, new], timeout=20_000)
        assert {one.error_code for one in body.topics} == {INVALID_REQUEST}
        assert connection.metadata(topic).error_code == UNKNOWN_TOPIC_OR_PARTITION

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("retention.ms", "soon"),
            ("no.such.config", "1"),
            ("cleanup.policy", "burn"),
            ("segment.bytes", "-5"),
            ("retention.ms", None),
        ],
    )
    def test_a_bad_config(self, connection: Connection, topic: str, name: str, value: str | None) -> None:
        configs = [{"name": name, "value": value}]
        answer = self._create(connection, name=topic, num_partitions=1, replication_factor=1, configs=configs)
        assert answer.error_code == INVALID_CONFIG
        assert connection.metadata(topic).error_code == UNKNOWN_TOPIC_OR_PARTITION

    def test_delete_by_unknown_name_and_id(self, connection: Connection, topic: str) -> None:
        asked = [{"name": topic, "topic_id": None}, {"name": None, "topic_id": uuid.uuid4()}]
        body = connection.request("delete_topics", 6, topics=asked, timeout=20_000)
        assert {one.error_code for one in body.responses} == {UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID}

    def test_delete_by_name_and_by_id_at_once_deletes_nothing(
        self, connection: Connection, topic: str
    ) -> None:
        topic_id = connection.create_topic(topic)
        asked = [{"name": topic, "topic_id": None}, {"name": None, "topic_id": topic_id}]
        (refused,) = connection.request("delete_topics", 6, topics=asked, timeout=20_000).responses
        assert (refused.name, refused.error_code) == (topic, INVALID_REQUEST)
        assert connection.metadata(topic).error_code == 0

    def test_delete_by_id(self, connection: Connection, topic: str) -> None:
        topic_id = connection.create_topic(topic)
        asked = [{"name": None, "topic_id": topic_id}]
        body = connection.request("delete_topics", 6, topics=asked, timeout=20_000)
        assert [one.error_code for one in body.responses] == [0]
        eventually(lambda: connection.metadata(topic).error_code == UNKNOWN_TOPIC_OR_PARTITION, "deleted")


class TestConfigs:
    def _describe(self, connection: Connection, kind: int, name: str, keys: Any = None) -> Any:
        asked = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
        body = connection.request("describe_configs", 4, resources=[asked], include_synonyms=True)
        return body.results[0]

    def _alter(self, connection: Connection, topic: str, *changes: tuple[str, int, str | None]) -> int:
        configs = [{"name": name, "config_operation": op, "value": value} for name, op, value in changes]
        asked = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": configs}
        body = connection.request("incremental_alter_configs", 1, resources=[asked])
        return int(body.responses[0].error_code)

    def test_the_broker_describes_its_listeners(self, connection: Connection) -> None:
        node = connection.request("metadata", 12, topics=[]).brokers[0].node_id
        result = self._describe(connection, BROKER_RESOURCE, str(node))
        assert result.error_code == 0
        names = {one.name for one in result.configs}
        assert names >= {"advertised.listeners", "listeners", "log.dirs", "node.id", "num.partitions"}
        assert names >= {"message.max.bytes", "log.retention.ms", "auto.create.topics.enable"}

    def test_sources_and_synonyms_of_a_topics_config(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic, configs={"retention.ms": "5000000"})
        result = self._describe(connection, TOPIC_RESOURCE, topic, ["retention.ms", "max.message.bytes"])
        entries = {one.name: one for one in result.configs}
        assert set(entries) == {"retention.ms", "max.message.bytes"}
        assert entries["retention.ms"].config_source == 1
        assert entries["retention.ms"].synonyms[0].name == "retention.ms"
        assert entries["max.message.bytes"].config_source == 5
        assert entries["max.message.bytes"].value == "1048588"

    def test_a_missing_topic(self, connection: Connection, topic: str) -> None:
        assert self._describe(connection, TOPIC_RESOURCE, topic).error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert self._alter(connection, topic, ("retention.ms", 0, "1")) == UNKNOWN_TOPIC_OR_PARTITION

    def test_one_bad_value_changes_nothing(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic)
        before = self._describe(connection, TOPIC_RESOURCE, topic)
        error = self._alter(connection, topic, ("retention.ms", 0, "1000"), ("segment.bytes", 0, "tiny"))
        assert error == INVALID_CONFIG
        assert self._describe(connection, TOPIC_RESOURCE, topic) == before

    def test_append_and_subtract_of_a_list(self, connection: Connection, topic: str) -> None:
        connection.create_topic(topic, configs={"cleanup.policy": "delete"})

        def policy() -> set[str]:
            result = self._describe(connection, TOPIC_RESOURCE, topic, ["cleanup.policy"])
            return set(result.configs[0].value.split(","))

        assert self._alter(connection, topic, ("cleanup.policy", 2, "compact")) == 0
        eventually(lambda: policy() == {"delete", "compact"}, "both policies")
        assert self._alter(connection, topic, ("cleanup.policy", 3, "delete")) == 0
        eventually(lambda: policy() == {"compact"}, "one policy")


class TestListOffsets:
    @pytest.fixture
    def filled(self, connection: Connection, topic: str) -> str:
        """Offsets 0..5 with timestamps 0, 10, 50, 60, 20, 30 seconds after the start, two in a batch."""
        connection.create_topic(topic)
        for first_s in (0, 50, 20):
            records = [Record(b"x"), Record(b"y", timestamp_delta_ms=10_000)]
            header = Header(base_timestamp_ms=NOW_MS - 3_600_000 + first_s * 1000)
            assert connection.produce(topic, encode(records, header)).error_code == 0
        return topic

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [(EARLIEST, 0), (LATEST, 6), (EARLIEST_LOCAL, 0)],
        ids=["earliest", "latest", "local"],
    )
    def test_list_offsets_returns_earliest_and_latest(
        self, connection: Connection, filled: str, asked: int, expected: int
    ) -> None:
        found = connection.list_offset(filled, asked, version=8)
        assert (found.error_code, found.offset) == (0, expected)

    @pytest.mark.parametrize("timestamp", [-7, -100])
    def test_unknown_special_timestamp_is_rejected(
        self, connection: Connection, filled: str, timestamp: int
    ) -> None:
        found = connection.list_offset(filled, timestamp, version=8)
        assert (found.error_code, found.offset) == (UNSUPPORTED_VERSION, -1)

    def test_a_partition_twice_in_one_request_is_refused_once(
        self, connection: Connection, filled: str
    ) -> None:
        twice = [{"partition_index": 0, "timestamp": asked} for asked in (EARLIEST, LATEST)]
        body = connection.request(
            "list_offsets", 8, replica_id=-1, topics=[{"name": filled, "partitions": twice}]
        )
        assert [one.error_code for one in body.topics[0].partitions] == [INVALID_REQUEST]

    def test_the_newest_timestamp(self, connection: Connection, filled: str) -> None:
        found = connection.list_offset(filled, NEWEST)
        assert (found.error_code, found.offset) == (0, 3)

    @pytest.mark.parametrize(
        ("second", "expected"), [(-1, 0), (0, 0), (1, 1), (10, 1), (11, 2), (55, 3), (60, 3), (61, -1)]
    )
    def test_by_timestamp(self, connection: Connection, filled: str, second: int, expected: int) -> None:
        found = connection.list_offset(filled, NOW_MS - 3_600_000 + second * 1000)
        assert (found.error_code, found.offset) == (0, expected)

    def test_an_unknown_partition_or_topic(self, connection: Connection, filled: str) -> None:
        assert connection.list_offset(filled, LATEST, partition=7).error_code == UNKNOWN_TOPIC_OR_PARTITION
        assert connection.list_offset("no-such-topic", LATEST).error_code == UNKNOWN_TOPIC_OR_PARTITION

    def test_read_committed_ends_at_the_last_stable_offset(self, connection: Connection, filled: str) -> None:
        place = {"partition_index": 0, "timestamp": LATEST}
        body = connection.request(
            "list_offsets",
            7,
            replica_id=-1,
            isolation_level=1,
            topics=[{"name": filled, "partitions": [place]}],
        )
        assert body.topics[0].partitions[0].offset == 6

    def test_a_newer_leader_epoch_than_ours(self, connection: Connection, filled: str) -> None:
        place = {"partition_index": 0, "timestamp": LATEST, "current_leader_epoch": 99}
        body = connection.request(
            "list_offsets", 7, replica_id=-1, topics=[{"name": filled, "partitions": [place]}]
        )
        assert body.topics[0].partitions[0].error_code == UNKNOWN_LEADER_EPOCH

    def test_offset_for_leader_epoch(self, connection: Connection, filled: str) -> None:
        places = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
        body = connection.request(
            "offset_for_leader_epoch", 4, replica_id=-1, topics=[{"topic": filled, "partitions": places}]
        )
        answer = body.topics[0].partitions[0]
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, 0, 6)

    def test_delete_records_beyond_the_end(self, connection: Connection, filled: str) -> None:
        asked = [{"name": filled, "partitions": [{"partition_index": 0, "offset": 7}]}]
        body = connection.request("delete_records", 2, topics=asked, timeout=20_000)
        assert body.topics[0].partitions[0].error_code == OFFSET_OUT_OF_RANGE
        assert connection.list_offset(filled, EARLIEST).offset == 0

    def test_log_dirs_know_the_partition(self, connection: Connection, filled: str) -> None:
        body = connection.request("describe_log_dirs", 4, topics=[{"topic": filled, "partitions": [0]}])
        sizes = [
            part.partition_size for one in body.results for topic in one.topics for part in topic.partitions
        ]
        assert len(sizes) == 1
        assert sizes[0] > 0
