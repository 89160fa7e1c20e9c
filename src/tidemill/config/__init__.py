"""Configuration: every key once in a table, text parsed into typed frozen dataclasses, no I/O.

`definitions` defines what a key is, and `keys` holds the tables. `layers` finds the value in force; `topics` and
`broker` build the typed results. `describe` reports the source of each value to clients. The caller reads files, the
command line and the environment.
"""

from tidemill.config.broker.broker import (
    BrokerConfig,
    FetchConfig,
    StorageConfig,
    TopicsConfig,
    load_broker_config,
    with_dynamic_values,
)
from tidemill.config.broker.cluster import (
    ControllerQuorumConfig,
    MembershipConfig,
    QuorumVoter,
    ReplicationConfig,
)
from tidemill.config.broker.dynamic import check_dynamic_change, check_dynamic_values
from tidemill.config.broker.groups import GroupsConfig, OffsetsTopicConfig
from tidemill.config.broker.listeners import Listener
from tidemill.config.broker.network import ConnectionLimits, NetworkConfig
from tidemill.config.broker.protection import check_protection
from tidemill.config.broker.security import (
    PLAIN_USERS_FILE,
    ListenerSecurity,
    Login,
    OAuthSettings,
    SaslSettings,
    SecurityConfig,
)
from tidemill.config.broker.share_coordinator import ShareCoordinatorConfig
from tidemill.config.broker.transactions import TransactionsConfig
from tidemill.config.client_metrics import (
    Subscription,
    describe_client_metrics,
    subscription,
    validate_client_metrics,
)
from tidemill.config.definitions import ConfigKey, ConfigSource, ConfigType, UpdateMode
from tidemill.config.describe import (
    ConfigEntry,
    ConfigSynonym,
    describe_broker_configs,
    describe_cluster_default_configs,
    describe_topic_configs,
    describe_topic_key,
    effective_topic_configs,
)
from tidemill.config.group_configs import describe_group_configs, validate_group_configs
from tidemill.config.keys.topics import (
    DELAYS_ENABLE,
    PARTITIONS_ACTIVE,
    PARTITIONS_DIVISORS,
    PARTITIONS_EMPTY,
    PARTITIONS_ENDS,
    PARTITIONS_EPOCHS,
    PARTITIONS_FORMER,
    PARTITIONS_KEPT_MS,
    PARTITIONS_TOTAL,
    PARTITIONS_UNKEYED,
    VIEW_FILTER,
    VIEW_SOURCE,
)
from tidemill.config.layers import BROKER_KEYS, BrokerLayers, LayerTexts
from tidemill.config.properties import parse_properties
from tidemill.config.share_groups import (
    OffsetReset,
    OffsetResetStrategy,
    ShareGroupConfig,
    ShareGroupsConfig,
    share_group_config,
)
from tidemill.config.topics import (
    TOPIC_KEYS_BY_NAME,
    TopicConfig,
    ineffective_topic_values,
    own_topic_value,
    resolve_topic_config,
    validate_topic_config,
    validate_topic_configs,
)

__all__ = [
    "BROKER_KEYS",
    "DELAYS_ENABLE",
    "PARTITIONS_ACTIVE",
    "PARTITIONS_DIVISORS",
    "PARTITIONS_EMPTY",
    "PARTITIONS_ENDS",
    "PARTITIONS_EPOCHS",
    "PARTITIONS_FORMER",
    "PARTITIONS_KEPT_MS",
    "PARTITIONS_TOTAL",
    "PARTITIONS_UNKEYED",
    "PLAIN_USERS_FILE",
    "TOPIC_KEYS_BY_NAME",
    "VIEW_FILTER",
    "VIEW_SOURCE",
    "BrokerConfig",
    "BrokerLayers",
    "ConfigEntry",
    "ConfigKey",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "ConnectionLimits",
    "ControllerQuorumConfig",
    "FetchConfig",
    "GroupsConfig",
    "LayerTexts",
    "Listener",
    "ListenerSecurity",
    "Login",
    "MembershipConfig",
    "NetworkConfig",
    "OAuthSettings",
    "OffsetReset",
    "OffsetResetStrategy",
    "OffsetsTopicConfig",
    "QuorumVoter",
    "ReplicationConfig",
    "SaslSettings",
    "SecurityConfig",
    "ShareCoordinatorConfig",
    "ShareGroupConfig",
    "ShareGroupsConfig",
    "StorageConfig",
    "Subscription",
    "TopicConfig",
    "TopicsConfig",
    "TransactionsConfig",
    "UpdateMode",
    "check_dynamic_change",
    "check_dynamic_values",
    "check_protection",
    "describe_broker_configs",
    "describe_client_metrics",
    "describe_cluster_default_configs",
    "describe_group_configs",
    "describe_topic_configs",
    "describe_topic_key",
    "effective_topic_configs",
    "ineffective_topic_values",
    "load_broker_config",
    "own_topic_value",
    "parse_properties",
    "resolve_topic_config",
    "share_group_config",
    "subscription",
    "validate_client_metrics",
    "validate_group_configs",
    "validate_topic_config",
    "validate_topic_configs",
    "with_dynamic_values",
]
