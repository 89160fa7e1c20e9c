"""Typed reads of a broker's settings, which record the keys that were read.

A key that was read has an effect; `brokers` warns about set keys that were never read. It also collects the warnings
of each part about its own settings.
"""

from __future__ import annotations

from tidemill.config.definitions import Value
from tidemill.config.layers import BROKER_KEYS, BrokerLayers


class Values:
    """The settings of a broker, with the keys read so far."""

    def __init__(self, layers: BrokerLayers) -> None:
        self.layers = layers
        self.read: set[str] = set()
        self.warnings: list[str] = []

    def is_set(self, name: str) -> bool:
        return self.layers.set_text(name) is not None

    def optional(self, name: str) -> Value | None:
        self.read.add(name)
        text = self.layers.text(name)
        return None if text is None else BROKER_KEYS[name].parse(text)

    def optional_text(self, name: str) -> str | None:
        value = self.optional(name)
        return str(value) if value else None

    def text(self, name: str) -> str:
        value = self.optional(name)
        assert isinstance(value, str), name
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.optional(name)
        assert value is None or isinstance(value, tuple), name
        return value or ()

    def number(self, name: str) -> int:
        value = self.optional(name)
        assert isinstance(value, int), name
        return value

    def listener_number(self, listener: str, name: str) -> int | None:
        """The number that is set for one listener, by `listener.name.external.max.connections` for instance."""
        full_name = f"listener.name.{listener.lower()}.{name}"
        text = self.layers.set_text(full_name)
        if text is None:
            return None
        self.read.add(full_name)
        value = BROKER_KEYS[name].parse(text)
        assert isinstance(value, int), name
        return value

    def flag(self, name: str) -> bool:
        value = self.optional(name)
        assert isinstance(value, bool), name
        return value

    def fraction(self, name: str) -> float:
        value = self.optional(name)
        assert isinstance(value, float), name
        return value
