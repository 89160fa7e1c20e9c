"""The layers in which a broker's values lie, and the text that is in force for a key.

From the strongest: set for this broker, set for all brokers, written in its file, the default. The first two
are dynamic: they come from the metadata log and change while the broker runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tidemill.config.definitions import ConfigKey, ConfigSource, Synonym
from tidemill.config.keys.broker_topics import TOPICS_KEYS
from tidemill.config.keys.groups import GROUPS_KEYS
from tidemill.config.keys.log import LOG_KEYS
from tidemill.config.keys.node import NODE_KEYS

BROKER_KEYS: dict[str, ConfigKey] = {
    key.name: key
    for key in sorted((*GROUPS_KEYS, *LOG_KEYS, *NODE_KEYS, *TOPICS_KEYS), key=lambda key: key.name)
}


def unknown_key_warning(name: str) -> str:
    """Kafka keeps such keys for plug-ins; here a misspelt name is the likelier cause."""
    return f"Unknown configuration {name} is kept, but nothing reads it"


LayerTexts = tuple[tuple[tuple[str, str], ...], ...]


@dataclass(frozen=True, slots=True)
class BrokerLayers:
    """The texts that are set, by layer."""

    static: Mapping[str, str] = field(default_factory=dict)
    dynamic: Mapping[str, str] = field(default_factory=dict)
    cluster_default: Mapping[str, str] = field(default_factory=dict)

    def texts(self) -> LayerTexts:
        """All that is set, as a value that can be compared and hashed; `of_texts` is the way back."""
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

    def set_text(self, name: str) -> str | None:
        """What some layer sets, or None."""
        for _, values in self.by_strength():
            if name in values:
                return values[name]
        return None

    def text(self, name: str) -> str | None:
        """What is in force: what is set, or the default."""
        found = self.set_text(name)
        return BROKER_KEYS[name].default if found is None else found

    def inherited_text(self, synonyms: tuple[Synonym, ...]) -> str | None:
        """The value a topic inherits: that of the first synonym which has one, in the topic's unit.

        The coarse forms of a time may say "no limit" with any negative number; a topic knows only -1.
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
