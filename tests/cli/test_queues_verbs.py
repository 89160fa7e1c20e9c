"""`tidemill queues`: share groups, with a member that sends the heartbeats of a share consumer."""

from __future__ import annotations

from contextlib import closing

import pytest

from tests.cli.conftest import Run, write
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster
from tidemill.client.share.consumer import ShareConsumer
from tidemill.client.share.session import Acknowledge
from tidemill.protocol.api.share import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse

JANUARY_MS = 1_767_225_600_000


@pytest.fixture
def jobs(cluster: Cluster, topic: str) -> str:
    """Two partitions with three and one records."""
    Admin(cluster).create_topic(topic, partition_count=2)
    for number, value in enumerate("abc"):
        write(cluster, topic, 0, value, timestamp_ms=JANUARY_MS + number)
    write(cluster, topic, 1, "d", timestamp_ms=JANUARY_MS)
    return topic


def heartbeat(cluster: Cluster, group: str, topic: str | None, epoch: int = 0) -> ShareGroupHeartbeatResponse:
    request = ShareGroupHeartbeatRequest(
        group_id=group,
        member_id="m",
        member_epoch=epoch,
        subscribed_topic_names=None if topic is None else [topic],
    )
    response = cluster.coordinator(group).request(request, ShareGroupHeartbeatResponse)
    assert response.error_code == 0, response
    return response


def offsets(cli: Run, group: str) -> list[tuple[int, int, int]]:
    partitions = cli("queues", "describe", group, "--json").json["partitions"]
    return [(each["partition"], each["start_offset"], each["lag"]) for each in partitions]


def test_a_share_group_is_listed_and_described_with_its_members(
    cli: Run, cluster: Cluster, jobs: str
) -> None:
    group = f"{jobs}-workers"
    cli("queues", "reset-offsets", group, "--topic", jobs, "--to", "earliest")
    heartbeat(cluster, group, jobs)
    (listed,) = [each for each in cli("queues", "list", "--json").json if each["group"] == group]
    assert listed["state"] == "Stable"
    document = cli("queues", "describe", group, "--json").json
    assert (document["state"], document["assignor"], document["total_lag"]) == ("Stable", "simple", 4)
    (only,) = document["members"]
    assert (only["member_id"], [each["partition"] for each in only["assignment"]]) == ("m", [0, 1])
    shown = cli("queues", "describe", group).ok
    assert f"{jobs}:0,1" in shown
    assert [line.split() for line in shown.splitlines()[-2:]] == [
        # No member fetches, so nothing is in flight; what waits is not known.
        [jobs, "0", "0", "3", "1", "0", "-", "-"],
        [jobs, "1", "0", "1", "1", "0", "-", "-"],
    ]
    for verb in (
        ("reset-offsets", group, "--topic", jobs, "--to", "latest"),
        ("delete-offsets", group, "--topic", jobs),
        ("delete", group),
    ):
        assert f"share group {group} has members; stop every one of them first" in cli("queues", *verb).error
    heartbeat(cluster, group, None, epoch=-1)
    assert cli("queues", "delete", group).ok == f"deleted {group}\n"


def test_records_in_flight_are_shown_with_their_deliveries(cli: Run, cluster: Cluster, jobs: str) -> None:
    group = f"{jobs}-workers"
    cli("queues", "reset-offsets", group, "--topic", jobs, "--to", "earliest")
    (address,) = [f"{each.host}:{each.port}" for each in cluster.load_metadata([]).brokers]
    with closing(ShareConsumer(Cluster(address), group, [jobs], capacity=10)) as consumer:
        taken = [consumer.take(20) for _ in range(4)]
        again = next(each for each in taken if each is not None and each.partition.partition == 1)
        consumer.acknowledge(again, Acknowledge.RELEASE).result(20)
        assert consumer.take(20) is not None
        document = cli("queues", "describe", group, "--json").json
        shown = cli("queues", "describe", group).ok
    found = [each["in_flight"] for each in document["partitions"]]
    assert [(each["acquired"], each["waiting"], each["by_deliveries"]) for each in found] == [
        (3, 0, [3]),
        (1, 0, [0, 1]),
    ]
    assert [line.split()[5:] for line in shown.splitlines()[-2:]] == [["3", "0", "1×3"], ["1", "0", "2×1"]]


def test_start_offsets_are_reset_and_deleted(cli: Run, jobs: str) -> None:
    group = f"{jobs}-workers"
    dry = cli("queues", "reset-offsets", group, "--topic", jobs, "--to", "latest", "--dry-run").ok
    assert dry.splitlines()[-1] == "nothing was changed: this was a dry run"
    assert "there is no share group" in cli("queues", "describe", group).error
    cli("queues", "reset-offsets", group, "--topic", jobs, "--to", "latest")
    assert offsets(cli, group) == [(0, 3, 0), (1, 1, 0)]
    done = cli("queues", "reset-offsets", group, "--topic", f"{jobs}:0", "--to", "1", "--json").json
    assert done["partitions"] == [{"topic": jobs, "partition": 0, "offset_before": 3, "offset": 1}]
    assert offsets(cli, group) == [(0, 1, 2), (1, 1, 0)]
    assert cli("queues", "delete-offsets", group, "--topic", jobs).ok == (
        f"deleted the offsets of {jobs} in {group}\n"
    )
    assert offsets(cli, group) == []
    assert "has no offsets there" in cli("queues", "delete-offsets", group, "--topic", jobs).error
    cli("queues", "delete", group)
    assert "there is no share group" in cli("queues", "delete", group).error


def test_topics_and_groups_that_do_not_exist_are_named(cli: Run, jobs: str) -> None:
    missing = f"{jobs}-missing"
    refused = cli("queues", "reset-offsets", "workers", "--topic", missing, "--to", "earliest").error
    assert f"there is no topic {missing}" in refused
    assert (
        f"there is no share group {missing}"
        in cli("queues", "delete-offsets", missing, "--topic", jobs).error
    )
