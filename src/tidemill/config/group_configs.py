"""The settings of a single group (the resource type GROUP).

Most keys override a broker key for all groups, within the limits of two other broker keys. For example
`consumer.session.timeout.ms` overrides `group.consumer.session.timeout.ms`, between
`group.consumer.min.session.timeout.ms` and `group.consumer.max.session.timeout.ms`. A few keys of share groups have a
default of their own. A group need not exist to have settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidemill.config.definitions import ConfigKey, ConfigSource, invalid_value, render
from tidemill.config.describe import ConfigEntry, ConfigSynonym, describe_broker_key
from tidemill.config.layers import BROKER_KEYS, BrokerLayers
from tidemill.config.share_groups import (
    DEAD_LETTER_TOPIC,
    RELEASE_BACKOFF,
    RELEASE_BACKOFF_FACTOR,
    RELEASE_BACKOFF_MAX,
    SHARE_ONLY_KEYS,
)
from tidemill.errors import ConfigError

GROUP_KEYS = (
    "consumer.assignment.interval.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms",
    DEAD_LETTER_TOPIC,
    "share.assignment.interval.ms",
    "share.auto.offset.reset",
    "share.delivery.count.limit",
    "share.heartbeat.interval.ms",
    "share.isolation.level",
    "share.partition.max.record.locks",
    "share.record.lock.duration.ms",
    "share.renew.acknowledge.enable",
    "share.session.timeout.ms",
    RELEASE_BACKOFF,
    RELEASE_BACKOFF_FACTOR,
    RELEASE_BACKOFF_MAX,
)
_KINDS = ("consumer", "share")


def broker_key_of(name: str) -> str | None:
    """Returns the broker key that a group key overrides; None for a key with a default of its own."""
    return None if name in SHARE_ONLY_KEYS else f"group.{name}"


def validate_group_configs(configs: Mapping[str, str], broker: BrokerLayers) -> None:
    for name, text in configs.items():
        if name not in GROUP_KEYS:
            raise ConfigError(f"Unknown group config name: {name}")
        value = _key(name).parse(text)
        if broker_key_of(name) is None:
            continue
        low, high = _limits(name, broker)
        if not isinstance(value, int) or not low <= value <= high:
            raise invalid_value(name, text, f"between {low} and {high}, which the brokers' settings allow")
    for kind in _KINDS:
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        is_set = session in configs or heartbeat in configs
        if is_set and int(_text(session, configs, broker)) <= int(_text(heartbeat, configs, broker)):
            raise ConfigError(f"{session} must be greater than {heartbeat}")


def _key(name: str) -> ConfigKey:
    return SHARE_ONLY_KEYS[name] if name in SHARE_ONLY_KEYS else BROKER_KEYS[f"group.{name}"]


def _text(name: str, configs: Mapping[str, str], broker: BrokerLayers) -> str:
    return configs[name] if name in configs else broker.text(f"group.{name}") or ""


def _limits(name: str, broker: BrokerLayers) -> tuple[int, int]:
    kind, _, setting = name.partition(".")
    texts = [broker.text(f"group.{kind}.{limit}.{setting}") or "" for limit in ("min", "max")]
    return int(texts[0]), int(texts[1])


def describe_group_configs(overrides: Mapping[str, str], broker: BrokerLayers) -> list[ConfigEntry]:
    entries = []
    for name in GROUP_KEYS:
        if _key(name).is_internal and name not in overrides:
            continue
        entry = _inherited(name, broker)
        if name in overrides:
            value = render(_key(name).parse(overrides[name]))
            own = ConfigSynonym(name, value, ConfigSource.GROUP_CONFIG)
            entry = replace(entry, value=value, source=own.source, synonyms=(own, *entry.synonyms))
        entries.append(entry)
    return entries


def _inherited(name: str, broker: BrokerLayers) -> ConfigEntry:
    broker_key = broker_key_of(name)
    if broker_key is not None:
        return replace(describe_broker_key(broker_key, broker), name=name, is_read_only=False)
    key = SHARE_ONLY_KEYS[name]
    return ConfigEntry(
        name=name,
        value=key.default,
        source=ConfigSource.DEFAULT_CONFIG,
        is_read_only=False,
        is_sensitive=False,
        type=key.type,
        documentation=key.documentation,
        synonyms=(ConfigSynonym(name, key.default, ConfigSource.DEFAULT_CONFIG),),
    )
