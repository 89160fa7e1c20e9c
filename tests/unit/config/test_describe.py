"""DescribeConfigs: values, sources, synonyms.

Apache Kafka 4.3 also described a topic and a broker with the same settings, and the two agree. The exception is
`min.insync.replicas`, which Kafka sets for all brokers because of its eligible leader replicas.
"""

from __future__ import annotations

import pytest

from tidemill.config import (
    BrokerLayers,
    ConfigEntry,
    ConfigSource,
    ConfigSynonym,
    ConfigType,
    describe_broker_configs,
    describe_cluster_default_configs,
    describe_topic_configs,
    describe_topic_key,
    effective_topic_configs,
)

TOPIC = ConfigSource.DYNAMIC_TOPIC_CONFIG
DYNAMIC = ConfigSource.DYNAMIC_BROKER_CONFIG
CLUSTER = ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
STATIC = ConfigSource.STATIC_BROKER_CONFIG
DEFAULT = ConfigSource.DEFAULT_CONFIG


def by_name(entries: list[ConfigEntry]) -> dict[str, ConfigEntry]:
    return {entry.name: entry for entry in entries}


def test_default_of_a_topic_key() -> None:
    entry = by_name(describe_topic_configs({}, {}, {}, {}))["segment.bytes"]
    assert entry.value == "1073741824"
    assert entry.source is DEFAULT
    assert entry.type is ConfigType.INT
    assert entry.documentation
    assert not entry.is_read_only
    assert not entry.is_sensitive
    assert entry.synonyms == (ConfigSynonym("log.segment.bytes", "1073741824", DEFAULT),)


def test_all_layers_show_as_synonyms_strongest_first() -> None:
    entry = by_name(
        describe_topic_configs(
            {"max.message.bytes": " 5 "},
            {"message.max.bytes": "8"},
            {"message.max.bytes": "6"},
            {"message.max.bytes": "7"},
        )
    )["max.message.bytes"]
    assert entry.value == "5"
    assert entry.source is TOPIC
    assert entry.synonyms == (
        ConfigSynonym("max.message.bytes", "5", TOPIC),
        ConfigSynonym("message.max.bytes", "6", DYNAMIC),
        ConfigSynonym("message.max.bytes", "7", CLUSTER),
        ConfigSynonym("message.max.bytes", "8", STATIC),
        ConfigSynonym("message.max.bytes", "1048588", DEFAULT),
    )


def test_coarser_key_alone_gives_the_value_but_neither_source_nor_synonym() -> None:
    entry = by_name(describe_topic_configs({}, {"log.retention.hours": "100"}, {}, {}))["retention.ms"]
    assert entry.value == "360000000"
    assert entry.source is DEFAULT
    assert entry.synonyms == ()


def test_keys_without_synonyms() -> None:
    entry = by_name(describe_topic_configs({}, {}, {}, {}))["remote.storage.enable"]
    assert entry.value == "false"
    assert entry.synonyms == ()
    assert entry.type is ConfigType.BOOLEAN


def test_broker_keys() -> None:
    entries = by_name(
        describe_broker_configs(
            {"node.id": "1", "listeners": "PLAINTEXT://:9092"}, {"log.retention.ms": "5"}, {}
        )
    )
    assert entries["node.id"].is_read_only
    assert entries["node.id"].source is STATIC
    assert entries["node.id"].synonyms == (ConfigSynonym("node.id", "1", STATIC),)
    assert entries["log.retention.ms"].value == "5"
    assert entries["log.retention.ms"].source is DYNAMIC
    assert not entries["log.retention.ms"].is_read_only
    assert entries["log.retention.minutes"].value is None
    assert entries["log.retention.hours"].value == "168"
    assert entries["advertised.listeners"].value is None
    assert list(entries) == sorted(entries)


def test_sensitive_values_never_show() -> None:
    secret = {"ssl.keystore.password": "hunter2"}
    for entries in (
        describe_broker_configs(secret, {}, {}),
        describe_broker_configs({}, secret, secret),
        describe_cluster_default_configs(secret),
    ):
        entry = by_name(entries)["ssl.keystore.password"]
        assert entry.is_sensitive
        assert entry.value is None
        assert "hunter2" not in repr(entries)


@pytest.mark.parametrize("layers", [({"my.plugin": "x"}, {}, {}), ({}, {"my.plugin": "x"}, {})])
def test_undefined_keys_are_listed_and_count_as_sensitive(layers: tuple[dict[str, str], ...]) -> None:
    entry = by_name(describe_broker_configs(*layers))["my.plugin"]
    assert entry.is_sensitive
    assert entry.value is None
    assert entry.type is None


def test_cluster_default_shows_only_what_is_set() -> None:
    (entry,) = describe_cluster_default_configs({"log.retention.ms": "5"})
    assert entry.name == "log.retention.ms"
    assert entry.source is CLUSTER
    assert entry.synonyms == (ConfigSynonym("log.retention.ms", "5", CLUSTER),)


def test_effective_configs_name_the_layer_and_keep_own_text() -> None:
    layers = BrokerLayers(static={"log.retention.hours": "100"}, cluster_default={"message.max.bytes": "7"})
    entries = by_name(effective_topic_configs({"segment.bytes": " 3000000 "}, layers))
    assert (entries["segment.bytes"].value, entries["segment.bytes"].source) == (" 3000000 ", TOPIC)
    assert (entries["retention.ms"].value, entries["retention.ms"].source) == ("360000000", STATIC)
    assert (entries["max.message.bytes"].value, entries["max.message.bytes"].source) == ("7", CLUSTER)
    assert entries["segment.ms"].source is DEFAULT


def test_replication_throttles_are_listed_only_when_set() -> None:
    """The behaviour is that of Apache Kafka 4.3."""
    name = "leader.replication.throttled.rate"
    assert name not in by_name(describe_broker_configs({}, {}, {}))
    entry = by_name(describe_broker_configs({}, {name: "78"}, {name: "77"}))[name]
    assert (entry.value, entry.source, entry.type) == ("78", DYNAMIC, ConfigType.LONG)
    assert not entry.is_read_only
    assert not entry.is_sensitive
    (default,) = describe_cluster_default_configs({name: "77"})
    assert (default.value, default.source) == ("77", CLUSTER)


def test_a_key_of_a_topic_depends_on_no_other_override() -> None:
    broker = BrokerLayers(
        {"log.retention.hours": "5"}, {"log.segment.bytes": "2000000"}, {"log.retention.ms": "7"}
    )
    overrides = {"retention.ms": "1000", "cleanup.policy": "compact"}
    layers = (broker.static, broker.dynamic, broker.cluster_default)
    inherited = by_name(describe_topic_configs({}, *layers))
    for name, entry in by_name(describe_topic_configs(overrides, *layers)).items():
        assert entry == (
            describe_topic_key(name, overrides, broker) if name in overrides else inherited[name]
        )


def test_layers_of_the_same_texts_are_the_same() -> None:
    broker = BrokerLayers({"b": "2", "a": "1"}, {"c": "3"}, {})
    assert BrokerLayers.of_texts(broker.texts()) == broker
    assert broker.texts() == BrokerLayers({"a": "1", "b": "2"}, {"c": "3"}, {}).texts()
    assert broker.texts() != BrokerLayers({"a": "1", "b": "2"}, {}, {"c": "3"}).texts()


def test_cluster_wide_value_is_described_as_it_was_set() -> None:
    (entry,) = describe_cluster_default_configs({"log.cleaner.io.max.bytes.per.second": "1000000"})
    assert entry.value == "1000000"
