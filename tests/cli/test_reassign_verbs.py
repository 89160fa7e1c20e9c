"""`tidemill reassign`, `tidemill topics elect` and `tidemill brokers` against a cluster of three."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import eventually
from tests.cli.clusters import LocalCluster
from tests.cli.conftest import Result, Run, run_command

THROTTLES = ("leader.replication.throttled", "follower.replication.throttled")


@pytest.fixture
def moved(cli_three: Run, topic: str) -> str:
    """A topic of one partition with its only replica on broker 1, and some records."""
    cli_three("topics", "create", topic, "--replication-factor", "1").check()
    cli_three("produce", topic, *(f"record {number}" for number in range(50))).check()
    cli_three("reassign", "execute", "-", stdin=plan(topic, 1)).check()
    return topic


def plan(topic: str, *replicas: int, partition: int = 0) -> bytes:
    row = {"topic": topic, "partition": partition, "replicas": list(replicas)}
    return json.dumps({"version": 1, "partitions": [row]}).encode()


def replicas_of(cli: Run, topic: str) -> list[int]:
    (described,) = cli("topics", "describe", topic, "--json").json
    found: list[int] = described["partitions"][0]["replicas"]
    return found


def test_execute_moves_a_partition_with_its_records(cli_three: Run, moved: str, tmp_path: Path) -> None:
    back = tmp_path / "back.json"
    result = cli_three("reassign", "execute", "-", "--rollback", str(back), "--json", stdin=plan(moved, 3, 2))
    assert result.json["partitions"] == 1
    assert "100 %  1 of 1 partitions" in result.err
    assert replicas_of(cli_three, moved) == [3, 2]
    assert len(cli_three("consume", moved).ok.splitlines()) == 50
    assert json.loads(back.read_text()) == json.loads(plan(moved, 1))
    assert "moved 1 partition" in cli_three("reassign", "execute", str(back)).ok
    assert replicas_of(cli_three, moved) == [1]
    assert "nothing to do" in cli_three("reassign", "execute", str(back)).ok
    assert cli_three("reassign", "status").ok == "no partition is being moved\n"


def test_a_throttle_is_gone_when_the_move_is_done(cli_three: Run, moved: str) -> None:
    cli_three("reassign", "execute", "-", "--throttle", "10000000", stdin=plan(moved, 2)).check()
    assert replicas_of(cli_three, moved) == [2]
    eventually(lambda: not _throttles(cli_three, moved), "no throttle is left")


def _throttles(cli: Run, topic: str) -> list[str]:
    settings = [cli("configs", "describe", "topic", topic).ok]
    settings += [cli("configs", "describe", "broker", str(number)).ok for number in (1, 2, 3)]
    return [line for text in settings for line in text.splitlines() if line.startswith(THROTTLES)]


def test_plan_writes_what_execute_reads(cli_three: Run, topic: str, tmp_path: Path) -> None:
    cli_three("topics", "create", topic, "--partitions", "4", "--replication-factor", "1").check()
    path = tmp_path / "plan.json"
    chosen = ["--topic", topic, "--brokers", "1,2", "--replication-factor", "2"]
    assert "the plan in" in cli_three("reassign", "plan", *chosen, "--output", str(path)).err
    rows = json.loads(path.read_text())["partitions"]
    assert all(sorted(row["replicas"]) == [1, 2] for row in rows)
    cli_three("reassign", "execute", str(path)).check()
    (described,) = cli_three("topics", "describe", topic, "--json").json
    assert [sorted(each["replicas"]) for each in described["partitions"]] == [[1, 2]] * 4
    assert sorted(each["replicas"][0] for each in described["partitions"]) == [1, 1, 2, 2]
    assert json.loads(cli_three("reassign", "plan", *chosen).ok)["partitions"] == []


def test_plans_that_cannot_be(cli_three: Run, moved: str) -> None:
    def execute(stdin: bytes) -> str:
        return cli_three("reassign", "execute", "-", stdin=stdin).error

    assert "which does not exist" in execute(plan("no-such-topic", 1))
    assert "on broker 77, which does not exist" in execute(plan(moved, 77))
    assert "standard input is not JSON" in execute(b"{")
    assert "cannot read" in cli_three("reassign", "execute", "no-such-file").error
    assert "broker 77 is not up" in cli_three("reassign", "plan", "--brokers", "77").error
    assert "there is no topic nothing" in cli_three("reassign", "plan", "--topic", "nothing").error
    assert (
        "4 replicas need as many brokers" in cli_three("reassign", "plan", "--replication-factor", "4").error
    )
    assert "nothing to throttle" in cli_three("reassign", "throttle", "1000").error
    assert cli_three("reassign", "cancel").ok == "no partition is being moved\n"


def test_elect_gives_the_preferred_replica_its_partition(cli_three: Run, topic: str) -> None:
    cli_three("topics", "create", topic, "--replication-factor", "2").check()
    cli_three("reassign", "execute", "-", stdin=plan(topic, 1, 2)).check()
    cli_three("topics", "elect", topic).check()
    cli_three("reassign", "execute", "-", stdin=plan(topic, 2, 1)).check()
    (described,) = cli_three("topics", "describe", topic, "--json").json
    assert described["partitions"][0]["leader"] == 1
    assert cli_three("topics", "elect", topic, "--json").json == {"elected": [f"{topic}-0"], "failed": []}
    eventually(lambda: _leader(cli_three, topic) == 2, "broker 2 leads")
    assert cli_three("topics", "elect", topic).ok == "no election was needed\n"
    assert "there is no topic" in cli_three("topics", "elect", "no-such-topic").error


def _leader(cli: Run, topic: str) -> int:
    (described,) = cli("topics", "describe", topic, "--json").json
    leader: int = described["partitions"][0]["leader"]
    return leader


def test_brokers_list(cli_three: Run) -> None:
    listed = cli_three("brokers", "list", "--json").json
    assert [each["id"] for each in listed] == [1, 2, 3]
    assert all(not each["is_fenced"] and each["disk_free_bytes"] > 0 for each in listed)
    assert cli_three("brokers", "list").ok.split()[:3] == ["BROKER", "ADDRESS", "RACK"]


def test_drain_is_refused_where_replicas_have_nowhere_to_go(cli_three: Run, topic: str) -> None:
    cli_three("topics", "create", topic, "--replication-factor", "3").check()
    refused = cli_three("brokers", "drain", "3").error
    assert "has 3 replicas, and no broker is left" in refused
    assert "start another broker first" in refused
    assert "there is no broker 77" in cli_three("brokers", "drain", "77").error
    assert "there is no broker 77" in cli_three("brokers", "remove", "77").error
    cli_three("topics", "delete", topic).check()


def test_the_end_of_a_broker(own_cluster: Callable[..., LocalCluster]) -> None:
    """Drain, stop, remove; the records stay, and the cluster is whole without it."""
    cluster = own_cluster("--brokers", "3", "--base-port", "0")

    def cli(*words: str, stdin: bytes = b"") -> Result:
        return run_command(cluster, *words, stdin=stdin)

    cli("topics", "create", "orders", "--partitions", "6", "--replication-factor", "2").check()
    cli("produce", "orders", *(f"record {number}" for number in range(200))).check()
    drained = cli("brokers", "drain", "3", "--json").json
    assert drained["partitions"] == 4
    assert _replicas_held(cli("brokers", "list", "--json").json) == {1: 6, 2: 6, 3: 0}
    assert "stop it" in cli("brokers", "remove", "3").error
    os.kill(cluster.node_pids()[3], signal.SIGTERM)
    eventually(lambda: _is_down(cli("brokers", "list", "--json").json, 3), "broker 3 is down")
    removed = cli("brokers", "remove", "3")
    assert removed.ok == "broker 3 is removed\n"
    # The voters stand in the nodes' files.
    assert "still a voter" in removed.err
    assert [each["id"] for each in cli("brokers", "list", "--json").json] == [1, 2]
    assert len(cli("consume", "orders").ok.splitlines()) == 200
    status = cli("cluster", "status", "--json").json
    assert status["under_replicated"] == status["offline"] == []


def test_a_move_that_is_under_way_can_be_seen_slowed_and_taken_back(
    own_cluster: Callable[..., LocalCluster],
) -> None:
    """It stays under way because the broker that it goes to is dead."""
    cluster = own_cluster("--brokers", "3", "--base-port", "0")

    def cli(*words: str, stdin: bytes = b"") -> Result:
        return run_command(cluster, *words, stdin=stdin)

    cli("topics", "create", "orders", "--replication-factor", "1").check()
    cli("reassign", "execute", "-", stdin=plan("orders", 1)).check()
    cli("produce", "orders", "a record").check()
    os.kill(cluster.node_pids()[3], signal.SIGKILL)
    eventually(lambda: _is_down(cli("brokers", "list", "--json").json, 3), "broker 3 is fenced")
    begun = cli("reassign", "execute", "-", "--no-wait", "--json", stdin=plan("orders", 3))
    assert begun.json == {"partitions": 1}
    (row,) = cli("reassign", "status", "--json").json["partitions"]
    assert (row["target"], row["adding"], row["removing"]) == ([3], [3], [1])
    assert row["arrived_bytes"] == 0
    assert row["total_bytes"] > 0
    assert "1 partition on the move" in cli("cluster", "status").ok
    cli("reassign", "throttle", "1000000").check()
    # What the controller has decided reaches the brokers, which are asked, a little later.
    eventually(lambda: _status(cli)["throttled_topics"] == ["orders"], "the topic is throttled")
    assert cli("reassign", "cancel", "--json").json == {"cancelled": ["orders-0"]}
    eventually(lambda: _status(cli) == {"throttled_topics": [], "partitions": []}, "nothing is left")
    eventually(lambda: replicas_of(cli, "orders") == [1], "the partition is back where it was")
    assert cli("consume", "orders").ok == "a record\n"


def _status(cli: Run) -> dict[str, Any]:
    status: dict[str, Any] = cli("reassign", "status", "--json").json
    return status


def _replicas_held(brokers: list[dict[str, Any]]) -> dict[int, int]:
    return {each["id"]: each["replicas"] for each in brokers}


def _is_down(brokers: list[dict[str, Any]], broker_id: int) -> bool:
    return any(each["is_fenced"] for each in brokers if each["id"] == broker_id)
