"""The content of DescribeConfigs for each key: value, source and synonyms.

The entries are neutral; a handler copies them into the response. They never contain sensitive values. An undefined
key, which a broker accepts for plug-ins, has an unknown type and counts as sensitive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import dropwhile

from tidemill.config.definitions import ConfigKey, ConfigSource, ConfigType, render
from tidemill.config.keys.topics import TOPIC_KEYS
from tidemill.config.layers import BROKER_KEYS, BrokerLayers
from tidemill.config.topics import TOPIC_KEYS_BY_NAME, effective_topic_text

# Broker keys, with the coarser keys that apply when they are not set.
_STAND_INS: dict[str, tuple[str, ...]] = {
    key.synonyms[0].name: tuple(synonym.name for synonym in key.synonyms)
    for key in TOPIC_KEYS
    if len(key.synonyms) > 1
}

_LISTED = [name for name, key in BROKER_KEYS.items() if not key.is_internal]


@dataclass(frozen=True, slots=True)
class ConfigSynonym:
    """One synonym of a key, with its value and source."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One key, as described to clients."""

    name: str
    value: str | None
    source: ConfigSource
    is_read_only: bool
    is_sensitive: bool
    type: ConfigType | None
    documentation: str | None
    synonyms: tuple[ConfigSynonym, ...]


def describe_topic_configs(
    overrides: Mapping[str, str],
    broker_static: Mapping[str, str],
    broker_dynamic: Mapping[str, str],
    cluster_default_dynamic: Mapping[str, str],
) -> list[ConfigEntry]:
    broker = BrokerLayers(broker_static, broker_dynamic, cluster_default_dynamic)
    return [_topic_entry(key, overrides, broker) for key in _listed(overrides)]


def _listed(overrides: Mapping[str, str]) -> list[ConfigKey]:
    return [key for key in TOPIC_KEYS if not key.is_internal or key.name in overrides]


def describe_topic_key(name: str, overrides: Mapping[str, str], broker: BrokerLayers) -> ConfigEntry:
    """One entry of `describe_topic_configs`, independent of other overrides."""
    return _topic_entry(TOPIC_KEYS_BY_NAME[name], overrides, broker)


def effective_topic_configs(overrides: Mapping[str, str], broker: BrokerLayers) -> list[ConfigEntry]:
    """The configs in a CreateTopics response: own values as written, and the source of the others."""
    return [_effective_entry(key, overrides, broker) for key in _listed(overrides)]


def describe_broker_configs(
    broker_static: Mapping[str, str],
    broker_dynamic: Mapping[str, str],
    cluster_default_dynamic: Mapping[str, str],
) -> list[ConfigEntry]:
    """Every broker key, with the internal and undefined ones that are set."""
    broker = BrokerLayers(broker_static, broker_dynamic, cluster_default_dynamic)
    others = {*broker_static, *broker_dynamic, *cluster_default_dynamic}.difference(_LISTED)
    return [describe_broker_key(name, broker) for name in (*_LISTED, *sorted(others))]


def describe_cluster_default_configs(cluster_default_dynamic: Mapping[str, str]) -> list[ConfigEntry]:
    """The broker resource without a name: only the cluster-wide values."""
    broker = BrokerLayers(cluster_default=cluster_default_dynamic)
    entries = [describe_broker_key(name, broker) for name in sorted(cluster_default_dynamic)]
    return [_without_defaults(entry) for entry in entries]


def _topic_entry(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerLayers) -> ConfigEntry:
    value = render(key.parse(effective_topic_text(key, overrides, broker)))
    synonyms = _broker_synonyms(key.synonyms[0].name, broker) if key.synonyms else ()
    if key.name in overrides:
        own = ConfigSynonym(key.name, value, ConfigSource.DYNAMIC_TOPIC_CONFIG)
        synonyms = (own, *synonyms)
    return ConfigEntry(
        name=key.name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_read_only=False,
        is_sensitive=key.is_sensitive,
        type=key.type,
        documentation=key.documentation,
        synonyms=synonyms,
    )


def _effective_entry(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerLayers) -> ConfigEntry:
    text = effective_topic_text(key, overrides, broker)
    if key.name in overrides:
        value, source = text, ConfigSource.DYNAMIC_TOPIC_CONFIG
    else:
        value = render(key.parse(text))
        layers = (
            source
            for source, values in broker.by_strength()
            if any(synonym.name in values for synonym in key.synonyms)
        )
        source = next(layers, ConfigSource.DEFAULT_CONFIG)
    return ConfigEntry(
        name=key.name,
        value=value,
        source=source,
        is_read_only=False,
        is_sensitive=key.is_sensitive,
        type=key.type,
        documentation=key.documentation,
        synonyms=(),
    )


def describe_broker_key(name: str, broker: BrokerLayers) -> ConfigEntry:
    key = BROKER_KEYS.get(name)
    is_sensitive = key is None or key.is_sensitive
    synonyms = _broker_synonyms(name, broker)
    text = None if key is None or is_sensitive else broker.text(name)
    return ConfigEntry(
        name=name,
        value=render(key.parse(text)) if key is not None and text is not None else None,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT_CONFIG,
        is_read_only=key is None or key.is_read_only,
        is_sensitive=is_sensitive,
        type=key.type if key is not None else None,
        documentation=key.documentation if key is not None else None,
        synonyms=synonyms,
    )


def _broker_synonyms(name: str, broker: BrokerLayers) -> tuple[ConfigSynonym, ...]:
    """The synonyms from the strongest layer to the default. As in Kafka, coarser keys appear only below the key's own
    value.
    """
    names = _STAND_INS.get(name, (name,))
    found = [
        _synonym(candidate, values[candidate], source)
        for source, values in broker.by_strength()
        for candidate in names
        if candidate in values
    ]
    for candidate in names:
        key = BROKER_KEYS.get(candidate)
        if key is not None and key.default is not None:
            found.append(_synonym(candidate, key.default, ConfigSource.DEFAULT_CONFIG))
    return tuple(dropwhile(lambda synonym: synonym.name != name, found))


def _synonym(name: str, text: str, source: ConfigSource) -> ConfigSynonym:
    key = BROKER_KEYS.get(name)
    is_sensitive = key is None or key.is_sensitive
    return ConfigSynonym(name, None if is_sensitive else text, source)


def _without_defaults(entry: ConfigEntry) -> ConfigEntry:
    """As in Kafka, the value is the text that was set."""
    kept = tuple(
        synonym for synonym in entry.synonyms if synonym.source is ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG
    )
    return ConfigEntry(
        entry.name,
        kept[0].value,
        ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        entry.is_read_only,
        entry.is_sensitive,
        entry.type,
        entry.documentation,
        kept,
    )
