"""Fewer partitions through the gateway: begun, refused with a reason, and watched until they are gone."""

from __future__ import annotations

from typing import Any

import pytest

from tests.brokers import eventually
from tests.gateway.conftest import Gateway
from tests.gateway.v2_caller import error_of
from tidemill.client.admin.topics import Admin, ResourceType
from tidemill.client.cluster import Cluster
from tidemill.types import TopicPartition


@pytest.fixture
def orders(gateway: Gateway, topic: str) -> str:
    """Four partitions with one record each."""
    gateway.broker.create_topic(topic, partitions=4, configs={"tidemill.partitions.kept.ms": "0"})
    for partition in range(4):
        gateway.broker.produce(topic, "old", partition=partition)
    return topic


def test_a_topic_gets_fewer_partitions_and_the_others_disappear(gateway: Gateway, orders: str) -> None:
    client, path = gateway.client, f"/v1/topics/{orders}/shrink"
    before = {"topic": orders, "partitions": 4, "active": 4, "keeps_records_for_ever": False}
    assert client.get(path).json() == {**before, "decommissioned": []}
    begun = client.post(path, json={"partitions": 2})
    assert begun.status_code == 202
    found = client.get(path).json()
    sizes = [each.pop("bytes") for each in found["decommissioned"]]
    left = [{"partition": 2, "records_left": 1}, {"partition": 3, "records_left": 1}]
    assert found == {**before, "active": 2, "decommissioned": left}
    assert min(sizes) > 0
    reading = client.get(f"/v1/topics/{orders}/records").json()
    with Cluster(gateway.broker.bootstrap) as cluster:
        Admin(cluster).delete_records({TopicPartition(orders, index): 1 for index in (2, 3)})

    def is_done() -> bool:
        answer = client.get(path)
        assert answer.status_code == 200, answer.text
        return bool(answer.json()["partitions"] == 2)

    eventually(is_done, "the end of both partitions", 60)
    # A reader that began before goes on with the partitions that are there.
    gateway.broker.produce(orders, "new", partition=1)

    def next_of_page() -> str:
        page = client.get(f"/v1/topics/{orders}/records", params={"from": reading["next"], "wait_ms": 5_000})
        assert page.status_code == 200, page.text
        assert [(each["partition"], each["value"]) for each in page.json()["records"]] == [(1, "new")]
        return str(page.json()["next"])

    eventually(lambda: next_of_page() == "0:1,1:2", "the gateway knows the new number", 60)
    after = {"topic": orders, "partitions": 2, "active": 2, "keeps_records_for_ever": False}
    assert client.get(path).json() == {**after, "decommissioned": []}


def test_a_record_for_a_decommissioned_partition_is_written_and_has_no_offset(
    gateway: Gateway, orders: str
) -> None:
    assert gateway.client.post(f"/v1/topics/{orders}/shrink", json={"partitions": 2}).status_code == 202
    records = [{"value": number, "partition": 3} for number in range(5)]

    def written() -> Any:
        answer = gateway.client.post(f"/v1/topics/{orders}/produce", json={"records": records})
        assert answer.status_code == 200
        places = {(each["partition"], each["offset"]) for each in answer.json()["offsets"]}
        return places if places == {(3, -1)} else None

    # Until the leader knows that the partition is decommissioned, its records have offsets in it.
    eventually(written, "records without an offset")
    found = gateway.client.get(f"/v1/topics/{orders}/records?from=1:0").json()["records"]
    assert [each["value"] for each in found if each["partition"] == 1][-5:] == list(range(5))


def test_a_shrink_is_taken_back(gateway: Gateway, orders: str) -> None:
    client, path = gateway.client, f"/v1/topics/{orders}/shrink"
    assert error_of(client.delete(path)) == (404, 404)
    assert client.post(path, json={"partitions": 2}).status_code == 202
    taken_back = client.delete(path)
    assert taken_back.status_code == 200
    assert (taken_back.json()["active"], taken_back.json()["decommissioned"]) == (4, [])
    assert error_of(client.delete(path)) == (404, 404)


def test_a_topic_that_keeps_its_records_for_ever_says_so(gateway: Gateway, orders: str) -> None:
    with Cluster(gateway.broker.bootstrap) as cluster:
        Admin(cluster).alter_configs(ResourceType.TOPIC, orders, changes={"retention.ms": "-1"})
    begun = gateway.client.post(f"/v1/topics/{orders}/shrink", json={"partitions": 1})
    assert begun.json()["keeps_records_for_ever"] is True


@pytest.mark.parametrize(
    ("body", "expected", "words"),
    [
        ({"partitions": 0}, (422, 42206), "from 1 to"),
        ({"partitions": 4}, (400, 40002), "not fewer"),
        ({"partitions": 5}, (400, 40002), "not fewer"),
        ({"partitions": 3}, (400, 40002), "does not divide"),
        ({"partitions": "2"}, (422, 42206), "should be an integer"),
        ({}, (422, 42206), "partitions is missing"),
        ({"partitions": 3, "unkeyed": "yes"}, (422, 42206), "unkeyed should be a boolean"),
        ({"partitions": 2, "keyed": False}, (422, 42206), "keyed"),
    ],
)
def test_a_number_that_cannot_be_is_refused_with_a_reason(
    gateway: Gateway, orders: str, body: dict[str, Any], expected: tuple[int, int], words: str
) -> None:
    answer = gateway.client.post(f"/v1/topics/{orders}/shrink", json=body)
    assert error_of(answer) == expected
    assert words in answer.json()["message"]


def test_a_second_shrink_and_an_unknown_topic_are_refused(gateway: Gateway, orders: str) -> None:
    path = f"/v1/topics/{orders}/shrink"
    assert gateway.client.post(path, json={"partitions": 3, "unkeyed": True}).status_code == 202
    assert error_of(gateway.client.post(path, json={"partitions": 1})) == (400, 40002)
    for call in (gateway.client.get, lambda path: gateway.client.post(path, json={"partitions": 1})):
        assert error_of(call("/v1/topics/nowhere/shrink")) == (404, 40403)
