"""Decisions about topics: create, delete, add partitions.

Each function takes an image and a request and returns records and the response. It changes nothing. A topic that is
refused gets an error code and a message; the other topics of the request are not affected. The order of the checks is
Kafka's, because it decides which of several errors a client sees.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidemill.config import (
    VIEW_SOURCE,
    BrokerLayers,
    ConfigSource,
    effective_topic_configs,
    validate_topic_configs,
)
from tidemill.controller.image import (
    NO_DIRECTORY,
    MetadataImage,
    PartitionImage,
    TopicImage,
    only_directory,
    topic_resource,
)
from tidemill.controller.records import Record, check_record_count, partition_record
from tidemill.controller.topics.fewer_partitions import active_partitions, check_new, first_leader_epoch
from tidemill.controller.topics.placement import PlacementError, UsableBroker, place_replicas
from tidemill.controller.topics.topic_names import check_topic_name, collision_key
from tidemill.controller.topics.views import check_shape, check_unviewed, check_view, is_view
from tidemill.errors import ApiError, ConfigError, ErrorCode
from tidemill.internal_topics import METADATA_TOPIC, METADATA_TOPIC_ID
from tidemill.machine import Decision
from tidemill.protocol.api.admin import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DeleteTopicState,
)
from tidemill.protocol.api.metadata import ConfigRecord, RemoveTopicRecord, TopicRecord
from tidemill.protocol.schema import replace
from tidemill.types import NO_TOPIC_ID, BrokerId, TopicId, uuid_text

# As in Kafka: the number of partitions that one request may create, so that none holds the controller for long.
MAX_PARTITIONS_PER_REQUEST = 10_000

# The first version of DeleteTopics with the error TOPIC_DELETION_DISABLED.
_DELETION_DISABLED_SINCE = 3
_RESERVED_IDS = (NO_TOPIC_ID, TopicId(METADATA_TOPIC_ID), TopicId(bytes(15) + b"\x02"))


@dataclass(frozen=True, slots=True)
class TopicDefaults:
    """The defaults for values that a CreateTopics request leaves out."""

    num_partitions: int
    replication_factor: int
    broker: BrokerLayers


def create_topics(
    image: MetadataImage, defaults: TopicDefaults, request: CreateTopicsRequest, new_uuid: Callable[[], bytes]
) -> Decision[Record, CreateTopicsResponse]:
    counts = Counter(topic.name for topic in request.topics)
    is_excessive = _requested_partitions(request, defaults) > MAX_PARTITIONS_PER_REQUEST
    names_by_key = _names_by_collision_key(image, counts)
    inherited = _inherited_configs(defaults)
    records: list[Record] = []
    results: list[CreatableTopicResult] = []
    once = {topic.name: topic for topic in request.topics}.values()
    for topic in sorted(once, key=lambda topic: counts[topic.name] > 1):
        try:
            if counts[topic.name] > 1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Duplicate topic name: '{topic.name}' is named twice"
                )
            if is_excessive:
                raise _excessive()
            _check_new_name(image, names_by_key, topic.name)
            created = _create_topic(image, defaults, inherited, topic, _unused_id(image, new_uuid))
        except ApiError as error:
            results.append(
                CreatableTopicResult(name=topic.name, error_code=error.code, error_message=error.message)
            )
            continue
        names_by_key.setdefault(collision_key(topic.name), topic.name)
        records += created.records
        check_record_count(records)
        results.append(created.result)
    response = CreateTopicsResponse(topics=results)
    return Decision([] if request.validate_only else records, response)


@dataclass(frozen=True, slots=True)
class _Created:
    records: list[Record]
    result: CreatableTopicResult


def _create_topic(
    image: MetadataImage,
    defaults: TopicDefaults,
    inherited: list[CreatableTopicConfigs],
    topic: CreatableTopic,
    topic_id: TopicId,
) -> _Created:
    configs = _topic_configs(topic, defaults)
    if is_view(configs):
        return _create_view(image, inherited, topic, topic_id, configs)
    check_new(topic.name, configs)
    if topic.assignments:
        partitions = _assigned_partitions(image, topic)
    else:
        partitions = _placed_partitions(image, defaults, topic, topic_id)
    records = _new_topic_records(topic.name, topic_id, configs)
    records += [partition_record(topic_id, index, each) for index, each in enumerate(partitions)]
    return _Created(records, _created_result(topic.name, topic_id, partitions, _with_own(inherited, configs)))


def _create_view(
    image: MetadataImage,
    inherited: list[CreatableTopicConfigs],
    topic: CreatableTopic,
    topic_id: TopicId,
    configs: dict[str, str],
) -> _Created:
    check_view(image, topic.name, configs)
    partitions = image.topics_by_name[configs[VIEW_SOURCE]].partitions
    check_shape(topic, partitions)
    source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    own = [
        CreatableTopicConfigs(name=name, value=value, config_source=source) for name, value in configs.items()
    ]
    records = _new_topic_records(topic.name, topic_id, configs)
    return _Created(records, _created_result(topic.name, topic_id, partitions, [*inherited, *own]))


def _new_topic_records(name: str, topic_id: TopicId, configs: Mapping[str, str]) -> list[Record]:
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(
            ConfigRecord(resource_type=topic_resource(name).type, resource_name=name, name=key, value=value)
            for key, value in configs.items()
        ),
    ]


def _created_result(
    name: str, topic_id: TopicId, partitions: Sequence[PartitionImage], configs: list[CreatableTopicConfigs]
) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=name,
        topic_id=topic_id,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=configs,
    )


def _inherited_configs(defaults: TopicDefaults) -> list[CreatableTopicConfigs]:
    """The configuration of a topic without its own settings, computed once for all topics of a request."""
    entries = effective_topic_configs({}, defaults.broker)
    return [
        CreatableTopicConfigs(
            name=entry.name,
            value=entry.value,
            read_only=entry.is_read_only,
            config_source=entry.source,
            is_sensitive=entry.is_sensitive,
        )
        for entry in sorted(entries, key=lambda entry: entry.name)
    ]


def _with_own(inherited: list[CreatableTopicConfigs], own: dict[str, str]) -> list[CreatableTopicConfigs]:
    if not own:
        return inherited
    source = ConfigSource.DYNAMIC_TOPIC_CONFIG
    return [
        replace(config, value=own[config.name], config_source=source) if config.name in own else config
        for config in inherited
    ]


def _requested_partitions(request: CreateTopicsRequest, defaults: TopicDefaults) -> int:
    total = 0
    for topic in request.topics:
        if topic.assignments:
            total += len(topic.assignments)
        else:
            total += defaults.num_partitions if topic.num_partitions == -1 else max(0, topic.num_partitions)
    return total


def _excessive() -> ApiError:
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        f"Excessively large number of partitions per request: {MAX_PARTITIONS_PER_REQUEST} are the most",
    )


def _names_by_collision_key(image: MetadataImage, wanted: Iterable[str]) -> dict[str, str]:
    if not any("." in name or "_" in name for name in wanted):
        return {}
    return {collision_key(name): name for name in image.topics_by_name}


def _check_new_name(image: MetadataImage, names_by_key: dict[str, str], name: str) -> None:
    check_topic_name(name)
    if name == METADATA_TOPIC:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is not allowed")
    if name in image.topics_by_name:
        raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists")
    other = names_by_key.get(collision_key(name))
    if other is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic {other}: names may not differ only in '.' and '_'",
        )


def _unused_id(image: MetadataImage, new_uuid: Callable[[], bytes]) -> TopicId:
    while True:
        topic_id = TopicId(new_uuid())
        if topic_id not in _RESERVED_IDS and topic_id not in image.topics_by_id:
            return topic_id


def _topic_configs(topic: CreatableTopic, defaults: TopicDefaults) -> dict[str, str]:
    configs: dict[str, str] = {}
    for config in topic.configs:
        if config.value is None:
            raise ApiError(
                ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {config.name}"
            )
        configs[config.name] = config.value
    try:
        validate_topic_configs(configs, defaults.broker)
    except ConfigError as error:
        raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from None
    return configs


def _assigned_partitions(image: MetadataImage, topic: CreatableTopic) -> list[PartitionImage]:
    for field, value in (
        ("replication factor", topic.replication_factor),
        ("number of partitions", topic.num_partitions),
    ):
        if value != -1:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"A manual partition assignment was given for '{topic.name}': its {field} must be -1, not {value}",
            )
    assigned: dict[int, PartitionImage] = {}
    replication_factor: int | None = None
    for assignment in topic.assignments:
        index = assignment.partition_index
        if index in assigned:
            raise _bad_assignment(
                f"Found multiple manual partition assignments for partition {index} of '{topic.name}'"
            )
        assigned[index] = _assigned_partition(image, index, assignment.broker_ids, replication_factor)
        replication_factor = len(assignment.broker_ids)
    if sorted(assigned) != list(range(len(assigned))):
        raise _bad_assignment(
            f"partitions should be a consecutive sequence from 0, not {sorted(assigned)} as for '{topic.name}'"
        )
    return [assigned[index] for index in range(len(assigned))]


def _assigned_partition(
    image: MetadataImage, index: int, broker_ids: Sequence[int], replication_factor: int | None
) -> PartitionImage:
    if not broker_ids:
        raise _bad_assignment(f"The manual partition assignment includes no replica of partition {index}")
    for broker_id in sorted(broker_ids):
        if broker_id not in image.brokers:
            raise _bad_assignment(
                f"The manual partition assignment includes broker {broker_id} for partition {index}, which is "
                "not registered"
            )
        if broker_ids.count(broker_id) > 1:
            raise _bad_assignment(
                f"The manual partition assignment includes the broker {broker_id} twice for partition {index}"
            )
    if replication_factor is not None and len(broker_ids) != replication_factor:
        raise _bad_assignment(
            f"Partition {index} has {len(broker_ids)} replica(s), but the partitions before it have "
            f"{replication_factor}"
        )
    partition = _new_partition(image, [BrokerId(broker_id) for broker_id in broker_ids])
    if partition is None:
        raise _bad_assignment(f"All brokers assigned to partition {index} are fenced or shutting down")
    return partition


def _bad_assignment(message: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _new_partition(image: MetadataImage, replicas: Sequence[BrokerId]) -> PartitionImage | None:
    """The active replicas are the ISR, and the first of them is the leader. Returns None when none is active."""
    isr = tuple(replica for replica in replicas if image.brokers[replica].is_active)
    if not isr:
        return None
    directories = tuple(only_directory(image.brokers[replica].log_dirs) for replica in replicas)
    if all(directory == NO_DIRECTORY for directory in directories):
        directories = ()
    return PartitionImage(tuple(replicas), isr, isr[0], directories=directories)


def _placed_partitions(
    image: MetadataImage, defaults: TopicDefaults, topic: CreatableTopic, topic_id: TopicId
) -> list[PartitionImage]:
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor must be larger than 0, or -1 for the default, not {topic.replication_factor}",
        )
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Number of partitions was set to {topic.num_partitions}: it must be at least 1, or -1 for the default",
        )
    count = defaults.num_partitions if topic.num_partitions == -1 else topic.num_partitions
    factor = defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
    return _place(image, count, factor, topic_id, existing=())


def _place(
    image: MetadataImage, count: int, factor: int, topic_id: TopicId, existing: Sequence[PartitionImage]
) -> list[PartitionImage]:
    brokers = [
        UsableBroker(broker.id, broker.rack, broker.is_active)
        for broker in image.brokers.values()
        if not broker.is_in_controlled_shutdown
    ]
    seed = int.from_bytes(topic_id, "big")
    try:
        placed = place_replicas(brokers, count, factor, seed, [each.replicas for each in existing])
    except PlacementError as error:
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): {error}",
        ) from None
    partitions = [_new_partition(image, replicas) for replicas in placed]
    return [partition for partition in partitions if partition is not None]


def refuse_to_delete(request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
    """The error when `delete.topic.enable` is false. Older clients do not know its own error code."""
    code = (
        ErrorCode.INVALID_REQUEST if version < _DELETION_DISABLED_SINCE else ErrorCode.TOPIC_DELETION_DISABLED
    )
    names = [topic.name for topic in request.topics] or request.topic_names
    return DeleteTopicsResponse(
        responses=[DeletableTopicResult(name=name, error_code=code) for name in names]
    )


def delete_topics(
    image: MetadataImage, request: DeleteTopicsRequest
) -> Decision[Record, DeleteTopicsResponse]:
    """Returns the topics of both forms of the request: names until version 5, names or ids since 6."""
    wanted = [*request.topics, *(DeleteTopicState(name=name) for name in request.topic_names)]
    names = Counter(topic.name for topic in wanted if topic.name is not None)
    ids = Counter(topic.topic_id for topic in wanted if topic.topic_id != NO_TOPIC_ID)
    records: list[Record] = []
    results: list[DeletableTopicResult] = []
    doomed = {state.name for state in wanted} | {
        topic.name for topic_id in ids if (topic := image.topics_by_id.get(TopicId(topic_id))) is not None
    }
    answered: set[tuple[str | None, bytes]] = set()
    for state in (_as_asked(image, state, names, ids) for state in wanted):
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id)
        try:
            topic = _topic_to_delete(image, state, names, ids)
            check_unviewed(image, topic.name, doomed)
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
        else:
            result.name, result.topic_id = topic.name, topic.id
            records.append(RemoveTopicRecord(topic_id=topic.id))
        asked = (state.name, state.topic_id)
        # A topic that is named twice gets one result. Entries without name and id are all reported.
        if asked not in answered or asked == (None, NO_TOPIC_ID):
            results.append(result)
        answered.add(asked)
    return Decision(records, DeleteTopicsResponse(responses=results))


def _as_asked(
    image: MetadataImage, state: DeleteTopicState, names: Counter[str], ids: Counter[bytes]
) -> DeleteTopicState:
    """A topic that the request names once by name and once by id gets both in the result. Such a topic is refused."""
    if state.name is None:
        topic = image.topics_by_id.get(TopicId(state.topic_id))
        is_twofold = topic is not None and topic.name in names
    else:
        topic = image.topics_by_name.get(state.name)
        is_twofold = topic is not None and topic.id in ids
    return DeleteTopicState(name=topic.name, topic_id=topic.id) if topic and is_twofold else state


def _topic_to_delete(
    image: MetadataImage, state: DeleteTopicState, names: Counter[str], ids: Counter[bytes]
) -> TopicImage:
    has_id = state.topic_id != NO_TOPIC_ID
    if state.name is None and not has_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "A topic to delete has neither a name nor an id")
    if state.name is not None and has_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Topic '{state.name}' may be given by name or id, not both"
        )
    if state.name is not None:
        if names[state.name] > 1:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic name: '{state.name}' is named twice")
        topic = image.topics_by_name.get(state.name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{state.name}'")
        return topic
    shown_id = uuid_text(state.topic_id)
    if ids[state.topic_id] > 1:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Duplicate topic id: {shown_id} is named twice")
    topic = image.topics_by_id.get(TopicId(state.topic_id))
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic with id {shown_id}")
    return topic


def create_partitions(
    image: MetadataImage, request: CreatePartitionsRequest
) -> Decision[Record, CreatePartitionsResponse]:
    counts = Counter(topic.name for topic in request.topics)
    records: list[Record] = []
    results: list[CreatePartitionsTopicResult] = []
    for topic in {topic.name: topic for topic in request.topics}.values():
        result = CreatePartitionsTopicResult(name=topic.name)
        try:
            if counts[topic.name] > 1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST, f"Duplicate topic name: '{topic.name}' is named twice"
                )
            added = _added_partitions(image, topic)
            if len(records) + len(added) > MAX_PARTITIONS_PER_REQUEST:
                raise _excessive()
        except ApiError as error:
            result.error_code = error.code
            result.error_message = error.message
        else:
            records += added
        results.append(result)
    return Decision([] if request.validate_only else records, CreatePartitionsResponse(results=results))


def _added_partitions(image: MetadataImage, wanted: CreatePartitionsTopic) -> list[Record]:
    topic = image.topics_by_name.get(wanted.name)
    if topic is None:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic '{wanted.name}'")
    source = image.source_of(topic.name)
    if source is not None:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"'{topic.name}' is a view and has the partitions of '{source.name}': add them there",
        )
    current = len(topic.partitions)
    if active_partitions(image.topic_config(topic.name)):
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"'{topic.name}' is getting fewer partitions: wait until that is done, or take it back first",
        )
    if wanted.count <= current:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic already has {current} partition(s)"
            if wanted.count == current
            else f"The topic {topic.name} currently has {current} partition(s), more than {wanted.count}",
        )
    added = wanted.count - current
    if added > MAX_PARTITIONS_PER_REQUEST:
        raise _excessive()
    factor = len(topic.partitions[0].replicas)
    if wanted.assignments is None:
        partitions = _place(image, added, factor, topic.id, topic.partitions)
    else:
        if len(wanted.assignments) != added:
            raise _bad_assignment(
                f"Attempted to add {added} additional partition(s), but {len(wanted.assignments)} assignment(s) "
                "are given"
            )
        partitions = [
            _assigned_partition(image, current + index, assignment.broker_ids, factor)
            for index, assignment in enumerate(wanted.assignments)
        ]
    epoch = first_leader_epoch(image, topic)
    return [
        partition_record(topic.id, current + index, dataclasses.replace(partition, leader_epoch=epoch))
        for index, partition in enumerate(partitions)
    ]
