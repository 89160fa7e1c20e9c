"""Alterations of configurations: all or nothing per resource, and their error codes.

Most requests were also sent to Apache Kafka 4.3 and got the same codes. Differences: Kafka answers an unknown
operation with UNKNOWN_SERVER_ERROR, and gives no answer at all to an AlterConfigs in which a resource occurs
twice. Kafka returns INVALID_REQUEST for another broker than the one that got the request. Here the handler checks that,
and the controller returns BROKER_ID_NOT_REGISTERED.
"""

from __future__ import annotations

import pytest

from tests.unit.controller.cluster import Cluster, creatable
from tidemill.controller.image import CLUSTER_DEFAULT, ConfigResource, ResourceType
from tidemill.errors import ErrorCode
from tidemill.protocol.api.admin import (
    AlterConfigsAlterableConfig,
    AlterConfigsAlterConfigsResource,
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4
BROKER_1 = ConfigResource(ResourceType.BROKER, "1")
# The settings that the first controller of a cluster writes.
AT_FIRST = {CLUSTER_DEFAULT: {"min.insync.replicas": "1"}}
Op = tuple[str, int, str | None]


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(node_id=1)
    cluster.create(creatable("t"))
    return cluster


def alter(
    cluster: Cluster, *resources: tuple[int, str, list[Op]], validate_only: bool = False
) -> list[AlterConfigsResourceResponse]:
    request = IncrementalAlterConfigsRequest(
        resources=[
            IncrementalAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    IncrementalAlterConfigsAlterableConfig(name=key, config_operation=operation, value=value)
                    for key, operation, value in operations
                ],
            )
            for kind, name, operations in resources
        ],
        validate_only=validate_only,
    )
    responses: list[AlterConfigsResourceResponse] = cluster.ask(request).responses
    return responses


def alter_all(
    cluster: Cluster, *resources: tuple[int, str, list[tuple[str, str | None]]], validate_only: bool = False
) -> list[AlterConfigsResourceResponse]:
    request = AlterConfigsRequest(
        resources=[
            AlterConfigsAlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterConfigsAlterableConfig(name=key, value=value) for key, value in configs],
            )
            for kind, name, configs in resources
        ],
        validate_only=validate_only,
    )
    responses: list[AlterConfigsResourceResponse] = cluster.ask(request).responses
    return responses


def test_set_and_delete(cluster: Cluster) -> None:
    (response,) = alter(cluster, (TOPIC, "t", [("retention.ms", SET, "5"), ("flush.ms", SET, "6")]))
    assert response.error_code == ErrorCode.NONE
    assert (response.resource_type, response.resource_name) == (TOPIC, "t")
    assert cluster.image.topic_config("t") == {"retention.ms": "5", "flush.ms": "6"}
    alter(cluster, (TOPIC, "t", [("retention.ms", DELETE, "junk")]))
    assert cluster.image.topic_config("t") == {"flush.ms": "6"}
    alter(cluster, (TOPIC, "t", [("flush.ms", DELETE, None), ("never.set", DELETE, None)]))
    assert cluster.image.configs == AT_FIRST


def test_append_and_subtract_start_from_the_default(cluster: Cluster) -> None:
    alter(cluster, (TOPIC, "t", [("cleanup.policy", APPEND, "compact")]))
    assert cluster.image.topic_config("t") == {"cleanup.policy": "delete,compact"}
    alter(cluster, (TOPIC, "t", [("cleanup.policy", APPEND, "compact")]))
    assert cluster.image.topic_config("t") == {"cleanup.policy": "delete,compact"}
    alter(cluster, (TOPIC, "t", [("cleanup.policy", SUBTRACT, "delete")]))
    assert cluster.image.topic_config("t") == {"cleanup.policy": "compact"}
    alter(cluster, (TOPIC, "t", [("cleanup.policy", SUBTRACT, "compact")]))
    assert cluster.image.topic_config("t") == {"cleanup.policy": ""}


def test_unchanged_topic_value_writes_no_record(cluster: Cluster) -> None:
    alter(cluster, (TOPIC, "t", [("retention.ms", SET, "5")]))
    before = cluster.image
    alter(cluster, (TOPIC, "t", [("retention.ms", SET, "5")]))
    assert cluster.image is before


def test_unchanged_broker_value_is_written_again(cluster: Cluster) -> None:
    alter(cluster, (BROKER, "1", [("log.retention.ms", SET, "5")]))
    before = cluster.image.end_offset
    alter(cluster, (BROKER, "1", [("log.retention.ms", SET, "5")]))
    assert cluster.image.end_offset == before + 1


@pytest.mark.parametrize(
    ("kind", "name", "operations", "code"),
    [
        (TOPIC, "t", [("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("nope", SET, "x")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", APPEND, "5")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SUBTRACT, "5")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("nope", APPEND, "5")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("cleanup.policy", APPEND, "zzz")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, "5"), ("segment.bytes", SET, "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "zz", [("retention.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "zz", [("retention.ms", DELETE, None)], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "zz", [], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "zz", [("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "", [("retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (TOPIC, "bad name", [("retention.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "1", [("log.retention.ms", SET, "x")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("log.retention.ms", SET, "0")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("node.id", SET, "5")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("log.retention.hours", SET, "7")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("foo.bar", APPEND, "5")], ErrorCode.INVALID_CONFIG),
        (BROKER, "1", [("log.retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("log.retention.ms", APPEND, "5")], ErrorCode.INVALID_CONFIG),
        (BROKER, "", [("listeners", SET, "PLAINTEXT://:1")], ErrorCode.INVALID_REQUEST),
        (BROKER, "", [("log.segment.bytes", SET, "5")], ErrorCode.INVALID_REQUEST),
        (BROKER, "2", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BROKER, "x", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BROKER, "-1", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("ssl.client.auth", SET, "required")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("sasl.enabled.mechanisms", APPEND, "PLAIN")], ErrorCode.INVALID_REQUEST),
        (9, "t", [("x", SET, "1")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_refused_and_nothing_changes(
    cluster: Cluster, kind: int, name: str, operations: list[Op], code: ErrorCode
) -> None:
    before = cluster.image
    (response,) = alter(cluster, (kind, name, operations))
    assert response.error_code == code
    assert response.error_message
    assert cluster.image is before


def test_values_that_have_to_agree_are_checked_together(cluster: Cluster) -> None:
    alter(cluster, (TOPIC, "t", [("max.compaction.lag.ms", SET, "5")]))
    (response,) = alter(cluster, (TOPIC, "t", [("min.compaction.lag.ms", SET, "6")]))
    assert response.error_code == ErrorCode.INVALID_CONFIG


def test_each_resource_stands_alone(cluster: Cluster) -> None:
    responses = alter(
        cluster, (TOPIC, "t", [("retention.ms", SET, "5")]), (TOPIC, "zz", [("retention.ms", SET, "5")])
    )
    assert [each.error_code for each in responses] == [ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert cluster.image.topic_config("t") == {"retention.ms": "5"}


def test_a_resource_may_occur_once(cluster: Cluster) -> None:
    responses = alter(cluster, (TOPIC, "t", [("retention.ms", SET, "5")]), (TOPIC, "t", []))
    assert [each.error_code for each in responses] == [ErrorCode.INVALID_REQUEST] * 2
    assert cluster.image.configs == AT_FIRST


def test_validate_only_changes_nothing(cluster: Cluster) -> None:
    (good,) = alter(cluster, (TOPIC, "t", [("retention.ms", SET, "5")]), validate_only=True)
    (bad,) = alter(cluster, (TOPIC, "t", [("retention.ms", SET, "x")]), validate_only=True)
    assert (good.error_code, bad.error_code) == (ErrorCode.NONE, ErrorCode.INVALID_CONFIG)
    alter_all(cluster, (TOPIC, "t", [("retention.ms", "5")]), validate_only=True)
    assert cluster.image.configs == AT_FIRST


def test_brokers_and_the_default_of_all_brokers(cluster: Cluster) -> None:
    alter(cluster, (BROKER, "", [("log.retention.ms", SET, "5")]))
    alter(cluster, (BROKER, "1", [("log.retention.ms", SET, "6"), ("node.id", DELETE, None)]))
    assert cluster.image.config(CLUSTER_DEFAULT) == {"min.insync.replicas": "1", "log.retention.ms": "5"}
    assert cluster.image.config(BROKER_1) == {"log.retention.ms": "6"}
    (result,) = cluster.create(creatable("u"), validate_only=True)
    retention = next(config for config in result.configs or [] if config.name == "retention.ms")
    assert retention.value == "6"


def test_broker_settings_that_no_table_has_are_kept(cluster: Cluster) -> None:
    alter(cluster, (BROKER, "1", [("foo.bar", SET, "5")]), (BROKER, "", [("foo.all", SET, "6")]))
    assert cluster.image.config(BROKER_1) == {"foo.bar": "5"}
    assert cluster.image.config(CLUSTER_DEFAULT)["foo.all"] == "6"
    alter(cluster, (BROKER, "1", [("log.retention.ms", SET, "6"), ("foo.bar", DELETE, None)]))
    assert cluster.image.config(BROKER_1) == {"log.retention.ms": "6"}


def test_legacy_alteration_replaces_everything(cluster: Cluster) -> None:
    alter(cluster, (TOPIC, "t", [("retention.ms", SET, "5"), ("flush.ms", SET, "6")]))
    (response,) = alter_all(cluster, (TOPIC, "t", [("segment.ms", "7")]))
    assert response.error_code == ErrorCode.NONE
    assert cluster.image.topic_config("t") == {"segment.ms": "7"}
    alter_all(cluster, (TOPIC, "t", []))
    assert cluster.image.configs == AT_FIRST


@pytest.mark.parametrize(
    ("kind", "name", "configs", "code"),
    [
        (TOPIC, "t", [("retention.ms", None)], ErrorCode.INVALID_REQUEST),
        (TOPIC, "t", [("nope", "1")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "t", [("retention.ms", "x")], ErrorCode.INVALID_CONFIG),
        (TOPIC, "zz", [("retention.ms", "6")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "t", [("retention.ms", "6"), ("retention.ms", "7")], ErrorCode.INVALID_REQUEST),
        (BROKER, "1", [("node.id", "5")], ErrorCode.INVALID_REQUEST),
    ],
)
def test_legacy_refused(
    cluster: Cluster, kind: int, name: str, configs: list[tuple[str, str | None]], code: ErrorCode
) -> None:
    alter(cluster, (TOPIC, "t", [("flush.ms", SET, "6")]))
    (response,) = alter_all(cluster, (kind, name, configs))
    assert response.error_code == code
    assert cluster.image.topic_config("t") == {"flush.ms": "6"}


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("1", "2", ErrorCode.INVALID_CONFIG),
        ("", "2", ErrorCode.NONE),
        ("", None, ErrorCode.INVALID_CONFIG),
    ],
)
def test_min_insync_replicas_is_one_number_for_all_brokers(
    cluster: Cluster, name: str, value: str | None, code: ErrorCode
) -> None:
    operation = DELETE if value is None else SET
    (response,) = alter(cluster, (BROKER, name, [("min.insync.replicas", operation, value)]))
    assert response.error_code == code
    expected = value if code == ErrorCode.NONE else "1"
    assert cluster.image.configs == {CLUSTER_DEFAULT: {"min.insync.replicas": expected}}
    (response,) = alter_all(cluster, (BROKER, "", []))
    assert response.error_code == ErrorCode.INVALID_CONFIG
