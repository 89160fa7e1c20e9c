"""Describes the cluster to clients: served APIs, brokers, topics and partition leaders.

Versions, and what each one changed:

    ApiVersions (18), from 0
       1  throttle time (KIP-124)
       2  a throttled client waits by itself (KIP-219)
       3  flexible; name and version of the client's software (KIP-511); features (KIP-584)
       4  features whose lowest level is 0 are listed too (KAFKA-17011)
    Metadata (3), from 0
       1  racks, the controller, internal topics (KIP-4); null asks for all topics, an empty list for none
       2  cluster id (KIP-78)
       3  throttle time (KIP-124)
       4  allow_auto_topic_creation
       5  offline replicas (KIP-112)
       6  a throttled client waits by itself (KIP-219)
       7  leader epochs (KIP-320)
       8  authorized operations (KIP-430)
       9  flexible (KIP-482)
      10  topic ids in the response (KIP-516)
      11  no operations of the cluster any more: DescribeCluster has them (KIP-700)
      12  topics by id (KIP-516)
      13  error code of the whole response, for REBOOTSTRAP_REQUIRED (KIP-1102)
    DescribeCluster (60), from 0 (KIP-700)
       1  endpoint type: brokers or controllers (KIP-919)
       2  fenced brokers (KIP-1073)
    DescribeTopicPartitions (75), from 0 (KIP-966)
"""

from __future__ import annotations

from collections.abc import Iterable

from tidemill.broker.requests.api_table import TABLE, Scope, serves
from tidemill.broker.requests.calls import Call
from tidemill.broker.requests.context import Broker
from tidemill.broker.requests.pieces import Entries
from tidemill.broker.requests.security.access import Access, access_of
from tidemill.controller.image import PartitionImage, TopicImage
from tidemill.controller.topics.topic_names import is_valid_topic_name
from tidemill.errors import ErrorCode
from tidemill.internal_topics import INTERNAL_TOPICS
from tidemill.protocol.api.cluster import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    Cursor,
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
    FinalizedFeatureKey,
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
    SupportedFeatureKey,
)
from tidemill.protocol.schema import NO_UUID
from tidemill.raft.voters import KRAFT_VERSION_MAX
from tidemill.security.acls import CLUSTER, Operation, Resource, ResourceType
from tidemill.types import TopicId

# Bit n stands for operation n of Kafka's AclOperation; without ACLs every operation is allowed.
_ALL_TOPIC_OPERATIONS = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
_ALL_CLUSTER_OPERATIONS = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
_KRAFT_VERSION = "kraft.version"
# First versions, as in the ledger above.
_SOFTWARE_NAMES_SINCE = 3
_NULL_IS_ALL_TOPICS_SINCE = 1
_TOPICS_BY_ID_SINCE = 12
_BROKER_ENDPOINTS = 1
_CONTROLLER_ENDPOINTS = 2


@serves(ApiVersionsRequest, versions=(0, 4), scope=Scope.BOTH)
def api_versions(broker: Broker, call: Call, request: ApiVersionsRequest) -> ApiVersionsResponse:
    if call.version >= _SOFTWARE_NAMES_SINCE:
        name, version = request.client_software_name, request.client_software_version
        if not _is_software_name(name, version):
            return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
        broker.client_metrics.note_software(call.connection, name, version)
    return _served_at(broker, call.connection.listener_name)


def _served_at(broker: Broker, listener_name: str) -> ApiVersionsResponse:
    """The role of a listener. One that serves brokers and controllers has the broker's role for clients."""
    image = broker.image
    supported = {name: (level, level) for name, level in image.features.items()}
    supported[_KRAFT_VERSION] = (0, KRAFT_VERSION_MAX)
    finalized = dict(image.features)
    if broker.kraft_version:
        finalized[_KRAFT_VERSION] = broker.kraft_version
    scope = Scope.CONTROLLER if broker.is_controller_listener(listener_name) else Scope.BROKER
    return ApiVersionsResponse(
        api_keys=[
            ApiVersion(api_key=api.key, min_version=api.advertised.min, max_version=api.advertised.max)
            for _, api in sorted(TABLE.items())
            if api.scope & scope
        ],
        supported_features=[
            SupportedFeatureKey(name=name, min_version=low, max_version=high)
            for name, (low, high) in sorted(supported.items())
        ],
        finalized_features_epoch=image.end_offset,
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in sorted(finalized.items())
        ],
    )


def _is_software_name(name: str, version: str) -> bool:
    """KIP-511: letters, digits, dots and dashes, beginning and ending with a letter or digit."""
    return all(
        text
        and text[0].isalnum()
        and text[-1].isalnum()
        and text.replace("-", "").replace(".", "").isalnum()
        and text.isascii()
        for text in (name, version)
    )


@serves(
    MetadataRequest,
    entries=Entries("topics", "topics", key=lambda topic: topic.name or topic.topic_id, piece_size=64),
)
def metadata(broker: Broker, call: Call, request: MetadataRequest) -> MetadataResponse:
    """Topics that it may create are unknown in this answer, as in Kafka: the client asks again."""
    topics = request.topics
    if call.version < _TOPICS_BY_ID_SINCE and any(topic.topic_id != NO_UUID for topic in topics or ()):
        # The field exists since version 10, but brokers use it only since this one.
        return _refused_metadata(topics or ())
    access = access_of(broker, call.connection)
    to_create = list(_to_create(broker, topics)) if topics and request.allow_auto_topic_creation else []
    refused: set[str] = set()
    if access is not None and to_create:
        refused = {name for name in to_create if not _may_create(access, name)}
    if to_create:
        broker.topic_creation.begin(name for name in to_create if name not in refused)
    return _metadata(broker, call, request, access, refused)


def _may_create(access: Access, name: str) -> bool:
    if not access.topic(Operation.DESCRIBE, name):
        return False
    return access.cluster(Operation.CREATE, quiet=True) or access.topic(Operation.CREATE, name)


def _metadata(
    broker: Broker, call: Call, request: MetadataRequest, access: Access | None, refused: set[str]
) -> MetadataResponse:
    """`refused` are topics that do not exist and that the client may not create."""
    topics = request.topics
    wants_all = topics is None or (call.version < _NULL_IS_ALL_TOPICS_SINCE and not topics)
    image = broker.image
    response = MetadataResponse(cluster_id=image.cluster_id, controller_id=broker.config.node_id)
    for member in image.brokers.values():
        if member.is_fenced:
            continue
        host, port = broker.address_of(member, call.connection)
        response.brokers.append(
            MetadataResponseBroker(node_id=member.id, host=host, port=port, rack=member.rack)
        )
    if wants_all:
        response.topics = [
            _describe(broker, topic)
            for topic in image.topics_by_name.values()
            if access is None or access.topic(Operation.DESCRIBE, topic.name, quiet=True)
        ]
    else:
        response.topics = _find_topics(broker, topics or (), access, refused)
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            # Also for a topic that does not exist, but not for one that is unknown by id or hidden.
            if topic.name is not None and topic.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                topic.topic_authorized_operations = _topic_operations(access, topic.name)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(access)
    return response


def _topic_operations(access: Access | None, name: str) -> int:
    if access is None:
        return _ALL_TOPIC_OPERATIONS
    return access.operations(Resource(ResourceType.TOPIC, name))


def _cluster_operations(access: Access | None) -> int:
    """Only a principal that may describe the cluster sees what it may do to it."""
    if access is None:
        return _ALL_CLUSTER_OPERATIONS
    return access.operations(CLUSTER) if access.cluster(Operation.DESCRIBE, quiet=True) else 0


def _refused_metadata(topics: Iterable[MetadataRequestTopic]) -> MetadataResponse:
    return MetadataResponse(
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST, name=topic.name or "", topic_id=topic.topic_id
            )
            for topic in topics
        ]
    )


def _to_create(broker: Broker, topics: Iterable[MetadataRequestTopic]) -> Iterable[str]:
    if not broker.config.topics.auto_create_topics_enable:
        return ()
    known = broker.image.topics_by_name
    return {
        topic.name: None
        for topic in topics
        if topic.name
        and topic.topic_id == NO_UUID
        and topic.name not in known
        and is_valid_topic_name(topic.name)
    }


def _find_topics(
    broker: Broker, wanted: Iterable[MetadataRequestTopic], access: Access | None, refused: set[str]
) -> list[MetadataResponseTopic]:
    """Each topic once; those that are missing come last. A topic that may not be described shows nothing of itself."""
    denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    image = broker.image
    found: dict[str, MetadataResponseTopic] = {}
    missing: dict[str | bytes, MetadataResponseTopic] = {}
    for topic in wanted:
        if topic.topic_id != NO_UUID:
            known = image.topics_by_id.get(TopicId(topic.topic_id))
            if known is None:
                missing[topic.topic_id] = MetadataResponseTopic(
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic.topic_id
                )
                continue
            if access is not None and not access.topic(Operation.DESCRIBE, known.name):
                missing[topic.topic_id] = MetadataResponseTopic(
                    error_code=denied, name=None, topic_id=topic.topic_id
                )
                continue
        else:
            name = topic.name or ""
            known = image.topics_by_name.get(name)
            if name in refused or (access is not None and not access.topic(Operation.DESCRIBE, name)):
                missing[name] = MetadataResponseTopic(error_code=denied, name=name)
                continue
            if known is None:
                missing[name] = MetadataResponseTopic(error_code=_missing_error(name), name=name)
                continue
        if known.name not in found:
            found[known.name] = _describe(broker, known)
    return [*found.values(), *missing.values()]


def _missing_error(name: str) -> ErrorCode:
    is_valid = is_valid_topic_name(name)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if is_valid else ErrorCode.INVALID_TOPIC_EXCEPTION


def _describe(broker: Broker, topic: TopicImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            MetadataResponsePartition(
                error_code=_leader_error(partition),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=_offline(broker, topic.name, index, partition),
            )
            for index, partition in enumerate(broker.image.partitions_of(topic))
        ],
    )


def _leader_error(partition: PartitionImage) -> ErrorCode:
    return ErrorCode.NONE if partition.has_leader else ErrorCode.LEADER_NOT_AVAILABLE


def _offline(broker: Broker, topic: str, index: int, partition: PartitionImage) -> list[int]:
    """Replicas on brokers that are away, and this broker's own when its log has failed."""
    members = broker.image.brokers
    own, _, _ = broker.replicas.find_readable((topic, index))
    return [
        replica
        for replica in partition.replicas
        if replica not in members
        or members[replica].is_fenced
        or (replica == broker.config.node_id and own is not None and own.log is None)
    ]


@serves(DescribeClusterRequest, scope=Scope.BOTH)
def describe_cluster(broker: Broker, call: Call, request: DescribeClusterRequest) -> DescribeClusterResponse:
    """Brokers at a broker's listener, controllers (KIP-919) at a controller's."""
    response = DescribeClusterResponse(
        cluster_id=broker.image.cluster_id, endpoint_type=request.endpoint_type
    )
    is_controller = broker.is_controller_listener(call.connection.listener_name)
    if request.endpoint_type != (_CONTROLLER_ENDPOINTS if is_controller else _BROKER_ENDPOINTS):
        is_known = request.endpoint_type in (_BROKER_ENDPOINTS, _CONTROLLER_ENDPOINTS)
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        kind = "controller" if is_controller else "broker"
        response.error_code = code
        response.error_message = (
            f"The request was sent to a {kind}, which has the endpoints of {kind}s only"
            if is_known
            else f"Unsupported endpoint type {request.endpoint_type}"
        )
        response.endpoint_type = _BROKER_ENDPOINTS
        return response
    if is_controller:
        response.controller_id = -1 if broker.quorum.leader_id is None else broker.quorum.leader_id
        response.brokers = [
            DescribeClusterBroker(broker_id=node_id, host=address.host, port=address.port)
            for node_id, address in broker.quorum.voter_addresses().items()
        ]
    else:
        response.controller_id = broker.config.node_id
        response.brokers = list(_known_brokers(broker, call, with_fenced=request.include_fenced_brokers))
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = _cluster_operations(access_of(broker, call.connection))
    return response


def _known_brokers(broker: Broker, call: Call, *, with_fenced: bool) -> Iterable[DescribeClusterBroker]:
    for member in broker.image.brokers.values():
        if member.is_fenced and not with_fenced:
            continue
        host, port = broker.address_of(member, call.connection)
        yield DescribeClusterBroker(
            broker_id=member.id, host=host, port=port, rack=member.rack, is_fenced=member.is_fenced
        )


@serves(DescribeTopicPartitionsRequest)
def describe_topic_partitions(
    broker: Broker, call: Call, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """In the order of the names, from the cursor on, until the limit of partitions is reached."""
    image = broker.image
    access = access_of(broker, call.connection)
    names = sorted({topic.name for topic in request.topics} or set(image.topics_by_name))
    denied: set[str] = set()
    if access is not None:
        is_quiet = not request.topics
        denied = {name for name in names if not access.topic(Operation.DESCRIBE, name, quiet=is_quiet)}
        if not request.topics:
            names = [name for name in names if name not in denied]
    first_index = 0
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names):
            return _refused_page(request)
        names = [name for name in names if name >= cursor.topic_name]
        if names and names[0] == cursor.topic_name:
            first_index = cursor.partition_index
    left = max(1, min(request.response_partition_limit, broker.config.fetch.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse()
    for name in names:
        if name in denied:
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            response.topics.append(DescribeTopicPartitionsResponseTopic(error_code=code, name=name))
            continue
        topic = image.topics_by_name.get(name)
        operations = _topic_operations(access, name)
        if topic is None:
            response.topics.append(
                DescribeTopicPartitionsResponseTopic(
                    error_code=_missing_error(name), name=name, topic_authorized_operations=operations
                )
            )
            continue
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        count = len(image.partitions_of(topic))
        end = min(count, first_index + left)
        described = _describe_partitions(broker, topic, range(first_index, end))
        described.topic_authorized_operations = operations
        response.topics.append(described)
        left -= max(0, end - first_index)
        if end < count:
            response.next_cursor = Cursor(topic_name=name, partition_index=end)
            break
        first_index = 0
    return response


def _refused_page(request: DescribeTopicPartitionsRequest) -> DescribeTopicPartitionsResponse:
    code = ErrorCode.INVALID_REQUEST
    return DescribeTopicPartitionsResponse(
        topics=[
            DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name) for topic in request.topics
        ]
    )


def _describe_partitions(
    broker: Broker, topic: TopicImage, indexes: range
) -> DescribeTopicPartitionsResponseTopic:
    partitions = broker.image.partitions_of(topic)
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=_leader_error(partition),
                partition_index=index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=_offline(broker, topic.name, index, partition),
            )
            for index, partition in ((index, partitions[index]) for index in indexes)
        ],
    )
