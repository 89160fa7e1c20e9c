"""`/v1/topics/{topic}/shrink`: a topic gets fewer partitions, how far that is, and how it is taken back."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.shrinking import Shrink, ShrinkAdmin
from tidemill.gateway.answers import json_answer
from tidemill.gateway.cluster.access import backend_of
from tidemill.gateway.http.bodies import read_json_object
from tidemill.gateway.http.formats import integer, member, only, optional_boolean
from tidemill.gateway.http.openapi import (
    BOOLEAN,
    INTEGER,
    LONG,
    PARTITION_MAX,
    STRING,
    Part,
    array,
    nullable,
    obj,
)
from tidemill.gateway.problems import Problem

part = Part("Fewer partitions")

_PATH = "/v1/topics/{topic}/shrink"
_DECOMMISSIONED = obj({"partition": INTEGER, "records_left": LONG, "bytes": nullable(LONG)})
_SHRINK = part.schema(
    "Shrink",
    obj(
        {
            "topic": STRING,
            "partitions": INTEGER,
            "active": {**INTEGER, "description": "How many partitions take new records."},
            "keeps_records_for_ever": {
                **BOOLEAN,
                "description": "Retention never empties a partition: its records have to be deleted.",
            },
            "decommissioned": array(_DECOMMISSIONED),
        }
    ),
)
_WANTED = part.schema(
    "NewShrink",
    obj(
        {"partitions": {**INTEGER, "minimum": 1, "maximum": PARTITION_MAX}},
        {
            "unkeyed": {
                **BOOLEAN,
                "description": "Allow a number that does not divide the old one: a key may change its partition.",
            }
        },
        is_closed=True,
    ),
)


@part.get(
    _PATH,
    "How far a topic is on its way to fewer partitions",
    answer=_SHRINK,
    errors=(400, 404),
    description="`decommissioned` is empty when all partitions take new records. Needs DescribeConfigs on the topic.",
)
async def get_shrink(request: Request) -> Response:
    return await _answer(request)


@part.post(
    _PATH,
    "Give a topic fewer partitions",
    body=_WANTED,
    answer=_SHRINK,
    status=202,
    errors=(400, 404),
    description=(
        "The others take no new records, stay readable until retention has emptied them, and disappear then, the highest "
        "first. Producers need not know. Needs AlterConfigs on the topic."
    ),
)
async def shrink(request: Request) -> Response:
    topic: str = request.path_params["topic"]
    given = await read_json_object(request)
    only(given, {"partitions", "unkeyed"})
    count = integer(member(given, "partitions", int), "partitions", 1, PARTITION_MAX)
    is_unkeyed = optional_boolean(given, "unkeyed")
    backend = backend_of(request)
    await backend.partition_count(topic)
    await backend.ask(lambda admins: ShrinkAdmin(admins.admin).begin(topic, count, is_unkeyed=is_unkeyed))
    return await _answer(request, 202)


@part.delete(
    _PATH,
    "Take a shrink back",
    answer=_SHRINK,
    errors=(400, 404),
    description="The partitions that are left take new records again. 404 when the topic is not getting fewer partitions.",
)
async def cancel_shrink(request: Request) -> Response:
    topic: str = request.path_params["topic"]
    backend = backend_of(request)
    await backend.partition_count(topic)
    if not await backend.ask(lambda admins: ShrinkAdmin(admins.admin).cancel(topic)):
        raise Problem(404, 404, f"topic {topic} is not getting fewer partitions")
    return await _answer(request)


async def _answer(request: Request, status: int = 200) -> Response:
    topic: str = request.path_params["topic"]
    backend = backend_of(request)
    await backend.partition_count(topic)
    found = await backend.ask(lambda admins: ShrinkAdmin(admins.admin).progress(topic))
    return json_answer(_fields(found), status)


def _fields(found: Shrink) -> dict[str, object]:
    return {
        "topic": found.topic,
        "partitions": found.partition_count,
        "active": found.active,
        "keeps_records_for_ever": found.keeps_records_for_ever,
        "decommissioned": [
            {"partition": each.partition, "records_left": each.records_left, "bytes": each.size_bytes}
            for each in found.decommissioned
        ],
    }
