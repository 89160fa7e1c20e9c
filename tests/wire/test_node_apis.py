"""The APIs that nodes have for each other, tried by a client on the port of a lone node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.brokers import Broker
from tests.wire.batches import encode
from tests.wire.connection import Connection, read_all

_CLUSTER_AUTHORIZATION_FAILED = 31
_INVALID_REQUEST = 42
_LARGEST_EPOCH = (1 << 31) - 1
_METADATA = "__cluster_metadata"


def _claim(**fields: Any) -> list[dict[str, Any]]:
    return [{"topic_name": _METADATA, "partitions": [{"partition_index": 0, **fields}]}]


CLAIMS: dict[str, Callable[[int], tuple[str, int, dict[str, Any]]]] = {
    "vote": lambda node_id: (
        "vote",
        2,
        {
            "topics": _claim(
                replica_epoch=_LARGEST_EPOCH,
                replica_id=node_id,
                last_offset_epoch=_LARGEST_EPOCH - 1,
                last_offset=1 << 40,
            )
        },
    ),
    "begin": lambda node_id: (
        "begin_quorum_epoch",
        1,
        {"topics": _claim(leader_id=node_id, leader_epoch=_LARGEST_EPOCH), "voter_id": -1},
    ),
    "end": lambda node_id: (
        "end_quorum_epoch",
        1,
        {"topics": _claim(leader_id=node_id, leader_epoch=_LARGEST_EPOCH)},
    ),
}


@pytest.mark.parametrize("node_id", [1, 2, 77])
@pytest.mark.parametrize("claim", CLAIMS)
def test_foreign_quorum_leader_claim_does_not_end_node(
    start: Callable[..., Broker], claim: str, node_id: int
) -> None:
    broker = start()
    api, version, fields = CLAIMS[claim](node_id)
    with Connection(broker) as connection:
        connection.create_topic("orders")
        connection.produce("orders", encode([b"before"]))
        assert connection.request(api, version, **fields).error_code == _CLUSTER_AUTHORIZATION_FAILED
        connection.produce("orders", encode([b"after"]))
    broker.stop()
    again = start()
    assert len(read_all(again, "orders")) == 2
    assert "Traceback" not in again.log()


def test_a_broker_that_is_alive_is_not_unregistered(start: Callable[..., Broker]) -> None:
    broker = start()
    with Connection(broker) as connection:
        connection.create_topic("orders")
        answer = connection.request("unregister_broker", 0, broker_id=1)
        assert answer.error_code == _INVALID_REQUEST
        connection.produce("orders", encode([b"after"]))
    assert broker.is_alive


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        ("broker_heartbeat", 1, {"broker_id": 1, "broker_epoch": 1, "want_fence": True}),
        ("alter_partition", 3, {"broker_id": 1}),
        ("allocate_producer_ids", 0, {"broker_id": 1}),
        ("envelope", 0, {"request_data": b"\xff" * 8, "client_host_address": b"\x7f\0\0\1"}),
    ],
)
def test_foreign_quorum_requests_to_single_node_are_rejected(
    start: Callable[..., Broker], api: str, version: int, fields: dict[str, Any]
) -> None:
    broker = start()
    with Connection(broker) as connection:
        assert connection.request(api, version, **fields).error_code == _CLUSTER_AUTHORIZATION_FAILED
        connection.create_topic("orders")
        connection.produce("orders", encode([b"after"]))
    assert "Traceback" not in broker.log()
