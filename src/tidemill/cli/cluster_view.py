"""What `cluster` and `brokers` show: brokers with what they hold, and partitions that are not as they should be."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from tidemill.cli.table import print_table, size_text
from tidemill.client.admin import Admin
from tidemill.client.connection import Address, BrokerUnreachable, ConnectionLost
from tidemill.errors import ApiError
from tidemill.protocol.api.cluster import DescribeClusterBroker, MetadataResponseTopic
from tidemill.protocol.api.replicas import DescribeLogDirsResult
from tidemill.types import TopicPartition


class BrokerRow(NamedTuple):
    id: int
    address: str
    rack: str | None
    is_fenced: bool
    partitions_led: int
    replicas: int
    data_bytes: int | None
    disk_free_bytes: int | None


class PartitionRow(NamedTuple):
    topic: str
    partition: int
    leader: int | None
    replicas: list[int]
    in_sync: list[int]
    min_in_sync: int


class Health(NamedTuple):
    """Partitions that lack something; one may be in several lists."""

    offline: list[PartitionRow]
    under_min_isr: list[PartitionRow]
    under_replicated: list[PartitionRow]


def broker_rows(admin: Admin) -> list[BrokerRow]:
    topics = admin.topics()
    partitions = [each for topic in topics for each in topic.partitions]
    leaders = Counter(each.leader_id for each in partitions)
    replicas = Counter(replica for each in partitions for replica in each.replica_nodes)
    return [
        _broker_row(admin, each, leaders[each.broker_id], replicas[each.broker_id])
        for each in sorted(admin.describe_cluster().brokers, key=lambda each: each.broker_id)
    ]


def print_brokers(rows: list[BrokerRow]) -> None:
    print_table(
        ("BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "REPLICAS", "DATA", "DISK FREE"),
        [
            (
                each.id,
                each.address,
                each.rack,
                "fenced" if each.is_fenced else "up",
                each.partitions_led,
                each.replicas,
                None if each.data_bytes is None else size_text(each.data_bytes),
                None if each.disk_free_bytes is None else size_text(each.disk_free_bytes),
            )
            for each in rows
        ],
    )


def partition_health(admin: Admin, topics: list[MetadataResponseTopic]) -> Health:
    names = [topic.name for topic in topics if topic.name]
    minima = admin.topic_values(names, "min.insync.replicas") if names else {}
    health = Health([], [], [])
    for topic in topics:
        for each in topic.partitions:
            row = PartitionRow(
                topic.name or "",
                each.partition_index,
                each.leader_id if each.leader_id >= 0 else None,
                each.replica_nodes,
                each.isr_nodes,
                # As the leader counts: more than there are replicas is never asked for.
                min(int(minima.get(topic.name or "") or 1), len(each.replica_nodes)),
            )
            if row.leader is None:
                health.offline.append(row)
            if len(row.in_sync) < row.min_in_sync:
                health.under_min_isr.append(row)
            if len(row.in_sync) < len(row.replicas):
                health.under_replicated.append(row)
    return health


def partition_name(row: PartitionRow) -> str:
    return str(TopicPartition(row.topic, row.partition))


def _broker_row(admin: Admin, broker: DescribeClusterBroker, leaders: int, replicas: int) -> BrokerRow:
    directories = [] if broker.is_fenced else _directories(admin, broker.broker_id)
    partitions = [
        each for directory in directories for topic in directory.topics for each in topic.partitions
    ]
    free = [each.usable_bytes for each in directories if each.usable_bytes >= 0]
    return BrokerRow(
        broker.broker_id,
        str(Address(broker.host, broker.port)),
        broker.rack,
        broker.is_fenced,
        leaders,
        replicas,
        sum(each.partition_size for each in partitions) if directories else None,
        sum(free) if free else None,
    )


def _directories(admin: Admin, broker_id: int) -> list[DescribeLogDirsResult]:
    """Nothing when the broker does not answer: it may have died a moment ago, before anybody knows."""
    try:
        return admin.log_dirs_now(broker_id)
    except (BrokerUnreachable, ConnectionLost, ApiError):
        return []
