"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs."""

from __future__ import annotations

from typing import Any

from bench.diff.script import SILENT_SECONDS, Script, case

UNKNOWN, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3
# Config sources: a topic, one broker or all brokers at run time.
SET_BY_SOMEONE = (1, 2, 3)
# What people look for on a broker; the whole list is a case of its own.
BROKER_KEYS = [
    "advertised.listeners",
    "auto.create.topics.enable",
    "compression.type",
    "default.replication.factor",
    "inter.broker.protocol.version",
    "listeners",
    "log.cleanup.policy",
    "log.dirs",
    "log.message.timestamp.type",
    "log.retention.bytes",
    "log.retention.hours",
    "log.retention.minutes",
    "log.retention.ms",
    "log.segment.bytes",
    "message.max.bytes",
    "min.insync.replicas",
    "node.id",
    "num.io.threads",
    "num.partitions",
    "offsets.topic.replication.factor",
    "socket.request.max.bytes",
    "ssl.keystore.password",
]


def resource(kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def describe(
    *resources: dict[str, Any], synonyms: bool = False, documentation: bool = False
) -> dict[str, Any]:
    return {
        "resources": list(resources),
        "include_synonyms": synonyms,
        "include_documentation": documentation,
    }


@case("describe_configs")
def of_a_topic(s: Script) -> None:
    plain = s.topic("plain")
    given = s.topic("given", cleanup_policy="compact", compression_type="zstd", segment_bytes="2000000")
    s.ask("all", describe(resource(TOPIC, plain.name)), keep=_by_name)
    s.ask("all with synonyms", describe(resource(TOPIC, plain.name), synonyms=True), keep=_by_name)
    s.ask("all, some given", describe(resource(TOPIC, given.name), synonyms=True), keep=_by_name)
    keys = ["segment.bytes", "cleanup.policy"]
    s.ask("some keys", describe(resource(TOPIC, given.name, keys), synonyms=True))
    s.ask("unknown key", describe(resource(TOPIC, plain.name, ["no.such.config", "retention.ms"])))
    s.ask("no keys", describe(resource(TOPIC, plain.name, [])), keep=_by_name)
    s.ask("documentation", describe(resource(TOPIC, plain.name), documentation=True), keep=_by_name)
    s.ask("same topic twice", describe(resource(TOPIC, plain.name, keys), resource(TOPIC, plain.name, keys)))


def _by_name(tree: dict[str, Any]) -> dict[str, Any]:
    """The order of configs is that of a hash map in Kafka and means nothing."""
    results = [{**r, "configs": sorted(r["configs"], key=lambda c: str(c["name"]))} for r in tree["results"]]
    return {**tree, "results": results}


@case("describe_configs")
def of_a_broker(s: Script) -> None:
    name = str(s.facts.node_id)
    s.ask("well-known keys", describe(resource(BROKER, name, BROKER_KEYS), synonyms=True), keep=_by_name)
    s.ask("all", describe(resource(BROKER, name)), keep=_by_name)
    s.ask("unknown in the file", describe(resource(BROKER, name, ["some.plugin.setting"]), synonyms=True))
    s.ask("cluster-wide default", describe(resource(BROKER, ""), synonyms=True))
    s.ask("another broker", describe(resource(BROKER, str(s.facts.node_id + 100))))
    s.ask("not a number", describe(resource(BROKER, "one")))
    s.ask("loggers", describe(resource(BROKER_LOGGER, name, ["no.such.logger"])))
    s.ask("root logger", describe(resource(BROKER_LOGGER, name, ["root"]), synonyms=True))
    s.ask("loggers of another broker", describe(resource(BROKER_LOGGER, str(s.facts.node_id + 100))))
    s.ask("loggers of nobody", describe(resource(BROKER_LOGGER, "")))


@case("describe_configs")
def of_nothing(s: Script) -> None:
    s.ask("unknown topic", describe(resource(TOPIC, s.name("missing"))))
    s.ask("invalid topic", describe(resource(TOPIC, "not a name")))
    s.ask("empty topic", describe(resource(TOPIC, "")))
    s.ask("unknown type", describe(resource(UNKNOWN, "x")))
    s.ask("type that does not exist", describe(resource(77, "x")))
    s.ask("no resources", describe())
    s.ask("client metrics", describe(resource(CLIENT_METRICS, "missing")), keep=_by_name)
    s.ask("client metrics without a name", describe(resource(CLIENT_METRICS, "")))
    s.ask("group", describe(resource(GROUP, "missing")), keep=_by_name)
    good = s.topic("good")
    keys = ["retention.ms"]
    s.ask(
        "good beside bad",
        describe(resource(TOPIC, s.name("missing"), keys), resource(TOPIC, good.name, keys)),
    )


def _after(s: Script, label: str, kind: int, name: str) -> None:
    """What the change left behind: every setting that is no default."""

    def changed(tree: dict[str, Any]) -> dict[str, Any]:
        result = tree["results"][0]
        entries = {c["name"]: c["value"] for c in result["configs"] if c["config_source"] in SET_BY_SOMEONE}
        return {"error_code": result["error_code"], "set": dict(sorted(entries.items()))}

    s.await_applied()
    s.ask(
        f"{label}, afterwards",
        describe(resource(kind, name)),
        api="describe_configs",
        version=4,
        keep=changed,
    )


@case("alter_configs")
def replace(s: Script) -> None:
    t = s.topic("x", segment_bytes="2000000")

    def alter(
        label: str, name: str, *entries: tuple[str, str | None], kind: int = TOPIC, **more: Any
    ) -> None:
        configs = [{"name": n, "value": value} for n, value in entries]
        change = {"resource_type": kind, "resource_name": name, "configs": configs}
        s.ask(label, {"resources": [change], **more})
        _after(s, label, TOPIC, t.name)

    alter("validate only", t.name, ("retention.ms", "1000"), validate_only=True)
    alter("one key replaces all", t.name, ("retention.ms", "1000"))
    alter("unknown key", t.name, ("no.such.config", "1"))
    alter("bad value", t.name, ("retention.ms", "soon"))
    alter("null value", t.name, ("retention.ms", None))
    alter("key twice", t.name, ("retention.ms", "1"), ("retention.ms", "2"))
    alter("nothing", t.name)
    alter("unknown topic", s.name("missing"), ("retention.ms", "1000"))
    alter("invalid topic", "not a name", ("retention.ms", "1000"))
    alter("another broker", str(s.facts.node_id + 100), ("log.retention.ms", "1"), kind=BROKER)
    alter("unknown type", "x", ("retention.ms", "1"), kind=77)
    change = {
        "resource_type": TOPIC,
        "resource_name": t.name,
        "configs": [{"name": "retention.ms", "value": "9"}],
    }
    s.ask("same topic twice", {"resources": [change, change]}, timeout_seconds=SILENT_SECONDS)
    _after(s, "same topic twice", TOPIC, t.name)
    s.ask("no resources", {"resources": []})


def incremental(kind: int, name: str, *entries: tuple[str, int, str | None]) -> dict[str, Any]:
    configs = [{"name": n, "config_operation": op, "value": value} for n, op, value in entries]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


@case("incremental_alter_configs")
def topic_operations(s: Script) -> None:
    t = s.topic("x")

    def alter(label: str, *entries: tuple[str, int, str | None], **more: Any) -> None:
        s.ask(label, {"resources": [incremental(TOPIC, t.name, *entries)], **more})
        _after(s, label, TOPIC, t.name)

    alter("set", ("segment.bytes", SET, "2000000"))
    alter("set two", ("max.message.bytes", SET, "1000"), ("flush.messages", SET, "1"))
    alter("validate only", ("segment.bytes", SET, "3000000"), validate_only=True)
    alter("delete", ("segment.bytes", DELETE, None))
    alter("delete what is not set", ("segment.ms", DELETE, None))
    alter("append", ("cleanup.policy", APPEND, "compact"))
    alter("append the same", ("cleanup.policy", APPEND, "compact"))
    alter("subtract", ("cleanup.policy", SUBTRACT, "delete"))
    alter("subtract what is not in it", ("cleanup.policy", SUBTRACT, "delete"))
    alter("subtract the last", ("cleanup.policy", SUBTRACT, "compact"))
    alter("append to a number", ("retention.ms", APPEND, "1"))
    alter("subtract from a number", ("retention.ms", SUBTRACT, "1"))
    alter("unknown operation", ("retention.ms", 9, "1"))
    alter("negative operation", ("retention.ms", -1, "1"))
    alter("bad value", ("retention.ms", SET, "soon"))
    alter("below the range", ("retention.ms", SET, "-5"))
    alter("good and bad", ("segment.ms", SET, "5000"), ("retention.ms", SET, "soon"))
    alter("null value", ("retention.ms", SET, None))
    alter("append null", ("cleanup.policy", APPEND, None))
    alter("unknown key", ("no.such.config", SET, "1"))
    alter("delete unknown key", ("no.such.config", DELETE, None))
    alter("key twice", ("retention.ms", SET, "1"), ("retention.ms", SET, "2"))
    alter("set and delete", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    alter("nothing")


@case("incremental_alter_configs")
def resources(s: Script) -> None:
    t = s.topic("x")
    entry = ("segment.ms", SET, "5000")
    good = incremental(TOPIC, t.name, entry)
    s.ask("unknown topic", {"resources": [incremental(TOPIC, s.name("missing"), entry)]})
    s.ask("invalid topic", {"resources": [incremental(TOPIC, "not a name", entry)]})
    s.ask("empty topic", {"resources": [incremental(TOPIC, "", entry)]})
    s.ask(
        "good and missing", {"resources": [incremental(TOPIC, s.name("missing"), entry), good]}, keep=_sorted
    )
    s.ask("same topic twice", {"resources": [good, good]})
    s.ask("none", {"resources": []})
    s.ask("unknown type", {"resources": [incremental(UNKNOWN, "x", entry)]})
    s.ask("type that does not exist", {"resources": [incremental(77, "x", entry)]})
    s.ask(
        "logger",
        {"resources": [incremental(BROKER_LOGGER, str(s.facts.node_id), ("no.logger", SET, "INFO"))]},
    )


def _sorted(tree: dict[str, Any]) -> dict[str, Any]:
    return {**tree, "responses": sorted(tree["responses"], key=lambda r: str(r["resource_name"]))}


@case("incremental_alter_configs")
def broker_dynamic(s: Script) -> None:
    own, everyone, other = str(s.facts.node_id), "", str(s.facts.node_id + 100)

    def alter(label: str, name: str, *entries: tuple[str, int, str | None]) -> None:
        s.ask(label, {"resources": [incremental(BROKER, name, *entries)]})
        keys = [entry[0] for entry in entries]
        s.await_applied()
        s.ask(
            f"{label}, afterwards",
            describe(resource(BROKER, own, keys), resource(BROKER, everyone, keys), synonyms=True),
            api="describe_configs",
            version=4,
        )

    alter("set for one", own, ("log.retention.ms", SET, "600000000"))
    alter("set for all", everyone, ("log.retention.ms", SET, "700000000"))
    alter("delete for one", own, ("log.retention.ms", DELETE, None))
    alter("delete for all", everyone, ("log.retention.ms", DELETE, None))
    alter("read-only key", own, ("node.id", SET, "77"))
    alter("read-only key for all", everyone, ("auto.create.topics.enable", SET, "false"))
    alter("per-broker key for all", everyone, ("listeners", SET, "PLAINTEXT://:1"))
    alter("bad value", own, ("log.retention.ms", SET, "soon"))
    alter("unknown key", own, ("no.such.config", SET, "1"))
    alter("delete unknown key", own, ("no.such.config", DELETE, None))
    alter("another broker", other, ("log.retention.ms", SET, "1000"))
    alter("not a number", "one", ("log.retention.ms", SET, "1000"))
    alter("message.max.bytes", everyone, ("message.max.bytes", SET, "2000000"))
    alter("message.max.bytes back", everyone, ("message.max.bytes", DELETE, None))


@case("incremental_alter_configs")
def loggers(s: Script) -> None:
    own = str(s.facts.node_id)

    def alter(label: str, name: str, *entries: tuple[str, int, str | None], **more: Any) -> None:
        s.ask(label, {"resources": [incremental(BROKER_LOGGER, name, *entries)], **more})

    def show(label: str) -> None:
        asked = describe(resource(BROKER_LOGGER, own, ["root"]))
        s.ask(label, asked, api="describe_configs", version=4)

    alter("unknown logger", own, ("no.such.logger", SET, "INFO"))
    alter("unknown level", own, ("root", SET, "LOUD"))
    alter("validate only", own, ("root", SET, "ERROR"), validate_only=True)
    show("after validate only")
    alter("set", own, ("root", SET, "ERROR"))
    show("after set")
    alter("set back", own, ("root", SET, "INFO"))
    alter("remove root", own, ("root", DELETE, None))
    alter("append", own, ("root", APPEND, "INFO"))
    alter("null", own, ("root", SET, None))
    alter("twice", own, ("root", SET, "INFO"), ("root", SET, "INFO"))
    alter("another broker", str(s.facts.node_id + 100), ("root", SET, "INFO"))
    alter("not a number", "one", ("root", SET, "INFO"))
    both = [incremental(BROKER_LOGGER, own, ("root", SET, "INFO"))] * 2
    s.ask("same resource twice", {"resources": both})


@case("incremental_alter_configs")
def client_metrics(s: Script) -> None:
    name = s.name("sub")

    def alter(label: str, *entries: tuple[str, int, str | None], of: str = name) -> None:
        s.ask(label, {"resources": [incremental(CLIENT_METRICS, of, *entries)]})
        s.await_applied()
        s.ask(
            f"{label}, afterwards",
            describe(resource(CLIENT_METRICS, name), synonyms=True),
            api="describe_configs",
            version=4,
            keep=_by_name,
        )

    alter("set", ("interval.ms", SET, "1000"), ("metrics", SET, "org.apache.kafka."))
    alter("match", ("match", SET, "client_software_name=librdkafka,client_id=a.*"))
    alter("append", ("metrics", APPEND, "b"))
    alter("unknown key", ("no.such.key", SET, "1"))
    alter("interval too short", ("interval.ms", SET, "99"))
    alter("interval too long", ("interval.ms", SET, "3600001"))
    alter("interval is no number", ("interval.ms", SET, "soon"))
    alter("unknown match", ("match", SET, "who=me"))
    alter("match without value", ("match", SET, "client_id"))
    alter("match is no regex", ("match", SET, "client_id=("))
    alter("no name", ("interval.ms", SET, "1000"), of="")
    alter("delete", ("interval.ms", DELETE, None), ("metrics", DELETE, None), ("match", DELETE, None))
