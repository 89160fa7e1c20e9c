"""`tidemill groups`, with consumers of confluent-kafka as members."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.brokers import RunningBroker, eventually
from tests.cli.conftest import Run, write
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster

JANUARY_MS = 1_767_225_600_000
DAY_MS = 86_400_000


@pytest.fixture
def orders(cluster: Cluster, topic: str) -> str:
    """Two partitions with three and one records, of the first three days of 2026."""
    Admin(cluster).create_topic(topic, partition_count=2)
    for day, value in enumerate("abc"):
        write(cluster, topic, 0, value, timestamp_ms=JANUARY_MS + day * DAY_MS)
    write(cluster, topic, 1, "d", timestamp_ms=JANUARY_MS)
    return topic


@contextlib.contextmanager
def member(target: RunningBroker, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """A consumer that has its partitions."""
    settings = {
        "bootstrap.servers": target.bootstrap,
        "group.id": group,
        "client.id": "tester",
        "group.protocol": protocol,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    try:
        consumer.subscribe([topic])

        def is_assigned() -> bool:
            consumer.poll(0.05)
            return bool(consumer.assignment())

        eventually(is_assigned, "an assignment")
        yield consumer
    finally:
        consumer.close()


def commit(target: RunningBroker, group: str, topic: str, *offsets: int) -> None:
    consumer = Consumer({"bootstrap.servers": target.bootstrap, "group.id": group})
    try:
        positions = [TopicPartition(topic, index, offset) for index, offset in enumerate(offsets)]
        consumer.commit(offsets=positions, asynchronous=False)
    finally:
        consumer.close()


def committed(cli: Run, group: str) -> list[tuple[int, int, int, int]]:
    return [
        (each["partition"], each["committed_offset"], each["end_offset"], each["lag"])
        for each in cli("groups", "describe", group, "--json").json["partitions"]
        if each["committed_offset"] is not None
    ]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_a_member(cli: Run, target: RunningBroker, orders: str, protocol: str) -> None:
    group = f"{orders}-g"
    with member(target, group, orders, protocol) as consumer:
        consumer.commit(offsets=[TopicPartition(orders, 0, 1)], asynchronous=False)
        document = cli("groups", "describe", group, "--json").json
        assert (document["state"], document["type"], document["total_lag"]) == ("Stable", protocol, 3)
        (only,) = document["members"]
        assert (only["client_id"], only["host"]) == ("tester", "127.0.0.1")
        assert [each["partition"] for each in only["assignment"]] == [0, 1]
        first, second = document["partitions"]
        assert (first["committed_offset"], first["end_offset"], first["lag"]) == (1, 3, 2)
        assert (second["committed_offset"], second["end_offset"], second["lag"]) == (None, 1, 1)
        assert first["member_id"] == second["member_id"] == only["member_id"]

        shown = cli("groups", "describe", group).ok
        assert "lag:      3 (1 partition without a commit: all of it)\n" in shown
        assert f"{orders}:0,1" in shown
        (listed,) = [each for each in cli("groups", "list", "--json").json if each["group"] == group]
        assert (listed["state"], listed["type"]) == ("Stable", protocol)

        refused = cli("groups", "reset", group, "--topic", orders, "--to", "earliest").error
        assert f"group {group} has 1 member (tester on 127.0.0.1); stop every member first" in refused
        assert f"group {group} has members" in cli("groups", "delete", group).error
        assert "still reads the topic" in cli("groups", "delete-offsets", group, "--topic", orders).error
        assert document["partitions"] == cli("groups", "describe", group, "--json").json["partitions"]
    assert cli("groups", "reset", group, "--topic", orders, "--to", "earliest").code == 0


def test_reset(cli: Run, target: RunningBroker, orders: str) -> None:
    group = f"{orders}-g"
    commit(target, group, orders, 2, 1)
    dry = cli("groups", "reset", group, "--topic", orders, "--to", "earliest", "--dry-run").ok.splitlines()
    assert [line.split() for line in dry[1:3]] == [
        [orders, "0", "2", "0", "-2"],
        [orders, "1", "1", "0", "-1"],
    ]
    assert dry[3] == "nothing was changed: this was a dry run"
    assert committed(cli, group) == [(0, 2, 3, 1), (1, 1, 1, 0)]

    cli("groups", "reset", group, "--topic", f"{orders}:0", "--to", "earliest")
    assert committed(cli, group) == [(0, 0, 3, 3), (1, 1, 1, 0)]
    cli("groups", "reset", group, "--all-topics", "--by", "2")
    assert committed(cli, group) == [(0, 2, 3, 1), (1, 1, 1, 0)]
    cli("groups", "reset", group, "--topic", orders, "--to", "2026-01-02T00:00:00Z")
    assert committed(cli, group) == [(0, 1, 3, 2), (1, 1, 1, 0)]
    cli("groups", "reset", group, "--topic", orders, "--to", "latest")
    assert committed(cli, group) == [(0, 3, 3, 0), (1, 1, 1, 0)]
    done = cli("groups", "reset", group, "--topic", f"{orders}:0", "--to", "1", "--json").json
    assert done["partitions"] == [{"topic": orders, "partition": 0, "offset_before": 3, "offset": 1}]
    assert cli("consume", orders, "--group", group).ok.split() == ["b", "c"]


def test_a_new_group_can_be_given_its_start(cli: Run, orders: str) -> None:
    group = f"{orders}-new"
    row = cli("groups", "reset", group, "--topic", f"{orders}:0", "--to", "2").ok.splitlines()[1]
    assert row.split() == [orders, "0", "-", "2", "-"]
    assert committed(cli, group) == [(0, 2, 3, 1)]


def test_delete(cli: Run, target: RunningBroker, orders: str) -> None:
    group = f"{orders}-g"
    commit(target, group, orders, 2, 1)
    cli("groups", "delete-offsets", group, "--topic", f"{orders}:1")
    assert committed(cli, group) == [(0, 2, 3, 1)]
    assert cli("groups", "delete", group).ok == f"deleted {group}\n"
    expected = f"there is no group {group}; `tidemill groups list` shows what there is"
    assert cli("groups", "describe", group).error == f"tidemill groups describe: {expected}"
    assert cli("groups", "delete", group).error == f"tidemill groups delete: {expected}"


def test_the_offsets_of_a_deleted_topic_have_no_lag(cli: Run, target: RunningBroker, orders: str) -> None:
    group = f"{orders}-g"
    commit(target, group, orders, 1)
    cli("topics", "delete", orders)
    partitions = cli("groups", "describe", group, "--json").json["partitions"]
    assert [(each["end_offset"], each["lag"]) for each in partitions] in ([], [(None, None)])


def test_groups_reject_wrong_arguments(cli: Run, orders: str) -> None:
    group = f"{orders}-none"
    assert "has committed nothing" in cli("groups", "reset", group, "--all-topics", "--to", "end").error
    assert "--by has nowhere to start" in cli("groups", "reset", group, "--topic", orders, "--by", "1").error
    assert "no partition 7" in cli("groups", "reset", group, "--topic", f"{orders}:7", "--to", "end").error
    assert "there is no topic" in cli("groups", "reset", group, "--topic", "nope", "--to", "end").error
    assert "has committed nothing" in cli("groups", "delete-offsets", group, "--topic", orders).error
