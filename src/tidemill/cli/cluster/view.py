"""The table of brokers in `cluster` and `brokers`: whether each responds, and what it holds."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tidemill.cli.table import print_table, size_text
from tidemill.client.admin.health import BrokerState, Health
from tidemill.client.admin.topics import Admin
from tidemill.client.connections.connection import Address, BrokerUnreachable, ConnectionLost
from tidemill.errors import ApiError
from tidemill.protocol.api.cluster import DescribeClusterBroker
from tidemill.protocol.api.replicas import DescribeLogDirsResult


class BrokerRow(NamedTuple):
    """One row of the table."""

    id: int
    address: str
    rack: str | None
    is_fenced: bool
    state: BrokerState
    partitions_led: int
    replicas: int
    data_bytes: int | None
    disk_free_bytes: int | None


_STATES = {
    BrokerState.UP: "up",
    BrokerState.SILENT: "does not answer",
    BrokerState.FENCED: "fenced",
    BrokerState.GONE: "not registered",
}


def broker_rows(admin: Admin, health: Health) -> list[BrokerRow]:
    topics = admin.topics()
    partitions = [each for topic in topics for each in topic.partitions]
    leaders = Counter(each.leader_id for each in partitions)
    replicas = Counter(replica for each in partitions for replica in each.replica_nodes)
    return [
        _broker_row(
            admin, each, health.brokers[each.broker_id], leaders[each.broker_id], replicas[each.broker_id]
        )
        for each in sorted(admin.describe_cluster().brokers, key=lambda each: each.broker_id)
        if each.broker_id in health.brokers
    ]


def print_brokers(rows: list[BrokerRow]) -> None:
    print_table(
        ("BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "DATA", "DISK FREE"),
        [
            (
                each.id,
                each.address,
                each.rack,
                _STATES[each.state],
                each.partitions_led,
                each.replicas,
                None if each.data_bytes is None else size_text(each.data_bytes),
                None if each.disk_free_bytes is None else size_text(each.disk_free_bytes),
            )
            for each in rows
        ],
    )


def _broker_row(
    admin: Admin, broker: DescribeClusterBroker, state: BrokerState, leaders: int, replicas: int
) -> BrokerRow:
    directories = _directories(admin, broker.broker_id) if state is BrokerState.UP else []
    partitions = [
        each for directory in directories for topic in directory.topics for each in topic.partitions
    ]
    free = [each.usable_bytes for each in directories if each.usable_bytes >= 0]
    return BrokerRow(
        broker.broker_id,
        str(Address(broker.host, broker.port)),
        broker.rack,
        broker.is_fenced,
        state,
        leaders,
        replicas,
        sum(each.partition_size for each in partitions) if directories else None,
        sum(free) if free else None,
    )


def _directories(admin: Admin, broker_id: int) -> list[DescribeLogDirsResult]:
    """The log directories of a broker; empty when it does not respond, since it may have died a moment ago."""
    try:
        return admin.log_dirs_now(broker_id)
    except (BrokerUnreachable, ConnectionLost, ApiError):
        return []
