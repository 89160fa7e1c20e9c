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


@case("describe_configs", only_ends=True)
def of_a_group(s: Script) -> None:
    name = s.name("g")
    s.ask("defaults", describe(resource(GROUP, name, KEYS), synonyms=True), keep=_by_name)
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


def _by_name(tree: dict[str, Any]) -> dict[str, Any]:
    results = [{**r, "configs": sorted(r["configs"], key=lambda c: str(c["name"]))} for r in tree["results"]]
    return {**tree, "results": results}
