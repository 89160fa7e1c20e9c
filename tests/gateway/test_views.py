"""Views through the gateway: created, listed, changed, deleted, and read as any topic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.secured_cluster import PASSWORD, SecuredCluster, secured_cluster
from tests.gateway.v2_caller import error_of
from tidemill.security.acls import Operation, ResourceType


@pytest.fixture
def source(gateway: Gateway, topic: str) -> str:
    gateway.broker.create_topic(topic, partitions=2)
    for region in ("eu", "us", "ch"):
        gateway.broker.produce(topic, region, headers={"region": region}, partition=0)
    return topic


def values(gateway: Gateway, topic: str) -> list[Any]:
    records = gateway.client.get(f"/v1/topics/{topic}/records").json()["records"]
    return [record["value"] for record in records]


def test_the_life_of_a_view(gateway: Gateway, source: str) -> None:
    client, name = gateway.client, f"{source}-eu"
    view = {"name": name, "source": source, "filter": "region = 'eu'", "partitions": 2}
    created = client.post("/v1/views", json={"name": name, "source": source, "filter": "region = 'eu'"})
    assert (created.status_code, created.json()) == (201, view)
    assert client.get(f"/v1/views/{name}").json() == view
    assert view in client.get("/v1/views").json()["views"]
    assert values(gateway, name) == ["eu"]

    view["filter"] = "region in ('eu', 'ch')"
    altered = client.patch(f"/v1/views/{name}", json={"filter": view["filter"]})
    assert (altered.status_code, altered.json()) == (200, view)
    assert values(gateway, name) == ["eu", "ch"]

    assert client.delete(f"/v1/views/{name}").status_code == 204
    assert error_of(client.get(f"/v1/views/{name}")) == (404, 40403)
    assert values(gateway, source) == ["eu", "us", "ch"]


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        ({"filter": "region ="}, (400, 40002), "9"),
        ({"filter": ""}, (400, 40002), "filter"),
        ({"source": "nowhere"}, (400, 40002), "nowhere"),
        ({"source": "__consumer_offsets"}, (400, 40002), "__consumer_offsets"),
        ({"name": 5}, (422, 42206), "name should be a string"),
        ({"colour": "red"}, (422, 42206), "colour"),
    ],
)
def test_a_view_that_cannot_be_is_refused_with_a_reason(
    gateway: Gateway, source: str, change: dict[str, Any], expected: tuple[int, int], words: str
) -> None:
    body = {"name": f"{source}-view", "source": source, "filter": "key exists", **change}
    refused = gateway.client.post("/v1/views", json=body)
    assert error_of(refused) == expected
    assert words in refused.json()["message"]
    assert f"{source}-view" not in gateway.broker.topics()


def test_a_topic_is_no_view(gateway: Gateway, source: str) -> None:
    assert error_of(gateway.client.get(f"/v1/views/{source}")) == (404, 40403)
    assert error_of(gateway.client.patch(f"/v1/views/{source}", json={"filter": "a exists"})) == (404, 40403)
    assert error_of(gateway.client.delete(f"/v1/views/{source}")) == (404, 40403)
    assert values(gateway, source) == ["eu", "us", "ch"]


def test_a_view_takes_no_records(gateway: Gateway, source: str) -> None:
    name = f"{source}-view"
    gateway.client.post("/v1/views", json={"name": name, "source": source, "filter": "key exists"})
    refused = gateway.client.post(f"/v1/topics/{name}/produce", json={"value": 1})
    assert error_of(refused) == (400, 40002)


# --- who may do what ---


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredCluster]:
    with secured_cluster(tmp_path_factory.mktemp("secured")) as started:
        started.create_topic("orders", "a secret")
        started.add_user("owner")
        for name in ("orders", "some-orders"):
            started.allow_all("owner", name)
        started.add_user("other")
        started.allow("other", Operation.CREATE, ResourceType.TOPIC, "peephole")
        yield started


def test_views_need_the_right_to_read_the_source(cluster: SecuredCluster) -> None:
    with cluster.gateway() as gateway:
        owner, other = ("owner", PASSWORD), ("other", PASSWORD)
        view = {"name": "some-orders", "source": "orders", "filter": "key exists"}
        assert gateway.client.post("/v1/views", json=view, auth=owner).status_code == 201
        assert [each["name"] for each in gateway.client.get("/v1/views", auth=owner).json()["views"]] == [
            "some-orders"
        ]
        peephole = {"name": "peephole", "source": "orders", "filter": "not key exists"}
        assert error_of(gateway.client.post("/v1/views", json=peephole, auth=other)) == (403, 40301)
        assert gateway.client.get("/v1/views", auth=other).json() == {"views": []}
        for refused in (
            gateway.client.get("/v1/views/some-orders", auth=other),
            gateway.client.patch("/v1/views/some-orders", json={"filter": "a exists"}, auth=other),
            gateway.client.delete("/v1/views/some-orders", auth=other),
        ):
            assert refused.status_code in (403, 404), refused.text
        assert gateway.client.get("/v1/views/some-orders", auth=owner).json()["filter"] == "key exists"
