"""DescribeConfigs (32) and DescribeLogDirs (35). Changing configurations is the controller's: `controller.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidemill.broker.dispatch import Call, serves
from tidemill.config import (
    ConfigEntry,
    describe_broker_configs,
    describe_cluster_default_configs,
    describe_group_configs,
    describe_topic_configs,
)
from tidemill.controller.image import ConfigResource, ResourceType
from tidemill.controller.topic_names import check_topic_name
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)
from tidemill.protocol.api.replicas import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.broker.context import Broker
    from tidemill.broker.partition import Partition


@serves(DescribeConfigsRequest)
def describe_configs(broker: Broker, call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            _describe(broker, resource, request.include_synonyms, request.include_documentation)
            for resource in request.resources
        ]
    )


def _describe(
    broker: Broker, resource: DescribeConfigsResource, with_synonyms: bool, with_documentation: bool
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        entries = _entries(broker, resource)
    except ApiError as error:
        result.error_code, result.error_message = error.code, str(error)
        return result
    result.error_message = ""  # not null, as Kafka
    # Neither null nor an empty list of keys restricts anything; a key that does not exist is passed over.
    wanted = set(resource.configuration_keys or ())
    for entry in entries:
        if wanted and entry.name not in wanted:
            continue
        described = DescribeConfigsResourceResult(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
            config_type=entry.type or 0,
            documentation=entry.documentation if with_documentation else None,
        )
        if with_synonyms:
            described.synonyms = [
                DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
                for each in entry.synonyms
            ]
        result.configs.append(described)
    return result


def _entries(broker: Broker, resource: DescribeConfigsResource) -> list[ConfigEntry]:
    image, node_id = broker.image, broker.config.node_id
    layers = image.broker_layers(node_id, broker.config.properties)
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        if name not in image.topics_by_name:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} does not exist")
        return describe_topic_configs(
            image.topic_config(name), layers.static, layers.dynamic, layers.cluster_default
        )
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            return describe_cluster_default_configs(layers.cluster_default)
        if name != str(node_id):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"This is broker {node_id}, not {name}: ask that one")
        return describe_broker_configs(layers.static, layers.dynamic, layers.cluster_default)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "The name of the group is missing")
        return describe_group_configs(image.config(ConfigResource(ResourceType.GROUP, name)), layers)
    raise ApiError(
        ErrorCode.INVALID_REQUEST, f"Resources of type {resource.resource_type} have no configuration here"
    )


@serves(DescribeLogDirsRequest)
def describe_log_dirs(broker: Broker, call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    if request.topics is None:
        wanted = {name: set(hosted) for name, hosted in broker.replicas.by_name.items()}
    else:
        wanted = {}
        for topic in request.topics:
            wanted.setdefault(topic.topic, set()).update(topic.partitions)
    topics = []
    for name, indexes in wanted.items():
        hosted: Mapping[int, Partition] = broker.replicas.by_name.get(name, {})
        partitions = [
            DescribeLogDirsPartition(partition_index=index, partition_size=partition.log.size)
            for index, partition in hosted.items()
            if index in indexes and partition.log is not None
        ]
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    total_bytes, usable_bytes = broker.data_dir.disk_bytes()
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=broker.data_dir.path,
                topics=topics,
                total_bytes=total_bytes,
                usable_bytes=usable_bytes,
            )
        ]
    )
