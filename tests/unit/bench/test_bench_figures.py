"""The arithmetic and the tables of the benchmarks, and what they say about processes."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench import report
from bench.brokers import BrokerFailedError, Tidemill
from bench.endpoints import Endpoint, librdkafka_settings
from bench.goals import GOALS, Goal, Verdict, judge
from bench.processes import cpu_seconds, rss_mb
from bench.results import Result
from bench.run import CLUSTER, ONE_BROKER, SECURED
from bench.spark import FAMILIES as SPARK_FAMILIES
from bench.stats import Schedule, percentile


def test_endpoint_is_read_as_it_was_written() -> None:
    for endpoint in (Endpoint("h:1"), Endpoint("h:1", "/tmp/a b#c/ca.pem")):
        assert Endpoint.parse(str(endpoint)) == endpoint
    assert librdkafka_settings("h:1") == {"bootstrap.servers": "h:1"}
    assert librdkafka_settings("tls://h:1#/ca.pem")["ssl.ca.location"] == "/ca.pem"


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(value) for value in range(1, 1001)]
    assert [percentile(values, percent) for percent in (0.1, 50, 99, 99.9, 100)] == [1, 500, 990, 999, 1000]
    assert percentile([7.0], 50) == percentile([7.0], 99.9) == 7.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_a_percentile_outside_its_range_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        percentile([1.0], percent)


def test_a_schedule_is_due_neither_early_nor_late() -> None:
    schedule = Schedule(start_s=100.0, rate_per_s=4, count=10)
    assert schedule.due_count(99.99) == 0
    assert schedule.due_count(100.0) == 1
    assert schedule.due_count(100.24) == 1
    assert schedule.due_count(100.25) == 2
    assert schedule.due_count(1000.0) == 10
    assert [schedule.due_s(index) for index in range(3)] == [100.0, 100.25, 100.5]


def result(target: str, *values: float, error: str | None = None) -> Result:
    rounds = [{"mb_per_s": value, "broker_cpu_s_per_gb": value / 100} for value in values]
    return Result("produce", "1 KB", target, rounds, error)


def test_rows_hold_medians_and_ratios() -> None:
    rows = report.family_rows([result("tidemill", 300, 1_200, 600), result("kafka", 200, 400, 300)])
    assert rows == [
        ["case", "broker", "MB/s", "broker CPU-s/GB"],
        ["1 KB", "tidemill", "600", "6.00"],
        ["", "kafka", "300", "3.00"],
        ["", "ratio", "2.00×", "2.00×"],
    ]


def test_a_failed_case_is_a_row_without_numbers_and_a_line_with_the_reason() -> None:
    results = [result("tidemill", error="no answer"), result("kafka", 1500)]
    rows = report.family_rows(results)
    assert rows[1] == ["1 KB", "tidemill (failed)", "–", "–"]
    assert rows[2:] == [["", "kafka", "1,500", "15.00"], ["", "ratio", "–", "–"]]
    assert report.document(results, [], is_markdown=False).endswith("tidemill: produce: 1 KB: no answer")


def test_tables_are_aligned() -> None:
    rows = [["case", "broker", "MB/s"], ["long case", "a", "1,000"], ["", "b", "9"]]
    assert report.text_table(rows).splitlines() == [
        "case       broker   MB/s",
        "------------------------",
        "long case  a       1,000",
        "           b           9",
    ]
    assert report.markdown_table(rows).splitlines() == [
        "| case | broker | MB/s |",
        "| --- | --- | ---: |",
        "| long case | a | 1,000 |",
        "|  | b | 9 |",
    ]


def test_a_goal_is_judged_by_its_worst_case() -> None:
    results = [
        Result("fetch", "1 KB messages", "tidemill", [{"mb_per_s": 500, "broker_cpu_s_per_gb": 0.5}]),
        Result("fetch", "1 KB messages", "kafka", [{"mb_per_s": 1000, "broker_cpu_s_per_gb": 1.0}]),
        Result("fetch", "100 B messages", "tidemill", [{"mb_per_s": 300, "broker_cpu_s_per_gb": 0.9}]),
        Result("fetch", "100 B messages", "kafka", [{"mb_per_s": 100, "broker_cpu_s_per_gb": 1.0}]),
    ]
    verdicts = {verdict.goal.text: verdict for verdict in judge(results, "tidemill", "kafka")}
    assert verdicts.keys() == {"fetch: CPU-s/GB", "fetch throughput : Kafka's", "fetch CPU-s/GB : Kafka's"}
    assert (verdicts["fetch: CPU-s/GB"].worst, verdicts["fetch: CPU-s/GB"].is_met) == (0.5, True)
    assert verdicts["fetch throughput : Kafka's"].worst == 0.5
    assert not verdicts["fetch throughput : Kafka's"].is_met
    assert verdicts["fetch CPU-s/GB : Kafka's"].worst == pytest.approx(0.9)


def test_a_verdict_names_its_limit() -> None:
    goal = Goal("speed", "fetch", "", "mb_per_s", 1.0, is_ratio=True, is_at_least=True)
    assert report.verdict_rows([Verdict(goal, 1.25)])[1:] == [["speed", "≥ 1×", "1.25×", "yes"]]


def test_every_column_that_a_goal_needs_can_be_printed() -> None:
    assert {goal.metric for goal in GOALS} <= report.COLUMNS.keys()
    assert {goal.family for goal in GOALS} <= {
        *ONE_BROKER.families,
        *CLUSTER.families,
        *SECURED.families,
        *SPARK_FAMILIES,
    }


def test_cpu_time_includes_children() -> None:
    before_s = cpu_seconds(os.getpid())
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", burn], check=True, timeout=60)
    own_s = time.process_time()
    while time.process_time() - own_s < 0.1:
        pass
    assert cpu_seconds(os.getpid()) - before_s >= 0.28
    assert 1 < rss_mb(os.getpid()) < 10_000


def test_a_child_that_has_ended_costs_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)  # ended, and not yet collected
        assert 1 < rss_mb(os.getpid()) < 10_000
        assert cpu_seconds(os.getpid()) > 0
        with pytest.raises(ProcessLookupError, match="zombie"):
            rss_mb(zombie.pid)


def script(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


STUB = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(f"Tidemill 0 listens on 127.0.0.1:{server.getsockname()[1]}", flush=True)
while True:
    client, _ = server.accept()
    client.recv(100)
    client.sendall(bytes([0, 0, 0, 10]) + bytes(10))
    client.close()
"""


def test_a_broker_is_up_when_it_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tidemill, "command", staticmethod(lambda: script(tmp_path / "tidemill", STUB)))
    with Tidemill(tmp_path / "data") as broker:
        assert broker.bootstrap.startswith("127.0.0.1:")
        assert 0 < broker.started_seconds < 60
        pid = broker.pid
        assert Path(f"/proc/{pid}").exists()
    assert not Path(f"/proc/{pid}").exists()


def test_a_broker_that_does_not_come_up_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import sys\nsys.exit('the data directory is in use')"
    monkeypatch.setattr(Tidemill, "command", staticmethod(lambda: script(tmp_path / "tidemill", text)))
    with pytest.raises(BrokerFailedError, match="the data directory is in use"), Tidemill(tmp_path / "data"):
        pass
