"""The effective configuration of a topic, and limits that involve several keys."""

from __future__ import annotations

import pytest

from tidemill.config import (
    BrokerLayers,
    TopicConfig,
    describe_topic_key,
    load_broker_config,
    resolve_topic_config,
    validate_topic_configs,
)
from tidemill.errors import ConfigError


def test_dataclass_defaults_are_those_of_the_tables() -> None:
    assert resolve_topic_config({}, BrokerLayers()) == TopicConfig()


def test_own_values_win_over_dynamic_over_static_over_default() -> None:
    static = {"log.segment.bytes": "2000000", "log.retention.hours": "1", "min.insync.replicas": "2"}
    layers = BrokerLayers(
        static=static,
        cluster_default={"log.retention.ms": "5000", "message.max.bytes": "100"},
        dynamic={"message.max.bytes": "200"},
    )
    config = resolve_topic_config({"min.insync.replicas": "3"}, layers)
    assert config.min_insync_replicas == 3
    assert config.max_message_bytes == 200
    assert config.retention_ms == 5000
    assert config.segment_bytes == 2_000_000
    assert config.index_interval_bytes == 4096


def test_coarse_units_are_inherited_in_milliseconds() -> None:
    layers = BrokerLayers(static={"log.roll.hours": "2", "log.roll.jitter.hours": "1"})
    config = resolve_topic_config({}, layers)
    assert config.segment_ms == 7_200_000
    assert config.segment_jitter_ms == 3_600_000


def test_flush_interval_falls_back_to_the_scheduler_interval() -> None:
    assert (
        resolve_topic_config({}, BrokerLayers(static={"log.flush.scheduler.interval.ms": "9"})).flush_ms == 9
    )
    both = BrokerLayers(static={"log.flush.scheduler.interval.ms": "9", "log.flush.interval.ms": "8"})
    assert resolve_topic_config({}, both).flush_ms == 8


def test_properties() -> None:
    config = resolve_topic_config(
        {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}, BrokerLayers()
    )
    assert config.is_compacted
    assert not config.is_deleted
    assert config.is_log_append_time
    both = resolve_topic_config({"cleanup.policy": "compact,delete"}, BrokerLayers())
    assert both.is_compacted
    assert both.is_deleted


def test_broker_config_gives_its_layers() -> None:
    config, _ = load_broker_config({"log.retention.ms": "77"})
    assert resolve_topic_config({}, config.layers).retention_ms == 77


def test_compaction_lags_have_to_agree() -> None:
    validate_topic_configs({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms.*max\.compaction\.lag\.ms"):
        validate_topic_configs({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_compaction_lag_has_to_agree_with_what_is_inherited() -> None:
    layers = BrokerLayers(static={"log.cleaner.max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match=r"min\.compaction\.lag\.ms"):
        validate_topic_configs({"min.compaction.lag.ms": "6"}, layers)


def test_remote_storage_needs_a_cluster_that_has_it() -> None:
    validate_topic_configs({"remote.storage.enable": "false"})
    with pytest.raises(ConfigError, match=r"remote\.storage\.enable"):
        validate_topic_configs({"remote.storage.enable": "true"})
    validate_topic_configs(
        {"remote.storage.enable": "true"}, BrokerLayers(static={"remote.log.storage.system.enable": "true"})
    )


def test_an_own_value_that_cannot_be_parsed_is_as_if_it_were_not_there() -> None:
    layers = BrokerLayers(static={"min.insync.replicas": "2"})
    bad = {"min.insync.replicas": "many", "tidemill.partitions.divisors": "0"}
    assert resolve_topic_config(bad, layers) == resolve_topic_config({}, layers)
    assert describe_topic_key("min.insync.replicas", bad, layers).value == "2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tidemill.partitions.divisors", "0"),
        ("tidemill.partitions.divisors", "x"),
        ("tidemill.partitions.empty", "1:1,x"),
        ("tidemill.partitions.ends", f"1:{'9' * 19}"),
        ("tidemill.partitions.epochs", "abc"),
        ("tidemill.partitions.epochs", "1:2:3"),
        ("tidemill.partitions.epochs", f"1:{'9' * 20}"),
        ("leader.replication.throttled.replicas", f"{'9' * 5000}:1"),
    ],
)
def test_lists_of_numbers_are_checked(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match="must be"):
        validate_topic_configs({name: value})


@pytest.mark.parametrize(("inherited", "is_deleted"), [("compact", False), ("compact,delete", True)])
def test_topic_with_delays_is_not_compacted_by_what_it_inherits(inherited: str, is_deleted: bool) -> None:
    delays = {"tidemill.delays.enable": "true"}
    for layers in (
        BrokerLayers(static={"log.cleanup.policy": inherited}),
        BrokerLayers(cluster_default={"log.cleanup.policy": inherited}),
    ):
        config = resolve_topic_config(delays, layers)
        assert not config.is_compacted
        assert config.is_deleted is is_deleted
        assert resolve_topic_config({}, layers).is_compacted
