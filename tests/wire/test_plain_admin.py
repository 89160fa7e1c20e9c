"""What a Kafka without authorizer, quotas and further directories serves: loggers, directories, lists of resources."""

from __future__ import annotations

import uuid
import zlib
from typing import Any

import pytest

from tests.brokers import eventually
from tests.wire.connection import Connection

NONE, UNKNOWN_TOPIC, INVALID_REQUEST, LOG_DIR_NOT_FOUND, RESOURCE_NOT_FOUND = 0, 3, 42, 57, 91
INVALID_RECORD, THROTTLED, UNKNOWN_SUBSCRIPTION = 87, 89, 117
TOPIC, BROKER, LOGGER, CLIENT_METRICS = 2, 4, 8, 16
SET = 0


def alter(connection: Connection, kind: int, name: str, **configs: str) -> Any:
    entries = [
        {"name": key.replace("_", "."), "config_operation": SET, "value": value}
        for key, value in configs.items()
    ]
    change = {"resource_type": kind, "resource_name": name, "configs": entries}
    (response,) = connection.request("incremental_alter_configs", 1, resources=[change]).responses
    return response


def described(connection: Connection, kind: int, name: str) -> dict[str, str | None]:
    asked = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    (result,) = connection.request("describe_configs", 4, resources=[asked]).results
    assert result.error_code == NONE, result
    return {each.name: each.value for each in result.configs}


def test_a_logger_has_its_level_changed_beside_a_topic_in_one_request(
    connection: Connection, topic: str
) -> None:
    connection.create_topic(topic)
    assert described(connection, LOGGER, "1")["tidemill.broker.partitions.fetchers"] == "INFO"
    level = {"name": "tidemill.broker.partitions.fetchers", "config_operation": SET, "value": "ERROR"}
    retention = {"name": "retention.ms", "config_operation": SET, "value": "77"}
    response = connection.request(
        "incremental_alter_configs",
        1,
        resources=[
            {"resource_type": LOGGER, "resource_name": "1", "configs": [level]},
            {"resource_type": TOPIC, "resource_name": topic, "configs": [retention]},
            {"resource_type": LOGGER, "resource_name": "2", "configs": [level]},
        ],
    )
    assert [each.error_code for each in response.responses] == [NONE, NONE, INVALID_REQUEST]
    assert [each.resource_name for each in response.responses] == ["1", topic, "2"]
    assert described(connection, LOGGER, "1")["tidemill.broker.partitions.fetchers"] == "ERROR"
    eventually(lambda: described(connection, TOPIC, topic)["retention.ms"] == "77", "the topic's setting")
    alter(connection, LOGGER, "1", tidemill_broker_fetchers="INFO")


def test_replicas_are_in_the_only_directory(connection: Connection, topic: str) -> None:
    connection.create_topic(topic, 2)
    own = connection.request("describe_log_dirs", 4, topics=None).results[0].log_dir

    def moved(path: str, name: str, *indexes: int) -> list[int]:
        dirs = [{"path": path, "topics": [{"name": name, "partitions": list(indexes)}]}]
        response = connection.request("alter_replica_log_dirs", 2, dirs=dirs)
        return [part.error_code for each in response.results for part in each.partitions]

    assert moved(own, topic, 0, 1) == [NONE, NONE]
    assert moved("/no/such/dir", topic, 0, 1) == [LOG_DIR_NOT_FOUND] * 2
    assert moved(own, topic, 9) == [UNKNOWN_TOPIC]


def test_resources_are_listed_by_type(connection: Connection, topic: str) -> None:
    connection.create_topic(topic)
    assert alter(connection, CLIENT_METRICS, topic, interval_ms="1000").error_code == NONE

    def listed(*kinds: int) -> set[tuple[int, str]]:
        response = connection.request("list_config_resources", 1, resource_types=list(kinds))
        assert response.error_code == NONE
        return {(each.resource_type, each.resource_name) for each in response.config_resources}

    eventually(lambda: (CLIENT_METRICS, topic) in listed(CLIENT_METRICS), "the subscription")
    assert (TOPIC, topic) in listed(TOPIC)
    assert listed(BROKER, LOGGER) == {(BROKER, "1"), (LOGGER, "1")}
    assert listed() >= {(TOPIC, topic), (BROKER, "1"), (LOGGER, "1"), (CLIENT_METRICS, topic)}
    assert connection.request("list_config_resources", 1, resource_types=[77]).error_code == 35


def test_there_are_no_quotas_and_no_scram_users(connection: Connection) -> None:
    assert connection.request("describe_client_quotas", 1, components=[], strict=False).entries == ()
    assert connection.request("describe_user_scram_credentials", 0, users=None).results == ()
    (missing,) = connection.request("describe_user_scram_credentials", 0, users=[{"name": "eve"}]).results
    assert (missing.user, missing.error_code) == ("eve", RESOURCE_NOT_FOUND)


@pytest.mark.parametrize("kinds", [("ip", "user"), ("planet",), ("user", "user"), ("",)])
def test_a_filter_of_quotas_that_means_nothing_is_refused(
    connection: Connection, kinds: tuple[str, ...]
) -> None:
    components = [{"entity_type": kind, "match_type": 2, "match": None} for kind in kinds]
    response = connection.request("describe_client_quotas", 1, components=components, strict=False)
    assert response.error_code != NONE


class TestTelemetry:
    def test_a_push_is_checked_before_it_is_read(self, connection: Connection, topic: str) -> None:
        assert alter(connection, CLIENT_METRICS, topic, metrics="*", interval_ms="100").error_code == NONE
        zero = uuid.UUID(int=0)

        def subscribed() -> Any:
            found = connection.request("get_telemetry_subscriptions", 0, client_instance_id=zero)
            return found if found.requested_metrics else None

        subscription = eventually(subscribed, "the subscription")
        assert (subscription.error_code, subscription.requested_metrics) == (NONE, ("*",))
        assert subscription.accepted_compression_types == (4, 3, 1, 2)
        own = subscription.client_instance_id

        def push(instance_id: uuid.UUID, number: int, metrics: bytes, codec: int = 0) -> int:
            answer = connection.request(
                "push_telemetry",
                0,
                client_instance_id=instance_id,
                subscription_id=number,
                terminating=False,
                compression_type=codec,
                metrics=metrics,
            )
            return int(answer.error_code)

        assert push(zero, subscription.subscription_id, b"") == INVALID_REQUEST
        assert push(own, subscription.subscription_id, b"\xff" * 20) == INVALID_RECORD
        assert push(own, subscription.subscription_id, b"") == THROTTLED
        other = uuid.uuid4()
        assert push(other, 1, b"") == UNKNOWN_SUBSCRIPTION
        # A bomb: 64 MiB of zeros, of which no more is expanded than a push may have.
        bomb = zlib.compress(bytes(1 << 26), 9, wbits=31)
        again = eventually(subscribed, "the subscription")
        assert push(again.client_instance_id, again.subscription_id, bomb, codec=1) == INVALID_RECORD
