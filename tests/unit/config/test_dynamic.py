"""The rules for dynamic broker settings, against what Apache Kafka 4.3.1 answers."""

from __future__ import annotations

import pytest

from tidemill.config import (
    BROKER_KEYS,
    BrokerLayers,
    UpdateMode,
    check_dynamic_change,
    check_dynamic_values,
    load_broker_config,
    with_dynamic_values,
)
from tidemill.errors import ConfigError

# What Kafka's DescribeConfigs calls dynamic, by the level at which it accepts a value.
KAFKA_CLUSTER_WIDE = {
    "background.threads",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "config.providers",
    "follower.fetch.last.tiered.offset.enable",
    "group.consumer.assignment.interval.ms",
    "group.coordinator.cached.buffer.max.bytes",
    "group.share.assignment.interval.ms",
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "log.cleaner.delete.retention.ms",
    "log.cleaner.io.buffer.load.factor",
    "log.cleaner.io.buffer.size",
    "log.cleaner.io.max.bytes.per.second",
    "log.cleaner.max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio",
    "log.cleaner.min.compaction.lag.ms",
    "log.cleaner.threads",
    "log.cleanup.policy",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "log.index.interval.bytes",
    "log.index.size.max.bytes",
    "log.local.retention.bytes",
    "log.local.retention.ms",
    "log.message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms",
    "log.message.timestamp.type",
    "log.preallocate",
    "log.retention.bytes",
    "log.retention.ms",
    "log.roll.jitter.ms",
    "log.roll.ms",
    "log.segment.bytes",
    "log.segment.delete.delay.ms",
    "max.connection.creation.rate",
    "max.connections",
    "max.connections.per.ip",
    "max.connections.per.ip.overrides",
    "message.max.bytes",
    "metric.reporters",
    "min.insync.replicas",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    "num.replica.fetchers",
    "producer.id.expiration.ms",
    "remote.fetch.max.wait.ms",
    "remote.list.offsets.request.timeout.ms",
    "share.coordinator.cached.buffer.max.bytes",
    "transaction.partition.verification.enable",
    "unclean.leader.election.enable",
}
KAFKA_PER_BROKER = {
    "cordoned.log.dirs",
    "listener.security.protocol.map",
    "listeners",
    "principal.builder.class",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.principal.to.local.rules",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.mechanism.inter.broker.protocol",
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.engine.factory.class",
    "ssl.key.password",
    "ssl.keymanager.algorithm",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.type",
}
# Not described in Kafka unless they are set; dynamic all the same.
HIDDEN_CLUSTER_WIDE = {"follower.replication.throttled.rate", "leader.replication.throttled.rate"}


def test_keys_for_all_brokers_are_those_of_kafka() -> None:
    own = {name for name, key in BROKER_KEYS.items() if key.mode is UpdateMode.CLUSTER_WIDE}
    assert own == KAFKA_CLUSTER_WIDE | HIDDEN_CLUSTER_WIDE


def test_keys_for_one_broker_in_kafka_are_settled_at_the_start_here() -> None:
    assert all(BROKER_KEYS[name].is_read_only for name in KAFKA_PER_BROKER)
    assert not [name for name, key in BROKER_KEYS.items() if key.mode is UpdateMode.PER_BROKER]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("node.id", "7"),
        ("auto.leader.rebalance.enable", "false"),
        ("listeners", "PLAINTEXT://:0"),
        ("cordoned.log.dirs", "*"),
        ("ssl.cipher.suites", "x"),
        ("listener.name.external.ssl.keystore.location", "x"),
        ("listener.name.external.ssl.enabled.protocols", "TLSv1.2"),
        ("listener.name.external.scram-sha-512.sasl.jaas.config", "x"),
        ("listener.name.external.connections.max.reauth.ms", "5"),
    ],
)
@pytest.mark.parametrize("is_for_all", [False, True])
def test_key_that_is_settled_at_the_start_is_refused(name: str, value: str, is_for_all: bool) -> None:
    with pytest.raises(ConfigError, match="Cannot update these configs dynamically") as refused:
        check_dynamic_values({name: value}, is_for_all=is_for_all)
    assert f"[{name}]" in str(refused.value)


def test_all_keys_that_are_settled_at_the_start_are_named() -> None:
    with pytest.raises(ConfigError, match=r"\[node.id, listeners\]"):
        check_dynamic_values({"node.id": "1", "max.connections": "5", "listeners": "x"}, is_for_all=False)


@pytest.mark.parametrize("limit", ["max.connections", "max.connection.creation.rate", "num.network.threads"])
def test_limit_of_a_listener_may_be_set_for_all_brokers(limit: str) -> None:
    check_dynamic_values({f"listener.name.external.{limit}": "3"}, is_for_all=True)


def test_other_keys_of_a_listener_are_for_one_broker() -> None:
    name = "listener.name.external.max.connections.per.ip"
    check_dynamic_values({name: "3"}, is_for_all=False)
    with pytest.raises(ConfigError, match="at default cluster level, broker id must be specified"):
        check_dynamic_values({name: "3"}, is_for_all=True)


def test_value_of_a_listener_is_checked_by_its_key() -> None:
    with pytest.raises(ConfigError, match="Invalid value x"):
        check_dynamic_values({"listener.name.external.max.connections": "x"}, is_for_all=False)


def test_unknown_key_is_kept() -> None:
    check_dynamic_values({"no.such.config": "1"}, is_for_all=True)


def _check(static: dict[str, str], **dynamic: str) -> None:
    values = {name.replace("_", "."): text for name, text in dynamic.items()}
    check_dynamic_change(BrokerLayers(static), BrokerLayers(static, values), values)


@pytest.mark.parametrize(
    ("accepted", "refused", "words"),
    [
        ("16", "17", "should not be greater than double the current value 8"),
        ("4", "3", "should be at least half the current value 8"),
    ],
)
def test_number_of_threads_doubles_or_halves_at_most(accepted: str, refused: str, words: str) -> None:
    _check({}, num_io_threads=accepted)
    with pytest.raises(ConfigError, match=words):
        _check({}, num_io_threads=refused)


def test_number_of_threads_is_compared_with_the_value_in_force() -> None:
    with pytest.raises(ConfigError, match="double the current value 2"):
        _check({"num.replica.fetchers": "2"}, num_replica_fetchers="5")
    _check({"num.replica.fetchers": "3"}, num_replica_fetchers="5")


def test_value_that_is_hidden_by_a_stronger_one_changes_no_number_of_threads() -> None:
    own = {"num.io.threads": "16"}
    before, after = (
        BrokerLayers(dynamic=own),
        BrokerLayers(dynamic=own, cluster_default={"num.io.threads": "4"}),
    )
    check_dynamic_change(before, after, ["num.io.threads"])


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_connections": "0"}, "Invalid value 0 for configuration max.connections"),
        ({"max_connection_creation_rate": "0"}, "max.connection.creation.rate"),
        ({"max_connections_per_ip": "0"}, "can be set to zero only if max.connections.per.ip.overrides"),
        ({"log_cleaner_dedupe_buffer_size": "1048576"}, "at least 1MB per cleaner thread"),
        ({"log_cleaner_threads": "0"}, "log.cleaner.threads=0"),
        ({"group_consumer_assignment_interval_ms": "20000"}, "less than or equal to group.consumer.max"),
        ({"group_share_assignment_interval_ms": "20000"}, "less than or equal to group.share.max"),
        ({"metric_reporters": "some.Reporter"}, "metric.reporters"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(values: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _check({}, **values)


def test_address_without_own_count_may_be_shut_out_when_others_have_one() -> None:
    _check({"max.connections.per.ip.overrides": "127.0.0.1:5"}, max_connections_per_ip="0")


def test_limit_of_a_listener_is_at_least_one() -> None:
    values = {"listener.name.external.max.connections": "0"}
    with pytest.raises(ConfigError, match=r"listener\.name\.external\.max\.connections"):
        check_dynamic_change(BrokerLayers(), BrokerLayers({}, values), values)


STATIC = {
    "max.connections": "9",
    "listeners": "A://:0,B://:0",
    "num.replica.fetchers": "3",
    "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    "inter.broker.listener.name": "A",
}


class TestInForce:
    def test_dynamic_values_are_stronger_than_the_file(self) -> None:
        config, _ = load_broker_config(STATIC)
        layers = BrokerLayers(
            config.properties, {"max.connections": "5"}, {"max.connections": "4", "num.replica.fetchers": "2"}
        )
        current, _ = with_dynamic_values(config, layers)
        assert current.network.connection_limits.max_connections == 5
        assert current.replication.fetchers == 2

    def test_without_dynamic_values_the_file_counts_again(self) -> None:
        config, _ = load_broker_config(STATIC)
        assert with_dynamic_values(config, config.layers) == (config, [])

    def test_limits_of_listeners_are_read_from_file_and_metadata(self) -> None:
        key = "listener.name.b.max.connections"
        config, warnings = load_broker_config({**STATIC, key: "7"})
        assert not warnings
        assert config.network.connection_limits.listener_max_connections == {"B": 7}
        current, _ = with_dynamic_values(config, BrokerLayers(config.properties, {key: "6"}))
        assert current.network.connection_limits.listener_max_connections == {"B": 6}

    def test_values_without_effect_are_passed_over(self) -> None:
        """A metadata log may hold values that this version would refuse."""
        config, _ = load_broker_config(STATIC)
        stored = {"listeners": "C://:1", "max.connections": "many", "no.such.config": "1"}
        assert with_dynamic_values(config, BrokerLayers(config.properties, stored))[0] == config

    def test_values_that_nothing_reads_are_warned_of(self) -> None:
        config, _ = load_broker_config(STATIC)
        stored = {"num.io.threads": "9", "no.such.config": "1", "leader.replication.throttled.rate": "5"}
        _, warnings = with_dynamic_values(config, BrokerLayers(config.properties, stored))
        assert warnings == [
            "Configuration num.io.threads is known to Kafka but has no effect in Tidemill yet",
            "Unknown configuration no.such.config is kept, but nothing reads it",
        ]
