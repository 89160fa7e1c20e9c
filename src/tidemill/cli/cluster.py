"""`tidemill cluster`: which brokers there are, and what they hold."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import NamedTuple

from tidemill.cli.options import add_verb, add_verbs, connect, print_json
from tidemill.cli.table import print_fields, print_table, size_text
from tidemill.client.admin import Admin
from tidemill.client.connection import Address
from tidemill.protocol.api.cluster import DescribeClusterBroker


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_verb(
        add_verbs(parser),
        "describe",
        _describe,
        "show the cluster's id, controller and brokers",
        "tidemill cluster describe\ntidemill cluster describe --bootstrap broker-1:9092 --json",
    )


def run(arguments: argparse.Namespace) -> int:
    code: int = arguments.run_verb(arguments)
    return code


def _describe(arguments: argparse.Namespace) -> int:
    with connect(arguments) as cluster:
        admin = Admin(cluster)
        described = admin.describe_cluster()
        topics = admin.topics()
        led = Counter(partition.leader_id for topic in topics for partition in topic.partitions)
        brokers = [
            _broker(admin, each, led[each.broker_id])
            for each in sorted(described.brokers, key=lambda each: each.broker_id)
        ]
    internal = sum(topic.is_internal for topic in topics)
    if arguments.json:
        print_json(
            {
                "cluster_id": described.cluster_id,
                "controller_id": described.controller_id,
                "topics": len(topics) - internal,
                "partitions": led.total(),
                "brokers": [each._asdict() for each in brokers],
            }
        )
        return 0
    print_fields(
        [
            ("cluster", described.cluster_id),
            ("controller", described.controller_id),
            ("topics", f"{len(topics) - internal}, and {internal} internal"),
            ("partitions", led.total()),
        ]
    )
    print_table(
        ("BROKER", "ADDRESS", "RACK", "STATE", "LEADS", "DATA", "DISK FREE"),
        [
            (
                each.id,
                each.address,
                each.rack,
                "fenced" if each.is_fenced else "up",
                each.partitions_led,
                None if each.data_bytes is None else size_text(each.data_bytes),
                None if each.disk_free_bytes is None else size_text(each.disk_free_bytes),
            )
            for each in brokers
        ],
    )
    return 0


class _Broker(NamedTuple):
    id: int
    address: str
    rack: str | None
    is_fenced: bool
    partitions_led: int
    data_bytes: int | None
    disk_free_bytes: int | None


def _broker(admin: Admin, broker: DescribeClusterBroker, partitions_led: int) -> _Broker:
    # A fenced broker is not there to be asked.
    directories = [] if broker.is_fenced else admin.log_dirs(broker.broker_id)
    partitions = [
        each for directory in directories for topic in directory.topics for each in topic.partitions
    ]
    free = [each.usable_bytes for each in directories if each.usable_bytes >= 0]
    return _Broker(
        broker.broker_id,
        str(Address(broker.host, broker.port)),
        broker.rack,
        broker.is_fenced,
        partitions_led,
        sum(each.partition_size for each in partitions) if directories else None,
        sum(free) if free else None,
    )
