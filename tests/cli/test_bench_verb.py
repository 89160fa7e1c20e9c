"""`tidemill bench`: it measures something, says who set the limit, and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.brokers import eventually
from tests.cli.conftest import LIMIT_S, Run
from tidemill.client.admin.topics import Admin
from tidemill.client.cluster import Cluster

SHORT = ("--seconds", "0.3", "--record-bytes", "100")


def _topics(cluster: Cluster) -> list[str]:
    return [topic.name or "" for topic in Admin(cluster).topics() if "bench" in (topic.name or "")]


@pytest.mark.parametrize("client", ["confluent", "tidemill"])
def test_measures_all_loads_and_cleans_up(cli: Run, cluster: Cluster, client: str) -> None:
    report = cli("bench", *SHORT, "--client", client, "--rate", "100", "--json").json
    assert [each["load"] for each in report["results"]] == ["produce", "consume", "end-to-end"]
    produce, consume, end_to_end = report["results"]
    # What was acknowledged is what is read.
    assert produce["records"] == consume["records"] > 0
    assert produce["bytes"] == consume["bytes"] == 100 * produce["records"]
    assert end_to_end["records"] == 30
    for each in (produce, end_to_end):
        assert 0 < each["latency_ms"]["p50"] <= each["latency_ms"]["p99"] <= each["latency_ms"]["max"]
    assert all(each["errors"] == 0 and each["limit"] for each in report["results"])
    assert _topics(cluster) == []


def test_text_has_a_table_and_the_limit(cli: Run) -> None:
    result = cli("bench", "produce", *SHORT)
    assert result.ok.startswith("LOAD")
    assert "produce: limited by " in result.out


def test_a_topic_that_exists_is_left_alone(cli: Run, cluster: Cluster, orders: str) -> None:
    assert f"topic {orders} exists already" in cli("bench", *SHORT, "--topic", orders).error
    assert orders in [topic.name for topic in Admin(cluster).topics()]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130)])
def test_the_topic_is_deleted_when_it_is_stopped(
    spawn: Callable[..., subprocess.Popen[bytes]], cluster: Cluster, number: signal.Signals, code: int
) -> None:
    bench = spawn("bench", "produce", "--seconds", "60", "--topic", "bench-stopped", stderr=subprocess.PIPE)
    assert bench.stderr is not None
    eventually(lambda: _topics(cluster) == ["bench-stopped"], "the load has begun")
    # Records are in flight when progress is shown for the second time.
    bench.stderr.readline()
    bench.stderr.readline()
    bench.send_signal(number)
    assert bench.wait(LIMIT_S) == code
    assert _topics(cluster) == []
