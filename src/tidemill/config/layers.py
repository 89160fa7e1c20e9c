"""The layers of a broker's configuration, and the value in force for a key.

From the strongest: dynamic for this broker, dynamic for all brokers, the file, the default. Dynamic values come from
the metadata log and change while the broker runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidemill.config.definitions import ConfigKey, ConfigSource, Synonym
from tidemill.config.keys.broker_topics import TOPICS_KEYS
from tidemill.config.keys.groups import GROUPS_KEYS
from tidemill.config.keys.log import LOG_KEYS
from tidemill.config.keys.node import NODE_KEYS
from tidemill.config.keys.oauth import OAUTH_KEYS
from tidemill.errors import ConfigError

BROKER_KEYS: dict[str, ConfigKey] = {
    key.name: key
    for key in sorted(
        (*GROUPS_KEYS, *LOG_KEYS, *NODE_KEYS, *OAUTH_KEYS, *TOPICS_KEYS), key=lambda key: key.name
    )
}


def unknown_key_warning(name: str) -> str:
    """Kafka keeps unknown keys for plug-ins; here a misspelt name is more likely."""
    return f"Unknown configuration {name} is kept, but nothing reads it"


# Kafka lets a key begin with the listener that it is for.
LISTENER_PREFIX = re.compile(r"listener\.name\.[^.]*\.")


def base_name(name: str) -> str:
    """The name without the listener that it begins with."""
    prefix = LISTENER_PREFIX.match(name)
    return name[prefix.end() :] if prefix else name


def _effective(values: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, text in values.items():
        key = BROKER_KEYS.get(base_name(name))
        if key is None or key.is_read_only:
            continue
        try:
            key.parse(text)
        except ConfigError:
            continue
        found[name] = text
    return found


LayerTexts = tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """The values that are set, by layer. Secrets are among them."""

    static: Mapping[str, str] = field(default_factory=dict, repr=False)
    dynamic: Mapping[str, str] = field(default_factory=dict, repr=False)
    cluster_default: Mapping[str, str] = field(default_factory=dict, repr=False)

    def texts(self) -> LayerTexts:
        """All values as one hashable object; `of_texts` is the inverse."""
        layers = (self.static, self.dynamic, self.cluster_default)
        return tuple(tuple(sorted(layer.items())) for layer in layers)

    @staticmethod
    def of_texts(texts: LayerTexts) -> BrokerLayers:
        static, dynamic, cluster_default = map(dict, texts)
        return BrokerLayers(static, dynamic, cluster_default)

    def by_strength(self) -> Iterator[tuple[ConfigSource, Mapping[str, str]]]:
        yield ConfigSource.DYNAMIC_BROKER_CONFIG, self.dynamic
        yield ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG, self.cluster_default
        yield ConfigSource.STATIC_BROKER_CONFIG, self.static

    def in_force(self) -> BrokerLayers:
        """Without dynamic values that have no effect: those of read-only keys, and those that cannot be parsed.

        A metadata log may hold any.
        """
        return BrokerLayers(self.static, _effective(self.dynamic), _effective(self.cluster_default))

    def set_text(self, name: str) -> str | None:
        """The strongest value that is set, or None."""
        for _, values in self.by_strength():
            if name in values:
                return values[name]
        return None

    def text(self, name: str) -> str | None:
        """The value in force: the one that is set, or the default."""
        found = self.set_text(name)
        return BROKER_KEYS[name].default if found is None else found

    def inherited_text(self, synonyms: tuple[Synonym, ...]) -> str | None:
        """The value that a topic inherits: that of the first synonym that is set, in the topic's unit.

        A coarser time key may mean "no limit" with any negative number; a topic key only with -1.
        """
        for synonym in synonyms:
            text = self.text(synonym.name)
            if text is None:
                continue
            value = BROKER_KEYS[synonym.name].parse(text)
            if synonyms[0].name == "log.retention.ms" and isinstance(value, int) and value < 0:
                return "-1"
            if isinstance(value, int) and synonym.unit_ms != 1:
                return str(value * synonym.unit_ms)
            return text
        return None
