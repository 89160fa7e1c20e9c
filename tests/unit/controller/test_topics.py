"""Topics: every rule and its error code.

Most requests were also sent to Apache Kafka 4.3 with one live broker, and got the same codes. Kafka differs, on
purpose here, in two: it creates both of two colliding names when they come in one request, and answers too many
added partitions with UNKNOWN_SERVER_ERROR. Cases with several or with fenced brokers were not tried on it.
"""

from __future__ import annotations

import pytest

from tests.unit.controller.cluster import Cluster, creatable, directory
from tidemill.config import ConfigSource
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicState,
)
from tidemill.types import NO_TOPIC_ID


def delete(cluster: Cluster, *states: DeleteTopicState) -> list[DeletableTopicResult]:
    results: list[DeletableTopicResult] = cluster.ask(DeleteTopicsRequest(topics=list(states))).responses
    return results


def grow(
    cluster: Cluster,
    *wanted: tuple[str, int, list[list[int]] | None],
    validate_only: bool = False,
) -> list[CreatePartitionsTopicResult]:
    request = CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=total,
                assignments=None
                if assignments is None
                else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
            )
            for name, total, assignments in wanted
        ],
        validate_only=validate_only,
    )
    results: list[CreatePartitionsTopicResult] = cluster.ask(request).results
    return results


class TestCreate:
    def test_a_new_topic(self) -> None:
        cluster = Cluster(brokers=3)
        (result,) = cluster.create(creatable("t", 6, 2))
        assert result.error_code == ErrorCode.NONE
        assert result.error_message is None
        assert (result.num_partitions, result.replication_factor) == (6, 2)
        topic = cluster.image.topics_by_name["t"]
        assert topic.id == result.topic_id != NO_TOPIC_ID
        assert cluster.image.topics_by_id[topic.id] is topic
        assert len(topic.partitions) == 6
        for partition in topic.partitions:
            assert partition.leader == partition.replicas[0]
            assert partition.isr == partition.replicas
            assert (partition.leader_epoch, partition.partition_epoch) == (0, 0)

    def test_defaults_of_the_cluster(self) -> None:
        cluster = Cluster(brokers=2, num_partitions="4", default_replication_factor="2")
        (result,) = cluster.create(creatable("t"))
        assert (result.num_partitions, result.replication_factor) == (4, 2)

    def test_validate_only_changes_nothing(self) -> None:
        cluster = Cluster()
        (result,) = cluster.create(creatable("t", 2), validate_only=True)
        assert result.error_code == ErrorCode.NONE
        assert result.num_partitions == 2
        assert not cluster.image.topics_by_name

    def test_configs_are_stored_and_answered(self) -> None:
        cluster = Cluster(log_retention_hours="100")
        (result,) = cluster.create(creatable("t", configs={"cleanup.policy": "compact"}))
        assert cluster.image.topic_config("t") == {"cleanup.policy": "compact"}
        configs = {config.name: config for config in result.configs or []}
        assert list(configs) == sorted(configs)
        assert configs["cleanup.policy"].value == "compact"
        assert configs["cleanup.policy"].config_source == ConfigSource.DYNAMIC_TOPIC_CONFIG
        assert configs["retention.ms"].value == "360000000"
        assert configs["retention.ms"].config_source == ConfigSource.STATIC_BROKER_CONFIG
        assert configs["segment.ms"].config_source == ConfigSource.DEFAULT_CONFIG

    @pytest.mark.parametrize(
        ("topic", "code"),
        [
            (creatable(""), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("."), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable(".."), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("sp ace"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("é"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("a/b"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("a\n"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("old_name"), ErrorCode.INVALID_TOPIC_EXCEPTION),
            (creatable("old.name"), ErrorCode.TOPIC_ALREADY_EXISTS),
            (creatable("old.name", -5, -5), ErrorCode.TOPIC_ALREADY_EXISTS),
            (creatable("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
            (creatable("t", 1, -2), ErrorCode.INVALID_REPLICATION_FACTOR),
            (creatable("t", 1, 4), ErrorCode.INVALID_REPLICATION_FACTOR),
            (creatable("t", 0, 1), ErrorCode.INVALID_PARTITIONS),
            (creatable("t", -2, 1), ErrorCode.INVALID_PARTITIONS),
            (creatable("t", 0, 0), ErrorCode.INVALID_REPLICATION_FACTOR),
            (creatable("t", 10_001, 1), ErrorCode.POLICY_VIOLATION),
            (creatable("t", 1_000_000_000, 1), ErrorCode.POLICY_VIOLATION),
            (creatable("t", 1, -1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
            (creatable("t", -1, 1, [(0, [1])]), ErrorCode.INVALID_REQUEST),
            (creatable("t", assignments=[(0, [1]), (2, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", assignments=[(1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", assignments=[(-1, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", assignments=[(0, [1]), (0, [1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", assignments=[(0, [])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", assignments=[(0, [1, 1])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", assignments=[(0, [9])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", assignments=[(0, [1]), (1, [1, 2])]), ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            (creatable("t", configs={"nope": "1"}), ErrorCode.INVALID_CONFIG),
            (creatable("t", configs={"retention.ms": "x"}), ErrorCode.INVALID_CONFIG),
            (creatable("t", configs={"retention.ms": None}), ErrorCode.INVALID_CONFIG),
            (creatable("t", 0, 0, configs={"retention.ms": "x"}), ErrorCode.INVALID_CONFIG),
            (creatable("t", configs={"remote.storage.enable": "true"}), ErrorCode.INVALID_CONFIG),
            (creatable("__cluster_metadata"), ErrorCode.INVALID_REQUEST),
        ],
    )
    def test_refused(self, topic: CreatableTopic, code: ErrorCode) -> None:
        cluster = Cluster(brokers=3)
        cluster.create(creatable("old.name"))
        before = cluster.image
        (result,) = cluster.create(topic)
        assert result.error_code == code
        assert result.error_message
        assert (result.num_partitions, result.replication_factor) == (-1, -1)
        assert result.topic_id == NO_TOPIC_ID
        assert cluster.image is before

    def test_longest_name(self) -> None:
        (result,) = Cluster().create(creatable("x" * 249))
        assert result.error_code == ErrorCode.NONE

    def test_twice_in_one_request_is_refused_once_and_the_others_go_on(self) -> None:
        cluster = Cluster()
        results = cluster.create(creatable("d"), creatable("d"), creatable("ok"))
        assert [(result.name, result.error_code) for result in results] == [
            ("ok", ErrorCode.NONE),
            ("d", ErrorCode.INVALID_REQUEST),
        ]
        assert list(cluster.image.topics_by_name) == ["ok"]

    def test_names_of_one_request_may_not_collide(self) -> None:
        results = Cluster().create(creatable("a.b"), creatable("a_b"))
        assert [result.error_code for result in results] == [
            ErrorCode.NONE,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]

    def test_too_many_partitions_in_sum_refuse_the_whole_request(self) -> None:
        cluster = Cluster()
        results = cluster.create(creatable("a", 9_999), creatable("b", 2))
        assert [result.error_code for result in results] == [ErrorCode.POLICY_VIOLATION] * 2
        assert not cluster.image.topics_by_name

    @pytest.mark.parametrize("validate_only", [False, True])
    def test_too_many_records_refuse_the_whole_request(self, validate_only: bool) -> None:
        """A topic has a record beside those of its partitions."""
        cluster = Cluster()
        wanted = [creatable(f"t{number}", 1) for number in range(5_001)]
        reply = cluster.ask(CreateTopicsRequest(topics=wanted, validate_only=validate_only))
        assert [result.error_code for result in reply.topics] == [ErrorCode.POLICY_VIOLATION] * 5_001
        assert not cluster.image.topics_by_name
        reply = cluster.ask(CreateTopicsRequest(topics=wanted[1:], validate_only=validate_only))
        assert {result.error_code for result in reply.topics} == {ErrorCode.NONE}

    def test_manual_assignment(self) -> None:
        cluster = Cluster(brokers=3)
        (result,) = cluster.create(creatable("t", assignments=[(1, [3, 1]), (0, [2, 3])]))
        assert (result.num_partitions, result.replication_factor) == (2, 2)
        assert [each.replicas for each in cluster.image.topics_by_name["t"].partitions] == [(2, 3), (3, 1)]

    def test_fenced_replicas_are_not_in_sync_and_do_not_lead(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.beat(1, want_fence=True)
        cluster.create(creatable("t", assignments=[(0, [1, 2])]))
        partition = cluster.image.partition("t", 0)
        assert partition is not None
        assert (partition.replicas, partition.isr, partition.leader) == ((1, 2), (2,), 2)

    def test_assignment_to_fenced_brokers_only(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.beat(1, want_fence=True)
        (result,) = cluster.create(creatable("t", assignments=[(0, [1])]))
        assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_no_broker_alive(self) -> None:
        cluster = Cluster()
        cluster.beat(1, want_fence=True)
        (result,) = cluster.create(creatable("t"))
        assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR

    def test_reserved_and_used_ids_are_skipped(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("a"))
        used = cluster.image.topics_by_name["a"].id
        drawn = iter([bytes(16), used, b"n" * 16])
        cluster.new_uuid = lambda: next(drawn)  # type: ignore[method-assign]
        (result,) = cluster.create(creatable("b"))
        assert result.topic_id == b"n" * 16


class TestDelete:
    def test_by_name_and_by_id(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("a", configs={"retention.ms": "5"}), creatable("b"), creatable("c"))
        b_id = cluster.image.topics_by_name["b"].id
        results = delete(cluster, DeleteTopicState(name="a"), DeleteTopicState(topic_id=b_id))
        assert [(each.name, each.error_code) for each in results] == [("a", 0), ("b", 0)]
        assert all(each.topic_id != NO_TOPIC_ID for each in results)
        assert list(cluster.image.topics_by_name) == ["c"]
        assert cluster.image.topic_config("a") == {}

    def test_old_form_of_the_request(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("a"))
        request = DeleteTopicsRequest(topic_names=["a", "zz"])
        results = cluster.ask(request).responses
        assert [each.error_code for each in results] == [
            ErrorCode.NONE,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ]

    def test_unknown(self) -> None:
        results = delete(Cluster(), DeleteTopicState(name="zz"), DeleteTopicState(topic_id=b"7" * 16))
        assert [each.error_code for each in results] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ]
        assert (results[1].name, results[1].topic_id) == (None, b"7" * 16)

    def test_malformed(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("a"), creatable("b"))
        a_id = cluster.image.topics_by_name["a"].id
        for states, answers in (
            ([DeleteTopicState()], 1),
            ([DeleteTopicState(), DeleteTopicState()], 2),
            ([DeleteTopicState(name="a", topic_id=a_id)], 1),
            ([DeleteTopicState(name="a"), DeleteTopicState(name="a")], 1),
            ([DeleteTopicState(topic_id=b"7" * 16), DeleteTopicState(topic_id=b"7" * 16)], 1),
        ):
            results = delete(cluster, *states)
            assert [each.error_code for each in results] == [ErrorCode.INVALID_REQUEST] * answers
        assert set(cluster.image.topics_by_name) == {"a", "b"}

    @pytest.mark.parametrize("id_first", [False, True])
    def test_the_same_topic_by_name_and_by_id_is_refused_and_stays(self, id_first: bool) -> None:
        cluster = Cluster()
        cluster.create(creatable("a"), creatable("b"))
        a_id = cluster.image.topics_by_name["a"].id
        states = [DeleteTopicState(name="a"), DeleteTopicState(topic_id=a_id)]
        results = delete(cluster, *(reversed(states) if id_first else states), DeleteTopicState(name="b"))
        assert [(each.name, each.topic_id == a_id, each.error_code) for each in results] == [
            ("a", True, ErrorCode.INVALID_REQUEST),
            ("b", False, ErrorCode.NONE),
        ]
        assert list(cluster.image.topics_by_name) == ["a"]

    def test_recreated_topic_has_another_id_and_no_configs(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("a", 3, configs={"retention.ms": "5"}))
        old_id = cluster.image.topics_by_name["a"].id
        delete(cluster, DeleteTopicState(name="a"))
        cluster.create(creatable("a", 1))
        topic = cluster.image.topics_by_name["a"]
        assert topic.id != old_id
        assert len(topic.partitions) == 1
        assert old_id not in cluster.image.topics_by_id
        assert cluster.image.topic_config("a") == {}


class TestCreatePartitions:
    def test_added_partitions_spread_with_the_old_ones(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.create(creatable("t", 1, 1))
        old = cluster.image.partition("t", 0)
        (result,) = grow(cluster, ("t", 3, None))
        assert result.error_code == ErrorCode.NONE
        partitions = cluster.image.topics_by_name["t"].partitions
        assert partitions[0] is old
        assert {partition.leader for partition in partitions} == {1, 2, 3}

    def test_manual_assignment(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.create(creatable("t", 1, 2))
        (result,) = grow(cluster, ("t", 3, [[1, 2], [3, 1]]))
        assert result.error_code == ErrorCode.NONE
        assert [each.replicas for each in cluster.image.topics_by_name["t"].partitions[1:]] == [
            (1, 2),
            (3, 1),
        ]

    def test_validate_only_changes_nothing(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("t", 1))
        (result,) = grow(cluster, ("t", 5, None), validate_only=True)
        assert result.error_code == ErrorCode.NONE
        assert len(cluster.image.topics_by_name["t"].partitions) == 1

    @pytest.mark.parametrize(
        ("name", "total", "assignments", "code"),
        [
            ("zz", 2, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("", 2, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("t", 2, None, ErrorCode.INVALID_PARTITIONS),
            ("t", 1, None, ErrorCode.INVALID_PARTITIONS),
            ("t", 0, None, ErrorCode.INVALID_PARTITIONS),
            ("t", -1, None, ErrorCode.INVALID_PARTITIONS),
            ("t", 1_000_000_000, None, ErrorCode.POLICY_VIOLATION),
            ("t", 4, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ("t", 3, [], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ("t", 3, [[]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ("t", 3, [[9]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ("t", 3, [[1, 1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ("t", 3, [[1, 2]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ],
    )
    def test_refused(
        self, name: str, total: int, assignments: list[list[int]] | None, code: ErrorCode
    ) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", 2, 1))
        (result,) = grow(cluster, (name, total, assignments))
        assert result.error_code == code
        assert result.error_message
        assert len(cluster.image.topics_by_name["t"].partitions) == 2

    def test_twice_in_one_request(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("t", 1))
        (result,) = grow(cluster, ("t", 2, None), ("t", 3, None))
        assert result.error_code == ErrorCode.INVALID_REQUEST

    def test_too_many_in_sum(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("a", 1), creatable("b", 1))
        results = grow(cluster, ("a", 8_000, None), ("b", 8_000, None))
        assert [each.error_code for each in results] == [ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]

    def test_brokers_that_are_gone(self) -> None:
        cluster = Cluster()
        cluster.create(creatable("t", 1))
        cluster.beat(1, want_fence=True)
        (result,) = grow(cluster, ("t", 2, None))
        assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_4000_partitions_and_4000_topics() -> None:
    cluster = Cluster(brokers=3)
    (result,) = cluster.create(creatable("wide", 4_000, 3))
    assert result.error_code == ErrorCode.NONE
    assert len(cluster.image.topics_by_name["wide"].partitions) == 4_000
    results = cluster.create(*(creatable(f"t{index}", 1, 1) for index in range(4_000)))
    assert {each.error_code for each in results} == {ErrorCode.NONE}
    assert len(cluster.image.topics_by_id) == 4_001


class TestOnManyBrokers:
    def test_fenced_brokers_hold_replicas_only_when_needed_and_are_not_in_sync(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.fence(2)
        cluster.create(creatable("two", 6, 2), creatable("three", 6, 3))
        for partition in cluster.image.topics_by_name["two"].partitions:
            assert set(partition.replicas) == {1, 3}
        for partition in cluster.image.topics_by_name["three"].partitions:
            assert set(partition.isr) == {1, 3}
            assert partition.leader == partition.replicas[0]

    def test_brokers_that_are_leaving_get_nothing_new(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.create(creatable("t", assignments=[(0, [2, 1])]))
        assert not cluster.beat(2, want_shut_down=True).should_shut_down
        (result,) = cluster.create(creatable("u", 4, 2))
        assert result.error_code == ErrorCode.INVALID_REPLICATION_FACTOR
        cluster.create(creatable("u", 4, 1))
        assert all(each.replicas == (1,) for each in cluster.image.topics_by_name["u"].partitions)

    def test_a_manual_assignment_is_in_sync_where_brokers_are_alive(self) -> None:
        cluster = Cluster(brokers=3)
        cluster.fence(1)
        cluster.create(creatable("t", assignments=[(0, [1, 2, 3])]))
        assert cluster.state() == (2, (2, 3), ())
        (refused,) = cluster.create(creatable("u", assignments=[(0, [1])]))
        assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT

    def test_the_directory_of_each_replica_is_written_down(self) -> None:
        cluster = Cluster(brokers=2)
        cluster.join(3, log_dirs=[b"a" * 16, b"b" * 16])
        cluster.create(creatable("t", assignments=[(0, [1, 3, 2])]))
        assert cluster.partition().directories == (directory(1), bytes(16), directory(2))


@pytest.mark.parametrize(
    ("version", "code"), [(1, ErrorCode.INVALID_REQUEST), (6, ErrorCode.TOPIC_DELETION_DISABLED)]
)
def test_deletion_may_be_switched_off(version: int, code: ErrorCode) -> None:
    cluster = Cluster(delete_topic_enable="false")
    cluster.create(creatable("t"))
    request = DeleteTopicsRequest()
    if version < 6:
        request.topic_names = ["t"]
    else:
        request.topics = [DeleteTopicState(name="t")]
    (result,) = cluster.ask(request, version).responses
    assert (result.name, result.error_code) == ("t", code)
    assert "t" in cluster.image.topics_by_name
