"""The gateway's own metrics: what is counted, under which paths, and who may see them."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.gateway.conftest import Gateway
from tests.gateway.secured_cluster import PASSWORD, SecuredCluster, secured_cluster


def samples(client: httpx.Client, **options: object) -> dict[str, float]:
    answer = client.get("/metrics", **options)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        f"{sample.name} {' '.join(sample.labels.values())}".strip(): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_answers_are_counted_by_operation_and_status(gateway: Gateway, topic: str) -> None:
    before = samples(gateway.client)
    gateway.broker.create_topic(topic)
    produce = f"/v1/topics/{topic}/produce"
    gateway.client.post(produce, json={"value": 1})
    gateway.client.post(produce, json={"value": 2})
    gateway.client.post(produce, json={})
    gateway.client.get("/nothing/here")
    gateway.client.request("PROPFIND", "/healthz")
    found = samples(gateway.client)

    def grown(name: str) -> float:
        return found[name] - before.get(name, 0.0)

    name = "tidemill_gateway_requests_total"
    assert grown(f"{name} POST /v1/topics/{{topic}}/produce 200") == 2
    assert grown(f"{name} POST /v1/topics/{{topic}}/produce 422") == 1
    assert grown(f"{name} GET other 404") == 1
    assert grown(f"{name} other /healthz 405") == 1
    took = "tidemill_gateway_request_duration_seconds"
    assert grown(f"{took}_count POST /v1/topics/{{topic}}/produce") == 3
    assert grown(f"{took}_bucket POST /v1/topics/{{topic}}/produce +Inf") == 3
    assert grown(f"{took}_sum POST /v1/topics/{{topic}}/produce") > 0


def test_metrics_count_open_instances_and_requests(gateway: Gateway, topic: str) -> None:
    gateway.broker.create_topic(topic)
    media_type = {"Content-Type": "application/vnd.kafka.v2+json"}
    before = samples(gateway.client)["tidemill_gateway_consumer_instances"]
    gateway.client.post(f"/consumers/{topic}", headers=media_type, content='{"name": "one"}')
    found = samples(gateway.client)
    assert found["tidemill_gateway_consumer_instances"] == before + 1
    # The request that asks is under way itself.
    assert found["tidemill_gateway_requests_in_progress"] >= 1
    gateway.client.delete(f"/consumers/{topic}/instances/one", headers=media_type)
    with gateway.client.stream("GET", "/console/api/live") as stream:
        events = stream.iter_bytes()
        next(events)
        assert samples(gateway.client)["tidemill_gateway_event_streams"] == 1


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as started:
        started.add_user("monitor")
        yield started


def test_metrics_need_a_login_where_callers_log_in(cluster: SecuredCluster) -> None:
    with cluster.gateway() as gateway:
        assert gateway.client.get("/metrics").status_code == 401
        login = {"username": "monitor", "password": PASSWORD}
        token = gateway.client.post("/v1/login", json=login).json()["token"]
        found = samples(gateway.client, headers={"Authorization": f"Bearer {token}"})
        assert found["tidemill_gateway_sessions"] == 1
        assert found["tidemill_gateway_users"] == 1
        # A request that a guard refused is counted, too.
        assert found["tidemill_gateway_requests_total GET other 401"] == 1
        assert "monitor" not in " ".join(found)
