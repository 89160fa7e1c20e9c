"""v3: consumer groups, their consumers, what these are assigned, and how far they are behind.

Both kinds of group are shown alike. A lag is known where the group has committed and the partition still exists;
other partitions are not in the lists, as in REST Proxy. Lags are those of the committed offsets against the high
watermark.
"""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.groups import GroupDescription, GroupMember, PartitionLag
from tidemill.client.connections.connection import Address
from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster import inquiries
from tidemill.gateway.cluster.backend import Admins
from tidemill.gateway.http.openapi import BOOLEAN, INTEGER, LONG, STRING, Part, nullable
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
from tidemill.types import TopicPartition

part = Part("Consumer groups (v3)", is_negotiated=True)

_GROUPS_PATH = "/v3/clusters/{cluster_id}/consumer-groups"
_GROUP_PATH = _GROUPS_PATH + "/{consumer_group_id}"
_CONSUMER_PATH = _GROUP_PATH + "/consumers/{consumer_id}"
_ASSIGNMENTS_PATH = _CONSUMER_PATH + "/assignments"
_OF_PARTITION = "/{topic_name}/partitions/{partition_id}"
# Stable becomes STABLE, PreparingRebalance becomes PREPARING_REBALANCE.
_WORD = re.compile(r"(?<=[a-z])(?=[A-Z])")

_GROUP = part.schema(
    "ConsumerGroup",
    resource_schema(
        "KafkaConsumerGroup",
        {
            "consumer_group_id": STRING,
            "is_simple": BOOLEAN,
            "partition_assignor": STRING,
            "state": STRING,
            "consumers": RELATED,
            "lag_summary": RELATED,
        },
        {"coordinator": RELATED},
    ),
)
_GROUPS = part.schema("ConsumerGroupList", collection_schema("KafkaConsumerGroupList", _GROUP))
_CONSUMER = part.schema(
    "Consumer",
    resource_schema(
        "KafkaConsumer",
        {"consumer_group_id": STRING, "consumer_id": STRING, "client_id": STRING, "assignments": RELATED},
        {"instance_id": nullable(STRING)},
    ),
)
_CONSUMERS = part.schema("ConsumerList", collection_schema("KafkaConsumerList", _CONSUMER))
_ASSIGNMENT = part.schema(
    "ConsumerAssignment",
    resource_schema(
        "KafkaConsumerAssignment",
        {
            "consumer_group_id": STRING,
            "consumer_id": STRING,
            "topic_name": STRING,
            "partition_id": INTEGER,
            "partition": RELATED,
            "lag": RELATED,
        },
    ),
)
_ASSIGNMENTS = part.schema(
    "ConsumerAssignmentList", collection_schema("KafkaConsumerAssignmentList", _ASSIGNMENT)
)
_LAG = part.schema(
    "ConsumerLag",
    resource_schema(
        "KafkaConsumerLag",
        {
            "consumer_group_id": STRING,
            "topic_name": STRING,
            "partition_id": INTEGER,
            "current_offset": LONG,
            "log_end_offset": LONG,
            "lag": LONG,
            "consumer_id": STRING,
            "client_id": STRING,
        },
        {"instance_id": nullable(STRING)},
    ),
)
_LAGS = part.schema("ConsumerLagList", collection_schema("KafkaConsumerLagList", _LAG))
_LAG_SUMMARY = part.schema(
    "ConsumerGroupLagSummary",
    resource_schema(
        "KafkaConsumerGroupLagSummary",
        {
            "consumer_group_id": STRING,
            "max_lag_consumer_id": STRING,
            "max_lag_client_id": STRING,
            "max_lag_topic_name": STRING,
            "max_lag_partition_id": INTEGER,
            "max_lag": LONG,
            "total_lag": LONG,
            "max_lag_consumer": RELATED,
            "max_lag_partition": RELATED,
        },
        {"max_lag_instance_id": nullable(STRING)},
    ),
)


# --- groups ---


@part.get(_GROUPS_PATH, "List consumer groups", answer=_GROUPS, errors=(404,))
async def list_consumer_groups(request: Request) -> Response:
    cluster = await cluster_of(request)

    def call(admins: Admins) -> list[Fields]:
        listed = {group.group_id: group.protocol_type for group in admins.group_admin.groups()}
        facts = [
            fact
            for broker_id in admins.cluster.broker_ids()
            for fact in inquiries.groups(admins.cluster, broker_id)
        ]
        return [
            _group_fields(
                cluster,
                fact.group_id,
                fact.state,
                fact.protocol if fact.members else "",
                fact.coordinator,
                is_simple=not listed.get(fact.group_id, "consumer"),
            )
            for fact in sorted(facts, key=lambda fact: fact.group_id)
        ]

    return cluster.collection("KafkaConsumerGroupList", ("consumer-groups",), await cluster.backend.ask(call))


@part.get(_GROUP_PATH, "Get a consumer group", answer=_GROUP, errors=(404,))
async def get_consumer_group(request: Request) -> Response:
    cluster = await cluster_of(request)
    group_id: str = request.path_params["consumer_group_id"]

    def call(admins: Admins) -> Fields:
        group = admins.group_admin.describe(group_id)
        address = admins.cluster.coordinator(group_id).address
        found = admins.metadata()
        ids = [each.node_id for each in found.brokers if Address(each.host, each.port) == address]
        is_simple = group.type == "classic" and not group.assignor and not group.members
        return _group_fields(
            cluster, group_id, group.state, group.assignor, ids[0] if ids else None, is_simple=is_simple
        )

    return json_answer(await cluster.backend.ask(call))


def _group_fields(
    cluster: ClusterLinks,
    group_id: str,
    state: str,
    assignor: str,
    coordinator: int | None,
    *,
    is_simple: bool,
) -> Fields:
    path = ("consumer-groups", group_id)
    fields: Fields = {
        "consumer_group_id": group_id,
        "is_simple": is_simple,
        "partition_assignor": assignor,
        "state": _WORD.sub("_", state).upper() or "UNKNOWN",
        "consumers": cluster.related(*path, "consumers"),
        "lag_summary": cluster.related(*path, "lag-summary"),
    }
    if coordinator is not None:
        fields["coordinator"] = cluster.related("brokers", coordinator)
    return cluster.resource("KafkaConsumerGroup", path, f"/consumer-group={group_id}", fields)


# --- consumers and assignments ---


@part.get(_GROUP_PATH + "/consumers", "List the consumers of a group", answer=_CONSUMERS, errors=(404,))
async def list_consumers(request: Request) -> Response:
    cluster = await cluster_of(request)
    group = await _group_of(cluster, request)
    return cluster.collection(
        "KafkaConsumerList",
        ("consumer-groups", group.group_id, "consumers"),
        (_consumer_fields(cluster, group, each) for each in group.members),
    )


@part.get(_CONSUMER_PATH, "Get a consumer", answer=_CONSUMER, errors=(404,))
async def get_consumer(request: Request) -> Response:
    cluster = await cluster_of(request)
    group = await _group_of(cluster, request)
    return json_answer(_consumer_fields(cluster, group, _consumer_of(group, request)))


@part.get(_ASSIGNMENTS_PATH, "List what a consumer is assigned", answer=_ASSIGNMENTS, errors=(404,))
async def list_assignments(request: Request) -> Response:
    cluster = await cluster_of(request)
    group = await _group_of(cluster, request)
    consumer = _consumer_of(group, request)
    return cluster.collection(
        "KafkaConsumerAssignmentList",
        ("consumer-groups", group.group_id, "consumers", consumer.member_id, "assignments"),
        (_assignment_fields(cluster, group, consumer, each) for each in sorted(consumer.assignment)),
    )


@part.get(_ASSIGNMENTS_PATH + _OF_PARTITION, "Get an assignment", answer=_ASSIGNMENT, errors=(404,))
async def get_assignment(request: Request) -> Response:
    cluster = await cluster_of(request)
    partition = _partition_named(request)
    group = await _group_of(cluster, request)
    consumer = _consumer_of(group, request)
    if partition not in consumer.assignment:
        raise Problem(404, 404, f"{partition} is not assigned to {consumer.member_id}")
    return json_answer(_assignment_fields(cluster, group, consumer, partition))


async def _group_of(cluster: ClusterLinks, request: Request) -> GroupDescription:
    group_id: str = request.path_params["consumer_group_id"]
    return await cluster.backend.ask(lambda admins: admins.group_admin.describe(group_id))


def _consumer_of(group: GroupDescription, request: Request) -> GroupMember:
    consumer_id: str = request.path_params["consumer_id"]
    for consumer in group.members:
        if consumer.member_id == consumer_id:
            return consumer
    raise Problem(404, 404, f"group {group.group_id} has no consumer {consumer_id}")


def _partition_named(request: Request) -> TopicPartition:
    return TopicPartition(request.path_params["topic_name"], path_integer(request, "partition_id"))


def _consumer_fields(cluster: ClusterLinks, group: GroupDescription, consumer: GroupMember) -> Fields:
    path = ("consumer-groups", group.group_id, "consumers", consumer.member_id)
    return cluster.resource(
        "KafkaConsumer",
        path,
        f"/consumer-group={group.group_id}/consumer={consumer.member_id}",
        {
            "consumer_group_id": group.group_id,
            "consumer_id": consumer.member_id,
            "instance_id": consumer.instance_id,
            "client_id": consumer.client_id,
            "assignments": cluster.related(*path, "assignments"),
        },
    )


def _assignment_fields(
    cluster: ClusterLinks, group: GroupDescription, consumer: GroupMember, partition: TopicPartition
) -> Fields:
    below = (partition.topic, "partitions", partition.partition)
    owner = f"/consumer-group={group.group_id}/consumer={consumer.member_id}"
    return cluster.resource(
        "KafkaConsumerAssignment",
        ("consumer-groups", group.group_id, "consumers", consumer.member_id, "assignments", *below),
        f"{owner}/assignment={partition.topic}/partition={partition.partition}",
        {
            "consumer_group_id": group.group_id,
            "consumer_id": consumer.member_id,
            "topic_name": partition.topic,
            "partition_id": partition.partition,
            "partition": cluster.related("topics", *below),
            "lag": cluster.related("consumer-groups", group.group_id, "lags", *below),
        },
    )


# --- lags ---


@part.get(_GROUP_PATH + "/lags", "List the lags of a group", answer=_LAGS, errors=(404,))
async def list_lags(request: Request) -> Response:
    cluster = await cluster_of(request)
    group_id, lags = await _lags_of(cluster, request)
    return cluster.collection(
        "KafkaConsumerLagList",
        ("consumer-groups", group_id, "lags"),
        (_lag_fields(cluster, group_id, each) for each in lags),
    )


@part.get(_GROUP_PATH + "/lags" + _OF_PARTITION, "Get a lag", answer=_LAG, errors=(404,))
async def get_lag(request: Request) -> Response:
    cluster = await cluster_of(request)
    partition = _partition_named(request)
    group_id, lags = await _lags_of(cluster, request)
    for each in lags:
        if each.partition == partition:
            return json_answer(_lag_fields(cluster, group_id, each))
    raise Problem(404, 404, f"group {group_id} has committed no offset of {partition}")


@part.get(
    _GROUP_PATH + "/lag-summary",
    "Get the largest and the total lag of a group",
    answer=_LAG_SUMMARY,
    errors=(404,),
)
async def get_lag_summary(request: Request) -> Response:
    cluster = await cluster_of(request)
    group_id, lags = await _lags_of(cluster, request)
    if not lags:
        raise Problem(404, 404, f"group {group_id} has committed no offset of a topic that exists")
    largest = max(lags, key=lambda each: each.lag or 0)
    consumer_id = largest.member.member_id if largest.member else ""
    topic, index = largest.partition
    summary = cluster.resource(
        "KafkaConsumerGroupLagSummary",
        ("consumer-groups", group_id, "lag-summary"),
        f"/consumer-group={group_id}/lag-summary",
        {
            "consumer_group_id": group_id,
            "max_lag_consumer_id": consumer_id,
            "max_lag_instance_id": largest.member.instance_id if largest.member else None,
            "max_lag_client_id": largest.member.client_id if largest.member else "",
            "max_lag_topic_name": topic,
            "max_lag_partition_id": index,
            "max_lag": largest.lag,
            "total_lag": sum(each.lag or 0 for each in lags),
            "max_lag_consumer": cluster.related("consumer-groups", group_id, "consumers", consumer_id),
            "max_lag_partition": cluster.related("topics", topic, "partitions", index),
        },
    )
    return json_answer(summary)


async def _lags_of(cluster: ClusterLinks, request: Request) -> tuple[str, list[PartitionLag]]:
    """Returns the group and the lags that are known."""
    group_id: str = request.path_params["consumer_group_id"]

    def call(admins: Admins) -> list[PartitionLag]:
        return admins.group_admin.lags(admins.group_admin.describe(group_id))

    found = await cluster.backend.ask(call)
    return group_id, [each for each in found if each.lag is not None]


def _lag_fields(cluster: ClusterLinks, group_id: str, lag: PartitionLag) -> Fields:
    topic, index = lag.partition
    return cluster.resource(
        "KafkaConsumerLag",
        ("consumer-groups", group_id, "lags", topic, "partitions", index),
        f"/consumer-group={group_id}/lag={topic}/partition={index}",
        {
            "consumer_group_id": group_id,
            "topic_name": topic,
            "partition_id": index,
            "consumer_id": lag.member.member_id if lag.member else "",
            "instance_id": lag.member.instance_id if lag.member else None,
            "client_id": lag.member.client_id if lag.member else "",
            # Where there is no commit, all of the partition is yet to be read.
            "current_offset": lag.start_offset if lag.committed_offset is None else lag.committed_offset,
            "log_end_offset": lag.end_offset,
            "lag": lag.lag,
        },
    )


routes = part.routes
