"""A topic's configuration: typed, resolved over the topic's own values and what it inherits from the broker.

`TopicConfig` has one field per topic key that a partition obeys, named after it. `resolve_topic_config` is called
when a topic or a default changes, never per request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tidemill.config.definitions import LONG_MAX, ConfigKey, Value, invalid_value
from tidemill.config.keys.topics import DELAYS_ENABLE, TOPIC_KEYS
from tidemill.config.layers import BrokerLayers
from tidemill.errors import ConfigError

TOPIC_KEYS_BY_NAME: dict[str, ConfigKey] = {key.name: key for key in TOPIC_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The settings of one topic, one field for each key that its partitions obey."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_type: str = "producer"
    compression_zstd_level: int = 3
    delete_retention_ms: int = 86_400_000
    errors_deadletterqueue_group_enable: bool = False
    file_delete_delay_ms: int = 60_000
    flush_messages: int = LONG_MAX
    flush_ms: int = LONG_MAX
    index_interval_bytes: int = 4096
    local_retention_bytes: int = -2
    local_retention_ms: int = -2
    max_compaction_lag_ms: int = LONG_MAX
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = LONG_MAX
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    min_insync_replicas: int = 1
    preallocate: bool = False
    remote_storage_enable: bool = False
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000
    tidemill_delays_enable: bool = False
    tidemill_delays_interval_min_ms: int = 1000
    tidemill_delays_max_ms: int = 31_622_400_000
    tidemill_partitions_active: int = 0
    tidemill_partitions_divisors: tuple[str, ...] = ()
    tidemill_partitions_former: int = 0
    tidemill_partitions_kept_ms: int = 120_000
    unclean_leader_election_enable: bool = False

    @property
    def is_compacted(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def is_deleted(self) -> bool:
        """Whether retention removes old segments."""
        return "delete" in self.cleanup_policy

    @property
    def is_log_append_time(self) -> bool:
        return self.message_timestamp_type == "LogAppendTime"

    @property
    def compression_level(self) -> int | None:
        """The level at which batches are compressed anew; None for the default of the codec."""
        levels = {
            "gzip": self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        level = levels.get(self.compression_type)
        return None if level == _DEFAULT_LEVELS.get(self.compression_type) else level


# As in Kafka, lz4 compresses fast at its default level, and tries harder at all others.
_DEFAULT_LEVELS = {"gzip": -1, "lz4": 9, "zstd": 3}
_COMPACTION_LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
_FIELD_KEYS = tuple(
    (field.name, TOPIC_KEYS_BY_NAME[field.name.replace("_", ".")]) for field in fields(TopicConfig)
)


def own_topic_value(key: ConfigKey, overrides: Mapping[str, str]) -> Value | None:
    """The topic's own value. One that cannot be parsed is as if it were not there: any value may be in a metadata log."""
    own = overrides.get(key.name)
    try:
        return None if own is None else key.parse(own)
    except ConfigError:
        return None


def ineffective_topic_values(overrides: Mapping[str, str]) -> list[str]:
    """Returns the problem of each of a topic's own values that cannot be parsed."""
    problems: list[str] = []
    for name, value in overrides.items():
        try:
            validate_topic_config(name, value)
        except ConfigError as error:
            problems.append(str(error))
    return problems


def effective_topic_text(key: ConfigKey, overrides: Mapping[str, str], broker: BrokerLayers) -> str:
    """The value in force for a topic key: the topic's own, the inherited one, or the default."""
    if own_topic_value(key, overrides) is not None:
        return overrides[key.name]
    inherited = broker.inherited_text(key.synonyms)
    if inherited is not None:
        return inherited
    assert key.default is not None, key.name
    return key.default


def resolve_topic_config(overrides: Mapping[str, str], broker: BrokerLayers) -> TopicConfig:
    values: dict[str, Any] = {
        name: key.parse(effective_topic_text(key, overrides, broker)) for name, key in _FIELD_KEYS
    }
    if values["tidemill_delays_enable"]:
        # It may be inherited. Compaction would remove records that wait, for their copies or for others of their key.
        values["cleanup_policy"] = tuple(each for each in values["cleanup_policy"] if each != "compact")
    return TopicConfig(**values)


def validate_topic_config(name: str, value: str) -> Value:
    """The typed value. Raises ConfigError when it is not allowed."""
    key = TOPIC_KEYS_BY_NAME.get(name)
    if key is None:
        raise ConfigError(f"Unknown topic config name: {name}")
    return key.parse(value)


def validate_topic_configs(configs: Mapping[str, str], broker: BrokerLayers | None = None) -> None:
    """Validate each value, and those that must agree with each other."""
    layers = BrokerLayers() if broker is None else broker
    parsed = {name: validate_topic_config(name, value) for name, value in configs.items()}
    if not parsed.keys().isdisjoint(_COMPACTION_LAGS):
        shortest, longest = (_number(name, configs, layers) for name in _COMPACTION_LAGS)
        if shortest > longest:
            allowed = f"at most max.compaction.lag.ms, which is {longest}"
            raise invalid_value("min.compaction.lag.ms", str(shortest), allowed)
    if parsed.get(DELAYS_ENABLE) is True:
        policy = effective_topic_text(TOPIC_KEYS_BY_NAME["cleanup.policy"], configs, layers)
        if "compact" in policy:
            raise ConfigError(
                f"Invalid value true for configuration {DELAYS_ENABLE}: must be false, because cleanup.policy is "
                f"{policy}, and compaction would remove records that wait"
            )
    if (
        parsed.get("remote.storage.enable") is True
        and layers.text("remote.log.storage.system.enable") != "true"
    ):
        raise ConfigError(
            "Invalid value true for configuration remote.storage.enable: must be false, "
            "because this cluster has no tiered storage (remote.log.storage.system.enable is false)"
        )


def _number(name: str, configs: Mapping[str, str], broker: BrokerLayers) -> int:
    key = TOPIC_KEYS_BY_NAME[name]
    value = key.parse(effective_topic_text(key, configs, broker))
    assert isinstance(value, int), name
    return value
