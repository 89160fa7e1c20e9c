"""Applies the dynamic settings of the metadata to a running node (Kafka: DynamicBrokerConfig).

The configuration in force is made anew when the settings of this node or of all brokers change, and given to the parts
that follow it. At a start that is the case with the first image, before clients are served. Defaults of topics are not
among them: partitions resolve their own configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from tidemill.config import BROKER_KEYS, BrokerConfig, BrokerLayers, with_dynamic_values
from tidemill.controller.image import MetadataImage
from tidemill.errors import ConfigError

logger = logging.getLogger(__name__)

Reconfigure = Callable[[BrokerConfig], None]


class DynamicBrokerConfig:
    def __init__(self, config: BrokerConfig, reconfigurables: Sequence[Reconfigure]) -> None:
        self._config = config
        self._reconfigurables = reconfigurables
        self._layers = config.layers
        self._warnings: list[str] = []

    def follow(self, image: MetadataImage) -> None:
        """Takes over the settings of an image, if they are other ones."""
        layers = image.broker_layers(self._config.node_id, self._config.properties)
        before = self._layers
        if layers.dynamic == before.dynamic and layers.cluster_default == before.cluster_default:
            return
        self._layers = layers
        try:
            current, warnings = with_dynamic_values(self._config, layers)
        except ConfigError as error:
            # The controller checked them by the rules of another version, or beside another file.
            logger.error("the dynamic settings of this broker are not applied: %s", error)
            return
        for warning in warnings:
            if warning not in self._warnings:
                logger.warning("%s", warning)
        self._warnings = warnings
        for name, (old, new) in _changes(before, layers).items():
            logger.info("configuration %s is %s now (was %s)", name, new, old)
        for reconfigure in self._reconfigurables:
            reconfigure(current)


def _changes(before: BrokerLayers, after: BrokerLayers) -> Mapping[str, tuple[str | None, str | None]]:
    """The values of dynamic keys that changed. None of these keys is a secret."""
    both = (before.in_force(), after.in_force())
    return {
        name: (old, new)
        for name, key in BROKER_KEYS.items()
        if not key.is_read_only and (old := both[0].text(name)) != (new := both[1].text(name))
    }
