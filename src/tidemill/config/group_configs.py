"""The settings of a single group (the resource type GROUP).

Each key overrides a broker key for all groups, within the limits of two other broker keys. For example
`consumer.session.timeout.ms` overrides `group.consumer.session.timeout.ms`, between
`group.consumer.min.session.timeout.ms` and `group.consumer.max.session.timeout.ms`. A group need not exist to have
settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidemill.config.definitions import ConfigSource, invalid_value, render
from tidemill.config.describe import ConfigEntry, ConfigSynonym, describe_broker_key
from tidemill.config.layers import BROKER_KEYS, BrokerLayers
from tidemill.errors import ConfigError

GROUP_KEYS = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
)


def validate_group_configs(configs: Mapping[str, str], broker: BrokerLayers) -> None:
    for name, text in configs.items():
        if name not in GROUP_KEYS:
            raise ConfigError(f"Unknown group config name: {name}")
        value = BROKER_KEYS[f"group.{name}"].parse(text)
        low, high = _limits(name, broker)
        if not isinstance(value, int) or not low <= value <= high:
            raise invalid_value(name, text, f"between {low} and {high}, which the brokers' settings allow")


def _limits(name: str, broker: BrokerLayers) -> tuple[int, int]:
    kind, _, setting = name.partition(".")
    texts = [broker.text(f"group.{kind}.{limit}.{setting}") or "" for limit in ("min", "max")]
    return int(texts[0]), int(texts[1])


def describe_group_configs(overrides: Mapping[str, str], broker: BrokerLayers) -> list[ConfigEntry]:
    entries = []
    for name in GROUP_KEYS:
        entry = replace(describe_broker_key(f"group.{name}", broker), name=name, is_read_only=False)
        if name in overrides:
            value = render(BROKER_KEYS[f"group.{name}"].parse(overrides[name]))
            own = ConfigSynonym(name, value, ConfigSource.GROUP_CONFIG)
            entry = replace(entry, value=value, source=own.source, synonyms=(own, *entry.synonyms))
        entries.append(entry)
    return entries
