"""Decisions about configurations of topics, brokers and groups.

The operations on one resource succeed or fail together. The resulting configuration is validated as a whole, because
some values must agree with each other. Read-only keys of brokers are refused: they belong to the broker's file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from tidemill.config import (
    BROKER_KEYS,
    DELAYS_ENABLE,
    TOPIC_KEYS_BY_NAME,
    BrokerLayers,
    ConfigKey,
    ConfigType,
    check_dynamic_change,
    check_dynamic_values,
    resolve_topic_config,
    validate_client_metrics,
    validate_group_configs,
    validate_topic_configs,
)
from tidemill.controller.features import MIN_ISR
from tidemill.controller.image import CLUSTER_DEFAULT, ConfigResource, MetadataImage, ResourceType
from tidemill.controller.records import Record
from tidemill.controller.topics.fewer_partitions import CONTROLLER_SETTINGS, check_active, role_changes
from tidemill.controller.topics.topic_names import check_topic_name
from tidemill.controller.topics.views import check_changed
from tidemill.errors import ApiError, ConfigError, ErrorCode
from tidemill.machine import Decision
from tidemill.protocol.api.admin import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tidemill.protocol.api.metadata import ConfigRecord
from tidemill.types import BrokerId


class Operation(IntEnum):
    """The operations of IncrementalAlterConfigs on one key."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True)
class _Change:
    name: str
    operation: int
    value: str | None


def incremental_alter_configs(
    image: MetadataImage, broker: BrokerLayers, request: IncrementalAlterConfigsRequest
) -> Decision[Record, IncrementalAlterConfigsResponse]:
    wanted = [
        (
            ConfigResource(resource.resource_type, resource.resource_name),
            [_Change(config.name, config.config_operation, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    records, responses = _alter(image, broker, wanted, _incremented)
    return Decision(
        [] if request.validate_only else records, IncrementalAlterConfigsResponse(responses=responses)
    )


def alter_configs(
    image: MetadataImage, broker: BrokerLayers, request: AlterConfigsRequest
) -> Decision[Record, AlterConfigsResponse]:
    """AlterConfigs, the older API: keys that it does not name return to their defaults."""
    wanted = [
        (
            ConfigResource(resource.resource_type, resource.resource_name),
            [_Change(config.name, Operation.SET, config.value) for config in resource.configs],
        )
        for resource in request.resources
    ]
    records, responses = _alter(image, broker, wanted, _replaced)
    return Decision([] if request.validate_only else records, AlterConfigsResponse(responses=responses))


_NewConfigs = Callable[[ConfigResource, Mapping[str, str], Sequence[_Change]], dict[str, str]]


def _alter(
    image: MetadataImage,
    broker: BrokerLayers,
    wanted: Iterable[tuple[ConfigResource, Sequence[_Change]]],
    new_configs: _NewConfigs,
) -> tuple[list[Record], list[AlterConfigsResourceResponse]]:
    wanted = list(wanted)
    counts = Counter(resource for resource, _ in wanted)
    records: list[Record] = []
    responses: list[AlterConfigsResourceResponse] = []
    for resource, changes in wanted:
        response = AlterConfigsResourceResponse(resource_type=resource.type, resource_name=resource.name)
        try:
            if counts[resource] > 1:
                raise _invalid_request(f"Each resource must appear at most once: '{resource.name}'")
            _check_changes(changes)
            _check_resource(resource)
            before = image.config(resource)
            after = new_configs(resource, before, changes)
            _validate(image, resource, broker, after, changes)
            _check_min_isr(resource, before, after, changes)
            _check_existence(image, resource)
            if resource.type == ResourceType.TOPIC:
                check_changed(image, resource.name, before, after)
                _check_delays(resource.name, before, after)
                is_compacted = resolve_topic_config(after, broker).is_compacted
                check_active(image, resource.name, before, after, is_compacted=is_compacted)
        except ApiError as error:
            response.error_code = error.code
            response.error_message = error.message
        else:
            records += _config_records(resource, before, after, changes)
            if resource.type == ResourceType.TOPIC:
                records += role_changes(image.topics_by_name[resource.name], before, after)
        responses.append(response)
    return records, responses


def _check_changes(changes: Sequence[_Change]) -> None:
    twice = [name for name, count in Counter(change.name for change in changes).items() if count > 1]
    if twice:
        raise _invalid_request(f"Error due to duplicate config keys: {', '.join(twice)}")
    for change in changes:
        if change.operation not in Operation.__members__.values():
            raise _invalid_request(
                f"Unknown operation {change.operation} on configuration {change.name}: "
                "must be 0 (set), 1 (delete), 2 (append) or 3 (subtract)"
            )
        if change.value is None and change.operation != Operation.DELETE:
            raise _invalid_request(f"Null value not supported for : {change.name}")


def _check_resource(resource: ConfigResource) -> None:
    if resource.type == ResourceType.TOPIC:
        if not resource.name:
            raise _invalid_request(
                "Default topic resources are not allowed: the name of the topic is missing"
            )
        check_topic_name(resource.name)
    elif resource.type == ResourceType.BROKER:
        if resource != CLUSTER_DEFAULT and not resource.name.isdecimal():
            raise _invalid_request(f"Node id must be an integer, not '{resource.name}'")
    elif resource.type == ResourceType.GROUP:
        if not resource.name:
            raise _invalid_request(
                "Default group resources are not allowed: the name of the group is missing"
            )
    elif resource.type == ResourceType.CLIENT_METRICS:
        if not resource.name:
            raise _invalid_request("Subscription name can't be empty")
    else:
        raise _invalid_request(
            f"Unknown resource type {resource.type}: must be 2 (topic), 4 (broker), 16 (client metrics) or 32 (group)"
        )


def _check_existence(image: MetadataImage, resource: ConfigResource) -> None:
    if resource.type == ResourceType.TOPIC:
        if resource.name not in image.topics_by_name:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{resource.name}' does not exist"
            )
    elif resource.type != ResourceType.BROKER or resource == CLUSTER_DEFAULT:
        # A group may be given settings before it has members, and settings make a subscription.
        return
    elif BrokerId(int(resource.name)) not in image.brokers:
        raise _invalid_request(f"Unexpected broker id, {resource.name} is not registered")


def _check_delays(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Whether a record is hidden must not change: it was shown to some, or is pending."""
    was_enabled, is_enabled = (each.get(DELAYS_ENABLE, "false").strip().lower() for each in (before, after))
    if was_enabled != is_enabled:
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"{DELAYS_ENABLE} of '{name}' cannot be changed: it is set when a topic is created",
        )


def _check_min_isr(
    resource: ConfigResource, before: Mapping[str, str], after: Mapping[str, str], changes: Sequence[_Change]
) -> None:
    """All leaders and the controller must use the same number; otherwise the ELR would be wrong (KIP-966)."""
    if resource.type != ResourceType.BROKER:
        return
    if resource != CLUSTER_DEFAULT and any(change.name == MIN_ISR for change in changes):
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Configuration {MIN_ISR} can be set only for all brokers")
    if resource == CLUSTER_DEFAULT and MIN_ISR in before and MIN_ISR not in after:
        raise ApiError(ErrorCode.INVALID_CONFIG, f"Configuration {MIN_ISR} of all brokers cannot be removed")


def _incremented(
    resource: ConfigResource, before: Mapping[str, str], changes: Sequence[_Change]
) -> dict[str, str]:
    after = dict(before)
    for change in changes:
        if change.operation == Operation.DELETE:
            after.pop(change.name, None)
        elif change.operation == Operation.SET:
            after[change.name] = change.value or ""
        else:
            after[change.name] = _edited_list(resource, before.get(change.name), change)
    return after


def _edited_list(resource: ConfigResource, current: str | None, change: _Change) -> str:
    key = _key(resource, change.name)
    if key is None or key.type is not ConfigType.LIST:
        verb = Operation(change.operation).name
        raise ApiError(
            ErrorCode.INVALID_CONFIG,
            f"Can't {verb} to key {change.name}: its type is not a list",
        )
    items = [item for item in (current if current is not None else key.default or "").split(",") if item]
    for item in (change.value or "").split(","):
        if change.operation == Operation.SUBTRACT:
            items = [kept for kept in items if kept != item]
        elif item not in items:
            items.append(item)
    return ",".join(items)


def _replaced(
    resource: ConfigResource, before: Mapping[str, str], changes: Sequence[_Change]
) -> dict[str, str]:
    after = {change.name: change.value or "" for change in changes}
    if resource.type == ResourceType.TOPIC:
        # Clients cannot name them, so they stay.
        kept = [name for name in CONTROLLER_SETTINGS if name in before]
        after = {**{name: before[name] for name in kept}, **after}
    return after


def _key(resource: ConfigResource, name: str) -> ConfigKey | None:
    """Returns the key, for operations on lists. As in Kafka, lists of groups and client metrics have none."""
    if resource.type in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        return None
    return (TOPIC_KEYS_BY_NAME if resource.type == ResourceType.TOPIC else BROKER_KEYS).get(name)


def _validate(
    image: MetadataImage,
    resource: ConfigResource,
    broker: BrokerLayers,
    after: Mapping[str, str],
    changes: Sequence[_Change],
) -> None:
    try:
        if resource.type == ResourceType.TOPIC:
            validate_topic_configs(after, broker)
            return
        if resource.type == ResourceType.GROUP:
            validate_group_configs(after, broker)
            return
        if resource.type == ResourceType.CLIENT_METRICS:
            validate_client_metrics(after)
            return
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    _validate_broker(image, resource, broker, after, changes)


def _validate_broker(
    image: MetadataImage,
    resource: ConfigResource,
    own: BrokerLayers,
    after: Mapping[str, str],
    changes: Sequence[_Change],
) -> None:
    """Checks a change for one broker or all. The file of this controller stands for the file of each broker."""
    is_for_all = resource == CLUSTER_DEFAULT
    before = BrokerLayers(
        own.static, {} if is_for_all else image.config(resource), image.config(CLUSTER_DEFAULT)
    )
    changed = replace(before, cluster_default=after) if is_for_all else replace(before, dynamic=after)
    # Removing a key that could not have been set does nothing, and Kafka accepts it.
    set_values = {
        change.name: after[change.name] for change in changes if change.operation != Operation.DELETE
    }
    try:
        check_dynamic_values(set_values, is_for_all=is_for_all)
        check_dynamic_change(before.in_force(), changed.in_force(), [change.name for change in changes])
    except ConfigError as error:
        # Kafka answers a bad broker value with INVALID_REQUEST, not INVALID_CONFIG (KAFKA-13609).
        raise _invalid_request(str(error)) from None


def _config_records(
    resource: ConfigResource, before: Mapping[str, str], after: Mapping[str, str], changes: Sequence[_Change]
) -> list[Record]:
    # KAFKA-14136: an unchanged broker value is written again, so that brokers reload the file that it names.
    rewritten = {change.name for change in changes} if resource.type == ResourceType.BROKER else set()
    names = dict.fromkeys((*(change.name for change in changes), *before))
    return [
        ConfigRecord(
            resource_type=resource.type, resource_name=resource.name, name=name, value=after.get(name)
        )
        for name in names
        if before.get(name) != after.get(name) or name in rewritten
    ]


def _invalid_request(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, message)
