"""`tidemill cluster start` and `tidemill cluster status`, with real processes."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.brokers import eventually
from tests.cli.clusters import LocalCluster, serve_by_hand
from tests.cli.conftest import LIMIT_S, Run, run_command
from tests.cli.gateways import answers
from tests.processes import is_alive


def test_status_of_a_healthy_cluster(cli_three: Run, topic: str) -> None:
    cli_three("topics", "create", topic, "--partitions", "3", "--replication-factor", "3").check()
    status = eventually(lambda: _healthy(cli_three("cluster", "status", "--json").json, topic), "all in sync")
    assert [each["id"] for each in status["brokers"]] == [1, 2, 3]
    assert not any(each["is_fenced"] for each in status["brokers"])
    quorum = status["quorum"]
    assert [each["id"] for each in quorum["voters"]] == [1, 2, 3]
    assert quorum["leader_id"] in (1, 2, 3)
    assert quorum["epoch"] >= 1
    leader = next(each for each in quorum["voters"] if each["id"] == quorum["leader_id"])
    assert leader["lag"] == 0
    text = cli_three("cluster", "status").ok
    assert f"controller: {quorum['leader_id']}" in text
    assert [line.split()[0] for line in text.split("BROKER")[1].splitlines()[1:4]] == ["1", "2", "3"]
    cli_three("topics", "delete", topic).check()


def _healthy(status: dict[str, Any], topic: str) -> dict[str, Any] | None:
    lacking = [*status["offline"], *status["under_replicated"], *status["under_min_isr"]]
    return None if any(each["topic"] == topic for each in lacking) else status


@pytest.mark.long
def test_a_second_start_continues_the_cluster(own_cluster: Callable[..., LocalCluster]) -> None:
    first = own_cluster("--brokers", "3", "--base-port", "0")
    run_command(first, "topics", "create", "kept", "--replication-factor", "3").check()
    run_command(first, "produce", "kept", "before").check()
    assert first.stop() == 0, first.log()
    assert "broker-1 | Tidemill" in first.log()
    second = own_cluster()
    assert second.bootstrap == first.bootstrap
    run_command(second, "produce", "kept", "after").check()
    assert run_command(second, "consume", "kept").ok == "before\nafter\n"
    refused = run_command(second, "cluster", "start", "--brokers", "4", "--data-dir", str(second.data_dir))
    assert "holds a cluster of 3 brokers, not 4" in refused.error


@pytest.mark.long
def test_a_node_that_dies_is_reported_and_missed_until_it_is_back(
    own_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = own_cluster("--brokers", "3", "--base-port", "0")
    run_command(cluster, "topics", "create", "all", "--partitions", "3", "--replication-factor", "3").check()
    os.kill(cluster.node_pids()[2], signal.SIGKILL)
    eventually(lambda: "broker-2 | ended with signal SIGKILL" in cluster.log(), "the death is reported")
    status = eventually(lambda: _without_two(cluster), "broker 2 is fenced and its replicas are missed")
    assert {each["partition"] for each in status["under_replicated"]} == {0, 1, 2}
    assert status["offline"] == []
    assert "3 partitions under-replicated" in run_command(cluster, "cluster", "status").ok
    run_command(cluster, "produce", "all", "while it is away").check()
    again = serve_by_hand(cluster, 2)
    try:
        eventually(lambda: _is_whole(cluster), "broker 2 is back and in sync", LIMIT_S)
    finally:
        again.send_signal(signal.SIGTERM)
        assert again.wait(LIMIT_S) == 0, cluster.log()


@pytest.mark.long
def test_a_broker_that_was_killed_is_missed_before_its_session_ends(
    own_cluster: Callable[..., LocalCluster],
) -> None:
    # Longer than the test: what is shown cannot come from the controller, which takes the broker for alive.
    session = ("--set", "broker.session.timeout.ms=600000")
    cluster = own_cluster("--brokers", "3", "--base-port", "0", *session)
    run_command(cluster, "topics", "create", "all", "--partitions", "3", "--replication-factor", "3").check()
    victim = run_command(cluster, "cluster", "status", "--json").json["quorum"]["leader_id"]
    os.kill(cluster.node_pids()[victim], signal.SIGKILL)
    eventually(lambda: f"broker-{victim} | ended with signal SIGKILL" in cluster.log(), "it is dead")
    alive = ["--bootstrap", ",".join(cluster.address(each) for each in (1, 2, 3) if each != victim)]
    status = run_command(cluster, "cluster", "status", "--json", *alive).json
    states = {each["id"]: (each["is_fenced"], each["state"]) for each in status["brokers"]}
    assert states.pop(victim) == (False, "silent")
    assert set(states.values()) == {(False, "up")}
    assert [each["leader"] for each in status["led_by_silent"]] == [victim]
    text = run_command(cluster, "cluster", "status", *alive).ok
    assert f"Broker {victim} does not answer" in text
    assert "1 partition led by a broker that does not answer" in text
    assert "all brokers answer" not in text
    report = run_command(cluster, "doctor", "--json", *alive)
    assert report.code == 1
    problems = [each["text"] for each in json.loads(report.out)["checks"] if each["verdict"] == "problem"]
    assert any(each.startswith(f"Broker {victim} does not answer") for each in problems), problems


def _without_two(cluster: LocalCluster) -> dict[str, Any] | None:
    status: dict[str, Any] = run_command(cluster, "cluster", "status", "--json").json
    down = [each["id"] for each in status["brokers"] if each["is_fenced"]]
    return status if down == [2] and len(status["under_replicated"]) == 3 else None


def _is_whole(cluster: LocalCluster) -> bool:
    status = run_command(cluster, "cluster", "status", "--json").json
    return not status["under_replicated"] and not any(each["is_fenced"] for each in status["brokers"])


@pytest.mark.long
def test_without_a_majority_status_still_answers_and_says_why(
    own_cluster: Callable[..., LocalCluster],
) -> None:
    cluster = own_cluster("--brokers", "3", "--base-port", "0")
    pids = cluster.node_pids()
    for node_id in (2, 3):
        os.kill(pids[node_id], signal.SIGKILL)
    alive = ["--bootstrap", cluster.address(1), "--timeout", "3"]
    status = eventually(lambda: _without_controller(cluster, alive), "the last node knows no controller")
    assert [each["id"] for each in status["brokers"]] == [1, 2, 3]
    shown = run_command(cluster, "cluster", "status", *alive)
    assert "a majority of the voters" in shown.err
    failed = run_command(cluster, "topics", "create", "impossible", *alive)
    assert failed.error.startswith("tidemill topics create: ")


def _without_controller(cluster: LocalCluster, alive: list[str]) -> dict[str, Any] | None:
    done = run_command(cluster, "cluster", "status", "--json", *alive)
    if done.code:
        return None
    status: dict[str, Any] = done.json
    return status if status["quorum"] is None and status["quorum_error"] else None


def test_a_cluster_has_one_gateway_and_a_status_listener_for_each_node(
    own_cluster: Callable[..., LocalCluster],
) -> None:
    pytest.importorskip("uvicorn", reason="needs tidemill[gateway]")
    faces = ("--gateway", "127.0.0.1:0", "--status", "127.0.0.1:0")
    cluster = own_cluster("--brokers", "2", "--base-port", "0", *faces)
    console = eventually(
        lambda: re.search(r"^Console at http://(\S+)/$", cluster.log(), re.MULTILINE), "the console", LIMIT_S
    )[1]
    assert answers(console)
    for number in (1, 2):
        status = re.search(
            rf"^broker-{number} \| Metrics at http://(\S+)/metrics$", cluster.log(), re.MULTILINE
        )
        assert status is not None, cluster.log()
        assert answers(status[1], "/readyz")
    os.kill(cluster.node_pids()[1], signal.SIGKILL)
    assert eventually(lambda: answers(console), "the gateway does not end with a broker")
    cluster.stop()
    assert not answers(console)


def test_ctrl_c_stops_every_node(own_cluster: Callable[..., LocalCluster]) -> None:
    cluster = own_cluster("--brokers", "1", "--base-port", "0")
    (pid,) = cluster.node_pids().values()
    cluster.process.send_signal(signal.SIGINT)
    assert cluster.process.wait(LIMIT_S) == 0, cluster.log()
    assert not is_alive(pid)
