"""v3: clusters, brokers, topics, partitions, replicas and their configurations, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
import pytest

from tests.gateway.conftest import Gateway, start_gateway
from tidemill.gateway.settings import Settings
from tidemill.testing import InProcessCluster


@pytest.fixture
def v3(gateway: Gateway) -> str:
    return gateway.v3


def error_code(response: httpx.Response) -> tuple[int, int]:
    body = response.json()
    assert body.keys() == {"error_code", "message"}
    return response.status_code, body["error_code"]


# --- clusters and brokers ---


def test_a_cluster_links_to_what_it_has(client: httpx.Client, gateway: Gateway) -> None:
    listed = client.get("/v3/clusters").json()
    assert listed["kind"] == "KafkaClusterList"
    (cluster,) = listed["data"]
    assert cluster["metadata"]["self"] == f"{gateway.url}/v3/clusters/{cluster['cluster_id']}"
    assert cluster["metadata"]["resource_name"] == f"crn:///kafka={cluster['cluster_id']}"
    for name in (
        "brokers",
        "topics",
        "consumer_groups",
        "broker_configs",
        "partition_reassignments",
        "controller",
    ):
        assert client.get(cluster[name]["related"]).status_code == 200, name
    assert client.get(cluster["metadata"]["self"]).json() == cluster


def test_another_cluster_is_not_here(client: httpx.Client) -> None:
    assert error_code(client.get("/v3/clusters/another/topics")) == (404, 404)


def test_brokers(client: httpx.Client, gateway: Gateway, v3: str) -> None:
    (broker,) = client.get(f"{v3}/brokers").json()["data"]
    assert (broker["host"], broker["port"]) == (gateway.broker.host, gateway.broker.port)
    assert client.get(f"{v3}/brokers/{broker['broker_id']}").json() == broker
    assert client.get(broker["configs"]["related"]).status_code == 200
    assert error_code(client.get(f"{v3}/brokers/999")) == (404, 404)
    assert error_code(client.get(f"{v3}/brokers/one")) == (404, 404)
    assert error_code(client.get(f"{v3}/brokers/999/configs")) == (404, 404)


# --- topics ---


def test_a_topic_is_created_looked_at_and_deleted(client: httpx.Client, v3: str, topic: str) -> None:
    wanted = {
        "topic_name": topic,
        "partitions_count": 3,
        "replication_factor": 1,
        "configs": [{"name": "cleanup.policy", "value": "compact"}],
    }
    created = client.post(f"{v3}/topics", json=wanted)
    assert created.status_code == 201
    shown = created.json()
    assert shown["kind"] == "KafkaTopic"
    assert (shown["partitions_count"], shown["replication_factor"], shown["is_internal"]) == (3, 1, False)
    assert client.get(created.headers["location"]).json() == shown
    assert topic in [each["topic_name"] for each in client.get(f"{v3}/topics").json()["data"]]
    config = client.get(f"{shown['configs']['related']}/cleanup.policy").json()
    assert (config["value"], config["source"], config["is_default"]) == (
        "compact",
        "DYNAMIC_TOPIC_CONFIG",
        False,
    )

    assert client.delete(f"{v3}/topics/{topic}").status_code == 204
    assert error_code(client.get(f"{v3}/topics/{topic}")) == (404, 40403)
    assert error_code(client.delete(f"{v3}/topics/{topic}")) == (404, 40403)


def test_topic_that_the_cluster_refuses_is_a_400(client: httpx.Client, v3: str, topic: str) -> None:
    assert client.post(f"{v3}/topics", json={"topic_name": topic}).status_code == 201
    for wanted in (
        {"topic_name": topic},
        {"topic_name": "white space"},
        {"topic_name": f"{topic}-2", "replication_factor": 3},
        {"topic_name": f"{topic}-2", "configs": [{"name": "no.such.config", "value": "1"}]},
    ):
        refused = client.post(f"{v3}/topics", json=wanted)
        assert error_code(refused) == (400, 40002), wanted
    assert topic in client.post(f"{v3}/topics", json={"topic_name": topic}).json()["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "topic_name"),
        ({"topic_name": 1}, "topic_name"),
        ({"topic_name": "t", "partitions_count": "3"}, "partitions_count"),
        ({"topic_name": "t", "partitions_count": 0}, "partitions_count"),
        ({"topic_name": "t", "partitions_count": True}, "partitions_count"),
        ({"topic_name": "t", "configs": {}}, "configs"),
        ({"topic_name": "t", "configs": [1]}, "configs[0]"),
        ({"topic_name": "t", "configs": [{"name": "a", "value": 1}]}, "configs[0].value"),
        (
            {"topic_name": "t", "replicas_assignments": [{"partition_id": 0, "broker_ids": ["1"]}]},
            "broker_ids[0]",
        ),
        ({"topic_name": "t", "partition_count": 3}, "partition_count"),
    ],
)
def test_a_wrong_field_is_named(client: httpx.Client, v3: str, body: object, field: str) -> None:
    refused = client.post(f"{v3}/topics", json=body)
    assert refused.status_code == 422
    assert field in refused.json()["message"]


def test_a_topic_may_be_tried_without_being_created(client: httpx.Client, v3: str, topic: str) -> None:
    tried = client.post(f"{v3}/topics", json={"topic_name": topic, "validate_only": True})
    assert tried.status_code == 200
    assert tried.json()["partitions_count"] == 1
    assert client.get(f"{v3}/topics/{topic}").status_code == 404


def test_replicas_may_be_assigned(client: httpx.Client, v3: str, topic: str) -> None:
    (broker,) = client.get(f"{v3}/brokers").json()["data"]
    assignments = [{"partition_id": index, "broker_ids": [broker["broker_id"]]} for index in range(2)]
    created = client.post(f"{v3}/topics", json={"topic_name": topic, "replicas_assignments": assignments})
    assert created.status_code == 201
    assert created.json()["partitions_count"] == 2


def test_partitions_are_added(client: httpx.Client, v3: str, topic: str) -> None:
    client.post(f"{v3}/topics", json={"topic_name": topic})
    # JSON does not tell 4.0 from 4.
    grown = client.patch(f"{v3}/topics/{topic}", json={"partitions_count": 4.0})
    assert (grown.status_code, grown.json()["partitions_count"]) == (200, 4)
    # A record for a new partition is taken at once.
    assert client.post(f"{v3}/topics/{topic}/records", json={"partition_id": 3}).json()["partition_id"] == 3
    assert error_code(client.patch(f"{v3}/topics/{topic}", json={"partitions_count": 2})) == (400, 40002)
    assert error_code(client.patch(f"{v3}/topics/none", json={"partitions_count": 2})) == (404, 40403)


def test_partitions_and_replicas(client: httpx.Client, v3: str, topic: str) -> None:
    client.post(f"{v3}/topics", json={"topic_name": topic, "partitions_count": 2})
    (broker,) = client.get(f"{v3}/brokers").json()["data"]
    partitions = client.get(f"{v3}/topics/{topic}/partitions").json()["data"]
    assert [each["partition_id"] for each in partitions] == [0, 1]
    assert client.get(partitions[1]["metadata"]["self"]).json() == partitions[1]
    leader = client.get(partitions[1]["leader"]["related"]).json()
    assert (leader["broker_id"], leader["is_leader"], leader["is_in_sync"]) == (
        broker["broker_id"],
        True,
        True,
    )
    assert client.get(partitions[1]["replicas"]["related"]).json()["data"] == [leader]
    assert leader in client.get(broker["partition_replicas"]["related"]).json()["data"]
    assert error_code(client.get(f"{v3}/topics/{topic}/partitions/2")) == (404, 40402)
    assert error_code(client.get(f"{v3}/topics/{topic}/partitions/1/replicas/77")) == (404, 404)
    assert error_code(client.get(partitions[1]["reassignment"]["related"])) == (404, 404)
    assert client.get(f"{v3}/topics/{topic}/partitions/-/reassignment").json()["data"] == []


def test_three_brokers(tidemill_cluster: InProcessCluster, topic: str) -> None:
    tidemill_cluster.create_topic(topic, 3, replication_factor=3)
    with start_gateway(Settings(bootstrap=tidemill_cluster.bootstrap)) as gateway:
        v3 = gateway.v3
        brokers = [each["broker_id"] for each in gateway.client.get(f"{v3}/brokers").json()["data"]]
        assert len(brokers) == 3
        for index in range(3):
            replicas = gateway.client.get(f"{v3}/topics/{topic}/partitions/{index}/replicas").json()["data"]
            assert sorted(each["broker_id"] for each in replicas) == brokers
            assert [each["is_leader"] for each in replicas].count(True) == 1
            report = gateway.client.post(f"{v3}/topics/{topic}/records", json={"partition_id": index}).json()
            assert (report["partition_id"], report["offset"]) == (index, 0)


# --- configurations ---


def test_a_topic_config_is_set_and_reset(client: httpx.Client, v3: str, topic: str) -> None:
    client.post(f"{v3}/topics", json={"topic_name": topic})
    path = f"{v3}/topics/{topic}/configs/retention.ms"
    default = client.get(path).json()
    assert default["is_default"] is True
    assert client.put(path, json={"value": "86400000"}).status_code == 204
    changed = client.get(path).json()
    assert (changed["value"], changed["is_default"]) == ("86400000", False)
    assert changed["synonyms"][0] == {
        "name": "retention.ms",
        "value": "86400000",
        "source": "DYNAMIC_TOPIC_CONFIG",
    }
    assert changed in client.get(f"{v3}/topics/{topic}/configs").json()["data"]
    assert client.delete(path).status_code == 204
    assert client.get(path).json() == default


def test_wrong_topic_configs(client: httpx.Client, v3: str, topic: str) -> None:
    client.post(f"{v3}/topics", json={"topic_name": topic})
    path = f"{v3}/topics/{topic}/configs"
    assert error_code(client.get(f"{path}/no.such.config")) == (404, 404)
    assert error_code(client.put(f"{path}/no.such.config", json={"value": "1"})) == (404, 404)
    assert error_code(client.put(f"{path}/retention.ms", json={"value": "soon"})) == (400, 40002)
    assert client.put(f"{path}/retention.ms", json={"value": 1}).status_code == 422
    assert error_code(client.get(f"{v3}/topics/none/configs")) == (404, 40403)


def test_several_configs_change_together_or_not_at_all(client: httpx.Client, v3: str, topic: str) -> None:
    client.post(
        f"{v3}/topics", json={"topic_name": topic, "configs": [{"name": "segment.ms", "value": "60000"}]}
    )
    path = f"{v3}/topics/{topic}/configs"

    def alter(*changes: Mapping[str, object], **more: object) -> int:
        return client.post(f"{path}:alter", json={"data": changes, **more}).status_code

    set_policy = {"name": "cleanup.policy", "value": "compact"}
    assert alter(set_policy, {"name": "retention.ms", "value": "soon"}) == 400
    assert client.get(f"{path}/cleanup.policy").json()["value"] == "delete"
    assert alter(set_policy, validate_only=True) == 204
    assert client.get(f"{path}/cleanup.policy").json()["value"] == "delete"
    assert alter(set_policy, {"name": "segment.ms", "operation": "DELETE"}) == 204
    assert client.get(f"{path}/cleanup.policy").json()["value"] == "compact"
    assert client.get(f"{path}/segment.ms").json()["is_default"] is True
    assert alter({"name": "segment.ms", "operation": "APPEND"}) == 422
    assert alter(set_policy, set_policy) == 400


def test_default_configs_are_those_of_a_new_topic(client: httpx.Client, v3: str, topic: str) -> None:
    new = client.get(f"{v3}/topics/{topic}/default-configs").json()
    assert new["kind"] == "KafkaTopicConfigList"
    values = {each["name"]: each["value"] for each in new["data"]}
    assert values["cleanup.policy"] == "delete"
    client.post(
        f"{v3}/topics",
        json={"topic_name": topic, "configs": [{"name": "cleanup.policy", "value": "compact"}]},
    )
    existing = client.get(f"{v3}/topics/{topic}/default-configs").json()["data"]
    assert {each["name"]: each["value"] for each in existing} == values


def test_configs_of_brokers(client: httpx.Client, v3: str) -> None:
    (broker,) = client.get(f"{v3}/brokers").json()["data"]
    configs = client.get(broker["configs"]["related"]).json()["data"]
    assert {"broker_id", "name", "value", "is_read_only", "source", "synonyms"} <= configs[0].keys()
    path = f"{v3}/broker-configs/log.retention.ms"
    assert client.put(path, json={"value": "7200000"}).status_code == 204
    shown = client.get(path).json()
    assert (shown["value"], shown["config_type"]) == ("7200000", "BROKER")
    assert shown["source"] == "DYNAMIC_DEFAULT_BROKER_CONFIG"
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
