"""Dynamic settings of brokers: which keys may change, for one broker or all, and which values are refused."""

from __future__ import annotations

from bench.diff.cases.configs import BROKER, DELETE, SET, describe, incremental, resource
from bench.diff.script import Script, case

Entry = tuple[str, int, str | None]


class _Alterations:
    """Changes settings, and asks afterwards what is set."""

    def __init__(self, s: Script) -> None:
        self._s = s
        self.own, self.everyone = str(s.facts.node_id), ""

    def alter(self, label: str, name: str, *entries: Entry) -> None:
        s = self._s
        s.ask(label, {"resources": [incremental(BROKER, name, *entries)]})
        keys = [entry[0] for entry in entries]
        s.await_applied()
        s.ask(
            f"{label}, afterwards",
            describe(resource(BROKER, self.own, keys), resource(BROKER, self.everyone, keys), synonyms=True),
            api="describe_configs",
            version=4,
        )

    def try_and_remove(self, key: str, *values: str) -> None:
        """Sets each value for one broker and for all, and removes it again."""
        for value in values:
            for whose, name in (("one", self.own), ("all", self.everyone)):
                self.alter(f"{key}={value} for {whose}", name, (key, SET, value))
                self.alter(f"{key}={value} for {whose}, removed", name, (key, DELETE, None))


@case("incremental_alter_configs")
def connection_limits(s: Script) -> None:
    changes = _Alterations(s)
    changes.try_and_remove("max.connections", "100", "0", "-1", "many")
    changes.try_and_remove("max.connections.per.ip", "100", "0", "-1")
    changes.try_and_remove("max.connections.per.ip.overrides", "127.0.0.1:100", "127.0.0.1", "127.0.0.1:x")
    changes.try_and_remove("max.connection.creation.rate", "1000", "0")


@case("incremental_alter_configs")
def threads(s: Script) -> None:
    changes = _Alterations(s)
    changes.try_and_remove("num.io.threads", "16", "17", "4", "3", "0")
    changes.try_and_remove("num.network.threads", "6", "7", "0")
    changes.try_and_remove("num.replica.fetchers", "2", "3", "0")
    changes.try_and_remove("num.recovery.threads.per.data.dir", "4", "5", "1", "0")
    changes.try_and_remove("background.threads", "20", "21", "5", "4")
    changes.try_and_remove("log.cleaner.threads", "2", "3", "0")


@case("incremental_alter_configs")
def cleaner(s: Script) -> None:
    changes = _Alterations(s)
    changes.try_and_remove("log.cleaner.backoff.ms", "0", "100", "-1")
    changes.try_and_remove("log.cleaner.dedupe.buffer.size", "1048577", "1048576", "100")
    changes.try_and_remove("log.cleaner.io.buffer.load.factor", "0.5", "x")
    changes.try_and_remove("log.cleaner.io.buffer.size", "1000", "-1")
    changes.try_and_remove("log.cleaner.io.max.bytes.per.second", "1000000")


@case("incremental_alter_configs")
def other_cluster_wide_keys(s: Script) -> None:
    changes = _Alterations(s)
    changes.try_and_remove("producer.id.expiration.ms", "100000000", "0")
    changes.try_and_remove("transaction.partition.verification.enable", "false", "x")
    changes.try_and_remove("group.consumer.assignment.interval.ms", "500", "20000", "-1")
    changes.try_and_remove("group.share.assignment.interval.ms", "500", "20000", "-1")
    changes.try_and_remove("message.max.bytes", "2000000", "-1")
    changes.try_and_remove("log.retention.ms", "600000000", "-1", "0")
    changes.try_and_remove("log.segment.bytes", "1048576", "1")
    changes.try_and_remove("remote.fetch.max.wait.ms", "600", "0")
    for name in (changes.own, changes.everyone):
        reporter = incremental(BROKER, name, ("metric.reporters", SET, "no.such.Reporter"))
        s.ask(f"unknown reporter for {'one' if name else 'all'}", {"resources": [reporter]})


@case("incremental_alter_configs")
def keys_that_may_not_change(s: Script) -> None:
    changes = _Alterations(s)
    for key, value in (
        ("auto.leader.rebalance.enable", "false"),
        ("log.cleaner.enable", "false"),
        ("advertised.listeners", "PLAINTEXT://h:1"),
        ("connections.max.reauth.ms", "5"),
        ("num.partitions", "3"),
        ("offsets.retention.minutes", "5"),
        ("ssl.keystore.location", "x"),
    ):
        changes.try_and_remove(key, value)
    changes.alter("per-broker key for all", "", ("ssl.client.auth", SET, "none"))
    changes.alter(
        "good and read-only", changes.own, ("max.connections", SET, "100"), ("num.partitions", SET, "3")
    )


@case("incremental_alter_configs")
def limits_of_one_listener(s: Script) -> None:
    own, everyone = str(s.facts.node_id), ""
    prefix = "listener.name.plaintext."
    for key, values in (
        ("max.connections", ("100", "0", "x")),
        ("max.connection.creation.rate", ("1000", "0", "x")),
        ("max.connections.per.ip", ("5", "x")),
    ):
        for value in values:
            for whose, name in (("one", own), ("all", everyone)):
                for verb, entry in (("set", (SET, value)), ("removed", (DELETE, None))):
                    label = f"{key}={value} for {whose}, {verb}"
                    s.ask(label, {"resources": [incremental(BROKER, name, (prefix + key, *entry))]})
                    s.await_applied()
