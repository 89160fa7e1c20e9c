"""Dynamic settings of the metadata reach the parts of a node, and those that do not fit change nothing."""

from __future__ import annotations

import pytest

from tidemill.broker.dynamic_config import DynamicBrokerConfig
from tidemill.config import BrokerConfig, load_broker_config
from tidemill.controller.delta import MetadataDelta
from tidemill.controller.image import MetadataImage
from tidemill.protocol.api.metadata import ConfigRecord


class Followed:
    def __init__(self, **static: str) -> None:
        self.configs: list[BrokerConfig] = []
        properties = {name.replace("_", "."): value for name, value in static.items()}
        config, _ = load_broker_config({"node.id": "1", "log.dirs": "data", **properties})
        self.dynamic = DynamicBrokerConfig(config, [self.configs.append])
        self.image = MetadataImage("cluster")

    def set(self, name: str, value: str | None, broker: str = "") -> None:
        delta = MetadataDelta(self.image)
        delta.replay(ConfigRecord(resource_type=4, resource_name=broker, name=name, value=value))
        self.image = delta.apply()
        self.dynamic.follow(self.image)

    @property
    def max_connections(self) -> list[int]:
        return [each.network.connection_limits.max_connections for each in self.configs]


def test_parts_get_the_value_of_the_broker_then_of_all_then_of_the_file() -> None:
    followed = Followed(max_connections="9")
    followed.set("max.connections", "5")
    followed.set("max.connections", "4", broker="1")
    followed.set("max.connections", None, broker="1")
    followed.set("max.connections", None)
    assert followed.max_connections == [5, 4, 5, 9]


def test_settings_of_other_brokers_and_topics_change_nothing() -> None:
    followed = Followed()
    followed.set("max.connections", "4", broker="2")
    followed.dynamic.follow(followed.image)
    assert not followed.configs


def test_first_image_is_applied_at_the_start() -> None:
    before, after_start = Followed(), Followed()
    before.set("max.connections", "5")
    after_start.dynamic.follow(before.image)
    assert after_start.max_connections == [5]


def test_changed_values_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        Followed(max_connections="9").set("max.connections", "5")
    assert "configuration max.connections is 5 now (was 9)" in caplog.text


def test_stored_value_that_cannot_be_parsed_leaves_the_others_in_force() -> None:
    followed = Followed(max_connections="9")
    followed.set("num.replica.fetchers", "many")
    followed.set("max.connections", "5")
    assert followed.max_connections[-1] == 5
    assert followed.configs[-1].replication.fetchers == 1
