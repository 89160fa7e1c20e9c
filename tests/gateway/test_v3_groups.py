"""v3: consumer groups, consumers, assignments and lags, with real consumers of both protocols."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.gateway.conftest import Gateway


@pytest.fixture(params=["classic", "consumer"])
def group(gateway: Gateway, topic: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A group with one consumer that has read 3 of the topic's 5 records, all in partition 0."""
    gateway.broker.create_topic(topic, 2)
    for number in range(5):
        gateway.broker.produce(topic, str(number), partition=0)
    name = f"group/{topic}"
    consumer = Consumer(
        {
            "bootstrap.servers": gateway.broker.bootstrap,
            "group.id": name,
            "group.protocol": request.param,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    read = 0
    while read < 5:
        message = consumer.poll(10)
        assert message is not None
        assert message.error() is None
        read += 1
    consumer.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    yield name
    consumer.close()


def test_a_group_and_its_consumers(client: httpx.Client, gateway: Gateway, group: str, topic: str) -> None:
    listed = client.get(f"{gateway.v3}/consumer-groups").json()["data"]
    (shown,) = [each for each in listed if each["consumer_group_id"] == group]
    assert (shown["state"], shown["is_simple"]) == ("STABLE", False)
    assert shown["partition_assignor"]
    assert client.get(shown["metadata"]["self"]).json() == shown
    coordinator = client.get(shown["coordinator"]["related"]).json()
    assert coordinator["port"] == gateway.broker.port

    (consumer,) = client.get(shown["consumers"]["related"]).json()["data"]
    assert (consumer["client_id"], consumer["consumer_group_id"]) == ("reader", group)
    assert client.get(consumer["metadata"]["self"]).json() == consumer

    assignments = client.get(consumer["assignments"]["related"]).json()["data"]
    assert [(each["topic_name"], each["partition_id"]) for each in assignments] == [(topic, 0), (topic, 1)]
    assert client.get(assignments[0]["metadata"]["self"]).json() == assignments[0]
    assert client.get(assignments[0]["partition"]["related"]).json()["partition_id"] == 0
    assert client.get(assignments[0]["lag"]["related"]).json()["lag"] == 2


def test_lags(client: httpx.Client, gateway: Gateway, group: str, topic: str) -> None:
    path = f"{gateway.v3}/consumer-groups/{group.replace('/', '%2F')}"
    lag, uncommitted = client.get(f"{path}/lags").json()["data"]
    assert (lag["topic_name"], lag["partition_id"]) == (topic, 0)
    assert (lag["current_offset"], lag["log_end_offset"], lag["lag"]) == (3, 5, 2)
    assert lag["client_id"] == "reader"
    assert client.get(lag["metadata"]["self"]).json() == lag
    # Nothing is committed for the other partition: all of it is yet to be read.
    assert (uncommitted["partition_id"], uncommitted["current_offset"]) == (1, 0)
    assert uncommitted["lag"] == uncommitted["log_end_offset"]
    assert client.get(f"{path}/lags/{topic}/partitions/1").json() == uncommitted

    gateway.broker.produce(topic, "one more", partition=0)
    summary = client.get(f"{path}/lag-summary").json()
    assert (summary["max_lag"], summary["total_lag"]) == (3, 3)
    assert (summary["max_lag_topic_name"], summary["max_lag_partition_id"]) == (topic, 0)
    assert client.get(summary["max_lag_consumer"]["related"]).json()["client_id"] == "reader"
    assert client.get(summary["max_lag_partition"]["related"]).status_code == 200


def test_missing_group_member_or_partition_is_404(client: httpx.Client, gateway: Gateway, group: str) -> None:
    path = f"{gateway.v3}/consumer-groups/{group.replace('/', '%2F')}"
    for missing in (
        f"{gateway.v3}/consumer-groups/none",
        f"{gateway.v3}/consumer-groups/none/lags",
        f"{gateway.v3}/consumer-groups/none/lag-summary",
        f"{path}/consumers/none",
        f"{path}/consumers/none/assignments",
        f"{path}/lags/none/partitions/0",
    ):
        refused = client.get(missing)
        assert refused.status_code == 404, missing
        assert refused.json()["message"]
