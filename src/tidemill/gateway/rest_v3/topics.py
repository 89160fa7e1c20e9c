"""v3: topics, their partitions and replicas, and the reassignments under way."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.cluster import Reassignment
from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster.backend import unknown_partition, unknown_topic
from tidemill.gateway.http.bodies import kind_of, read_json_object
from tidemill.gateway.http.formats import integer, invalid, member, only, optional_boolean, text
from tidemill.gateway.http.openapi import (
    BOOLEAN,
    INTEGER,
    STRING,
    TOPIC_NAME,
    Part,
    Schema,
    array,
    nullable,
    obj,
)
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v3.shapes import (
    RELATED,
    ClusterLinks,
    Fields,
    cluster_of,
    collection_schema,
    path_integer,
    resource_schema,
)
from tidemill.protocol.api.cluster import MetadataResponsePartition, MetadataResponseTopic
from tidemill.types import TopicPartition

part = Part("Topics (v3)", is_negotiated=True)

_TOPICS_PATH = "/v3/clusters/{cluster_id}/topics"
_TOPIC_PATH = _TOPICS_PATH + "/{topic_name}"
_PARTITION_PATH = _TOPIC_PATH + "/partitions/{partition_id}"
_PARTITIONS_MAX = 2**31 - 1
_REPLICAS_MAX = 2**15 - 1

_NATURAL: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
_TOPIC = part.schema(
    "Topic",
    resource_schema(
        "KafkaTopic",
        {
            "topic_name": STRING,
            "is_internal": BOOLEAN,
            "replication_factor": INTEGER,
            "partitions_count": INTEGER,
            "partitions": RELATED,
            "configs": RELATED,
            "partition_reassignments": RELATED,
        },
    ),
)
_TOPICS = part.schema("TopicList", collection_schema("KafkaTopicList", _TOPIC))
_NEW_TOPIC = part.schema(
    "NewTopic",
    obj(
        {"topic_name": TOPIC_NAME},
        {
            "partitions_count": nullable({"type": "integer", "minimum": 1, "maximum": _PARTITIONS_MAX}),
            "replication_factor": nullable({"type": "integer", "minimum": 1, "maximum": _REPLICAS_MAX}),
            "replicas_assignments": nullable(
                array(obj({"partition_id": _NATURAL, "broker_ids": array(_NATURAL)}, is_closed=True))
            ),
            "configs": nullable(array(obj({"name": STRING}, {"value": nullable(STRING)}, is_closed=True))),
            "validate_only": nullable(BOOLEAN),
        },
        is_closed=True,
        description="Without a number the cluster's default counts. Replicas are either a number or assignments.",
    ),
)
_NEW_TOPIC_FIELDS = frozenset(
    (
        "topic_name",
        "partitions_count",
        "replication_factor",
        "replicas_assignments",
        "configs",
        "validate_only",
    )
)
_PARTITION = part.schema(
    "Partition",
    resource_schema(
        "KafkaPartition",
        {"topic_name": STRING, "partition_id": INTEGER, "replicas": RELATED, "reassignment": RELATED},
        {"leader": RELATED},
    ),
)
_PARTITIONS = part.schema("PartitionList", collection_schema("KafkaPartitionList", _PARTITION))
_REPLICA = part.schema(
    "Replica",
    resource_schema(
        "KafkaReplica",
        {
            "topic_name": STRING,
            "partition_id": INTEGER,
            "broker_id": INTEGER,
            "is_leader": BOOLEAN,
            "is_in_sync": BOOLEAN,
            "broker": RELATED,
        },
    ),
)
_REPLICAS = part.schema("ReplicaList", collection_schema("KafkaReplicaList", _REPLICA))
_REASSIGNMENT = part.schema(
    "Reassignment",
    resource_schema(
        "KafkaReassignment",
        {
            "topic_name": STRING,
            "partition_id": INTEGER,
            "adding_replicas": array(INTEGER),
            "removing_replicas": array(INTEGER),
            "replicas": RELATED,
        },
    ),
)
_REASSIGNMENTS = part.schema("ReassignmentList", collection_schema("KafkaReassignmentList", _REASSIGNMENT))


# --- topics ---


@part.get(_TOPICS_PATH, "List topics", answer=_TOPICS, errors=(404,))
async def list_topics(request: Request) -> Response:
    cluster = await cluster_of(request)
    found = await cluster.backend.ask(lambda admins: admins.admin.topics())
    return cluster.collection("KafkaTopicList", ("topics",), (_topic_fields(cluster, each) for each in found))


@part.get(_TOPIC_PATH, "Get a topic", answer=_TOPIC, errors=(404,))
async def get_topic(request: Request) -> Response:
    cluster = await cluster_of(request)
    return json_answer(_topic_fields(cluster, await topic_of(cluster, request)))


@part.post(
    _TOPICS_PATH,
    "Create a topic",
    body=_NEW_TOPIC,
    answer=_TOPIC,
    status=201,
    also={200: "It could be created: `validate_only` was true."},
    errors=(404,),
    answer_description="The topic; every partition has its leader.",
)
async def create_topic(request: Request) -> Response:
    cluster = await cluster_of(request)
    wanted = await read_json_object(request)
    only(wanted, _NEW_TOPIC_FIELDS)
    name: str = member(wanted, "topic_name", str)
    partition_count = _optional_integer(wanted, "partitions_count", 1, _PARTITIONS_MAX)
    replication_factor = _optional_integer(wanted, "replication_factor", 1, _REPLICAS_MAX)
    assignments = _assignments(wanted.get("replicas_assignments"))
    if assignments and (partition_count != -1 or replication_factor != -1):
        raise Problem(
            400,
            40002,
            "replicas_assignments stand instead of partitions_count and replication_factor; give one of them",
        )
    configs = _configs(wanted.get("configs"))
    validate_only = optional_boolean(wanted, "validate_only")
    created = await cluster.backend.ask(
        lambda admins: admins.admin.create_topic(
            name,
            partition_count=partition_count,
            replication_factor=replication_factor,
            configs=configs,
            assignments=assignments,
            validate_only=validate_only,
        )
    )
    cluster.backend.forget_topic(name)
    if validate_only:
        fields = _topic_shape(cluster, name, False, created.replication_factor, created.num_partitions)
        return json_answer(fields)
    topic = await cluster.backend.ask(lambda admins: admins.admin.topic(name))
    return json_answer(_topic_fields(cluster, topic), 201, {"Location": cluster.url("topics", name)})


@part.patch(
    _TOPIC_PATH,
    "Add partitions to a topic",
    body=part.schema(
        "PartitionCount",
        obj(
            {"partitions_count": {"type": "integer", "minimum": 1, "maximum": _PARTITIONS_MAX}},
            is_closed=True,
        ),
    ),
    answer=_TOPIC,
    errors=(404,),
)
async def update_topic(request: Request) -> Response:
    cluster = await cluster_of(request)
    name: str = request.path_params["topic_name"]
    wanted = await read_json_object(request)
    only(wanted, {"partitions_count"})
    count = integer(member(wanted, "partitions_count", int), "partitions_count", 1, _PARTITIONS_MAX)
    await cluster.backend.ask(lambda admins: admins.admin.create_partitions(name, count))
    cluster.backend.forget_topic(name)
    return json_answer(_topic_fields(cluster, await topic_of(cluster, request)))


@part.delete(_TOPIC_PATH, "Delete a topic", errors=(400, 404))
async def delete_topic(request: Request) -> Response:
    cluster = await cluster_of(request)
    name: str = request.path_params["topic_name"]
    await cluster.backend.ask(lambda admins: admins.admin.delete_topic(name))
    cluster.backend.forget_topic(name)
    return Response(status_code=204)


async def topic_of(cluster: ClusterLinks, request: Request) -> MetadataResponseTopic:
    name: str = request.path_params["topic_name"]
    found = await cluster.backend.ask(lambda admins: admins.admin.existing_topics([name]))
    if name not in found:
        raise unknown_topic(name)
    topic = found[name]
    topic.partitions.sort(key=lambda each: each.partition_index)
    return topic


def _topic_fields(cluster: ClusterLinks, topic: MetadataResponseTopic) -> Fields:
    replicas = len(topic.partitions[0].replica_nodes) if topic.partitions else 0
    return _topic_shape(cluster, topic.name or "", topic.is_internal, replicas, len(topic.partitions))


def _topic_shape(
    cluster: ClusterLinks, name: str, is_internal: bool, replication_factor: int, count: int
) -> Fields:
    path = ("topics", name)
    return cluster.resource(
        "KafkaTopic",
        path,
        f"/topic={name}",
        {
            "topic_name": name,
            "is_internal": is_internal,
            "replication_factor": replication_factor,
            "partitions_count": count,
            "partitions": cluster.related(*path, "partitions"),
            "configs": cluster.related(*path, "configs"),
            "partition_reassignments": cluster.related(*path, "partitions", "-", "reassignment"),
        },
    )


def _optional_integer(document: dict[str, Any], name: str, low: int, high: int) -> int:
    value = document.get(name)
    return -1 if value is None else integer(value, name, low, high)


def objects(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise invalid(f"{where} should be an array, not {kind_of(value)}")
    for index, each in enumerate(value):
        if not isinstance(each, dict):
            raise invalid(f"{where}[{index}] should be an object, not {kind_of(each)}")
    return value


def _configs(value: Any) -> dict[str, str | None]:
    configs: dict[str, str | None] = {}
    for index, each in enumerate(objects([] if value is None else value, "configs")):
        where = f"configs[{index}]"
        only(each, {"name", "value"}, where)
        name = member(each, "name", str, where)
        given = each.get("value")
        configs[name] = None if given is None else text(given, f"{where}.value")
    return configs


def _assignments(value: Any) -> dict[int, list[int]]:
    assignments: dict[int, list[int]] = {}
    for index, each in enumerate(objects([] if value is None else value, "replicas_assignments")):
        where = f"replicas_assignments[{index}]"
        only(each, {"partition_id", "broker_ids"}, where)
        partition = integer(member(each, "partition_id", int, where), f"{where}.partition_id", 0, 2**31 - 1)
        brokers = member(each, "broker_ids", list, where)
        if partition in assignments:
            raise Problem(400, 40002, f"replicas_assignments names partition {partition} twice")
        assignments[partition] = [
            integer(broker, f"{where}.broker_ids[{place}]", 0, 2**31 - 1)
            for place, broker in enumerate(brokers)
        ]
    return assignments


# --- partitions and replicas ---


@part.get(_TOPIC_PATH + "/partitions", "List the partitions of a topic", answer=_PARTITIONS, errors=(404,))
async def list_partitions(request: Request) -> Response:
    cluster = await cluster_of(request)
    topic = await topic_of(cluster, request)
    name = topic.name or ""
    return cluster.collection(
        "KafkaPartitionList",
        ("topics", name, "partitions"),
        (_partition_fields(cluster, name, each) for each in topic.partitions),
    )


@part.get(_PARTITION_PATH, "Get a partition", answer=_PARTITION, errors=(404,))
async def get_partition(request: Request) -> Response:
    cluster = await cluster_of(request)
    name, partition = await _partition_of(cluster, request)
    return json_answer(_partition_fields(cluster, name, partition))


@part.get(_PARTITION_PATH + "/replicas", "List the replicas of a partition", answer=_REPLICAS, errors=(404,))
async def list_replicas(request: Request) -> Response:
    cluster = await cluster_of(request)
    name, partition = await _partition_of(cluster, request)
    return cluster.collection(
        "KafkaReplicaList",
        ("topics", name, "partitions", partition.partition_index, "replicas"),
        (replica_fields(cluster, name, partition, broker_id) for broker_id in partition.replica_nodes),
    )


@part.get(_PARTITION_PATH + "/replicas/{broker_id}", "Get a replica", answer=_REPLICA, errors=(404,))
async def get_replica(request: Request) -> Response:
    cluster = await cluster_of(request)
    broker_id = path_integer(request, "broker_id")
    name, partition = await _partition_of(cluster, request)
    if broker_id not in partition.replica_nodes:
        raise Problem(
            404,
            404,
            f"{TopicPartition(name, partition.partition_index)} has no replica on broker {broker_id}",
        )
    return json_answer(replica_fields(cluster, name, partition, broker_id))


async def _partition_of(cluster: ClusterLinks, request: Request) -> tuple[str, MetadataResponsePartition]:
    index = path_integer(request, "partition_id")
    topic = await topic_of(cluster, request)
    name = topic.name or ""
    for partition in topic.partitions:
        if partition.partition_index == index:
            return name, partition
    raise unknown_partition(TopicPartition(name, index), len(topic.partitions))


def _partition_fields(cluster: ClusterLinks, topic: str, partition: MetadataResponsePartition) -> Fields:
    index = partition.partition_index
    path = ("topics", topic, "partitions", index)
    fields: Fields = {
        "topic_name": topic,
        "partition_id": index,
        "replicas": cluster.related(*path, "replicas"),
        "reassignment": cluster.related(*path, "reassignment"),
    }
    if partition.leader_id >= 0:
        fields["leader"] = cluster.related(*path, "replicas", partition.leader_id)
    return cluster.resource("KafkaPartition", path, f"/topic={topic}/partition={index}", fields)


def replica_fields(
    cluster: ClusterLinks, topic: str, partition: MetadataResponsePartition, broker_id: int
) -> Fields:
    index = partition.partition_index
    return cluster.resource(
        "KafkaReplica",
        ("topics", topic, "partitions", index, "replicas", broker_id),
        f"/topic={topic}/partition={index}/replica={broker_id}",
        {
            "topic_name": topic,
            "partition_id": index,
            "broker_id": broker_id,
            "is_leader": partition.leader_id == broker_id,
            "is_in_sync": broker_id in partition.isr_nodes,
            "broker": cluster.related("brokers", broker_id),
        },
    )


# --- reassignments ---


@part.get(
    _TOPICS_PATH + "/-/partitions/-/reassignment",
    "List the reassignments under way",
    answer=_REASSIGNMENTS,
    errors=(404,),
)
async def list_all_reassignments(request: Request) -> Response:
    cluster = await cluster_of(request)
    found = await cluster.backend.ask(lambda admins: admins.cluster_admin.reassignments())
    return cluster.collection(
        "KafkaReassignmentList",
        ("topics", "-", "partitions", "-", "reassignment"),
        (_reassignment_fields(cluster, each, move) for each, move in sorted(found.items())),
    )


@part.get(
    _TOPIC_PATH + "/partitions/-/reassignment",
    "List the reassignments of a topic",
    answer=_REASSIGNMENTS,
    errors=(404,),
)
async def list_topic_reassignments(request: Request) -> Response:
    cluster = await cluster_of(request)
    name = (await topic_of(cluster, request)).name or ""
    found = await cluster.backend.ask(lambda admins: admins.cluster_admin.reassignments())
    return cluster.collection(
        "KafkaReassignmentList",
        ("topics", name, "partitions", "-", "reassignment"),
        (
            _reassignment_fields(cluster, each, move)
            for each, move in sorted(found.items())
            if each.topic == name
        ),
    )


@part.get(
    _PARTITION_PATH + "/reassignment",
    "Get the reassignment of a partition",
    answer=_REASSIGNMENT,
    errors=(404,),
)
async def get_reassignment(request: Request) -> Response:
    cluster = await cluster_of(request)
    name, partition = await _partition_of(cluster, request)
    found = await cluster.backend.ask(lambda admins: admins.cluster_admin.reassignments())
    wanted = TopicPartition(name, partition.partition_index)
    if wanted not in found:
        raise Problem(404, 404, f"{wanted} is not being reassigned")
    return json_answer(_reassignment_fields(cluster, wanted, found[wanted]))


def _reassignment_fields(cluster: ClusterLinks, partition: TopicPartition, move: Reassignment) -> Fields:
    path = ("topics", partition.topic, "partitions", partition.partition)
    return cluster.resource(
        "KafkaReassignment",
        (*path, "reassignment"),
        f"/topic={partition.topic}/partition={partition.partition}/reassignment",
        {
            "topic_name": partition.topic,
            "partition_id": partition.partition,
            "adding_replicas": move.adding,
            "removing_replicas": move.removing,
            "replicas": cluster.related(*path, "replicas"),
        },
    )


routes = part.routes
