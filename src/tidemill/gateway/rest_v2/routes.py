"""REST Proxy v2's topics, partitions and brokers, and producing to them.

A record's key and value are written as the Content-Type says (`media.py`). The answer has one element for each
record, in their order: where it was written, or why not (`error_code` 1: not to be tried again, 2: may be tried
again). The records of one request are handed over together; one that the cluster refuses does not hold up the others.
A body that is wrong in any record is refused as a whole, before any of it is written.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.topics import ResourceType
from tidemill.gateway.answers import JSON, json_bytes_in_turns
from tidemill.gateway.cluster.access import backend_of
from tidemill.gateway.cluster.backend import Admins, Backend, Delivery
from tidemill.gateway.http.bodies import check_media_type, kind_of, media_type_of
from tidemill.gateway.http.formats import Kind, encode, integer, invalid, member, text
from tidemill.gateway.http.openapi import (
    BASE64,
    BOOLEAN,
    INTEGER,
    LONG,
    PARTITION,
    PARTITION_MAX,
    STRING,
    Part,
    Schema,
    array,
    nullable,
    obj,
)
from tidemill.gateway.http.record_bodies import RecordBody, read_records
from tidemill.gateway.problems import Problem
from tidemill.gateway.rest_v2.media import (
    FORMATS,
    GENERIC,
    SCHEMA_FORMATS,
    V2,
    answer_type,
    embedded,
    in_generic,
    v2_answer,
)
from tidemill.gateway.turns import turn_of
from tidemill.protocol.api.cluster import MetadataResponsePartition, MetadataResponseTopic
from tidemill.types import TopicPartition

T = TypeVar("T")

part = Part("Topics (v2)")

_TIMESTAMP_MAX = 2**63 - 1
# Where a topic's value for a configuration comes from: it was set for the topic itself.
_SOURCE_TOPIC = 1
_NOT_RETRIABLE, _RETRIABLE = 1, 2

Replica = obj({"broker": INTEGER, "leader": BOOLEAN, "in_sync": BOOLEAN})
PartitionInfo = part.schema(
    "PartitionV2", obj({"partition": INTEGER, "leader": INTEGER, "replicas": array(Replica)})
)
TopicInfo = part.schema(
    "TopicV2",
    obj(
        {
            "name": STRING,
            "configs": {"type": "object", "additionalProperties": nullable(STRING)},
            "partitions": array(PartitionInfo),
        }
    ),
)
_SCHEMA_ID_MAX = 2**31 - 1
_SCHEMA_ID = {**INTEGER, "minimum": 0, "maximum": _SCHEMA_ID_MAX}
_schemas = {
    "key_schema": nullable(STRING),
    "key_schema_id": nullable(_SCHEMA_ID),
    "value_schema": nullable(STRING),
    "value_schema_id": nullable(_SCHEMA_ID),
}
_TIMESTAMP = nullable({**LONG, "minimum": 0, "maximum": _TIMESTAMP_MAX})
_PARTITION = nullable(PARTITION)
_DATA: dict[Kind, Schema] = {Kind.BINARY: nullable(BASE64), Kind.STRING: nullable(STRING), Kind.JSON: {}}


def _bodies(name: str, more: dict[str, Schema]) -> dict[str, Schema]:
    """Returns the schema of a body in each media type, as schemas with names."""
    found: dict[str, Schema] = {}
    for kind, data in _DATA.items():
        record = obj({}, {"key": data, "value": data, "timestamp": _TIMESTAMP, **more})
        records = {**array(record), "minItems": 1}
        found[kind] = part.schema(f"{name}{kind.capitalize()}", obj({"records": records}, _schemas))
    return {
        **{embedded(format_name): found[kind] for format_name, kind in FORMATS.items()},
        **dict.fromkeys((V2, JSON), found[Kind.BINARY]),
    }


Produced = part.schema(
    "ProducedV2",
    obj(
        {
            "offsets": array(
                obj(
                    {
                        "partition": nullable(INTEGER),
                        "offset": nullable(LONG),
                        "error_code": nullable(INTEGER),
                        "error": nullable(STRING),
                    }
                )
            ),
            "key_schema_id": nullable(INTEGER),
            "value_schema_id": nullable(INTEGER),
        }
    ),
)


# --- what there is ---


@part.get("/brokers", "The brokers' ids", answer=in_generic(obj({"brokers": array(INTEGER)})))
async def list_brokers(request: Request) -> Response:
    found = await backend_of(request).ask(lambda admins: admins.admin.describe_cluster())
    return v2_answer(request, {"brokers": sorted(broker.broker_id for broker in found.brokers)})


@part.get("/topics", "The topics' names, without internal ones", answer=in_generic(array(STRING)))
async def list_topics(request: Request) -> Response:
    found = await backend_of(request).ask(lambda admins: admins.admin.topics())
    return v2_answer(request, [topic.name for topic in found if not topic.is_internal])


@part.get(
    "/topics/{topic}",
    "A topic, with its partitions and the configuration that was set for it",
    answer=in_generic(TopicInfo),
    errors=(404,),
)
async def get_topic(request: Request) -> Response:
    name = request.path_params["topic"]

    def ask(admins: Admins) -> tuple[MetadataResponseTopic, dict[str, str | None]]:
        topic = _existing(admins, name)
        configs = admins.admin.describe_configs(ResourceType.TOPIC, name)
        return topic, {each.name: each.value for each in configs if each.config_source == _SOURCE_TOPIC}

    topic, configs = await backend_of(request).ask(ask)
    partitions = [_partition_info(partition) for partition in topic.partitions]
    return v2_answer(request, {"name": name, "configs": configs, "partitions": partitions})


@part.get(
    "/topics/{topic}/partitions",
    "A topic's partitions",
    answer=in_generic(array(PartitionInfo)),
    errors=(404,),
)
async def list_partitions(request: Request) -> Response:
    name = request.path_params["topic"]
    topic = await backend_of(request).ask(lambda admins: _existing(admins, name))
    return v2_answer(request, [_partition_info(partition) for partition in topic.partitions])


@part.get(
    "/topics/{topic}/partitions/{partition}",
    "A partition",
    answer=in_generic(PartitionInfo),
    errors=(404,),
)
async def get_partition(request: Request) -> Response:
    name, index = _partition_path(request)
    topic = await backend_of(request).ask(lambda admins: _existing(admins, name))
    return v2_answer(request, _partition_info(_partition_of(topic, index)))


@part.get(
    "/topics/{topic}/partitions/{partition}/offsets",
    "Where a partition begins and ends",
    answer=in_generic(obj({"beginning_offset": LONG, "end_offset": LONG})),
    errors=(404,),
)
async def get_offsets(request: Request) -> Response:
    name, index = _partition_path(request)

    def ask(admins: Admins) -> tuple[int, int]:
        _partition_of(_existing(admins, name), index)
        partition = TopicPartition(name, index)
        return admins.admin.start_offsets([partition])[partition], admins.admin.end_offsets([partition])[
            partition
        ]

    beginning, end = await backend_of(request).ask(ask)
    return v2_answer(request, {"beginning_offset": beginning, "end_offset": end})


def _existing(admins: Admins, name: str) -> MetadataResponseTopic:
    topic = admins.admin.existing_topics([name]).get(name)
    if topic is None:
        raise _no_topic(name)
    topic.partitions.sort(key=lambda partition: partition.partition_index)
    return topic


def _no_topic(name: str) -> Problem:
    return Problem(404, 40401, f"there is no topic {name}")


def _partition_path(request: Request) -> tuple[str, int]:
    text = request.path_params["partition"]
    if not text.isascii() or not text.isdecimal() or int(text) > PARTITION_MAX:
        raise Problem(404, 40402, f"{text!r} is not a partition's number")
    return request.path_params["topic"], int(text)


def _partition_of(topic: MetadataResponseTopic, index: int) -> MetadataResponsePartition:
    for partition in topic.partitions:
        if partition.partition_index == index:
            return partition
    raise Problem(
        404, 40402, f"topic {topic.name} has no partition {index}, only 0 to {len(topic.partitions) - 1}"
    )


def _partition_info(partition: MetadataResponsePartition) -> dict[str, Any]:
    return {
        "partition": partition.partition_index,
        "leader": partition.leader_id,
        "replicas": [
            {
                "broker": broker,
                "leader": broker == partition.leader_id,
                "in_sync": broker in partition.isr_nodes,
            }
            for broker in partition.replica_nodes
        ],
    }


# --- producing ---


@part.post(
    "/topics/{topic}",
    "Produce records to a topic",
    body=_bodies("ProduceV2", {"partition": _PARTITION}),
    answer=in_generic(Produced),
    errors=(404,),
    description="Without a format in the Content-Type, keys and values are base64. A record without partition goes where "
    "its key says.",
)
async def produce_to_topic(request: Request) -> Response:
    return await _produce(request, request.path_params["topic"], None)


@part.post(
    "/topics/{topic}/partitions/{partition}",
    "Produce records to a partition",
    body=_bodies("ProduceToPartitionV2", {}),
    answer=in_generic(Produced),
    errors=(404,),
)
async def produce_to_partition(request: Request) -> Response:
    return await _produce(request, *_partition_path(request))


async def _produce(request: Request, topic: str, partition: int | None) -> Response:
    media_type = answer_type(request)
    check_media_type(request, _PRODUCE_TYPES)
    kind = _PRODUCE_TYPES[media_type_of(request)]
    if kind is None:
        given = await read_records(request, lambda record, _: record, media_types=_PRODUCE_TYPES)
        _check_schemas(given.members)
        raise _no_registry(given.members, _some(given))
    body = await read_records(
        request,
        lambda record, number: _Record(record, f"records[{number}]", kind, partition),
        media_types=_PRODUCE_TYPES,
    )
    records = _some(body)
    _check_schemas(body.members)
    backend = backend_of(request)
    await _check_topic(backend, topic, {each.partition for each in records if each.partition is not None})
    turn = turn_of(request)
    # Handed over one after the other, which keeps their order; then all of them are waited for.
    handed_over = []
    for record in records:
        handed_over.append(await record.hand_over(backend, topic))
        if turn.is_over:
            await turn.give_way()
    written = []
    for delivery in handed_over:
        written.append(await _outcome(delivery))
        if turn.is_over:
            await turn.give_way()
    answer = {"offsets": written, "key_schema_id": None, "value_schema_id": None}
    return Response(await json_bytes_in_turns(answer, turn), media_type=media_type)


def _some(body: RecordBody[T]) -> list[T]:
    """The records, of which there has to be one."""
    records = body.records
    if records is None:
        records = member(body.members, "records", list)
    if not records:
        raise invalid("records is empty")
    return records


_PRODUCE_TYPES: dict[str, Kind | None] = {
    **dict.fromkeys(GENERIC, Kind.BINARY),
    **{embedded(name): kind for name, kind in FORMATS.items()},
    **dict.fromkeys(map(embedded, SCHEMA_FORMATS)),
}


async def _check_topic(backend: Backend, topic: str, partitions: set[int]) -> None:
    try:
        count = await backend.partition_count(topic)
        if any(partition >= count for partition in partitions):
            count = await backend.partition_count(topic, is_known_enough=False)
    except Problem as problem:
        raise _no_topic(topic) if problem.status == 404 else problem from None
    for partition in sorted(partitions):
        if partition >= count:
            raise Problem(404, 40402, f"topic {topic} has no partition {partition}, only 0 to {count - 1}")


class _Record:
    def __init__(self, record: Any, where: str, kind: Kind, partition: int | None) -> None:
        if not isinstance(record, dict):
            raise invalid(f"{where} should be an object, not {kind_of(record)}")
        self.key = encode(kind, record.get("key"), f"{where}.key")
        self.value = encode(kind, record.get("value"), f"{where}.value")
        self.partition = partition
        if partition is None and record.get("partition") is not None:
            self.partition = integer(record["partition"], f"{where}.partition", 0, PARTITION_MAX)
        self.timestamp_ms: int | None = None
        if record.get("timestamp") is not None:
            self.timestamp_ms = integer(record["timestamp"], f"{where}.timestamp", 0, _TIMESTAMP_MAX)

    async def hand_over(self, backend: Backend, topic: str) -> asyncio.Future[Delivery] | Problem:
        try:
            return await backend.submit(topic, self.partition, self.key, self.value, (), self.timestamp_ms)
        except Problem as problem:
            return problem


async def _outcome(delivery: asyncio.Future[Delivery] | Problem) -> dict[str, Any]:
    if isinstance(delivery, Problem):
        return _failed(delivery)
    try:
        return _written(await delivery)
    except Problem as problem:
        return _failed(problem)


def _written(delivery: Delivery) -> dict[str, Any]:
    return {"partition": delivery.partition, "offset": delivery.offset, "error_code": None, "error": None}


def _failed(problem: Problem) -> dict[str, Any]:
    code = _RETRIABLE if problem.status in (429, 503) else _NOT_RETRIABLE
    return {"partition": None, "offset": None, "error_code": code, "error": problem.message}


def _check_schemas(members: dict[str, Any]) -> None:
    """Formats without schemas do not use them, but what is given has to be one."""
    for name in ("key_schema", "value_schema"):
        if members.get(name) is not None:
            text(members[name], name)
        if members.get(f"{name}_id") is not None:
            integer(members[f"{name}_id"], f"{name}_id", 0, _SCHEMA_ID_MAX)


def _no_registry(document: dict[str, Any], records: list[Any]) -> Problem:
    """As REST Proxy refuses formats with schemas: first for what is missing, then for the unreachable registry."""
    for code, name in ((42201, "key"), (42202, "value")):
        is_used = any(isinstance(record, dict) and record.get(name) is not None for record in records)
        if is_used and document.get(f"{name}_schema") is None and document.get(f"{name}_schema_id") is None:
            return Problem(
                422,
                code,
                f"the records have {name}s, but neither {name}_schema nor {name}_schema_id is given",
            )
    formats = ", ".join(FORMATS)
    return Problem(
        408, 40801, f"no schema can be looked up, because the gateway has no schema registry; use {formats}"
    )


routes = part.routes
