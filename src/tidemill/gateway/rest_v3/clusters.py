"""v3: clusters and brokers. There is one cluster: the one that the gateway stands before."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster.access import backend_of
from tidemill.gateway.cluster.backend import Admins
from tidemill.gateway.http.openapi import INTEGER, STRING, Part, nullable, ref
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
from tidemill.gateway.rest_v3.topics import replica_fields
from tidemill.protocol.api.cluster import MetadataResponse, MetadataResponseBroker

part = Part("Clusters and brokers (v3)", is_negotiated=True)

_CLUSTER = part.schema(
    "Cluster",
    resource_schema(
        "KafkaCluster",
        {
            "brokers": RELATED,
            "broker_configs": RELATED,
            "consumer_groups": RELATED,
            "topics": RELATED,
            "partition_reassignments": RELATED,
        },
        {"controller": RELATED},
    ),
)
_CLUSTERS = part.schema("ClusterList", collection_schema("KafkaClusterList", _CLUSTER))
_BROKER = part.schema(
    "Broker",
    resource_schema(
        "KafkaBroker",
        {
            "broker_id": INTEGER,
            "host": STRING,
            "port": INTEGER,
            "configs": RELATED,
            "partition_replicas": RELATED,
        },
        {"rack": nullable(STRING)},
    ),
)
_BROKERS = part.schema("BrokerList", collection_schema("KafkaBrokerList", _BROKER))


@part.get("/v3/clusters", "List clusters", answer=_CLUSTERS)
async def list_clusters(request: Request) -> Response:
    found = await backend_of(request).ask(Admins.metadata)
    cluster = ClusterLinks(request, found.cluster_id or "")
    url = f"{request.base_url}v3/clusters"
    return json_answer(
        {
            "kind": "KafkaClusterList",
            "metadata": {"self": url, "next": None},
            "data": [_cluster_fields(cluster, found, await backend_of(request).controller_id())],
        }
    )


@part.get("/v3/clusters/{cluster_id}", "Get a cluster", answer=_CLUSTER, errors=(404,))
async def get_cluster(request: Request) -> Response:
    cluster = await cluster_of(request)
    found = await cluster.backend.ask(Admins.metadata)
    return json_answer(_cluster_fields(cluster, found, await cluster.backend.controller_id()))


def _cluster_fields(cluster: ClusterLinks, found: MetadataResponse, controller_id: int | None) -> Fields:
    """A controller that is no broker has no resource to link to."""
    fields: Fields = {
        "brokers": cluster.related("brokers"),
        "broker_configs": cluster.related("broker-configs"),
        "consumer_groups": cluster.related("consumer-groups"),
        "topics": cluster.related("topics"),
        "partition_reassignments": cluster.related("topics", "-", "partitions", "-", "reassignment"),
    }
    if controller_id is not None and any(broker.node_id == controller_id for broker in found.brokers):
        fields["controller"] = cluster.related("brokers", controller_id)
    return cluster.resource("KafkaCluster", (), "", fields)


# --- brokers ---


@part.get("/v3/clusters/{cluster_id}/brokers", "List brokers", answer=_BROKERS, errors=(404,))
async def list_brokers(request: Request) -> Response:
    cluster = await cluster_of(request)
    found = await cluster.backend.ask(Admins.metadata)
    brokers = sorted(found.brokers, key=lambda each: each.node_id)
    return cluster.collection(
        "KafkaBrokerList", ("brokers",), (_broker_fields(cluster, each) for each in brokers)
    )


@part.get("/v3/clusters/{cluster_id}/brokers/{broker_id}", "Get a broker", answer=_BROKER, errors=(404,))
async def get_broker(request: Request) -> Response:
    cluster = await cluster_of(request)
    broker_id = path_integer(request, "broker_id")
    found = await cluster.backend.ask(Admins.metadata)
    for broker in found.brokers:
        if broker.node_id == broker_id:
            return json_answer(_broker_fields(cluster, broker))
    raise unknown_broker(broker_id)


@part.get(
    "/v3/clusters/{cluster_id}/brokers/{broker_id}/partition-replicas",
    "List the replicas on a broker",
    answer=ref("ReplicaList"),
    errors=(404,),
)
async def list_broker_replicas(request: Request) -> Response:
    cluster = await cluster_of(request)
    broker_id = path_integer(request, "broker_id")
    found = await cluster.backend.ask(lambda admins: admins.metadata(None))
    if all(broker.node_id != broker_id for broker in found.brokers):
        raise unknown_broker(broker_id)
    replicas = [
        replica_fields(cluster, topic.name or "", partition, broker_id)
        for topic in sorted(found.topics, key=lambda each: each.name or "")
        for partition in sorted(topic.partitions, key=lambda each: each.partition_index)
        if broker_id in partition.replica_nodes
    ]
    return cluster.collection("KafkaReplicaList", ("brokers", broker_id, "partition-replicas"), replicas)


def _broker_fields(cluster: ClusterLinks, broker: MetadataResponseBroker) -> Fields:
    path = ("brokers", broker.node_id)
    return cluster.resource(
        "KafkaBroker",
        path,
        f"/broker={broker.node_id}",
        {
            "broker_id": broker.node_id,
            "host": broker.host,
            "port": broker.port,
            "rack": broker.rack,
            "configs": cluster.related(*path, "configs"),
            "partition_replicas": cluster.related(*path, "partition-replicas"),
        },
    )


def unknown_broker(broker_id: int) -> Problem:
    return Problem(404, 404, f"there is no broker {broker_id}")


routes = part.routes
