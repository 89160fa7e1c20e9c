"""`/v1/topics/{topic}/delays`: the delayed records of a topic: which wait, cancel one, give one another time.

The leaders of the partitions know what waits. A page costs as much as it shows, and few are read at the same time. The
cluster authorises each request (Read and AlterConfigs on the topic).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from tidemill.client.admin.delays import DelayAdmin, NotPending, PendingMessage
from tidemill.delays.requests import SCHEDULE_ID
from tidemill.gateway.answers import JSON, json_answer, json_bytes
from tidemill.gateway.cluster.access import access_of, backend_of
from tidemill.gateway.cluster.backend import Admins
from tidemill.gateway.http.bodies import read_json_object
from tidemill.gateway.http.formats import invalid, number_in, only
from tidemill.gateway.http.openapi import (
    INTEGER,
    LONG,
    PARTITION_MAX,
    STRING,
    Part,
    array,
    nullable,
    obj,
    query,
)
from tidemill.gateway.problems import Problem
from tidemill.gateway.simple import times
from tidemill.gateway.simple.read import key_json, value_json
from tidemill.protocol.records import Header

T = TypeVar("T")

part = Part("Delays")

_LIMIT, _LIMIT_MAX = 100, 1000
_OFFSET_MAX = 2**63 - 1
_VALUE_BYTES_MAX = 4096
# Each takes a thread of the gateway for as long as it reads.
_LISTINGS_MAX = 2

_MESSAGE = obj(
    {
        "partition": INTEGER,
        "offset": LONG,
        "due_ms": LONG,
        "key": {},
        "schedule_id": nullable(STRING),
        "cron": nullable(STRING),
        "time_zone": nullable(STRING),
        "size": LONG,
    },
    {"value": {}, "format": STRING, "key_format": STRING},
)
Listing = part.schema("DelayedMessages", obj({"messages": array(_MESSAGE), "next": nullable(STRING)}))
Times = part.schema("DelayTimes", obj({}, times.SCHEMAS, is_closed=True, minProperties=1))


@part.get(
    "/v1/topics/{topic}/delays",
    "List the records that wait",
    answer=Listing,
    errors=(400, 404),
    parameters=(
        query(
            "limit",
            {**INTEGER, "minimum": 1, "maximum": _LIMIT_MAX},
            f"At most so many; {_LIMIT} without it.",
        ),
        query(
            "after",
            {**STRING, "pattern": "^[0-9]{1,9}:[0-9]{1,18}$"},
            "Go on after a page: the `next` of its answer.",
        ),
    ),
    description=(
        "Pages follow the partitions and their offsets. The messages of a page are sorted by the time they are due. "
        f"`next` is null on the last page. A value above {_VALUE_BYTES_MAX} bytes is left out. "
        "Needs AlterConfigs on the topic besides Read."
    ),
)
async def list_delays(request: Request) -> Response:
    topic = request.path_params["topic"]
    limit = number_in(request.query_params.get("limit", str(_LIMIT)), "limit", _LIMIT_MAX)
    if limit == 0:
        raise Problem(400, 400, "limit should be at least 1")
    place = _page_start(request.query_params.get("after", "0:0"))
    backend = backend_of(request)
    await backend.partition_count(topic)
    async with access_of(request).keep("listings", lambda: asyncio.Semaphore(_LISTINGS_MAX)):
        page = await backend.ask(
            lambda admins: DelayAdmin(admins.cluster).page(topic, limit, place, _VALUE_BYTES_MAX)
        )
    rows = b",".join(map(_row, page.messages))
    following = b"null" if page.next_place is None else b'"%d:%d"' % page.next_place
    return Response(b'{"messages":[%b],"next":%b}' % (rows, following), media_type=JSON)


def _page_start(token: str) -> tuple[int, int]:
    partition, colon, offset = token.partition(":")
    if not colon:
        raise Problem(400, 400, "after should be the next of another page")
    return number_in(partition, "after", PARTITION_MAX), number_in(offset, "after", _OFFSET_MAX)


@part.delete(
    "/v1/topics/{topic}/delays/{partition}/{offset}",
    "Cancel a record that waits",
    errors=(400, 404),
    description="404 when no record waits at the offset. A record is delivered or cancelled, never both.",
)
async def cancel(request: Request) -> Response:
    topic, partition, offset = _place(request)
    await _check_partition(request, topic, partition)
    await _ask(request, lambda delays: delays.cancel(topic, partition, offset))
    return Response(status_code=204)


@part.patch(
    "/v1/topics/{topic}/delays/{partition}/{offset}",
    "Give a record that waits another time",
    body=Times,
    answer=obj({"partition": INTEGER, "offset": LONG}),
    errors=(404,),
    description="The record is written anew, and waits at another offset then. It keeps its schedule id.",
)
async def reschedule(request: Request) -> Response:
    topic, partition, offset = _place(request)
    given = await read_json_object(request)
    only(given, times.MEMBERS)
    if not given:
        raise invalid("the body has no time; it should have delay, deliver_at or cron")
    headers = times.headers_of(given, "the body")
    _check_times(headers)
    await _check_partition(request, topic, partition)
    moved = [Header(*each) for each in headers]
    new_offset = await _ask(request, lambda delays: delays.reschedule(topic, partition, offset, moved))
    return json_answer({"partition": partition, "offset": new_offset})


def _check_times(headers: list[tuple[str, bytes]]) -> None:
    named = headers
    if all(name != SCHEDULE_ID for name, _ in headers):
        # The record may have an id already. Whether a schedule finds one is for the broker to say.
        named = [*headers, (SCHEDULE_ID, b"-")]
    times.check(named, "the body", None)


def _place(request: Request) -> tuple[str, int, int]:
    parameters = request.path_params
    return (
        parameters["topic"],
        _number(parameters["partition"], "the partition", PARTITION_MAX),
        _number(parameters["offset"], "the offset", _OFFSET_MAX),
    )


def _number(given: str, name: str, high: int) -> int:
    try:
        return number_in(given, name, high)
    except Problem as problem:
        # A part of a path that is no number names nothing.
        raise Problem(404, 404, problem.message) from None


async def _ask(request: Request, call: Callable[[DelayAdmin], T]) -> T:
    def asked(admins: Admins) -> T:
        try:
            return call(DelayAdmin(admins.cluster))
        except NotPending as error:
            raise Problem(404, 404, error.message) from None

    return await backend_of(request).ask(asked)


async def _check_partition(request: Request, topic: str, partition: int) -> None:
    count = await backend_of(request).partition_count(topic)
    if partition >= count:
        raise Problem(404, 40402, f"topic {topic} has no partition {partition}, only 0 to {count - 1}")


def _row(message: PendingMessage) -> bytes:
    facts = {
        "partition": message.partition,
        "offset": message.offset,
        "due_ms": message.due_ms,
        "schedule_id": message.schedule_id,
        "cron": message.schedule,
        "time_zone": message.time_zone,
        "size": message.value_bytes,
    }
    key, key_format = key_json(message.key)
    members = [(b"key", key)]
    if key_format:
        members.append((b"key_format", b'"%b"' % key_format))
    if len(message.value or b"") == message.value_bytes:
        value, value_format = value_json(message.value)
        members.append((b"value", value))
        if value_format:
            members.append((b"format", b'"%b"' % value_format))
    return json_bytes(facts)[:-1] + b"".join(b',"%b":%b' % each for each in members) + b"}"
