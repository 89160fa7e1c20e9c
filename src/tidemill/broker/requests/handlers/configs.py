"""Describes configurations and log directories.

The controller changes configurations (`controller.py`).

Versions, and what each one changed:

    DescribeConfigs (32), from 1 (KIP-226)
       2  a throttled client waits by itself (KIP-219)
       3  types and documentation (KIP-569)
       4  flexible (KIP-482)
    AlterReplicaLogDirs (34), from 1 (KIP-113)
       2  flexible (KIP-482)
    DescribeLogDirs (35), from 1 (KIP-113)
       2  flexible (KIP-482)
       3  error code of the whole response (KIP-784)
       4  total and usable bytes (KIP-827)
       5  cordoned directories (KIP-1066)
    ListConfigResources (74), from 0 (KIP-1000)
       1  any type of resource, not only client metrics (KIP-1142)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from tidemill.broker.requests import loggers
from tidemill.broker.requests.api_table import serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries
from tidemill.broker.requests.security.access import access_of
from tidemill.config import (
    BrokerLayers,
    ConfigEntry,
    ConfigSource,
    LayerTexts,
    describe_broker_configs,
    describe_client_metrics,
    describe_cluster_default_configs,
    describe_group_configs,
    describe_topic_configs,
    describe_topic_key,
)
from tidemill.controller.image import ConfigResource, ResourceType
from tidemill.controller.topics.topic_names import check_topic_name
from tidemill.errors import ApiError, ErrorCode
from tidemill.protocol.api.admin import ConfigResource as ListedResource
from tidemill.protocol.api.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tidemill.protocol.api.replicas import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from tidemill.security.acls import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tidemill.broker.partitions.partition import Partition
    from tidemill.broker.requests.context import Broker


# What is set for brokers seldom changes, and then for all that is described. One of these has some 270 results.
_REMEMBERED = 16

_Results = Sequence[DescribeConfigsResourceResult]


class _Look(NamedTuple):
    """The optional parts that a client wants to see of each entry."""

    synonyms: bool
    documentation: bool


class _Inherited(NamedTuple):
    """The brokers' settings that topics and groups inherit. `texts` is the same, hashable."""

    layers: BrokerLayers
    texts: LayerTexts


_RESOURCES = Entries("resources", "results", key=lambda each: (each.resource_type, each.resource_name))


@serves(DescribeConfigsRequest, entries=_RESOURCES)
def describe_configs(broker: Broker, call: Call, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    layers = broker.image.broker_layers(broker.config.node_id, broker.config.properties)
    inherited = _Inherited(layers, layers.texts())
    look = _Look(request.include_synonyms, request.include_documentation)
    # What is named twice is described once: five bytes of a request are worth 35 kilobytes of an answer.
    resources = {
        (each.resource_type, each.resource_name, frozenset(each.configuration_keys or ())): each
        for each in request.resources
    }
    return DescribeConfigsResponse(
        results=[_describe(broker, inherited, resource, look) for resource in resources.values()]
    )


def _describe(
    broker: Broker, inherited: _Inherited, resource: DescribeConfigsResource, look: _Look
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(resource_type=resource.resource_type, resource_name=resource.resource_name)
    try:
        found = _results(broker, inherited, resource, look)
    except ApiError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    result.error_message = ""  # not null, as Kafka
    # Neither null nor an empty list of keys restricts anything; a key that does not exist is passed over.
    wanted = set(resource.configuration_keys or ())
    result.configs = [each for each in found if not wanted or each.name in wanted]
    return result


def _results(
    broker: Broker, inherited: _Inherited, resource: DescribeConfigsResource, look: _Look
) -> _Results:
    image, node_id = broker.image, broker.config.node_id
    name = resource.resource_name
    if resource.resource_type == ResourceType.TOPIC:
        check_topic_name(name)
        if name not in image.topics_by_name:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Topic {name} does not exist")
        return _topic_results(image.topic_config(name), inherited, look)
    if resource.resource_type == ResourceType.BROKER:
        if not name:
            entries = describe_cluster_default_configs(inherited.layers.cluster_default)
            return [_result(entry, look) for entry in entries]
        if name != str(node_id):
            problem = f"Unexpected broker id, expected {node_id} or none, but received {name}: ask that one"
            if not _is_integer(name):
                problem = f"Broker id must be an integer, but it is: {name}"
            raise ApiError(ErrorCode.INVALID_REQUEST, problem)
        return _broker_results(inherited.texts, look)
    if resource.resource_type == ResourceType.GROUP:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Group name must not be empty")
        overrides = image.config(ConfigResource(ResourceType.GROUP, name))
        return _group_results(overrides, inherited, look)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        loggers.check_node(name, node_id)
        return [
            DescribeConfigsResourceResult(
                name=each,
                value=level,
                config_source=ConfigSource.DYNAMIC_BROKER_LOGGER_CONFIG,
                documentation="",
            )
            for each, level in loggers.levels().items()
        ]
    if resource.resource_type == ResourceType.CLIENT_METRICS:
        if not name:
            raise ApiError(ErrorCode.INVALID_REQUEST, "Client metrics subscription name must not be empty")
        configs = image.config(ConfigResource(ResourceType.CLIENT_METRICS, name))
        return [_result(entry, look) for entry in describe_client_metrics(configs)]
    raise ApiError(
        ErrorCode.INVALID_REQUEST, f"Resources of type {resource.resource_type} have no configuration here"
    )


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdecimal()


def _group_results(overrides: Mapping[str, str], inherited: _Inherited, look: _Look) -> _Results:
    if not overrides:
        return _inherited_by_groups(inherited.texts, look)
    return [_result(entry, look) for entry in describe_group_configs(overrides, inherited.layers)]


@lru_cache(_REMEMBERED)
def _inherited_by_groups(texts: LayerTexts, look: _Look) -> _Results:
    return [_result(entry, look) for entry in describe_group_configs({}, BrokerLayers.of_texts(texts))]


def _topic_results(overrides: Mapping[str, str], inherited: _Inherited, look: _Look) -> _Results:
    """Describes the keys of a topic. Inherited values are the same for all topics; only its own are described anew."""
    layers = inherited.layers
    shared = _inherited_by_topics(inherited.texts, look)
    if not overrides:
        return shared
    listed = {each.name for each in shared}
    return [
        *(
            _result(describe_topic_key(each.name, overrides, layers), look)
            if each.name in overrides
            else each
            for each in shared
        ),
        *(
            _result(describe_topic_key(name, overrides, layers), look)
            for name in sorted(overrides)
            if name not in listed
        ),
    ]


@lru_cache(_REMEMBERED)
def _inherited_by_topics(texts: LayerTexts, look: _Look) -> _Results:
    layers = BrokerLayers.of_texts(texts)
    entries = describe_topic_configs({}, layers.static, layers.dynamic, layers.cluster_default)
    return [_result(entry, look) for entry in entries]


@lru_cache(_REMEMBERED)
def _broker_results(texts: LayerTexts, look: _Look) -> _Results:
    layers = BrokerLayers.of_texts(texts)
    entries = describe_broker_configs(layers.static, layers.dynamic, layers.cluster_default)
    return [_result(entry, look) for entry in entries]


def _result(entry: ConfigEntry, look: _Look) -> DescribeConfigsResourceResult:
    described = DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=entry.source,
        is_sensitive=entry.is_sensitive,
        config_type=entry.type or 0,
        documentation=entry.documentation if look.documentation else None,
    )
    if look.synonyms:
        described.synonyms = [
            DescribeConfigsSynonym(name=each.name, value=each.value, source=each.source)
            for each in entry.synonyms
        ]
    return described


@serves(DescribeLogDirsRequest)
def describe_log_dirs(broker: Broker, call: Call, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    access = access_of(broker, call.connection)
    if access is not None and not access.cluster(Operation.DESCRIBE):
        return DescribeLogDirsResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
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


@serves(AlterReplicaLogDirsRequest)
def alter_replica_log_dirs(
    broker: Broker, call: Call, request: AlterReplicaLogDirsRequest
) -> AlterReplicaLogDirsResponse:
    """A broker has one directory: a replica is there already, or goes nowhere."""
    topics: dict[str, AlterReplicaLogDirTopicResult] = {}
    own = os.path.abspath(broker.data_dir.path)
    for directory in request.dirs:
        for topic in directory.topics:
            result = topics.setdefault(topic.name, AlterReplicaLogDirTopicResult(topic_name=topic.name))
            for index in topic.partitions:
                code = ErrorCode.LOG_DIR_NOT_FOUND
                if directory.path in (own, broker.data_dir.path):
                    code = _movable(broker, topic.name, index)
                result.partitions.append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                )
    return AlterReplicaLogDirsResponse(results=list(topics.values()))


def _movable(broker: Broker, topic: str, index: int) -> ErrorCode:
    hosted: Mapping[int, Partition] = broker.replicas.by_name.get(topic, {})
    partition = hosted.get(index)
    if partition is None:
        is_known = broker.image.partition(topic, index) is not None
        return ErrorCode.REPLICA_NOT_AVAILABLE if is_known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.NONE if partition.log is not None else ErrorCode.KAFKA_STORAGE_ERROR


_LISTED_TYPES = (
    ResourceType.TOPIC,
    ResourceType.BROKER,
    ResourceType.BROKER_LOGGER,
    ResourceType.CLIENT_METRICS,
    ResourceType.GROUP,
)


@serves(ListConfigResourcesRequest)
def list_config_resources(
    broker: Broker, call: Call, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Version 0 knows client metrics only. Topics and brokers are listed whether they have settings or not."""
    wanted = request.resource_types if call.version else [ResourceType.CLIENT_METRICS]
    if any(kind not in _LISTED_TYPES for kind in wanted):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    return ListConfigResourcesResponse(
        config_resources=[
            ListedResource(resource_name=name, resource_type=kind)
            for kind in dict.fromkeys(wanted or _LISTED_TYPES)
            for name in _resource_names(broker, kind)
        ]
    )


def _resource_names(broker: Broker, kind: int) -> Sequence[str]:
    image = broker.image
    if kind == ResourceType.TOPIC:
        return list(image.topics_by_name)
    if kind in (ResourceType.BROKER, ResourceType.BROKER_LOGGER):
        return [str(each.id) for each in image.brokers.values() if not each.is_fenced]
    return [resource.name for resource in image.configs if resource.type == kind]
