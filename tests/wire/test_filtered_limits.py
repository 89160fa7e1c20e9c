"""How much a fetch of views and of topics with delayed records returns: all partitions share one limit, as plain ones do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.brokers import Broker
from tests.wire.batches import Record, encode, parse_fetched
from tests.wire.connection import Connection, fetch_fields

PARTITIONS = 10
BATCH = encode([Record(b"x" * 10_000, b"k")])
BATCHES = 3
# An empty batch may end what a partition returns.
TAIL_BYTES = 61


def readable(connection: Connection, topic: str, kind: str, partitions: int = PARTITIONS) -> str:
    """The name under which a topic of a kind is read. Each of its partitions has the same batches."""
    configs = {"tidemill.delays.enable": "true"} if kind == "delays" else {}
    connection.create_topic(topic, partitions=partitions, configs=configs)
    for partition in range(partitions):
        for _ in range(BATCHES):
            connection.produce(topic, BATCH, partition=partition)
    if kind != "view":
        return topic
    configs = {"tidemill.view.source": topic, "tidemill.view.filter": "key exists"}
    connection.create_topic(f"{topic}-view", partitions=partitions, configs=configs)
    return f"{topic}-view"


def wanted(topics: list[tuple[str, int]], offset: int = 0, **options: Any) -> dict[str, Any]:
    """The fields of a fetch of all partitions of some topics."""
    fields = fetch_fields("", offset, **options)
    (one,) = fields["topics"][0]["partitions"]
    fields["topics"] = [
        {"topic": topic, "partitions": [{**one, "partition": index} for index in range(partitions)]}
        for topic, partitions in topics
    ]
    return fields


def sizes(response: Any) -> dict[tuple[str, int], int]:
    assert response.error_code == 0, response.error_code
    return {
        (topic.topic, each.partition_index): len(each.records or b"")
        for topic in response.responses
        for each in topic.partitions
    }


@pytest.mark.parametrize("kind", ["plain", "view", "delays"])
def test_partitions_share_max_bytes(connection: Connection, topic: str, kind: str) -> None:
    name = readable(connection, topic, kind)
    fields = wanted([(name, PARTITIONS)], max_bytes=50_000, partition_max_bytes=25_000)
    found = sizes(connection.request("fetch", 12, **fields))
    assert 2 * len(BATCH) <= sum(found.values()) <= 50_000 + PARTITIONS * TAIL_BYTES, found


@pytest.mark.parametrize("kind", ["plain", "view", "delays"])
def test_first_batch_alone_may_exceed_max_bytes(connection: Connection, topic: str, kind: str) -> None:
    name = readable(connection, topic, kind)
    for limits in ({"max_bytes": 1_000}, {"max_bytes": 1_000, "partition_max_bytes": 100}):
        found = sizes(connection.request("fetch", 12, **wanted([(name, PARTITIONS)], **limits)))
        assert len(BATCH) <= sum(found.values()) <= len(BATCH) + PARTITIONS * TAIL_BYTES, found


@pytest.mark.parametrize("kind", ["plain", "view", "delays"])
def test_partitions_that_got_nothing_come_first_in_the_next_fetch_of_a_session(
    connection: Connection, topic: str, kind: str
) -> None:
    name = readable(connection, topic, kind)
    limits = {"max_bytes": 25_000, "partition_max_bytes": 12_000}
    response = connection.request("fetch", 12, **wanted([(name, PARTITIONS)], session_epoch=0, **limits))
    seen: set[tuple[str, int]] = set()
    for epoch in range(1, PARTITIONS):
        seen |= {key for key, size in sizes(response).items() if size > TAIL_BYTES}
        response = connection.request(
            "fetch", 12, **wanted([], session_id=response.session_id, session_epoch=epoch, **limits)
        )
    assert seen == {(name, index) for index in range(PARTITIONS)}


@pytest.mark.parametrize("plain_first", [True, False])
def test_plain_and_filtered_partitions_share_max_bytes(
    connection: Connection, topic: str, plain_first: bool
) -> None:
    plain = readable(connection, topic, "plain", 2), 2
    delays = readable(connection, f"{topic}-delays", "delays", 2), 2
    fields = wanted([plain, delays] if plain_first else [delays, plain], max_bytes=25_000)
    found = sizes(connection.request("fetch", 12, **fields))
    assert len(BATCH) <= sum(found.values()) <= 25_000 + 4 * TAIL_BYTES, found


def test_what_a_limit_cuts_off_comes_with_the_next_fetch(connection: Connection, topic: str) -> None:
    name = readable(connection, topic, "delays", 1)
    offset = 0
    while offset < BATCHES:
        (only,) = parse_fetched(bytes(connection.fetch(name, offset, max_bytes=1_000).records))
        assert only.base_offset == offset
        offset = only.last_offset + 1


@pytest.mark.parametrize("kind", ["plain", "view", "delays"])
def test_fetch_max_bytes_of_the_broker_limits_a_response(
    start: Callable[..., Broker], topic: str, kind: str
) -> None:
    with Connection(start({"fetch.max.bytes": "25000"})) as connection:
        name = readable(connection, topic, kind, 4)
        found = sizes(connection.request("fetch", 12, **wanted([(name, 4)])))
        assert len(BATCH) <= sum(found.values()) <= 25_000 + 4 * TAIL_BYTES, found
