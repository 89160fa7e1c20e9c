"""Settings of share groups: Kafka's limits, the strategies of the first offset, and the values in force for one group."""

from __future__ import annotations

import pytest

from tidemill.config import (
    BrokerLayers,
    ConfigSource,
    OffsetReset,
    OffsetResetStrategy,
    ShareGroupsConfig,
    describe_group_configs,
    load_broker_config,
    share_group_config,
    validate_group_configs,
)
from tidemill.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("earliest", OffsetResetStrategy(OffsetReset.EARLIEST)),
        ("latest", OffsetResetStrategy(OffsetReset.LATEST)),
        ("by_duration:PT1H", OffsetResetStrategy(OffsetReset.BY_DURATION, 3_600_000)),
        ("by_duration:P1DT1M1.5S", OffsetResetStrategy(OffsetReset.BY_DURATION, 86_461_500)),
        ("by_duration:PT0S", OffsetResetStrategy(OffsetReset.BY_DURATION, 0)),
        ("Earliest", None),
        ("none", None),
        ("by_duration:", None),
        ("by_duration:P", None),
        ("by_duration:PT", None),
        ("by_duration:-PT1H", None),
        ("by_duration:PT-1H", None),
        ("by_duration:1h", None),
        ("", None),
    ],
)
def test_offset_reset_strategies_are_parsed_as_kafka_parses_them(
    text: str, strategy: OffsetResetStrategy | None
) -> None:
    assert OffsetResetStrategy.parse(text) == strategy


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("share.session.timeout.ms", 45_000, 60_000),
        ("share.heartbeat.interval.ms", 5_000, 15_000),
        ("share.assignment.interval.ms", 0, 15_000),
        ("share.record.lock.duration.ms", 15_000, 60_000),
        ("share.delivery.count.limit", 2, 10),
        ("share.partition.max.record.locks", 100, 4_000),
    ],
)
def test_numbers_stay_within_the_brokers_limits(name: str, low: int, high: int) -> None:
    for accepted in (low, high):
        validate_group_configs({name: str(accepted)}, BrokerLayers())
    for refused in (low - 1, high + 1):
        with pytest.raises(ConfigError):
            validate_group_configs({name: str(refused)}, BrokerLayers())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("share.auto.offset.reset", "sometimes"),
        ("share.isolation.level", "serializable"),
        ("share.renew.acknowledge.enable", "perhaps"),
        ("share.no.such.key", "1"),
    ],
)
def test_values_outside_the_choices_are_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError):
        validate_group_configs({name: text}, BrokerLayers())


def test_session_timeout_must_exceed_the_heartbeat_interval() -> None:
    broker = BrokerLayers(
        static={
            "group.share.min.session.timeout.ms": "1",
            "group.share.session.timeout.ms": "9000",
        }
    )
    with pytest.raises(ConfigError, match="must be greater than"):
        validate_group_configs({"share.heartbeat.interval.ms": "9000"}, broker)
    validate_group_configs({"share.heartbeat.interval.ms": "8999"}, broker)


def test_values_in_force_are_the_groups_own_within_limits_that_have_changed() -> None:
    own = {
        "share.record.lock.duration.ms": "60000",
        "share.auto.offset.reset": "earliest",
        "share.isolation.level": "read_committed",
        "share.renew.acknowledge.enable": "false",
    }
    config, _ = load_broker_config({"group.share.max.record.lock.duration.ms": "40000"})
    resolved = share_group_config(own, config.share_groups)
    assert resolved.record_lock_duration_ms == 40_000
    assert resolved.auto_offset_reset.reset is OffsetReset.EARLIEST
    assert resolved.is_read_committed
    assert not resolved.is_renew_enabled


def test_defaults_of_the_dataclass_are_those_of_the_keys() -> None:
    config, _ = load_broker_config({})
    assert config.share_groups == ShareGroupsConfig()


def test_keys_without_a_broker_key_are_described_with_their_own_default() -> None:
    entries = {entry.name: entry for entry in describe_group_configs({}, BrokerLayers())}
    reset = entries["share.auto.offset.reset"]
    assert (reset.value, reset.source) == ("latest", ConfigSource.DEFAULT_CONFIG)
    changed = {
        entry.name: entry
        for entry in describe_group_configs({"share.auto.offset.reset": "earliest"}, BrokerLayers())
    }["share.auto.offset.reset"]
    assert (changed.value, changed.source) == ("earliest", ConfigSource.GROUP_CONFIG)
