"""The topics that frames name: ordinary ones, one with delays, one with fewer partitions than it had, and views.

A frame may change any of their settings, and a topic that was deleted does not come back by itself. `restore` gives each
its kind back, so that hours of an attack meet all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.brokers import eventually
from tests.wire.connection import Connection
from tests.wire.fuzz.values import TOPICS, VIEWS, Pools
from tests.wire.fuzz.watchdog import Target

PARTITIONS = 4
# Old segments go, so that hours of it do not fill the disk.
_SMALL = {"retention.bytes": "20000000", "segment.bytes": "5000000"}
_TOPIC_CONFIGS: Mapping[str, Mapping[str, str]] = {
    "fuzz-compacted": {"cleanup.policy": "compact"},
    "fuzz-zstd": {"compression.type": "zstd"},
    "fuzz-append-time": {"message.timestamp.type": "LogAppendTime"},
    "fuzz-aged": {"message.timestamp.before.max.ms": "60000", "compression.type": "gzip"},
    "fuzz-delays": {"tidemill.delays.enable": "true"},
}
# What a new topic cannot have.
_CHANGES: Mapping[str, Mapping[str, str]] = {
    "fuzz-shrunk": {"tidemill.partitions.active": "2", "tidemill.partitions.kept.ms": "3600000"},
}
_VIEW_CONFIGS: Mapping[str, Mapping[str, str]] = {
    "fuzz-view": {"tidemill.view.source": "fuzz-plain", "tidemill.view.filter": "key starts with 'k'"},
    "fuzz-view-of-delays": {
        "tidemill.view.source": "fuzz-delays",
        "tidemill.view.filter": "key exists or a = 'b'",
    },
    "fuzz-view-of-shrunk": {"tidemill.view.source": "fuzz-shrunk", "tidemill.view.filter": "key exists"},
}
_TOPIC_EXISTS = 36


def _entries(configs: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": key, "value": value} for key, value in configs.items()]


def new_topics(replicas: int) -> list[dict[str, Any]]:
    """What CreateTopics takes: the topics with records."""
    return [
        {
            "name": name,
            "num_partitions": PARTITIONS,
            "replication_factor": replicas,
            "configs": _entries({**_SMALL, **_TOPIC_CONFIGS.get(name, {})}),
        }
        for name in TOPICS
    ]


def new_views() -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": _entries(_VIEW_CONFIGS[name]),
        }
        for name in VIEWS
    ]


def changed_configs() -> list[dict[str, Any]]:
    """What IncrementalAlterConfigs takes: the settings that make a topic the kind it is."""
    return [
        {
            "resource_type": 2,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": 0, "value": value} for key, value in each.items()],
        }
        for name, each in {**_CHANGES, "fuzz-delays": _TOPIC_CONFIGS["fuzz-delays"]}.items()
    ]


def prepare(target: Target, pools: Pools) -> None:
    """The topics that frames name, and what is real at the target."""
    with Connection(target.brokers[0]) as connection:
        for new in (new_topics(len(target.brokers)), new_views()):
            created = connection.request("create_topics", 7, topics=new, timeout=20_000)
            assert {each.error_code for each in created.topics} <= {0, _TOPIC_EXISTS}, created
        altered = connection.request(
            "incremental_alter_configs", 1, resources=changed_configs(), validate_only=False
        )
        assert {each.error_code for each in altered.responses} == {0}, altered
        topics = [{"name": name} for name in TOPICS + VIEWS]

        def described() -> object:
            answer = connection.request("metadata", 12, topics=topics)
            parts = [part for topic in answer.topics for part in topic.partitions]
            is_led = len(parts) == PARTITIONS * len(topics) and all(part.leader_id >= 0 for part in parts)
            return answer if is_led else None

        answer = eventually(described, "leaders of the fuzzer's topics")
        pools.cluster_id = answer.cluster_id  # type: ignore[attr-defined]
        pools.topic_ids = {each.name: each.topic_id.bytes for each in answer.topics}  # type: ignore[attr-defined]
        pools.broker_ids = tuple(each.node_id for each in answer.brokers)  # type: ignore[attr-defined]
    # Epochs of brokers are offsets of the metadata log, so the first ones are small numbers.
    pools.broker_epochs = tuple(range(2, 12))
