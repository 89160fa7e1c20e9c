"""Settings of groups: DescribeConfigs and IncrementalAlterConfigs with the resource type GROUP."""

from __future__ import annotations

from typing import Any

from bench.diff.cases.configs import DELETE, GROUP, SET, describe, resource
from bench.diff.script import Script, case

KEYS = [
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
]
SHARE_KEYS = [
    "share.assignment.interval.ms",
    "share.auto.offset.reset",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.isolation.level",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.renew.acknowledge.enable",
    "share.session.timeout.ms",
]


@case("describe_configs", only_ends=True)
def of_a_group(s: Script) -> None:
    name = s.name("g")
    s.ask("defaults", describe(resource(GROUP, name, KEYS), synonyms=True), keep=_by_name)
    s.ask("share groups", describe(resource(GROUP, name, SHARE_KEYS), synonyms=True), keep=_by_name)
    s.ask("unknown key", describe(resource(GROUP, name, ["no.such.config"])))
    s.ask("empty name", describe(resource(GROUP, "", KEYS)))


@case("incremental_alter_configs", only_ends=True)
def group_settings(s: Script) -> None:
    name = s.name("g")

    def alter(label: str, key: str, operation: int, value: str | None, group: str = name) -> None:
        change = {"name": key, "config_operation": operation, "value": value}
        target = {"resource_type": GROUP, "resource_name": group, "configs": [change]}
        s.ask(label, {"resources": [target]})
        s.await_applied()
        look = describe(resource(GROUP, name, KEYS), synonyms=True)
        s.ask(f"{label}, afterwards", look, api="describe_configs", version=4, keep=_by_name)

    alter("set", "consumer.session.timeout.ms", SET, "50000")
    alter("set another", "consumer.heartbeat.interval.ms", SET, "6000")
    alter("too small", "consumer.session.timeout.ms", SET, "1")
    alter("too large", "consumer.session.timeout.ms", SET, "99999999")
    alter("a long interval", "consumer.heartbeat.interval.ms", SET, "14000")
    alter("not a number", "consumer.session.timeout.ms", SET, "soon")
    alter("unknown key", "no.such.config", SET, "1")
    alter("delete", "consumer.session.timeout.ms", DELETE, None)
    alter("delete again", "consumer.session.timeout.ms", DELETE, None)
    alter("empty name", "consumer.session.timeout.ms", SET, "50000", "")


@case("incremental_alter_configs", only_ends=True)
def share_group_settings(s: Script) -> None:
    name = s.name("g")
    for key, values in {
        "share.auto.offset.reset": [
            "earliest",
            "LATEST",
            "by_duration:PT1H",
            "by_duration:P1DT2H3M4.5S",
            "by_duration:-PT1H",
            "by_duration:",
            "by_duration:1h",
            "none",
        ],
        "share.isolation.level": ["read_committed", "READ_COMMITTED", "serializable"],
        "share.renew.acknowledge.enable": ["false", "perhaps"],
        "share.delivery.count.limit": ["2", "10", "1", "11"],
        "share.record.lock.duration.ms": ["15000", "60000", "14999", "60001"],
        "share.partition.max.record.locks": ["100", "4000", "99", "4001"],
        "share.session.timeout.ms": ["45000", "60000", "44999", "60001"],
        "share.heartbeat.interval.ms": ["5000", "15000", "4999", "15001"],
        "share.assignment.interval.ms": ["0", "15000", "-1", "15001"],
    }.items():
        for value in values:
            change = {"name": key, "config_operation": SET, "value": value}
            target = {"resource_type": GROUP, "resource_name": name, "configs": [change]}
            s.ask(f"{key}={value}", {"resources": [target]})
    s.await_applied()
    look = describe(resource(GROUP, name, SHARE_KEYS), synonyms=True)
    s.ask("afterwards", look, api="describe_configs", version=4, keep=_by_name)


def _by_name(tree: dict[str, Any]) -> dict[str, Any]:
    results = [{**r, "configs": sorted(r["configs"], key=lambda c: str(c["name"]))} for r in tree["results"]]
    return {**tree, "results": results}
