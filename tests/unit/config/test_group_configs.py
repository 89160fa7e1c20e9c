"""Settings of one group: limits that the brokers' settings give, and where a value comes from."""

from __future__ import annotations

import pytest

from tidemill.config import BrokerLayers, ConfigSource, describe_group_configs, validate_group_configs
from tidemill.errors import ConfigError

SESSION = "consumer.session.timeout.ms"


@pytest.mark.parametrize("text", ["45000", "50000", "60000"])
def test_values_within_the_brokers_limits_are_taken(text: str) -> None:
    validate_group_configs({SESSION: text}, BrokerLayers())


@pytest.mark.parametrize(
    "configs", [{SESSION: "44999"}, {SESSION: "60001"}, {SESSION: "soon"}, {"session.timeout.ms": "50000"}]
)
def test_other_values_and_keys_are_refused(configs: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        validate_group_configs(configs, BrokerLayers())


def test_the_limits_are_the_brokers_own() -> None:
    strict = BrokerLayers(static={"group.consumer.max.session.timeout.ms": "48000"})
    validate_group_configs({SESSION: "48000"}, strict)
    with pytest.raises(ConfigError):
        validate_group_configs({SESSION: "50000"}, strict)


def test_a_group_inherits_from_the_broker_until_it_has_a_value_of_its_own() -> None:
    broker = BrokerLayers(static={"group.consumer.session.timeout.ms": "46000"})
    inherited = {entry.name: entry for entry in describe_group_configs({}, broker)}[SESSION]
    assert (inherited.value, inherited.source) == ("46000", ConfigSource.STATIC_BROKER_CONFIG)
    own = {entry.name: entry for entry in describe_group_configs({SESSION: "50000"}, broker)}[SESSION]
    assert (own.value, own.source) == ("50000", ConfigSource.GROUP_CONFIG)
    assert [synonym.value for synonym in own.synonyms] == ["50000", "46000", "45000"]
    assert not own.is_read_only
