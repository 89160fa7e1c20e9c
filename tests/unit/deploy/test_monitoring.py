"""The dashboard and the alert rules are well-formed, and ask for metrics that a real broker shows."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from prometheus_client.parser import text_string_to_metric_families

from tests.brokers import eventually, start_broker
from tidemill.client.admin.groups import GroupAdmin
from tidemill.client.admin.topics import Admin
from tidemill.client.admin.views import ViewAdmin
from tidemill.client.cluster import Cluster
from tidemill.client.fetch import fetch_range
from tidemill.client.producing.producer import Producer as ClientProducer
from tidemill.protocol.records import Header
from tidemill.types import TopicPartition

DEPLOY = Path(__file__).parents[3] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "tidemill.json").read_text())
RULES = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())
PROMETHEUS = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())

# What Prometheus itself gives every target.
_SYNTHETIC = {"up"}
_WORDS = {
    "and",
    "or",
    "unless",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "offset",
    "bool",
}


def names_in(expression: str) -> set[str]:
    """The metrics of a PromQL expression: names that are no function, keyword, label or text."""
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    found = re.findall(r"(?<![\w.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()", text)
    return set(found) - _WORDS


def labels_in(expression: str) -> set[str]:
    text = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    matched = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"\"", text)
    grouped = re.findall(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)", text)
    return {*matched, *(label.strip() for group in grouped for label in group.split(",") if label.strip())}


def rules() -> list[dict[str, Any]]:
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    variables = [
        each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"
    ]
    asked = [re.sub(r"label_values\((.*), \w+\)$", r"\1", query) for query in variables]
    shown = [target["expr"] for panel in panels() for target in panel["targets"]]
    return [*asked, *shown, *(rule["expr"] for rule in rules())]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What a broker with topics, a view and a group shows: names of series, each with its labels."""
    settings = {"tidemill.status.listener": "127.0.0.1:0"}
    with start_broker(tmp_path_factory.mktemp("monitored") / "data", settings=settings) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("orders", b"v", partition=0)
        assert producer.flush(20) == 0
        _commit(broker.bootstrap)
        _use_a_view_and_delays(broker.bootstrap)
        address = re.search(r"http://\S+/metrics", broker.printed)
        assert address is not None
        with urllib.request.urlopen(address[0], timeout=20) as answer:
            text = answer.read().decode()
    series: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    return series


def _commit(bootstrap: str) -> None:
    """Commit for a group, again while its coordinator loads: librdkafka gives such a commit back to its caller."""
    with Cluster(bootstrap) as cluster:
        GroupAdmin(cluster).commit("billing", {TopicPartition("orders", 0): 1})


def _use_a_view_and_delays(bootstrap: str) -> None:
    with Cluster(bootstrap) as cluster:
        admin = Admin(cluster)
        ViewAdmin(admin).create("some-orders", "orders", "key exists")
        admin.create_topic("later", configs={"tidemill.delays.enable": "true"})
        producer = ClientProducer(cluster)
        producer.add("later", b"at once", headers=[Header("tidemill-delay", b"0s")])
        producer.add("later", b"never", headers=[Header("tidemill-delay", b"1d")])
        producer.flush()
        end_offset = {TopicPartition("later", 0): 3}
        eventually(lambda: admin.end_offsets(list(end_offset)) == end_offset, "the copy of what was due")
        list(fetch_range(cluster, TopicPartition("some-orders", 0), 0, 1))


def test_every_metric_is_one_that_a_broker_shows(shown: dict[str, set[str]]) -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    used = {name for expression in expressions() for name in names_in(expression)}
    assert used >= {"kafka_topic_partition_current_offset", "tidemill_event_loop_lag_seconds_bucket"}
    assert used - recorded - _SYNTHETIC <= set(shown)


def test_every_label_is_one_of_its_metric(shown: dict[str, set[str]]) -> None:
    of_prometheus = {"job", "instance", "le"}
    for expression in expressions():
        names = names_in(expression)
        if any(":" in name for name in names):
            continue
        known = set().union(*(shown.get(name, set()) for name in names)) | of_prometheus
        assert labels_in(expression) <= known, expression


def test_names_are_found_in_expressions() -> None:
    expression = 'sum by (topic, le) (rate(one_total{topic=~"a|b",job="x"}[5m])) / on (topic) group_right () two:x > 0.5'
    assert names_in(expression) == {"one_total", "two:x"}
    assert labels_in(expression) == {"topic", "le", "job"}


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    alerts = [rule for rule in rules() if "alert" in rule]
    names = [alert["alert"] for alert in alerts]
    assert len(names) == len(set(names)) >= 10
    for alert in alerts:
        assert alert["labels"]["severity"] in {"page", "ticket"}
        assert alert["annotations"]["summary"]
        assert len(alert["annotations"]["description"]) > 30
        assert alert["expr"].count("(") == alert["expr"].count(")")


def test_the_dashboard_covers_what_it_promises() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == [
        "Cluster",
        "Throughput",
        "Groups",
        "Requests",
        "Disk and process",
        "Views and delayed records",
    ]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        assert panel["description"], panel["title"]
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24, panel["title"]
        for target in panel["targets"]:
            assert target["expr"].count("(") == target["expr"].count(")"), panel["title"]


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells


def test_prometheus_reads_the_rules_and_scrapes_status_listeners() -> None:
    assert [(DEPLOY / "prometheus" / name).exists() for name in PROMETHEUS["rule_files"]] == [True]
    (job,) = PROMETHEUS["scrape_configs"]
    assert job["job_name"] == "tidemill"
    (targets,) = [each["targets"] for each in job["static_configs"]]
    assert all(re.fullmatch(r"[\w.-]+:\d+", target) for target in targets)
