"""The broker's own configuration, typed and validated before any file is touched.

`load_broker_config` turns properties into one `BrokerConfig`, or raises ConfigError. A Kafka key without an effect
here causes a warning when it differs from its default, and an unknown key a warning with its name. A key that requests
a missing protection is an error (`protection`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tidemill.config.broker.cluster import (
    ControllerQuorumConfig,
    MembershipConfig,
    ReplicationConfig,
    load_membership,
    load_quorum,
    load_replication,
)
from tidemill.config.broker.groups import GroupsConfig, OffsetsTopicConfig
from tidemill.config.broker.network import NetworkConfig, load_network
from tidemill.config.broker.protection import check_protection, is_security_key
from tidemill.config.broker.security import SecurityConfig, load_security
from tidemill.config.broker.share_coordinator import ShareCoordinatorConfig, load_share_coordinator
from tidemill.config.broker.transactions import TransactionsConfig, load_transactions
from tidemill.config.definitions import invalid_value
from tidemill.config.keys.topics import TOPIC_KEYS
from tidemill.config.layers import BROKER_KEYS, BrokerLayers, unknown_key_warning
from tidemill.config.share_groups import ShareGroupsConfig, load_share_groups
from tidemill.config.topics import TopicConfig, resolve_topic_config
from tidemill.config.values import Values
from tidemill.types import BrokerId

# Topic keys that are stored and described, but have no effect yet.
TOPIC_KEYS_WITHOUT_EFFECT = frozenset(
    {
        "file.delete.delay.ms",
        "local.retention.bytes",
        "local.retention.ms",
        "preallocate",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "remote.storage.enable",
        "segment.jitter.ms",
    }
)

# Replication reads them itself, and only what was set while the cluster runs.
REPLICATION_RATES = {"follower.replication.throttled.rate", "leader.replication.throttled.rate"}

_STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """The settings of storage."""

    log_dirs: tuple[str, ...]
    metadata_log_dir: str
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_buffer_load_factor: float
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_retention_check_interval_ms: int
    producer_id_expiration_ms: int


@dataclass(frozen=True, slots=True)
class TopicsConfig:
    """The settings of topic creation. `defaults` is the configuration of a topic without own values."""

    auto_create_topics_enable: bool
    default_replication_factor: int
    delete_topic_enable: bool
    num_partitions: int
    defaults: TopicConfig


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """The settings of fetches."""

    fetch_max_bytes: int
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int


@dataclass(frozen=True, slots=True)
class AuthorizationConfig:
    """`super_users` are principals separated by semicolons, as the authorizer reads them."""

    is_enabled: bool
    super_users: str
    allows_without_acl: bool


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """All settings of a node."""

    node_id: BrokerId
    process_roles: tuple[str, ...]
    rack: str | None
    network: NetworkConfig
    security: SecurityConfig
    quorum: ControllerQuorumConfig
    membership: MembershipConfig
    replication: ReplicationConfig
    storage: StorageConfig
    topics: TopicsConfig
    fetch: FetchConfig
    groups: GroupsConfig
    share_groups: ShareGroupsConfig
    offsets_topic: OffsetsTopicConfig
    transactions: TransactionsConfig
    share_coordinator: ShareCoordinatorConfig
    authorization: AuthorizationConfig
    # As they were written, with secrets among them.
    properties: Mapping[str, str] = field(repr=False)

    @property
    def is_broker(self) -> bool:
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.process_roles

    @property
    def layers(self) -> BrokerLayers:
        """The layers without dynamic values."""
        return BrokerLayers(static=self.properties)


def load_broker_config(properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
    """The configuration, and warnings about keys without effect and doubtful values."""
    complete = {"process.roles": "broker,controller", **_with_node_id(properties)}
    for name, text in complete.items():
        if name in BROKER_KEYS:
            BROKER_KEYS[name].parse(text)
    check_protection(complete)
    values = Values(BrokerLayers(static=complete))
    roles = tuple(dict.fromkeys(values.texts("process.roles")))
    node_id = BrokerId(values.number("node.id"))
    network = load_network(values, roles)
    config = BrokerConfig(
        node_id=node_id,
        process_roles=roles,
        rack=values.optional_text("broker.rack"),
        network=network,
        security=load_security(values, complete, network),
        quorum=load_quorum(values, node_id, roles, network),
        membership=load_membership(values),
        replication=load_replication(values),
        storage=_storage(values),
        topics=_topics(values),
        fetch=FetchConfig(
            fetch_max_bytes=values.number("fetch.max.bytes"),
            max_incremental_fetch_session_cache_slots=values.number(
                "max.incremental.fetch.session.cache.slots"
            ),
            max_request_partition_size_limit=values.number("max.request.partition.size.limit"),
        ),
        groups=_groups(values),
        share_groups=load_share_groups(values),
        offsets_topic=OffsetsTopicConfig(
            num_partitions=values.number("offsets.topic.num.partitions"),
            replication_factor=values.number("offsets.topic.replication.factor"),
            segment_bytes=values.number("offsets.topic.segment.bytes"),
        ),
        transactions=load_transactions(values),
        share_coordinator=load_share_coordinator(values),
        authorization=_authorization(values),
        properties=MappingProxyType(complete),
    )
    values.read.add("broker.id")
    return config, _warnings(properties, values.read) + values.warnings


def with_dynamic_values(config: BrokerConfig, layers: BrokerLayers) -> tuple[BrokerConfig, list[str]]:
    """The configuration with the dynamic values that are in force, and warnings about those without effect.

    Raises ConfigError when they do not fit together.
    """
    values = Values(layers.in_force())
    current = replace(
        config,
        network=load_network(values, config.process_roles),
        replication=load_replication(values),
        storage=_storage(values),
        topics=_topics(values),
        groups=_groups(values),
        share_groups=load_share_groups(values),
        transactions=load_transactions(values),
    )
    dynamic = {**layers.cluster_default, **layers.dynamic}
    in_force = {**values.layers.cluster_default, **values.layers.dynamic}
    shown = {name: text for name, text in dynamic.items() if name in in_force or name not in BROKER_KEYS}
    return current, _warnings(shown, values.read | REPLICATION_RATES)


def _with_node_id(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties with both names of the node id set; the default is 1."""
    node_id, broker_id = properties.get("node.id"), properties.get("broker.id")
    number = next((text for text in (node_id, broker_id) if text is not None and text.strip() != "-1"), "1")
    if node_id is not None and broker_id is not None and broker_id.strip() not in ("-1", node_id.strip()):
        raise invalid_value("broker.id", broker_id, f"the same as node.id, which is {node_id}")
    return {**properties, "node.id": node_id if node_id is not None else number, "broker.id": number}


def _authorization(values: Values) -> AuthorizationConfig:
    name = values.text("authorizer.class.name").strip()
    if name not in ("", _STANDARD_AUTHORIZER):
        raise invalid_value("authorizer.class.name", name, f"{_STANDARD_AUTHORIZER}, or empty")
    return AuthorizationConfig(
        is_enabled=bool(name),
        super_users=values.optional_text("super.users") or "",
        allows_without_acl=values.flag("allow.everyone.if.no.acl.found"),
    )


def _storage(values: Values) -> StorageConfig:
    log_dir = values.texts("log.dir")
    log_dirs = values.texts("log.dirs") or log_dir
    if len(set(log_dirs)) != len(log_dirs):
        raise invalid_value("log.dirs", ",".join(log_dirs), "a list of different directories")
    return StorageConfig(
        log_dirs=log_dirs,
        metadata_log_dir=values.optional_text("metadata.log.dir") or log_dirs[0],
        log_cleaner_backoff_ms=values.number("log.cleaner.backoff.ms"),
        log_cleaner_dedupe_buffer_size=values.number("log.cleaner.dedupe.buffer.size"),
        log_cleaner_enable=values.flag("log.cleaner.enable"),
        log_cleaner_io_buffer_load_factor=values.fraction("log.cleaner.io.buffer.load.factor"),
        log_flush_offset_checkpoint_interval_ms=values.number("log.flush.offset.checkpoint.interval.ms"),
        log_flush_scheduler_interval_ms=values.number("log.flush.scheduler.interval.ms"),
        log_retention_check_interval_ms=values.number("log.retention.check.interval.ms"),
        producer_id_expiration_ms=values.number("producer.id.expiration.ms"),
    )


def _topics(values: Values) -> TopicsConfig:
    for key in TOPIC_KEYS:
        if key.name not in TOPIC_KEYS_WITHOUT_EFFECT:
            values.read.update(synonym.name for synonym in key.synonyms)
    return TopicsConfig(
        auto_create_topics_enable=values.flag("auto.create.topics.enable"),
        default_replication_factor=values.number("default.replication.factor"),
        delete_topic_enable=values.flag("delete.topic.enable"),
        num_partitions=values.number("num.partitions"),
        defaults=resolve_topic_config({}, values.layers),
    )


def _groups(values: Values) -> GroupsConfig:
    number = values.number
    return GroupsConfig(
        group_initial_rebalance_delay_ms=number("group.initial.rebalance.delay.ms"),
        group_min_session_timeout_ms=number("group.min.session.timeout.ms"),
        group_max_session_timeout_ms=number("group.max.session.timeout.ms"),
        group_max_size=number("group.max.size"),
        offset_metadata_max_bytes=number("offset.metadata.max.bytes"),
        offsets_retention_ms=number("offsets.retention.minutes") * 60_000,
        offsets_retention_check_interval_ms=number("offsets.retention.check.interval.ms"),
        group_consumer_session_timeout_ms=number("group.consumer.session.timeout.ms"),
        group_consumer_min_session_timeout_ms=number("group.consumer.min.session.timeout.ms"),
        group_consumer_max_session_timeout_ms=number("group.consumer.max.session.timeout.ms"),
        group_consumer_heartbeat_interval_ms=number("group.consumer.heartbeat.interval.ms"),
        group_consumer_min_heartbeat_interval_ms=number("group.consumer.min.heartbeat.interval.ms"),
        group_consumer_max_heartbeat_interval_ms=number("group.consumer.max.heartbeat.interval.ms"),
        group_consumer_assignment_interval_ms=number("group.consumer.assignment.interval.ms"),
        group_consumer_min_assignment_interval_ms=number("group.consumer.min.assignment.interval.ms"),
        group_consumer_max_assignment_interval_ms=number("group.consumer.max.assignment.interval.ms"),
        group_consumer_max_size=number("group.consumer.max.size"),
        group_consumer_assignors=values.texts("group.consumer.assignors"),
        group_consumer_migration_policy=values.text("group.consumer.migration.policy"),
    )


def _warnings(properties: Mapping[str, str], read: set[str]) -> list[str]:
    warnings = []
    for name, text in properties.items():
        key = BROKER_KEYS.get(name)
        if name in read:
            continue
        if key is None:
            warnings.append(unknown_key_warning(name))
        elif key.default is None or key.parse(text) != key.parse(key.default):
            if is_security_key(name):
                warnings.append(f"Configuration {name} has no effect: no listener of this broker uses it")
            else:
                warnings.append(f"Configuration {name} is known to Kafka but has no effect in Tidemill yet")
    return warnings
